"""The ids of lost events are found by their traces, on the real servers."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest
from tests.integration import test_lost_objects, test_lost_parked
from typer.testing import CliRunner

from waybill.cli import app
from waybill.loading.quarantine import lost_objects
from waybill.recovery.lost_ids import parked_ids, staged_ids
from waybill.recovery.parked_objects import lost_parked
from waybill.settings import TraceSettings
from waybill.tracing import DuckDbTraces, Recorder, run_shipper, traces

pytestmark = pytest.mark.serves
loads, processed = test_lost_objects.loads, test_lost_objects.processed
parked = test_lost_parked.parked


class Traced:
    """Traces of a bucket, written and shipped at once."""

    def __init__(self, loads, folder) -> None:
        self._loads = loads
        self.settings = TraceSettings(spool_dir=folder / "spool", buckets=4, roll_s=0.2)
        self.query = DuckDbTraces(loads.objects, loads.s3, spool_dir=None)

    def write(self, ids, key, **columns) -> None:
        given = {
            "pipeline_id": "test-orders", "event_name": "order", "phase": "mapping",
            "kafka_partition": 0, "object_key": key,
            "at_us": int(datetime.now(UTC).timestamp() * 1_000_000), **columns,
        }  # fmt: skip
        places = list(range(len(ids)))
        Recorder(self.settings.spool_dir).write([traces(ids, kafka_offset=places, **given)])
        run_shipper(self.settings, self._loads.objects, lambda: True, drain_s=60)

    def parked(self, ids, key, **columns) -> None:
        self.write(ids, key, outcome="parked", **{"error_type": "type_mismatch"} | columns)


@pytest.fixture
def traced(loads, tmp_path):
    made = Traced(loads, tmp_path)
    yield made
    made.query.close()


def _named(parked, traced):
    tracker = parked.loads.tracker
    return parked_ids(tracker, traced.query, lost_parked(tracker))


def test_lost_parked_events_are_named_by_the_command(parked, traced, monkeypatch):
    [gone] = parked.park(parked.order(1), parked.order(2))
    traced.parked(["e1", "\x1b[1mhostile"], gone)
    traced.parked(["e1"], gone)  # the same task, run again
    traced.parked(["other"], gone, error_type="null_key")
    traced.parked(["other"], "parked/other")
    parked.lose(gone)
    parked.log.delete_records(parked.topic.name, {0: 2})
    assert parked.recover_parked().unrecoverable == 2
    [its] = _named(parked, traced)
    assert (its.ids, its.exact) == (["\x1b[1mhostile", "e1"], True)
    s3 = parked.loads.s3
    for name, value in {
        "TRACKER__DSN": parked.loads.tracker_settings.dsn.get_secret_value(),
        "S3__ENDPOINT_URL": s3.endpoint_url,
        "S3__BUCKET": s3.bucket,
        "S3__ACCESS_KEY": s3.access_key.get_secret_value(),
        "S3__SECRET_KEY": s3.secret_key.get_secret_value(),
        "TRACES__SPOOL_DIR": str(traced.settings.spool_dir),
    }.items():
        monkeypatch.setenv(f"WAYBILL_{name}", value)
    shown = CliRunner().invoke(app, ["parked", "lost", "--ids"])
    assert "  ids:\n    \\x1b[1mhostile\n    e1\n" in shown.output, shown.output
    said = orjson.loads(CliRunner().invoke(app, ["parked", "lost", "--ids", "--json"]).stdout)
    assert said["lost"][0]["ids"] == ["\x1b[1mhostile", "e1"]
    assert said["lost"][0]["ids_exact"] is True
    assert "ids" not in orjson.loads(CliRunner().invoke(app, ["parked", "lost", "--json"]).stdout)


def test_events_of_an_object_that_was_made_again_are_named_by_the_first_one(
    parked,
    traced,
):
    [gone] = parked.park(parked.order(1), parked.order(2))
    traced.parked(["e1", "e2"], gone)
    parked.lose(gone)
    assert parked.recover_parked().recovered == 2
    [(again,)] = parked.loads.sql("SELECT object_key FROM segments WHERE state = 'parked'")
    parked.loads.sql("UPDATE segments SET state = 'quarantined' WHERE object_key = :k", k=again)
    parked.loads.sql("UPDATE parked_partitions SET parked = 0, quarantined = 2")
    [its] = _named(parked, traced)
    assert (its.ids, its.exact) == (["e1", "e2"], True)


def test_what_the_traces_do_not_have_is_not_said_to_be_all(parked, traced):
    [gone] = parked.park(parked.order(1), parked.order(2))
    traced.parked(["e1"], gone)
    parked.lose(gone)
    [its] = _named(parked, traced)
    assert (its.events, its.ids, its.exact) == (2, ["e1"], False)


def test_the_rows_of_a_lost_staged_object_are_named(processed, traced):
    last, key = processed.process(10, 11)
    loads_ = processed.loads
    traced.write(["e10", "e11"], key, outcome="passed")
    loads_.objects.delete([key])
    loads_.deliver(loads_.patience(), last)
    [its] = staged_ids(traced.query, lost_objects(loads_.tracker))
    assert (its.ids, its.exact) == (["e10", "e11"], True)
