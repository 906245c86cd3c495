"""The pipelines that come with Waybill, over their real data, as first written and corrected."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from waybill.events import Event, dumps
from waybill.ingestion.connectors import open_connector
from waybill.pipelines import check, load_pipelines
from waybill.processing import Fault, compile_transformation, map_rows
from waybill.processing.transformation import NoWatch, run

INCLUDE = Path(__file__).parents[3] / "include"
FIRST, FIXED = INCLUDE / "pipelines", INCLUDE / "fixes"


@functools.cache
def pages(name: str) -> list[list[dict]]:
    """Return a source's rows; both versions of a pipeline have the same source."""
    source = load_pipelines(FIRST)[name].source
    read = list(open_connector(source, FIRST / name).read(None))
    assert [page.bad for page in read] == [[]] * len(read)
    return [page.rows for page in read]


class Outcome:
    """What becomes of a pipeline's whole source in transformation and mapping."""

    def __init__(self, root: Path, name: str) -> None:
        self.pipeline = load_pipelines(root)[name]
        declaration = self.pipeline.events[self.pipeline.source.event]
        self.parked: Counter[str] = Counter()
        batches = []
        transform = compile_transformation(self.pipeline.transformation_code, name)
        for rows in pages(name):
            events = [self._event(dict(row)) for row in rows]
            passed = []
            for outcome in run(transform, events, NoWatch()):
                if isinstance(outcome, Event):
                    passed.append(outcome.data)
                else:
                    assert isinstance(outcome, Fault)
                    self.parked[outcome.code] += 1
            batch, faults = map_rows(declaration.table, passed, policy=declaration.policy)
            self.parked.update(f"{f.code} {f.where}" for f in faults.values())
            batches.append(batch)
        self.table = pa.Table.from_batches(batches)

    def _event(self, row) -> Event:
        pipeline = self.pipeline
        return Event("id", pipeline.id, pipeline.team, pipeline.source.event, "", 0, 0, 0, "", row)

    @property
    def keys(self) -> int:
        """Return the number of distinct primary keys."""
        key = self.pipeline.events[self.pipeline.source.event].table.key
        return self.table.group_by(list(key)).aggregate([]).num_rows


@pytest.fixture(scope="module")
def flights() -> Outcome:
    return Outcome(FIRST, "flights")


@pytest.fixture(scope="module")
def fixed_flights() -> Outcome:
    return Outcome(FIXED, "flights")


def test_nothing_is_wrong_with_what_we_declare():
    assert check(FIRST) == []
    assert check(FIXED) == []


@pytest.mark.parametrize("name", ["flights", "weather"])
def test_a_fix_is_the_same_pipeline_in_another_version(name):
    first, fixed = load_pipelines(FIRST)[name], load_pipelines(FIXED)[name]
    assert (first.id, first.name, first.team) == (fixed.id, fixed.name, fixed.team)
    assert first.version != fixed.version
    assert first.source == fixed.source


@pytest.mark.campaign
def test_the_first_flights_park_exactly_the_records_that_are_odd(flights):
    assert flights.parked == {
        "null_value": 8255,
        "record_incomplete": 458,
        "value_out_of_range": 29 + 150,
    }
    assert flights.table.num_rows == 336_776 - 8255 - 458 - 179


@pytest.mark.campaign
def test_the_corrected_flights_all_pass(fixed_flights):
    assert fixed_flights.parked == {}
    assert fixed_flights.keys == 336_776
    status = fixed_flights.table["status"].value_counts().to_pylist()
    assert {row["values"]: row["counts"] for row in status} == {
        "flown": 328_063,
        "cancelled": 8255,
        "diverted": 458,
    }


@pytest.mark.campaign
def test_both_versions_agree_on_the_flights_that_pass_both(flights, fixed_flights):
    table = fixed_flights.table
    odd = pc.or_kleene(pc.equal(table["dep_time"], 2400), pc.equal(table["arr_time"], 2400))
    flown = pc.and_(pc.equal(table["status"], "flown"), pc.invert(pc.fill_null(odd, False)))
    assert table.filter(flown).equals(flights.table)


@pytest.mark.campaign
def test_time_in_the_air_fits_between_departure_and_arrival(fixed_flights):
    """The moments are right across time zones and midnights: 5 minutes to 4 hours on the ground."""
    table = fixed_flights.table
    elapsed = pc.subtract(table["arrived_at"], table["departed_at"]).cast(pa.int64())
    on_ground = pc.subtract(pc.divide(elapsed, 60_000_000), table["air_time"])
    bounds = pc.min_max(on_ground).as_py()
    assert bounds["min"] >= 5
    assert bounds["max"] <= 240


@pytest.mark.campaign
def test_a_departure_is_as_late_as_its_delay_says(fixed_flights):
    table = fixed_flights.table
    scheduled = pc.add(
        table["time_hour"].cast(pa.int64()),
        pc.multiply(table["minute"].cast(pa.int64()), 60_000_000),
    )
    late = pc.divide(pc.subtract(table["departed_at"].cast(pa.int64()), scheduled), 60_000_000)
    assert pc.all(pc.equal(late, table["dep_delay"])).as_py()


def test_the_first_weather_parks_readings_without_pressure_and_the_fix_takes_them():
    first, fixed = Outcome(FIRST, "weather"), Outcome(FIXED, "weather")
    assert first.parked == {"not_null_violation pressure": 2729}
    assert fixed.parked == {}
    assert fixed.table.num_rows == fixed.keys == 26_115


def test_an_event_of_the_corrected_transformation_still_has_a_json_form():
    pipeline = load_pipelines(FIXED)["flights"]
    row = dict(pages("flights")[0][0])
    event = Event("id", pipeline.id, pipeline.team, "flight", "k", 0, 0, 0, "", row)
    compile_transformation(pipeline.transformation_code, "flights")(event)
    assert b'"departed_at":"2013-01-01T10:17:00Z"' in dumps(event.data)
