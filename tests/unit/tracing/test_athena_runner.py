"""The calls to Athena, through pyathena and botocore, to a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.unit.tracing.athena_server import AthenaServer
from tests.unit.tracing_files.folder_store import FolderStore

from waybill.errors import RetryError
from waybill.settings import S3Settings, Settings, TraceSettings
from waybill.tracing import TRACE_SCHEMA, AthenaTraces, QueryCancelledError, Searched, Watched
from waybill.tracing.athena_traces import AthenaRunner
from waybill.tracing.layout import LAYOUT_KEY, Layout
from waybill.tracing.sql import MINUTE_COLUMNS

ROW = {name: None for name in TRACE_SCHEMA.names} | {
    "event_id": "e",
    "phase": "mapping",
    "kafka_offset": 5,
    "at": "2026-01-31 23:05:00.123",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AthenaServer]:
    with AthenaServer(TRACE_SCHEMA.names, [list(ROW.values())]) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_ATHENA", running.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield running


@pytest.fixture
def query(tmp_path: Path, server: AthenaServer) -> AthenaTraces:
    store = FolderStore(tmp_path)
    store.put(LAYOUT_KEY, Layout(128).encode())
    traces = TraceSettings(athena_workgroup="audit", athena_results="s3://results/")
    settings = Settings(_env_file=None, home=tmp_path, traces=traces)
    return AthenaTraces(AthenaRunner(settings, poll_s=0.01), store, spool_dir=None)


def test_a_trail_is_asked_for_watched_and_read(server: AthenaServer, query: AthenaTraces) -> None:
    watch = Watched()
    (found,) = query.trail("e", watch=watch)
    assert (found.event_id, found.kafka_offset, found.replay_id) == ("e", 5, "")
    assert found.at == datetime(2026, 1, 31, 23, 5, 0, 123_000, UTC)
    (asked,) = server.started
    assert asked["WorkGroup"] == "audit"
    assert asked["QueryExecutionContext"]["Database"] == "waybill"
    assert asked["ResultConfiguration"]["OutputLocation"] == "s3://results/"
    assert asked["ExecutionParameters"][:2] == ["'e'", "'e0'"]
    assert '"event_id" >= ?' in asked["QueryString"]
    assert watch.external_id == "query-1"
    assert watch.bytes_scanned == 3000
    assert watch.searched == [Searched("athena", None, None, 0, 0, 0)]


@pytest.mark.parametrize(("endpoint", "key"), [(None, "own"), ("http://127.0.0.1:1", "key")])
def test_athena_gets_the_keys_of_the_object_store_unless_that_is_another_servers(
    server: AthenaServer, query: AthenaTraces, tmp_path: Path, endpoint: str | None, key: str
) -> None:
    s3 = S3Settings(
        endpoint_url=endpoint, access_key=SecretStr("own"), secret_key=SecretStr("word")
    )
    runner = AthenaRunner(Settings(_env_file=None, home=tmp_path, s3=s3), poll_s=0.01)
    AthenaTraces(runner, FolderStore(tmp_path), spool_dir=None).trail("e", watch=Watched())
    assert server.keys == {key}


def test_the_bytes_of_several_statements_add_up(server: AthenaServer, query: AthenaTraces) -> None:
    watch = Watched()
    query.trails([f"e-{number}" for number in range(150)], watch=watch)
    assert len(server.started) == 2
    assert watch.bytes_scanned == 6000
    assert watch.external_id == "query-2"


def test_a_cancelled_query_is_stopped_at_athena(server: AthenaServer, query: AthenaTraces) -> None:
    server.states = ["RUNNING"]

    class _Impatient(Watched):
        def started(self, external_id: str) -> None:
            super().started(external_id)
            self.cancel()

    with pytest.raises(QueryCancelledError, match="query-1"):
        query.trail("e", watch=_Impatient())
    assert server.stopped == ["query-1"]


@pytest.mark.parametrize("watch", [None, Watched()])
def test_a_query_that_fails_may_be_asked_again_and_says_why(
    server: AthenaServer, query: AthenaTraces, watch: Watched | None
) -> None:
    server.states, server.reason = ["RUNNING", "FAILED"], "HIVE_CANNOT_OPEN_SPLIT"
    with pytest.raises(RetryError, match="HIVE_CANNOT_OPEN_SPLIT"):
        query.trail("e", watch=watch)


def test_a_minutes_traces_come_page_by_page(server: AthenaServer, query: AthenaTraces) -> None:
    server.names = MINUTE_COLUMNS
    server.rows = [[ROW[name] for name in MINUTE_COLUMNS]] * 25
    server.page = 10
    moment = datetime(2026, 1, 31, 23, tzinfo=UTC)
    batches = list(query.minute_traces("p", "n", 7, since=moment, until=moment))
    assert sum(batch.num_rows for batch in batches) == 25
    assert server.started[0]["ExecutionParameters"][:3] == ["'p'", "'n'", "7"]
