"""A record of a source that is no event parks once, however often its source is read."""

from __future__ import annotations

import pytest

from waybill import services
from waybill.access import Decision
from waybill.errors import RetryError
from waybill.ingestion import run
from waybill.parking import ParkedGroupFilter, Parking
from waybill.storage import open_objects, open_tracker

pytestmark = pytest.mark.serves
DECLARATION = """
id: inbox-0001
name: inbox
team: {team}
owner: shop@example.com
source: {{connector: {connector}, event: order, {source}}}
events:
  order: {{key: [id], table: orders, columns: {{id: int64, what: string}}}}
destination: {{name: warehouse, schema: shop}}
"""
FILES = ("files", 'options: {path: "*.jsonl", settle_s: 0}')
CSV = ("csv", 'path: x.csv, columns: {id: int64}, null_values: [""]')
JSON = '{"id": 1, "what": "good"}\n{"id": 2,\n{"what": "no key"}\n'


@pytest.fixture
def deployed(stack_settings, tmp_path):
    folder = tmp_path / "pipelines" / "inbox"
    folder.mkdir(parents=True)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)

    def deploy(kind, name, text):
        connector, source = kind
        team = f"t{abs(hash(str(tmp_path))) % 10**9}"
        declared = DECLARATION.format(team=team, connector=connector, source=source)
        (folder / "pipeline.yaml").write_text(declared)
        (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
        (folder / name).write_text(text)
        services.run_deploy(settings, folder, who="test")
        return settings, folder

    return deploy


def in_books(settings):
    balance = services.balance(settings)
    assert balance.unaccounted == 0
    return balance.parked, balance.duplicate


def notices(settings):
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        query = "SELECT count(*) FROM notices WHERE kind = 'first'"
        return connection.exec_driver_sql(query).scalar_one()


@pytest.mark.parametrize(
    ("kind", "name", "text", "more"),
    [
        pytest.param(FILES, "x.jsonl", JSON, '{"id": 3, "what": "new"}\n', id="files"),
        pytest.param(
            CSV,
            "x.csv",
            "id,what\n1,good\n2\n,no key\n",
            "3,new\n",
            id="csv",
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_a_file_that_is_appended_to_and_rewritten_parks_its_bad_records_once(
    deployed, kind, name, text, more
):
    settings, folder = deployed(kind, name, text)
    assert services.run_ingest(settings, "inbox").parked == 2
    (folder / name).write_text(text + more)
    report = services.run_ingest(settings, "inbox")
    assert (report.read, report.accepted, report.parked) == (4, 2, 0)
    assert in_books(settings) == (2, 2)
    head, *lines = (text + more).splitlines(keepends=True)
    moved = [head, lines[-1], *lines[:-1]]
    (folder / name).write_text("".join(moved))
    assert services.run_ingest(settings, "inbox").parked == 0
    assert in_books(settings) == (2, 4)


def test_what_was_discarded_stays_so_and_nobody_is_told_again(deployed):
    settings, folder = deployed(FILES, "x.jsonl", JSON)
    services.run_ingest(settings, "inbox")
    told = notices(settings)
    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_objects(settings.s3))
        done = parking.discard(ParkedGroupFilter(stage="ingestion"), Decision("ann", "known"))
        assert done.events == 2
    (folder / "x.jsonl").write_text(JSON + '{"id": 3, "what": "new"}\n')
    assert services.run_ingest(settings, "inbox").parked == 0
    assert (in_books(settings), notices(settings)) == ((0, 2), told)
    (folder / "x.jsonl").write_text(JSON + '{"id": 4,\n')
    assert services.run_ingest(settings, "inbox").parked == 1, "another record is another matter"
    assert in_books(settings) == (1, 4)


@pytest.mark.campaign
def test_the_same_bytes_of_another_file_are_another_record(deployed):
    settings, folder = deployed(FILES, "x.jsonl", JSON)
    services.run_ingest(settings, "inbox")
    (folder / "y.jsonl").write_text(JSON)
    assert services.run_ingest(settings, "inbox").parked == 2
    assert in_books(settings) == (4, 0)


def test_a_run_that_dies_before_its_commit_counts_what_was_parked_before_once(
    deployed, monkeypatch
):
    settings, folder = deployed(FILES, "x.jsonl", JSON)
    services.run_ingest(settings, "inbox")
    (folder / "x.jsonl").write_text(JSON + '{"id": 3,\n')

    def away(*_):
        raise RetryError("it died here")

    with monkeypatch.context() as patch, pytest.raises(RetryError, match="it died here"):
        patch.setattr(run, "commit_intake", away)
        services.run_ingest(settings, "inbox")
    report = services.run_ingest(settings, "inbox")
    assert report.parked == 0, "this run read nothing"
    assert in_books(settings) == (3, 2)
