"""What a reply takes as objects is told from its bytes: never too little, and not far too much."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from waybill.processing.sandbox import reply_memory
from waybill.processing.sandbox.frames import is_too_large, pack, unpack, written
from waybill.processing.sandbox.reply_memory import is_json_too_large

COUNT = 2_000
VALUES = [
    {}, [], {"a": 1}, {0: 0}, {str(n): n for n in range(9)}, {str(n): n for n in range(40)}, [[[]]], None, 7, -20,
    70_000, 2**63, 2**200, 0.5, "", "ab", "\U0001f600" * 3, "x" * 100, "é" * 300, "x" * 300 + "\U0001f600",
    b"x" * 40, "\ud800" * 20, {"\ud800": [{}, {}]}, [[1] * 100],
]  # fmt: skip


def memory_of(read: Callable[[], Any]) -> int:
    """Return the bytes of the objects that are read."""
    tracemalloc.start()
    kept = read()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return size


def limits(size: int, is_large: Callable[[], bool]) -> tuple[bool, bool]:
    """Return whether a little less than this is too little, and whether nine times as much is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reply_memory, "_MOST_EXPANSION", 10**6)
        patch.setattr(reply_memory, "_MOST_JSON_EXPANSION", 10**6)
        patch.setattr(reply_memory, "LARGEST_MEMORY_BYTES", size * 0.95)
        less = is_large()
        patch.setattr(reply_memory, "LARGEST_MEMORY_BYTES", size * 9)
        return less, is_large()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_no_value_takes_more_than_its_bytes_tell(value: Any) -> None:
    body, fault = written([value] * COUNT)
    assert fault is None
    content = bytearray(pack(body))
    size = memory_of(lambda: unpack(content))
    assert limits(size, lambda: is_too_large(content)) == (True, False)
    assert size <= reply_memory._MOST_EXPANSION * len(content)


@pytest.mark.parametrize(
    "value", [{}, [], {"": 0}, {"a": [1, 2.5, "xyz"]}, "\U0001f600é", [[0]], -1e5], ids=str
)
def test_no_json_text_takes_more_than_its_characters_tell(value: Any) -> None:
    text = json.dumps([value] * COUNT, ensure_ascii=False, separators=(",", ":"))
    size = memory_of(lambda: json.loads(text))
    assert limits(size, lambda: is_json_too_large([None, text])) == (True, False)
    assert size <= reply_memory._MOST_JSON_EXPANSION * len(text)
