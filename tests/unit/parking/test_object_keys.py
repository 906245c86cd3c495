"""Keys of objects say what they hold; what only looks like one says nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from waybill.parking.object_keys import (
    cut_segment,
    first_moved,
    new_cut_key,
    new_refused_key,
    new_rewritten_key,
    new_unloaded_key,
    refused_message,
    unloaded_commit,
)

LARGEST = 2**63 - 1
WAL = "ab" * 16
END = f"{'0' * 32}.jsonl.zst"


def test_a_key_gives_back_what_it_was_made_of() -> None:
    assert unloaded_commit(new_unloaded_key("lager/\u00fc", LARGEST)) == ("lager/\u00fc", LARGEST)
    assert unloaded_commit(new_unloaded_key("", 0)) == ("", 0)
    assert refused_message(new_refused_key(WAL, LARGEST)) == (WAL, LARGEST)
    assert cut_segment(new_cut_key(LARGEST)) == first_moved(new_rewritten_key(LARGEST)) == LARGEST


@pytest.mark.parametrize(
    ("read", "key"),
    [
        (unloaded_commit, f"parked/unloaded/abc/1/{END}"),
        (unloaded_commit, f"parked/unloaded/ff/1/{END}"),
        (unloaded_commit, f"parked/unloaded/eda080/1/{END}"),
        (unloaded_commit, f"parked/unloaded/770078/1/{END}"),
        (unloaded_commit, f"parked/unloaded/77/{LARGEST + 1}/{END}"),
        (refused_message, f"parked/refused/{WAL}/{LARGEST + 1}/{END}"),
        (cut_segment, f"parked/cut/{LARGEST + 1}/{END}"),
        (first_moved, f"parked/rewritten/{10**19 - 1}/{END}"),
    ],
    ids=["half a byte", "no text", "half a pair", "NUL", "commit", "lsn", "cut", "moved"],
)
def test_a_key_that_only_looks_like_one_is_none(read: Callable[[str], object], key: str) -> None:
    assert read(key) is None
