"""Every table of the command line with realistic values: ``python -m tests.support.tables 80``.

``MADE`` has each function that makes a table; a test compares it with those that there are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from rich.console import Console

from waybill.capacity import CapacityStatus
from waybill.capacity.records import Node, NodeReport
from waybill.cli import (
    audit,
    balance,
    campaigns,
    capacity,
    clusters,
    demo,
    destinations,
    files,
    local_runs,
    logs,
    mapping,
    notices,
    parked,
    pipeline_versions,
    pipelines,
    queries,
    replays,
    retention,
    sources,
    stack,
    topics,
    trails,
    upkeep,
)
from waybill.cli.tables import Cell, Table, print_facts, table_lines
from waybill.clusters import ClusterLine, VirtualCluster
from waybill.clusters.model import TeamLoad
from waybill.clusters.records import Pin
from waybill.clusters.status import TeamLine
from waybill.deployment import ActiveVersion, DeployedVersion, PastUndeployment
from waybill.destinations import Finding, QueryResult
from waybill.ledger import BalanceRow, LogLine, SourceLine, StageCounts
from waybill.ledger.source_runs import RunFigures
from waybill.loading import DestinationLine, Waiting
from waybill.notices import SentNotice, WaitingNotice
from waybill.parking import ParkedGroup
from waybill.pipelines import load_pipelines
from waybill.reconciliation import BalanceReport, Breach, PipelineBalance
from waybill.reconciliation.breaches import BreachKey
from waybill.reconciliation.segment_sums import STAGES
from waybill.replay import Campaign, CampaignGroup, CampaignResult, DryRunReport
from waybill.retention import GROWTH
from waybill.stack import Check, ServiceStatus
from waybill.topics import TopicLine
from waybill.topics.configuration import PartitionLine
from waybill.tracing.files import FileRecord, Shipment
from waybill.trails import Asked, Question
from waybill.upkeep import JobRecord

NOW = datetime(2026, 11, 27, 14, 2, 15, 123_456, UTC)
EVENT_ID = "flights-2013-01-31-EV-4311-EWR-0019ab7c5f2d4e6b"
OBJECT = "parked/2026/11/23/01a20723-e5f9-72a2-9e4b-5f87a06dc049.jsonl.zst"
_PIPELINES = load_pipelines(Path(__file__).parents[2] / "include" / "pipelines")
T = TypeVar("T")


class Made(NamedTuple):
    """One function that makes a table, and what it is called with."""

    command: str
    make: Callable[..., Table]
    arguments: Sequence[Any]
    named: dict[str, Any] = {}  # noqa: RUF012 - never written to

    @property
    def table(self) -> Table:
        """The table."""
        return self.make(*self.arguments, **self.named)


def partly(kind: type[T], **fields: Any) -> T:
    """Return an object of a class that has these fields only: another one that is read is missed."""
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def parked_groups() -> list[ParkedGroup]:
    """Return three groups, as flights and weather have them after a day."""
    times = {
        name: NOW - timedelta(hours=at)
        for at, name in enumerate(
            ("last_parked_at", "first_parked_at", "last_event_at", "first_event_at")
        )
    }
    names = (
        ("flights", "flight", "transformation", "null_value", 8_255, 0),
        ("flights", "flight", "mapping", "not_null_violation", 4, 12),
        ("weather", "reading", "destination", "destination_unavailable", 26_115, 3),
    )
    return [
        ParkedGroup(
            id=number,
            pipeline=pipeline,
            pipeline_id=f"pl-{pipeline}",
            team="aviation",
            event_name=event,
            stage=stage,
            error_type=code,
            parked=events,
            replaying=0,
            replayed=again,
            discarded=0,
            quarantined=again // 4,
            bytes=events * 812,
            last_message="dep_time is null: a flight that never left has no departure",
            **times,
        )
        for number, (pipeline, event, stage, code, events, again) in enumerate(names, 1)
    ]


def _counts() -> dict[str, StageCounts]:
    return {
        stage: StageCounts(
            in_first=336_776, in_replayed=8_255, passed=336_772, parked=4, filtered=120
        )
        for stage in STAGES
    }


def books() -> BalanceReport:
    """Return the books of two pipelines; four events of one are not accounted for."""
    groups = [
        PipelineBalance("flights", "f-1", "flight", _counts(), {"mapping": 4}),
        PipelineBalance("weather", "w-1", "reading", _counts(), {}),
    ]
    rows = [BalanceRow("f-1", "flight", 29_929_322 + n, _counts()) for n in range(3)]
    return partly(BalanceReport, pipelines=groups, minutes=rows)


def _nodes() -> CapacityStatus:
    names = ("ip-10-0-12-201.eu-west-1.compute.internal", "ip-10-0-12-7.eu-west-1.compute.internal")
    nodes = tuple(
        Node(name, "ingestion", "active", 1, NodeReport(12, 9, 0.41, 0.18, 0.62), heard, None)
        for name, heard in zip(names, (True, False), strict=True)
    )
    return CapacityStatus(nodes, 12, (), None, {}, (), {})


def _waits() -> list[dict[str, Any]]:
    times = {"p50_s": 12.4, "p95_s": 1_204.0, "oldest_s": 2_412.7}
    return [
        {"team": team, "connector": "postgres_cdc", "queue": "ingestion", "waiting": 1_204, **times}
        for team in ("aviation", "")
    ]


def _questions() -> list[Asked]:
    ids = ("019acf21-7b0e-7c55-9a43-5f87a06dc049", "019acf21-7b0f-7c55-9a43-5f87a06dc04a")
    return [
        partly(
            Asked,
            id=UUID(one),
            asked_by="ann@example.org",
            asked_at=NOW,
            question=Question((EVENT_ID,)),
            state=state,
            objects_read=1_204,
            objects=9_120,
        )
        for one, state in zip(ids, ("running", "done"), strict=True)
    ]


def versions() -> list[DeployedVersion]:
    """Return three versions of a pipeline; the newest is a rollback."""
    folder = "/home/ann/work/aviation/include/pipelines/flights"
    return [
        DeployedVersion(
            *("f-1", 14, "0fe460dfc505", NOW, "ann", "", 12),
            "parks every flight of EWR, and nobody knows why",
        ),
        DeployedVersion("f-1", 13, "9b1c22d0a7e1", NOW, "ben", folder),
        DeployedVersion("f-1", 12, "0fe460dfc505", NOW, "ann", folder),
    ]


def _gone() -> list[PastUndeployment]:
    why = "the airline sends its flights itself"
    tables = "aviation.flights", "aviation.flights_legs"
    return [PastUndeployment(14, NOW, "ann", why, drop_tables=True, done_at=NOW, dropped=tables)]


def _active() -> pipeline_versions.ActiveVersions:
    flights, *_ = _PIPELINES.values()
    active = DeployedVersion(flights.id, 12, "9b1c22d0a7e1", NOW, "ann")
    return pipeline_versions.ActiveVersions(
        frozenset(), {flights.id: ActiveVersion(flights.name, flights.team, active)}
    )


def _notices() -> list[WaitingNotice]:
    return [
        WaitingNotice("ann@example.org", 12, NOW, kind="first", pipeline="flights"),
        WaitingNotice(
            *("data-platform@example.org", 1_204, NOW, "webhook"),
            message_id="019acf21-7b0e-7c55-9a43-5f87a06dc049",
            attempts=3,
            problem="the webhook answered 503",
            next_try_at=NOW,
        ),
    ]


def _sent_notices() -> list[SentNotice]:
    newest = "flight / mapping / unknown_column: field 'gate' has no column"
    sent = ("flights", "first", 1_204, ("log",), newest)
    return [SentNotice(NOW, "data-platform@example.org", *sent)]


def _rows() -> QueryResult:
    rows = [
        (1, "EV", "EWR", "Ünïted 東京", datetime(2013, 1, 31, 5, 17), 1_204.5, None),
        (336_776, "B6", "JFK", "", None, -3.0, True),
    ]
    names = ("id", "carrier", "origin", "named", "dep_time", "delay", "late")
    return QueryResult(names, rows, False)


def _campaigns() -> list[Campaign]:
    def made(number: int, state: Any, failed: int) -> Campaign:
        return partly(
            Campaign,
            id=number,
            state=state,
            asked_by="ann@example.org",
            groups=12_004,
            launched=9_120,
            ended=9_112,
            failed=failed,
            recent=1_204,
            recent_s=300.0,
            ended_at=None,
        )

    return [made(12, "running", 7), made(11, "cancelled", 0)]


_RESULTS = {
    12: CampaignResult(sent=1_336_776, delivered=1_328_000, parked_again={"mapping": 8_255}),
    11: CampaignResult(tried=1_336_776, would_pass=1_336_000),
}


def _campaign_groups() -> list[CampaignGroup]:
    return [
        CampaignGroup(
            *(number, "flights", "flight", "transformation", "null_value"),
            "ended",
            "failed",
            f"campaign__12__{number}",
            NOW,
            NOW,
            {"error": "the canary stopped it: 9 of 10 events parked again, as null_value"},
        )
        for number in (4, 5)
    ] + [
        CampaignGroup(
            *(6, "flights", "flight", "mapping", "not_null_violation"),
            *("ended", "success", "replay__6__0123456789ab", NOW, NOW, None),
            result=CampaignResult(sent=36_776, parked_again={"mapping": 8_255, "destination": 4}),
        )
    ]


def _cluster() -> ClusterLine:
    load = TeamLoad("aviation", 12, 1_204.4, 0.002, 98_120, 12.7)
    pin = Pin("aviation", "default", "ann", "a look", NOW)
    team = TeamLine(load, 1_190.2, pin, "", None, False, ())
    cluster = VirtualCluster("default", max_consumers=40, cores=16, is_served=False)
    return ClusterLine((cluster), (team,), 9, None)


def _topic() -> TopicLine:
    lines = tuple(PartitionLine(n, 0, 1_336_776 + n, 1_336_770) for n in range(3))
    return partly(
        TopicLine,
        topic="events.aviation.warehouse",
        topic_id="s6aPqxDlTsGv4n7-7sJ0mA",
        partitions=lines,
        stops=(),
        log_faults=(),
        faults=(),
        unknown=False,
        generation=SimpleNamespace(state="writing", partitions=3),
    )


def _destinations() -> list[DestinationLine]:
    waiting = Waiting.__new__(Waiting)
    object.__setattr__(waiting, "parked_from", None)
    return [
        DestinationLine("warehouse", "postgres", True, (), (), 1_204, 1_206, 8_255, 1, None),
        DestinationLine("lake", "databricks", False, (), (), 12, 1_206, 336_776, 1, waiting),
        DestinationLine("old", "", True, (), (), 12, 12, 0, 0, None),
    ]


def _jobs() -> list[JobRecord]:
    def made(job: str, failures: int, **outcome: int) -> JobRecord:
        return partly(
            JobRecord,
            job=job,
            running=False,
            succeeded_at=datetime.now(UTC) - timedelta(seconds=42 * (1 + failures)),
            failures=failures,
            outcome=outcome,
            paused_at=None,
            late=False,
        )

    return [
        made("audit", 0, looked_at=1_204, balanced=1_198, moving=6, breaches=0, seconds=2),
        made("probe_held_pipelines", 4),
    ]


def _source_lines() -> list[SourceLine]:
    def made(name: str, state: Any, **figures: Any) -> SourceLine:
        return partly(
            SourceLine,
            pipeline=name,
            state=state,
            figures=RunFigures(**figures),
            succeeded_at=datetime.now(UTC) - timedelta(minutes=7),
            waits_for="",
            error="",
        )

    return [
        made("flights", "running", read=336_776, rate_per_s=12_041.7, behind=1_204, unit="rows"),
        made("departures_of_airports", "failed"),
    ]


def _discovery() -> Any:
    table = SimpleNamespace(
        name="public.flights_of_airlines",
        event="flight",
        key=("carrier", "number", "day"),
        cursor="updated_at",
        types=dict.fromkeys("abcdefghijklmnopqrs", "text"),
    )
    file = SimpleNamespace(name="planes-2013.csv", event="plane", key=(), cursor=None, types={})
    return SimpleNamespace(found=[table, file])


class _Books:
    """The shipments of two files."""

    def shipment(self, ident: str) -> Shipment:
        return partly(Shipment, keys=("a", "b"), attempts=3, error="AccessDenied: no right to put")


def _files() -> list[FileRecord]:
    noon = int(NOW.timestamp() * 1_000_000)
    return [
        FileRecord("host-1-4711-019acf217b0e7c559a43", noon, "shipped", 8_388_608, "s1"),
        FileRecord(
            "host-1-4711-019acf217b0f7c559a43", noon, "failed", 1_204, error="damaged page 3"
        ),
    ]


def _services() -> list[ServiceStatus]:
    since = time.time() - 9_000
    return [
        ServiceStatus("spark-processing-default", 4_711, (18_333,), 2**30, since, True, ""),
        ServiceStatus("seaweedfs", 712, (18_333, 19_333, 18_080, 18_888), 2**28, since, False, ""),
        ServiceStatus("kafka", None, (), 0, None, False, ""),
    ]


def _checks() -> list[Check]:
    folder = "/home/ann/.cache/waybill/jars/iceberg-spark-runtime-4.0_2.13-1.10.0.jar"
    return [
        Check("java", True, "17.0.12, at /usr/lib/jvm/java-17-openjdk-amd64/bin/java"),
        Check("jars", False, f"1 of 12 is missing: {folder}", "make jars"),
        Check("upkeep", True, "each job succeeded lately"),
    ]


def _logs() -> list[LogLine]:
    return [
        partly(
            LogLine,
            wal_id=f"019acf21-7b0{n}-7c55-9a43-5f87a06dc049",
            pipeline="flights",
            purpose="ingestion",
            node="ip-10-0-12-201",
            state="taken_over",
            unsettled=1_204,
            unseen_s=4_711.0,
        )
        for n in range(2)
    ]


def _breaches() -> list[Breach]:
    key = BreachKey("f-1", "on_the_way", "flight", "transformation", 29_929_322)
    words = "3 events missing between ingestion and transformation, of 2026-11-27 14:02 UTC"
    rows = "the warehouse's aviation.flights has 336,775 rows, the ledger 336,776"
    return [
        partly(
            Breach, id=1_204, key=key, pipeline="flights", state="open", detail={"words": words}
        ),
        partly(
            Breach,
            id=7,
            key=BreachKey("w-1", "rows_missing"),
            pipeline="weather",
            state="explained",
            detail={"words": rows},
        ),
    ]


def _dry_run() -> DryRunReport:
    message = "could not make a timestamp of 'NA', as the flight never left"
    groups = {
        f"{n:016x}": {"message": message, "events": 100_345 + n, "tried": 200, "would_pass": 67 * n}
        for n in range(3)
    }
    return partly(DryRunReport, by_fingerprint=groups)


def _sample_rows() -> list[dict[str, Any]]:
    return [
        {"carrier": "EV", "flight": 4_311, "origin": "EWR", "dep_time": NOW, "extra": {"a": [1]}},
        {"carrier": "B6", "flight": 12, "origin": None, "tail": "N14228"},
    ]


def _event() -> Any:
    flights, *_ = _PIPELINES.values()
    event, *_ = flights.events.values()
    return event.table


_KINDS = [
    ("csv", "waybill", "Rows of CSV files, each with the column types that were decided once."),
    ("sql", "waybill", "Rows of a table or query, by a cursor; PostgreSQL, MySQL, SQL Server."),
    ("orders", "acme-connectors 1.2", "Orders of the shop."),
]
_STEPS = [
    partly(Finding, step="connect", ok=True, words="PostgreSQL 17.2 at db.example.org:5432"),
    partly(
        Finding,
        step="create a table",
        ok=False,
        words='permission denied for schema "aviation": GRANT CREATE ON SCHEMA aviation TO loader',
    ),
]
_TABLE = _event()
_MARKS = {column.name: "declared" for column in _TABLE.columns}

MADE = (
    Made("capacity show", capacity._node_table, (_nodes(),)),
    Made("capacity show", capacity._wait_table, (_waits(),)),
    Made("queries list", trails._question_table, (_questions(),)),
    Made(
        "pipelines list",
        pipelines._pipeline_table,
        (list(_PIPELINES.values()), _active(), Path("include/pipelines")),
    ),
    Made("pipelines show", pipelines._column_table, ("event flight", _TABLE.columns, _TABLE.key)),
    Made("pipelines history", pipeline_versions._history_table, (versions(),)),
    Made("pipelines history, undeployed", pipeline_versions._history_table, (versions(), _gone())),
    Made("notices list", notices._notice_table, (_notices(),)),
    Made("notices list --sent", notices._sent_table, (_sent_notices(),)),
    Made("sql", queries._row_table, (_rows(),)),
    Made("parked list", parked._group_table, (parked_groups(),)),
    Made("parked list, nothing replayed", parked._group_table, (parked_groups()[:1],)),
    Made("campaigns list", campaigns._campaign_table, (_campaigns(), _RESULTS)),
    Made("campaigns show", campaigns._group_table, (_campaign_groups(), campaigns._TROUBLED)),
    Made("clusters list", clusters._cluster_table, ([_cluster()],)),
    Made("clusters show", clusters._team_table, (_cluster(),)),
    Made("balance", balance._stage_table, (books().pipelines[0],)),
    Made("balance --minutes", balance._minute_table, (books(),)),
    Made("parked dry-run", replays._group_table, (_dry_run(),)),
    Made("topics list", topics._topic_table, ([_topic()],)),
    Made("topics show", topics._partition_table, (_topic(),)),
    Made("sources list", sources._kind_table, (_KINDS,)),
    Made("sources discover", sources._found_table, (_discovery(),)),
    Made("sources status", sources._status_table, (_source_lines(),)),
    Made("files list", files._file_table, (_Books(), _files(), Path("/var/lib/waybill/spool"))),
    Made("destination list", destinations._destination_table, (_destinations(),)),
    Made("destination check", destinations._step_table, (_STEPS,)),
    Made("run --local", local_runs._row_table, ("aviation.flights", _sample_rows())),
    Made(
        "mapping show",
        mapping._column_table,
        ("flights", _TABLE.columns, ("origin", _MARKS)),
        {"key": _TABLE.key},
    ),
    Made("upkeep list", upkeep._job_table, (_jobs(),)),
    Made("status", stack._status_table, (_services(),)),
    Made("doctor", stack._check_table, (_checks(),)),
    Made("logs list", logs._log_table, (_logs(),)),
    Made("audit breaches", audit._breach_table, (_breaches(),)),
    Made(
        "retention show",
        retention._rule_table,
        (
            {
                name: asdict(one) | {"bytes": 8192 << number % 20}
                for number, (name, one) in enumerate(sorted(GROWTH.items()))
            },
        ),
    ),
    Made("demo", demo._event_table, (demo.Figures(books().pipelines, []),)),
)
"""Each function that makes a table; some twice."""


def facts() -> Iterator[tuple[str, list[tuple[str, Cell]]]]:
    """Yield what is shown a fact a line: a title, and the facts."""
    flights, *_ = _PIPELINES.values()
    yield f"pipeline {flights.name}", pipelines._facts(flights, _active())
    shipment = {"id": "s1", "files": ["a"], "attempts": 3, "error": "AccessDenied", "done": False}
    record = _files()[1].to_json() | {
        "shipment": shipment | {"next_attempt_us": 0, "keys": [OBJECT, OBJECT]}
    }
    yield "", list(files._facts(record))


def main(width: int) -> None:
    """Print all of them."""
    console = Console(width=1_000, highlight=False)
    for made in MADE:
        print(f"\n$ waybill {made.command}\n")
        for line in table_lines(made.table, width):
            console.print(line, soft_wrap=True)
    for title, told in facts():
        print("\n(facts)\n")
        print_facts(told, title)
    print("\n(parked show)\n")
    [group, *_] = parked_groups()
    cause = SimpleNamespace(
        fingerprint="0123456789abcdef", events=8_255, message="dep_time is null"
    )
    parked._print_group(group, [cause], [OBJECT] * 4)  # type: ignore[list-item]


if __name__ == "__main__":
    main(int(sys.argv[1]))
