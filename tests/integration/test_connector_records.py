"""What a connector may say of a record, through a run: event name, delete, version, place."""

from __future__ import annotations

import json

import pytest
import zstandard
from tests.support.told_source import PLACE, ToldSource

from waybill import services
from waybill.errors import RetryError
from waybill.events import decode
from waybill.ingestion.connectors import BadRow, Record
from waybill.pipelines import form, load_pipeline, topic_of
from waybill.producer import LosslessProducer
from waybill.storage import open_log, open_objects, open_tracker

pytestmark = pytest.mark.serves
DECLARATION = """
id: told-0001
name: told
team: {team}
owner: shop@example.com
source: {{connector: told, event: order}}
events:
  order: {{key: [id], table: orders, columns: {{id: int64, what: string not null}}}}
  customer: {{key: [id], version: at, table: customers, columns: {{id: int64, at: int64}}}}
destination: {{name: warehouse, schema: shop}}
"""


@pytest.fixture
def settings(stack_settings, tmp_path, monkeypatch):
    monkeypatch.setitem(form.CONNECTORS, "told", PLACE)
    monkeypatch.setattr(ToldSource, "confirmed", [])
    monkeypatch.setattr(ToldSource, "closed", 0)
    folder = tmp_path / "pipelines" / "told"
    folder.mkdir(parents=True)
    team = f"t{abs(hash(str(tmp_path))) % 10**9}"
    (folder / "pipeline.yaml").write_text(DECLARATION.format(team=team))
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, folder, who="test")
    return settings


def events(settings):
    log = open_log(settings.kafka)
    topic = log.describe(topic_of(load_pipeline(settings.pipelines_dir / "told")))
    return [decode(value) for value in log.read(topic.name, log.watermarks(topic))]


def places(settings):
    """Return where each parked record says that it stood."""
    objects = open_objects(settings.s3)
    lines = [
        line
        for found in objects.list("parked/")
        for line in zstandard.ZstdDecompressor()
        .stream_reader(objects.get(found.key), read_across_frames=True)
        .read()
        .splitlines()
    ]
    return sorted(json.loads(line)["error"]["where"] for line in lines)


def test_records_are_events_of_their_own_names_with_their_versions_and_operations(
    settings, monkeypatch
):
    told = [
        [{"id": 1, "what": "plain"}, Record({"id": 1, "at": 7}, event="customer")],
        None,
        [
            Record({"id": 1}, op="delete", version=40),
            Record({"id": 2, "what": "versioned"}, version=41),
            Record({"id": 3, "at": 1}, event="customer", version=42),
        ],
    ]
    monkeypatch.setattr(ToldSource, "told", told)
    report = services.run_ingest(settings, "told")
    assert (report.accepted, report.parked) == (5, 0)
    found = sorted((e.name, e.key, e.op, e.source_version, str(e.data)) for e in events(settings))
    assert found == [
        ("customer", "[1]", "upsert", 7, "{'id': 1, 'at': 7}"),
        ("customer", "[3]", "upsert", 42, "{'id': 3, 'at': 1}"),
        ("order", "[1]", "delete", 40, "{'id': 1}"),
        ("order", "[1]", "upsert", 0, "{'id': 1, 'what': 'plain'}"),
        ("order", "[2]", "upsert", 41, "{'id': 2, 'what': 'versioned'}"),
    ]
    assert ToldSource.confirmed[-1] == 3
    assert ToldSource.confirmed == sorted(ToldSource.confirmed)
    assert ToldSource.closed == 1
    balance = services.balance(settings)
    assert (balance.ingested, balance.unaccounted, balance.in_flight) == (5, 0, 5)
    assert services.run_ingest(settings, "told").read == 0


def test_what_is_no_event_parks_alone_under_its_own_name(settings, monkeypatch):
    told = [
        [
            {"id": 1, "what": "good"},
            Record({"at": 7}, event="customer"),
            Record({"id": 5}, event="nobody's"),
            Record({"id": 6, "what": "x"}, version=2**63),
            BadRow(b"\xff", 0, "source_row_malformed", "it is none", where="queue 3, message 9"),
        ]
    ]
    monkeypatch.setattr(ToldSource, "told", told)
    report = services.run_ingest(settings, "told")
    assert (report.accepted, report.parked) == (1, 4)
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        found = connection.exec_driver_sql(
            "SELECT event_name, error_type FROM parked_partitions ORDER BY 1, 2"
        ).all()
    assert [tuple(row) for row in found] == [
        ("customer", "key_missing"),
        ("order", "event_undeclared"),
        ("order", "source_row_malformed"),
        ("order", "source_version_invalid"),
    ]
    assert places(settings) == ["queue 3, message 9", "record 1", "record 2", "record 3"]


def test_a_page_that_is_shorter_when_it_is_read_again_doubles_nothing(settings, monkeypatch):
    """As of a log that hands out less at once; its run had died before the page's mark."""
    rows = [{"id": n, "what": f"row {n}"} for n in range(10)]
    monkeypatch.setattr(ToldSource, "told", [rows])

    def away(*_):
        raise RetryError("it died here")

    with monkeypatch.context() as patch, pytest.raises(RetryError, match="it died here"):
        patch.setattr(LosslessProducer, "mark", away)
        services.run_ingest(settings, "told")
    monkeypatch.setattr(
        ToldSource, "told", [rows[:4], rows[4:7], [*rows[7:], {"id": 10, "what": ""}]]
    )
    report = services.run_ingest(settings, "told")
    assert (report.accepted, report.resumed) == (11, 10)
    assert sorted(event.data["id"] for event in events(settings)) == list(range(11))
    balance = services.balance(settings)
    assert (balance.ingested, balance.unaccounted, balance.in_flight) == (11, 0, 11)
