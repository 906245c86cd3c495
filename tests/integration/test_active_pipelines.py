"""What a driver reads of deployed pipelines with each batch, on the real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import event, text
from tests.support import evolving

from waybill.deployment import (
    ActivePipelines,
    DeployedOnTopic,
    DeployReport,
    LoadedTable,
    deploy,
    loaded_tables,
)
from waybill.ledger import acquire_lease
from waybill.pipelines import EventDeclaration, Pipeline, topic_name, topic_of
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
COPIES = 500
ID = "test-evolving"
COPY = f"""
INSERT INTO pipelines (id, name, team)
SELECT 'copy-' || n, 'copy-' || n, team FROM pipelines, generate_series(1, {COPIES}) AS n;
INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by)
SELECT 'copy-' || n, number, version, declaration || jsonb_build_object('id', 'copy-' || n), 'ann'
FROM pipeline_versions, generate_series(1, {COPIES}) AS n;
INSERT INTO mapping_versions (pipeline_id, event_name, number, declaration, author)
SELECT 'copy-' || n, event_name, number, declaration, 'ann'
FROM mapping_versions, generate_series(1, {COPIES}) AS n
"""


class Lot:
    """A topic of many pipelines, a reader, and what that asked the tracker for."""

    def __init__(self, settings: TrackerSettings, folder: Path) -> None:
        self.folder = folder
        self.tracker, self.elsewhere = TrackerStore(settings), TrackerStore(settings)
        self.tracker.migrate()
        self.deploy("int32")
        for statement in COPY.split(";"):
            self.write(statement)
        self.reader, self.asked, self.rows = ActivePipelines(self.tracker), list[str](), 0
        self.topic = topic_of(ActivePipelines(self.elsewhere).read()[ID])
        event.listen(self.tracker.engine, "after_cursor_execute", self._note)

    def deploy(self, amount: str) -> DeployReport:
        """Deploy by another connection than the reader's."""
        return deploy(
            self.elsewhere, evolving.write_evolving(self.folder, amount=amount), who="ann"
        )

    def write(self, statement: str, **values: object) -> None:
        """Write by another connection than the reader's."""
        with self.elsewhere.transaction() as connection:
            connection.execute(text(statement), values)

    def _note(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("SET"):
            self.asked.append(statement)
            self.rows += max(cursor.rowcount, 0)

    def read(self, *ids: str) -> DeployedOnTopic:
        """Read as a driver does that has these in use; note what it asks only now."""
        self.asked.clear()
        self.rows = 0
        return self.reader.read_mapped([self.topic], lambda topic, known: ids)[self.topic]


@pytest.fixture
def lot(postgres: Any, tmp_path: Path) -> Iterator[Lot]:
    made = Lot(TrackerSettings(dsn=postgres.tracker("active")), tmp_path)
    with made.tracker, made.elsewhere:
        yield made


def test_only_what_is_in_use_is_read_and_parsed(lot):
    with mock.patch.object(Pipeline, "from_json", wraps=Pipeline.from_json) as parsed:
        found = lot.read("copy-7")
        assert parsed.call_count == 1
    assert found.pipelines.keys() == {"copy-7"}
    assert found.mappings.keys() == {("copy-7", "order")}
    assert len(found.ids) == COPIES + 1
    first = lot.rows
    again = lot.read("copy-7")
    assert (len(lot.asked), lot.rows) == (2, 2), "a mark, and that of the mappings of one"
    assert first > COPIES
    assert again.pipelines["copy-7"] is found.pipelines["copy-7"]
    assert again.mappings["copy-7", "order"] is found.mappings["copy-7", "order"]
    assert again.ids is found.ids
    more = lot.read("copy-7", "copy-8", "unknown")
    assert more.pipelines.keys() == {"copy-7", "copy-8"}
    assert (len(lot.asked), lot.rows) == (5, 1 + 1 + 2 + 1 + 1)


def test_nothing_is_parsed_amid_a_transaction_or_while_others_wait(lot):
    """Some hundreds of large ones take longer than the tracker lets a transaction idle."""
    parse, parse_event = Pipeline.from_json, EventDeclaration.from_json
    seen = list[str]()

    def outside(kind: str, made: Any) -> Any:
        assert lot.tracker.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        assert not lot.reader._lock.locked()
        seen.append(kind)
        return made

    with (
        mock.patch.object(Pipeline, "from_json", lambda j: outside("pipeline", parse(j))),
        mock.patch.object(
            EventDeclaration, "from_json", lambda j: outside("event", parse_event(j))
        ),
    ):
        lot.read("copy-7", "copy-8")
        assert set(seen) == {"pipeline", "event"}
        lot.reader.read()


def test_what_is_not_in_use_any_more_is_not_kept(lot):
    lot.read("copy-7", "copy-8")
    lot.read("copy-8")
    assert lot.reader._parsed.keys() == lot.reader._mappings.keys() == {"copy-8"}
    lot.reader.read_mapped(["events.other.warehouse"], lambda topic, known: known)
    assert lot.reader._parsed.keys() == {"copy-8"}, "another query's topics are its own"
    assert lot.read() == ({}, {}, frozenset(lot.reader._numbers))
    assert lot.reader._parsed == lot.reader._mappings == {}


def test_a_deploy_is_seen_at_the_next_batch(lot):
    before = lot.read(ID)
    report = lot.deploy("int64")
    after = lot.read(ID)
    assert after.pipelines[ID].version == report.version != before.pipelines[ID].version
    assert (before.mappings[ID, "order"].number, after.mappings[ID, "order"].number) == (1, 2)
    assert after.ids is before.ids
    assert len(lot.asked) == 7
    assert lot.read(ID) is lot.read(ID)
    assert len(lot.asked) == 2


def test_a_new_pipeline_and_one_that_is_gone_are_seen_at_the_next_batch(lot):
    lot.read("copy-1", "copy-2")
    lot.write("DELETE FROM mapping_versions WHERE pipeline_id = 'copy-2'")
    lot.write(
        "INSERT INTO pipelines (id, name, team) SELECT 'fresh', 'fresh', team FROM pipelines LIMIT 1"
    )
    lot.write("UPDATE pipeline_versions SET pipeline_id = 'fresh' WHERE pipeline_id = 'copy-2'")
    found = lot.read("copy-1", "copy-2", "fresh")
    assert found.pipelines.keys() == {"copy-1", "fresh"}
    assert len(found.ids) == COPIES + 1
    assert "copy-2" not in found.ids


def test_a_mapping_that_was_learned_is_seen_at_the_next_batch(lot):
    names = "event_name, declaration, author, reason, pipeline_version"
    lot.read("copy-1", ID)
    lot.write(
        f"INSERT INTO mapping_versions (pipeline_id, {names}, number) "
        f"SELECT pipeline_id, {names}, 2 FROM mapping_versions WHERE pipeline_id = 'copy-1'"
    )
    mappings = lot.read("copy-1", ID).mappings
    assert {name[0]: one.number for name, one in mappings.items()} == {"copy-1": 2, ID: 1}
    assert len(lot.asked) == 4


def test_all_is_of_one_moment_whatever_is_deployed_meanwhile(lot):
    def deployed_meanwhile(topic: str, ids: frozenset[str]) -> list[str]:
        lot.deploy("int64")
        return [ID]

    before = lot.read(ID)
    meanwhile = lot.reader.read_mapped([lot.topic], deployed_meanwhile)[lot.topic]
    assert meanwhile.pipelines[ID] is before.pipelines[ID]
    assert meanwhile.mappings[ID, "order"] is before.mappings[ID, "order"]
    after = lot.read(ID)
    assert after.mappings[ID, "order"].number == 2
    assert after.pipelines[ID] is not before.pipelines[ID]


def test_without_a_choice_all_are_read_also_many_thousand_names(lot):
    lot.write(
        "INSERT INTO mapping_versions (pipeline_id, event_name, number, declaration, author) "
        "SELECT pipeline_id, event_name || n, 1, declaration, author "
        "FROM mapping_versions, generate_series(1, 70) AS n"
    )
    found = lot.reader.read_mapped([lot.topic])[lot.topic]
    assert found.pipelines.keys() == found.ids
    assert len(found.mappings) == 71 * (COPIES + 1), "more than a statement has parameters for"


def test_topics_are_told_without_a_declaration(lot):
    with mock.patch.object(Pipeline, "from_json") as parsed:
        [topic] = lot.reader.read_topics()
        asked = len(lot.asked)
        assert lot.reader.read_topics() == {topic}
    assert topic_name(topic.team, topic.destination) == lot.topic
    assert (asked, len(lot.asked), parsed.call_count) == (3, 4, 0)


def test_the_tables_that_a_cluster_loads_are_those_of_its_destinations(lot):
    pipeline = ActivePipelines(lot.elsewhere).read()[ID]
    names = sorted(one.table.name for one in pipeline.events.values())
    assert loaded_tables(lot.tracker, "default") == []
    consumer = f"loading/{pipeline.destination}"
    acquire_lease(lot.tracker, consumer, holder="default:3f")
    acquire_lease(lot.tracker, "loading/elsewhere", holder="default-2:3f")
    found = loaded_tables(lot.tracker, "default")
    assert len(found) == (COPIES + 1) * len(names)
    own = [one for one in found if one.pipeline == pipeline.name]
    expected = (pipeline.team, pipeline.name, pipeline.destination)
    assert own == [LoadedTable(*expected, name) for name in names]
    assert loaded_tables(lot.tracker, "default-2") == []
