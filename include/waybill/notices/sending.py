"""One run of sending: digests that are due, messages put together, each sent and acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from waybill.notices.digests import write_digests
from waybill.notices.outbox import (
    Claim,
    claim,
    mark_sent,
    put_off,
    put_together,
    read_message,
    settle,
)
from waybill.notices.rendering import Message, NamedCounts, one_line
from waybill.notices.sinks import Sink, SinkAwayError, SinkError, open_sinks
from waybill.settings import NoticeSettings
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
_GIVE_UP_AFTER = 3
"""Messages in a row that a sink did not answer; the rest of the run leaves it alone."""
_STEPS_OF_A_SEND = 12
"""Answers that a send waits for at most; so many time-outs long nobody else sends the message."""
_DAY_S = 86_400.0
_MOST_DOUBLINGS = 30


@dataclass(slots=True)
class SendReport:
    """What one run of sending did."""

    digests: int = 0
    """Written in this run."""
    messages: int = 0
    """Sent, each by one sink."""
    notices: int = 0
    """Told by them."""
    failed: int = 0
    """Messages that were tried and not taken; they are kept."""
    stuck: list[str] = field(default_factory=list)
    """Messages that could not be sent for longer than ``stuck_after_s``, in words."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


def send_notices(
    tracker: TrackerStore, settings: NoticeSettings, sinks: Sequence[Sink] | None = None
) -> SendReport:
    """Send what waits. Safe to kill anywhere, to repeat, and to run twice at once.

    Args:
        tracker: where notices are.
        settings: sinks, waits, interval of the digests.
        sinks: instead of those of the settings.

    Returns:
        what was sent and what was not; a sink that fails raises nothing.

    Raises:
        RetryError: the tracker is away.
    """
    used = open_sinks(settings) if sinks is None else list(sinks)
    names = [sink.name for sink in used]
    report = SendReport()
    if not names:
        return report
    settle(tracker, names, keep_sent_s=settings.keep_sent_days * _DAY_S)
    report.digests = write_digests(tracker, interval_s=settings.digest_interval_s)
    put_together(tracker, names)
    for sink in used:
        _send_all(_Run(tracker, settings, names, report), sink)
    return report


def send_test(settings: NoticeSettings, owner: str, *, who: str) -> dict[str, str]:
    """Send a test message to an owner by each sink; returns {sink: problem, empty if none}."""
    now = datetime.now(UTC)
    named = NamedCounts("test", "no pipeline", now, {"asked by": who})
    words = "This is a test: nothing happened, and nothing is to be done."
    message = Message(uuid4(), owner, (named,), {"test": 1}, words=words)
    answers: dict[str, str] = {}
    for sink in open_sinks(settings):
        problem = _try(sink, message)
        answers[sink.name] = "" if problem is None else str(problem)
    return answers


@dataclass(frozen=True, slots=True)
class _Run:
    tracker: TrackerStore
    settings: NoticeSettings
    names: Sequence[str]
    report: SendReport


def _send_all(run: _Run, sink: Sink) -> None:
    """Send each message that is due by one sink, once."""
    tried: set[UUID] = set()
    away = 0
    while away < _GIVE_UP_AFTER:
        taken = _claim(run, sink, tried)
        if taken is None:
            return
        claimed, message = taken
        tried.add(claimed.id)
        problem = _try(sink, message)
        if problem is None:
            with run.tracker.transaction() as connection:
                mark_sent(connection, claimed, run.names)
            run.report.messages += 1
            run.report.notices += len(claimed.notice_ids)
        else:
            _put_off(run, claimed, str(problem))
        away = away + 1 if isinstance(problem, SinkAwayError) else 0


def _claim(run: _Run, sink: Sink, tried: set[UUID]) -> tuple[Claim, Message] | None:
    settings = run.settings
    lease_s = _STEPS_OF_A_SEND * max(settings.webhook_timeout_s, settings.smtp_timeout_s)
    with run.tracker.transaction() as connection:
        claimed = claim(connection, sink.name, tried, lease_s=lease_s)
        if claimed is None:
            return None
        message = read_message(
            connection,
            claimed,
            error_messages=settings.error_messages,
            personal_messages=settings.personal_messages,
        )
        return claimed, message


def _try(sink: Sink, message: Message) -> SinkError | None:
    """Send one message; returns why it was not taken."""
    try:
        sink.send(message)
    except SinkError as error:
        return error
    except Exception as error:  # noqa: BLE001 - one odd message must not stop those of others
        _LOG.exception("message %s: its sink failed with an unexpected error", message.id)
        return SinkError(f"unexpected: {type(error).__name__}: {error}")
    return None


def _put_off(run: _Run, claimed: Claim, problem: str) -> None:
    settings = run.settings
    wait_s = settings.retry_first_s * 2.0 ** min(claimed.attempts - 1, _MOST_DOUBLINGS)
    with run.tracker.transaction() as connection:
        put_off(connection, claimed, problem, wait_s=min(wait_s, settings.retry_longest_s))
    _note_failure(run, claimed, problem)


def _note_failure(run: _Run, claimed: Claim, problem: str) -> None:
    run.report.failed += 1
    since = f"{claimed.made_at:%Y-%m-%d %H:%M} UTC"
    words = (
        f"{claimed.sink}: message {claimed.id} to {one_line(claimed.owner) or 'nobody'}, with "
        f"{len(claimed.notice_ids):,} notices, waits since {since}: {one_line(problem)}"
    )
    _LOG.error("%s", words)
    late = datetime.now(UTC) - claimed.made_at
    if late >= timedelta(seconds=run.settings.stuck_after_s):
        run.report.stuck.append(words)
