"""A plan carried out, into Delta tables in a folder: all at once, table by table, or parked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.memory_objects import MemoryObjects
from tests.unit.destinations.orders import EVENT, PIPELINE, Order, rows_of, spec_of

from waybill.destinations import open_destination
from waybill.loading import DeliveryParts, LoadPlan, LoadReport, deliver
from waybill.loading.plans import PlannedObject
from waybill.processing import StagedPacker, read_staged, staged_tables
from waybill.processing.staged import StagedHead
from waybill.settings import DestinationSettings

SPECS = [spec_of("lines"), spec_of("orders"), spec_of("zones")]
PLACES = tuple((spec.schema_name, spec.name) for spec in SPECS)


class Traces:
    """Keeps what is recorded: event id to (row number, outcome)."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, str]] = {}

    def write(self, batches) -> None:
        for batch in batches:
            for row in batch.to_pylist():
                self.found[row["event_id"]] = (row["kafka_offset"], row["outcome"])


def body_of(first: int, sizes=(3, 2, 4)) -> bytes:
    """Return a staged object with rows of all tables; the last comes first."""
    packer, at = StagedPacker(), first
    for spec, size in reversed(list(zip(SPECS, sizes, strict=True))):
        orders = [Order(n, 1, n) for n in range(at, at + size)]
        at += size
        head = StagedHead(PIPELINE, "shop", f"{EVENT}-{spec.name}", "v1", spec)
        for part in rows_of(orders, spec).data.to_batches():
            packer.add(head=head, batch=part)
    return packer.finish()


@pytest.fixture
def objects():
    made = MemoryObjects()
    for number in (5, 6):
        made.put(f"staged/{number}", body_of(number * 100))
    made.put("staged/6b", body_of(690))
    return made


@pytest.fixture
def plan(objects):
    keys = ((5, "staged/5"), (6, "staged/6"), (6, "staged/6b"))
    items = (PlannedObject(n, key, 9, len(objects.bodies[key]), f"b{n}") for n, key in keys)
    return LoadPlan("lake", range(5, 8), tuple(items))


def carried_out(plan, folder, objects, *tables) -> tuple[LoadReport, dict[str, tuple[int, str]]]:
    traces = Traces()
    settings = DestinationSettings(kind="delta", dsn=str(folder))
    with open_destination("lake", settings) as destination:
        parts = DeliveryParts(objects, lambda: destination, traces)
        reports = [deliver(plan, table, parts) for table in tables]
    return LoadReport.joined(reports), traces.found


def test_tables_one_by_one_come_to_what_all_at_once_does(plan, objects, tmp_path):
    whole, traced = carried_out(plan, tmp_path / "whole", objects, None)
    parts, traced_parts = carried_out(plan, tmp_path / "parts", objects, *PLACES)
    assert (whole.rows, parts.rows) == (27, 27)
    assert traced_parts == traced != {}
    assert parts.tables == whole.tables == dict.fromkeys(PLACES, 6)
    assert [one.counts for one in parts.outcomes] == [one.counts for one in whole.outcomes]


def test_a_parked_row_has_the_number_that_its_load_gave_it(plan, objects, tmp_path):
    _, traced = carried_out(plan, tmp_path, objects, *PLACES)
    parked = replace(plan, park=("destination_full", "no room"))
    report, traced_again = carried_out(parked, tmp_path / "never", objects, None)
    assert {event: n for event, (n, _) in traced_again.items()} == {
        event: n for event, (n, _) in traced.items()
    }
    assert {outcome for _, outcome in traced_again.values()} == {"parked"}
    assert sum(c.parked for one in report.outcomes for c in one.counts) == 27
    assert not (tmp_path / "never").exists()


def test_a_damaged_frame_is_lost_for_each_table(plan, objects, tmp_path):
    body = objects.bodies["staged/6"]
    objects.bodies["staged/6"] = body[:30] + bytes([body[30] ^ 1]) + body[31:]
    del objects.bodies["staged/5"]
    for tables in ((None,), PLACES):
        report, _ = carried_out(plan, tmp_path / str(len(tables)), objects, *tables)
        assert report.rows == 9
        assert set(report.lost) == {"staged/5", "staged/6"}


def test_a_destination_is_not_opened_for_nothing(plan, objects):
    def refuses():
        raise AssertionError("it is opened")

    parts = DeliveryParts(objects, refuses)
    assert deliver(plan, ("shop", "none"), parts) == LoadReport()
    objects.bodies.clear()
    assert set(deliver(plan, None, parts).lost) == {"staged/5", "staged/6", "staged/6b"}


def test_an_object_tells_its_tables_by_its_end():
    body = body_of(1)
    assert staged_tables(body) == dict(zip(PLACES, (3, 2, 4), strict=True))
    assert staged_tables(body[-700:]) == staged_tables(body)
    assert [len(read_staged(body, table=place)) for place in PLACES] == [1, 1, 1]
    for cut in (b"", body[-3:], body[:-1], body[-30:], b"x" * 100 + body[-8:]):
        assert staged_tables(cut) is None
    older = body.replace(b'"table":["shop",', b'"other":["shop",')
    assert staged_tables(older) is None
    assert len(read_staged(older)) == 3
