"""What a record that is no event is known by."""

from __future__ import annotations

from waybill.ingestion.connectors import Record
from waybill.ingestion.source_rows import held_by, parked_id


def test_the_same_row_of_another_stream_or_as_a_delete_is_another_record():
    row = {"id": 1}
    rows = [
        row,
        Record(row, event="a"),
        Record(row, event="b"),
        Record(row, event="a", op="delete"),
    ]
    found = {parked_id("p", "declared", held_by(one, "file x"), b'{"id":1}') for one in rows}
    assert len(found) == len(rows)
    assert held_by(row, "file x") == "file x"
