"""A plan carried out, into Delta tables in a folder: all at once, table by table, or parked."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace

import deltalake
import pyarrow as pa
import pytest
from tests.support.memory_objects import MemoryObjects
from tests.unit.destinations.orders import EVENT, PIPELINE, Order, rows_of, spec_of

from waybill.destinations import open_destination
from waybill.destinations.key_sums import KeySums
from waybill.destinations.per_table import books
from waybill.loading import DeliveryParts, LoadPlan, LoadReport, deliver
from waybill.loading.failures import NotTakenError
from waybill.loading.plans import PlannedObject
from waybill.pipelines import Column
from waybill.processing import StagedPacker, read_staged, staged_tables
from waybill.processing.staged import StagedHead
from waybill.settings import DestinationSettings

SPECS = [spec_of("lines"), spec_of("orders"), spec_of("zones")]
PLACES = tuple((spec.schema_name, spec.name) for spec in SPECS)
STRICT = spec_of(
    "lines",
    Column(name="id", type="int64", nullable=False),
    Column(name="what", type="string", nullable=False),
)
"""Refuses rows."""


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
    items = (PlannedObject(n, key, 9, len(objects.bodies[key]), 999, f"b{n}") for n, key in keys)
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


def growing(objects: MemoryObjects, numbers: range) -> tuple[PlannedObject, ...]:
    """Return objects with two rows of ``lines``, one of which it refuses, and one of ``zones``."""
    made = []
    for n in numbers:
        packer = StagedPacker()
        lines = [Order(n * 10, 1, n), Order(n * 10 + 1, 1, n, what=None)]
        for spec, orders in ((STRICT, lines), (SPECS[2], [Order(n * 10 + 2, 1, n)])):
            head = StagedHead(PIPELINE, "shop", f"{EVENT}-{spec.name}", "v1", spec)
            for part in rows_of(orders, spec).data.to_batches():
                packer.add(head=head, batch=part)
        objects.put(f"staged/{n}", packer.finish())
        made.append(PlannedObject(n, f"staged/{n}", 3, 0, 0, f"b{n}"))
    return tuple(made)


def totals_of(report: LoadReport) -> Counter[str]:
    return sum(
        (
            Counter(delivered=c.delivered, duplicate=c.duplicate, parked=c.parked)
            for one in report.outcomes
            for c in one.counts
        ),
        Counter(),
    )


def test_a_table_that_runs_ahead_of_its_neighbour_keeps_what_became_of_its_rows(
    tmp_path, monkeypatch
):
    """``zones`` is refused while plans grow at each restart; then it is mended."""
    monkeypatch.setattr(books, "MOST_BYTES", 0)
    objects, lines, zones = MemoryObjects(), PLACES[0], PLACES[2]
    other = pa.table({"id": pa.array(["not a number"])})
    deltalake.write_deltalake(tmp_path / "shop" / "zones", other)
    plan = LoadPlan("lake", range(5, 21), growing(objects, range(5, 21)))
    plans = [
        replace(plan, numbers=range(5, n + 1), objects=plan.objects[: n - 4])
        for n in (8, 12, 12, 20, 12, 20, 20)
    ]
    parked: list[int] = []
    for tried in plans:
        report, _ = carried_out(tried, tmp_path, objects, lines)
        commits = len(tried.numbers)
        assert totals_of(report) == {"delivered": commits, "parked": commits}
        with pytest.raises(NotTakenError) as refused:
            carried_out(tried, tmp_path, objects, zones)
        assert refused.value.code == "destination_schema_conflict"
        parked.append(sum(key.startswith("parked/") for key in objects.bodies))
    assert parked == [1, 2, 2, 3, 3, 3, 3]
    shutil.rmtree(tmp_path / "shop" / "zones")
    report, _ = carried_out(plan, tmp_path, objects, lines, zones)
    assert totals_of(report) == {"delivered": 32, "parked": 16}
    assert len({item["key"] for one in report.outcomes for item in one.parked}) == 3


def test_loads_of_which_nobody_can_ask_again_leave_the_books(tmp_path, monkeypatch):
    """A plan begins behind what is acknowledged: loads of before are cut, those of others kept."""
    monkeypatch.setattr(books, "MOST_BYTES", 0)
    objects = MemoryObjects()
    plan = LoadPlan("lake", range(5, 21), growing(objects, range(5, 21)))
    for first, last in ((5, 8), (5, 12), (9, 16), (13, 20)):
        items = plan.objects[first - 5 : last - 4]
        part = replace(plan, numbers=range(first, last + 1), objects=items)
        carried_out(part, tmp_path, objects, PLACES[0])
    history = deltalake.DeltaTable(tmp_path / "shop" / "lines").history()
    record = books.LoadRecord.from_text(next(h["waybill"] for h in history if "waybill" in h))
    assert [sorted(map(int, load["commits"])) for load in record.loads] == [
        [17, 18, 19, 20],
        [13, 14, 15, 16],
    ]
    assert record.cut


def test_books_of_an_older_release_keep_the_newest_load_of_each_destination(monkeypatch):
    monkeypatch.setattr(books, "MOST_BYTES", 0)
    older = [
        {"destination": name, "at": "", "commits": {str(n): {}}}
        for name, n in (("a", 9), ("b", 7), ("a", 8), ("b", 6))
    ]
    record = replace(books.LoadRecord.new(0, cut=False), loads=tuple(older))
    kept = record.with_load("b", [], KeySums.none(), {}, first=7).loads
    assert [(load["destination"], *load["commits"]) for load in kept] == [
        ("b",),
        ("a", "9"),
        ("b", "7"),
    ]


def test_rows_have_their_numbers_whichever_tables_are_done(plan, objects, tmp_path):
    _, traced = carried_out(plan, tmp_path / "whole", objects, None)
    carried_out(plan, tmp_path / "parts", objects, PLACES[1])
    _, rest = carried_out(plan, tmp_path / "parts", objects, None)
    of_orders = {event for event in traced if event not in rest}
    assert len(of_orders) == 6
    assert rest == {event: found for event, found in traced.items() if event not in of_orders}


def test_a_damaged_frame_is_lost_for_each_table(plan, objects, tmp_path):
    body = objects.bodies["staged/6"]
    objects.bodies["staged/6"] = body[:30] + bytes([body[30] ^ 1]) + body[31:]
    del objects.bodies["staged/5"]
    for tables in ((None,), PLACES):
        report, _ = carried_out(plan, tmp_path / str(len(tables)), objects, *tables)
        assert report.rows == 9
        assert set(report.lost) == {"staged/5", "staged/6"}


def test_an_object_whose_directory_names_another_table_is_lost(plan, objects, tmp_path):
    body = objects.bodies["staged/6"]
    at = body.rindex(b'"zones"') + 1
    damaged = objects.bodies["staged/6"] = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
    tables = sorted({*PLACES, *staged_tables(damaged)})
    assert ("shop", "{ones") in tables
    for some in ((None,), tables):
        report, _ = carried_out(plan, tmp_path / str(len(some)), objects, *some)
        assert set(report.lost) == {"staged/6"}
        report.check_whole(plan)


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
