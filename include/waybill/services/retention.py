"""Retention: what grows is trimmed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from waybill.errors import InputError, RetryError, WaybillError
from waybill.pipelines import folder_names, load_pipeline
from waybill.settings import Settings
from waybill.storage import (
    ObjectStore,
    TrackerStore,
    open_log,
    open_owned_objects,
    open_tracker,
)
from waybill.waiting import nobody_waiting

if TYPE_CHECKING:
    from waybill.retention import SourceKeysReport

_DAY_S = 86_400.0


@dataclass(slots=True)
class RetentionReport:
    """What one run trimmed."""

    rows: dict[str, int] = field(default_factory=dict)
    """Table of the tracker to rows that went."""
    topics: list[dict[str, Any]] = field(default_factory=list)
    ended_topics: list[str] = field(default_factory=list)
    """Topics of generations that had ended: deleted from Kafka."""
    payloads: dict[str, Any] = field(default_factory=dict)
    source_keys: dict[str, Any] = field(default_factory=dict)
    trace_objects: int = 0
    problems: list[str] = field(default_factory=list)
    """What could not be done now; the rest was."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def apply_retention(settings: Settings) -> RetentionReport:
    """Trim records in Kafka, payloads, known keys, traces, and rows of the tracker, by settings.

    One that cannot be done now does not hold the others up.

    Raises:
        RetryError: the tracker does not answer.
    """
    from waybill.ledger import fold
    from waybill.retention import trim_log, trim_payloads, trim_rows
    from waybill.topics import delete_ended
    from waybill.tracing import expire_traces

    kept, report = settings.retention, RetentionReport()
    objects = open_owned_objects(settings)
    with open_tracker(settings.tracker) as tracker:
        fold(tracker)

        def records() -> None:
            log = open_log(settings.kafka)
            done = trim_log(tracker, log, _topics(tracker), kept_s=kept.log_days * _DAY_S)
            report.ended_topics = delete_ended(tracker, log)
            report.topics = [one.to_json() for one in done]
            report.problems += [f"{one.topic}: {one.problem}" for one in done if one.problem]

        def payloads() -> None:
            done = trim_payloads(tracker, objects, kept_s=kept.payloads_days * _DAY_S)
            report.payloads = done.to_json()

        def source_keys() -> None:
            report.source_keys = _trim_known_keys(settings, tracker, objects).to_json()

        def traces() -> None:
            before = datetime.now(UTC) - timedelta(days=kept.traces_days)
            report.trace_objects = expire_traces(objects, before)

        for work in (records, payloads, source_keys, traces):
            try:
                work()
            except WaybillError as error:
                report.problems.append(str(error))
        report.rows = trim_rows(tracker, kept_s=kept.books_days * _DAY_S)
    return report


def _topics(tracker: TrackerStore) -> dict[str, str]:
    """Return {topic: its destination} of deployed pipelines, all generations that Kafka has."""
    from waybill.deployment import active_heads
    from waybill.ledger import names_that_exist
    from waybill.pipelines import topic_of

    topics = {topic_of(one): one.destination for one in active_heads(tracker).values()}
    with tracker.transaction() as connection:
        names = names_that_exist(connection, topics)
    return {name: topics[topic] for topic, own in names.items() for name in own}


def _trim_known_keys(
    settings: Settings, tracker: TrackerStore, objects: ObjectStore
) -> SourceKeysReport:
    """Delete known keys that no deployed pipeline compares with, by their setting."""
    from waybill.retention import trim_source_keys

    kept_s = settings.retention.source_keys_days * _DAY_S
    return trim_source_keys(tracker, objects, _keys_in_use(settings, tracker), kept_s=kept_s)


def _keys_in_use(settings: Settings, tracker: TrackerStore) -> Callable[[str], Collection[str]]:
    """Return what tells which known keys below a pipeline's folder its declaration asks for."""
    from waybill.deployment import active_heads, pipeline_of
    from waybill.ingestion.connectors import KeyKeepingConnector, open_connector
    from waybill.pipelines import CONNECTORS

    roots = (settings.pipelines_dir, *settings.more_pipelines_dirs)

    @cache
    def deployed() -> dict[str, str]:
        return {one.name: pipeline_id for pipeline_id, one in active_heads(tracker).items()}

    def in_use(folder: str) -> Collection[str]:
        name = unquote(folder)
        readers = [(home, one) for home, one in _readers(roots, name) if one in deployed()]
        return {prefix for home, one in readers if (prefix := keys_of(home, deployed()[one]))}

    def keys_of(home: Path, pipeline_id: str) -> str | None:
        pipeline = pipeline_of(tracker, pipeline_id)
        connector = open_connector(
            pipeline.source,
            home,
            settings.sources.roots_of(pipeline.team),
            events=pipeline.events,
            settings=settings,
        )
        if isinstance(connector, KeyKeepingConnector):
            return connector.keys_prefix()
        if pipeline.source.connector in CONNECTORS:
            return None
        raise InputError(
            f"connector {pipeline.source.connector!r} does not say which keys it keeps"
        )

    return in_use


def _readers(roots: Sequence[Path], name: str) -> set[tuple[Path, str]]:
    """Return (folder, pipeline) of all that may keep keys below a folder's name; none: it is gone.

    A folder need not be named as its pipeline, and two folders of pipelines may each have one of
    this name. One that has no pipeline in it at all may be away: then nobody knows.

    Raises:
        RetryError: the folders cannot be listed.
        InputError: a declaration there cannot be read.
    """
    try:
        known = {root: folder_names(root) for root in roots}
    except OSError as error:
        raise RetryError(f"the pipelines' folders cannot be listed: {error}") from error
    homes = [root / name for root, names in known.items() if name in names]
    if not homes and all(known.values()):
        return set()
    if not homes:
        return {(roots[0] / name, name)}
    return {(homes[0], name), *((home, load_pipeline(home).name) for home in homes)}


def retention_failed(report: RetentionReport) -> RetryError | None:
    """Return the error of a run that could not do all, to be tried again."""
    if not report.problems:
        return None
    return RetryError("retention did not do all: " + "; ".join(report.problems))


def retention_rules(settings: Settings) -> dict[str, Any]:
    """Return what grows, and how large it is now.

    Returns:
        ``settings``: {name: days}; ``tables``: {table: {by, trimmed, lasts, grows, bytes}}, where
        bytes are those on disk with indexes, None where they are not known; ``problem``: why they
        are not known, else None.

    Cost: one statement. A tracker that is away is not waited for.
    """
    from waybill.retention import GROWTH, table_sizes

    sizes, problem = dict[str, int](), None
    try:
        with nobody_waiting(), open_tracker(settings.tracker) as tracker:
            sizes = table_sizes(tracker)
    except RetryError as error:
        problem = str(error)
    tables = {
        name: asdict(one) | {"bytes": sizes.get(name)} for name, one in sorted(GROWTH.items())
    }
    return {"settings": settings.retention.model_dump(), "tables": tables, "problem": problem}
