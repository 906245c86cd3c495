"""What is loaded again after a destination was put back goes in parts that its loader holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waybill.ledger.positions import StagedReference
from waybill.loading.reload import Reload

MIB = 1024**2


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([(10, 100 * MIB)] * 5, [[1, 2], [3, 4], [5]]),
        ([(300_000, MIB), (1, 1)], [[1], [2]]),
        ([(1, 300 * MIB), (1, 1), (1, 1)], [[1], [2, 3]]),
        ([(100_000, MIB)] * 3, [[1, 2], [3]]),
    ],
    ids=["bytes", "one commit has more rows", "one commit has more bytes", "rows"],
)
def test_a_part_has_whole_commits_up_to_its_rows_and_bytes(monkeypatch, sizes, parts):
    references = [
        StagedReference(number, f"staged/{number}", rows, 1_000, row_bytes)
        for number, (rows, row_bytes) in enumerate(sizes, 1)
    ]
    monkeypatch.setattr(Reload, "_references", lambda self, numbers: (references, set()))
    nothing: Any = SimpleNamespace()
    reload = Reload(nothing, nothing, nothing)
    given = reload._parts([item.commit_number for item in references], set())
    assert [[item.commit_number for item in part] for part in given] == parts
