"""Retention: what grows is trimmed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from waybill.errors import RetryError, WaybillError
from waybill.settings import Settings
from waybill.storage import TrackerStore, open_log, open_owned_objects, open_tracker

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
    trace_objects: int = 0
    problems: list[str] = field(default_factory=list)
    """What could not be done now; the rest was."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def apply_retention(settings: Settings) -> RetentionReport:
    """Trim records in Kafka, payloads, traces, and the tracker's rows, each by its setting.

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

        def traces() -> None:
            before = datetime.now(UTC) - timedelta(days=kept.traces_days)
            report.trace_objects = expire_traces(objects, before)

        for work in (records, payloads, traces):
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


def retention_failed(report: RetentionReport) -> RetryError | None:
    """Return the error of a run that could not do all, to be tried again."""
    if not report.problems:
        return None
    return RetryError("retention did not do all: " + "; ".join(report.problems))


def retention_rules(settings: Settings) -> dict[str, Any]:
    """Return what grows: {"settings": {name: days}, "tables": {table: {by, trimmed, lasts}}}."""
    from waybill.retention import GROWTH

    days = settings.retention.model_dump()
    return {
        "settings": days,
        "tables": {name: asdict(one) for name, one in sorted(GROWTH.items())},
    }
