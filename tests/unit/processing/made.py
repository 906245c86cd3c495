"""Pipelines and messages for the tests of the stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from waybill.events import Event, encode
from waybill.pipelines import Column, EventDeclaration, Pipeline, Source, TableSpec
from waybill.processing import Chain, ChainResult, Chunk, Fault, Plan
from waybill.processing.transformation import Outcome
from waybill.storage import ObjectMissingError

MINUTE = 29_000_000
AT_US = MINUTE * 60_000_000
PASSES = "def transform(event):\n    return event\n"


def table(name: str = "orders", **types: str) -> TableSpec:
    """Return a table of the given columns, key ``id``; a ``!`` behind a type says NOT NULL."""
    types = {"id": "int64!", **types}
    columns = tuple(
        Column(name=column, type=kind.rstrip("!"), nullable=not kind.endswith("!"))
        for column, kind in types.items()
    )
    return TableSpec(schema_name="s", name=name, columns=columns, key=("id",))


def pipeline(
    code: str = PASSES,
    *,
    ident: str = "p1",
    policy: str = "strict",
    events: Sequence[str] = ("order",),
    **types: str,
) -> Pipeline:
    """Return a pipeline whose events all have the same columns."""
    return Pipeline(
        id=ident,
        name=f"name-of-{ident}",
        team="team",
        owner="o@example.com",
        source=Source(connector="csv", event=events[0], path="x.csv"),
        events={
            name: EventDeclaration(
                name=name,
                key=("id",),
                table=table(name, **(types or {"n": "int64"})),
                policy=policy,
            )
            for name in events
        },
        transformation_code=code,
        destination="warehouse",
        schema_name="s",
    )


def event(number: int = 1, data: Any = None, **changes: Any) -> Event:
    """Return an event of pipeline p1."""
    values: dict[str, Any] = {
        "id": f"e{number}",
        "pipeline_id": "p1",
        "team": "team",
        "name": "order",
        "key": f"[{number}]",
        "source_version": number,
        "intake_version": number,
        "intake_minute": MINUTE,
        "time": "2026-01-01T00:00:00Z",
        "data": {"id": number, "n": number} if data is None else data,
    }
    return Event(**{**values, **changes})


Result = tuple[int, list[Event] | None, Fault | None]
"""(index of the event, its children or None when filtered, or what went wrong)."""


def results(outcomes: Iterable[Outcome]) -> list[Result]:
    """Return outcomes in one form: an event that passes as it is, is its only child."""
    found: list[Result] = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Fault):
            found.append((index, None, outcome))
        else:
            found.append((index, [outcome] if isinstance(outcome, Event) else outcome, None))
    return found


def chunk(values: Sequence[bytes], first: int = 0) -> Chunk:
    """Return messages at offsets from ``first`` on, in partition 0."""
    return Chunk(
        values, [0] * len(values), range(first, first + len(values)), [AT_US] * len(values)
    )


def chained(
    pipelines: Pipeline | Sequence[Pipeline], events: Sequence[Event | bytes], **options: Any
) -> ChainResult:
    """Run events through a new chain."""
    plans = [pipelines] if isinstance(pipelines, Pipeline) else pipelines
    chain = Chain({p.id: Plan(p) for p in plans}, **options)
    chain.process(chunk([e if isinstance(e, bytes) else encode(e) for e in events]))
    return chain.result


def rows(result: ChainResult) -> list[dict[str, Any]]:
    """Return all staged rows."""
    from waybill.processing import read_staged

    frames = read_staged(result.staged.finish())
    return [row for frame in frames for row in frame.data.to_pylist()]


def faults(result: ChainResult) -> list[tuple[int, str, str]]:
    """Return (offset, stage, code) of all failures, by offset."""
    return sorted((f.offset, f.stage, f.fault.code) for f in result.failures)


def total(result: ChainResult, stage: str) -> dict[str, int]:
    """Return a stage's counters that are not 0, over all names and minutes."""
    from waybill.processing import COUNT_NAMES

    counts = {name: result.counts.total(name, stage=stage) for name in COUNT_NAMES}
    return {name: number for name, number in counts.items() if number}


def fetch(key: str) -> bytes:
    """Return the payload that a claim check names: there, gone, or garbage."""
    key = key.rpartition("/")[2]
    if key == "gone":
        raise ObjectMissingError(key)
    return b'{"id":1,"n":1}' if key == "there" else b"\xff\xfe"


def check_books(result: ChainResult) -> None:
    """G5, of one task: by (pipeline, event name, minute)."""
    counts: dict[tuple[str, str, int], dict[str, dict[str, int]]] = {}
    from waybill.processing import COUNT_NAMES

    for pipeline_id, name, stage, minute, row in result.counts.to_json():
        assert all(number >= 0 for number in row)
        stages = counts.setdefault((pipeline_id, name, minute), {})
        stages[stage] = dict(zip(COUNT_NAMES, row, strict=True))
    zeros = dict.fromkeys(COUNT_NAMES, 0)
    for key, stages in counts.items():
        for stage in ("transformation", "mapping"):
            c = stages.get(stage, zeros)
            gone = c["passed"] + c["parked"] + c["filtered"]
            assert c["in_first"] + c["in_replayed"] == gone, (key, stage, c)
        made = stages.get("transformation", zeros)["out"]
        assert stages.get("mapping", zeros)["in_first"] == made, key
        mapped = stages.get("mapping", zeros)["out"]
        assert stages.get("staged", zeros)["in_first"] == mapped, key
        destination = stages.get("destination", zeros)
        assert destination["in_first"] + destination["in_replayed"] == destination["parked"]
