"""The auditor's list in SQL: minutes that it is not through with, and its rounds.

A fold puts a minute on the list, or counts ``changed`` up (``waybill.ledger.fold``); a round writes
what it saw, and takes off what is in balance if it did not change meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, text

from waybill.ledger import MinuteKey
from waybill.reconciliation.snapshot import InLog
from waybill.storage import AdvisoryLock

_DUE = text("""
WITH due AS (
  SELECT list.*, row_number() OVER (
    PARTITION BY pipeline_id ORDER BY list.changed = list.audited, list.minute) AS place
  FROM audit_minutes AS list
  LEFT JOIN intake_watermarks AS water USING (pipeline_id)
  WHERE list.changed > list.audited OR (list.state IN ('moving', 'mixed')
    AND (water.open IS NOT TRUE OR list.minute < water.open_from_minute))
  ORDER BY place, list.minute LIMIT :most)
SELECT due.pipeline_id, due.event_name, due.minute, due.changed, due.fence, due.state, due.ids,
  rounds.ends
FROM due LEFT JOIN audit_rounds AS rounds ON rounds.number = due.fence
ORDER BY due.changed = due.audited, due.minute
""")
"""Where there are more than are asked for, each pipeline gets as many: one whose destination is
away for long fills the list with minutes that move."""
_WRITE = text("""
UPDATE audit_minutes AS list SET audited = given.changed, state = given.state,
  stages = CAST(given.stages AS jsonb),
  fence = CASE WHEN given.fenced THEN coalesce(list.fence, :round) ELSE list.fence END,
  balanced_at = CASE WHEN given.state = 'balanced'
    THEN coalesce(list.balanced_at, clock_timestamp()) END,
  ids = CASE WHEN list.changed = list.audited AND list.state = given.state THEN list.ids
    ELSE '' END
FROM unnest(CAST(:pipelines AS text[]), CAST(:names AS text[]), CAST(:minutes AS int[]),
  CAST(:changed AS bigint[]), CAST(:states AS text[]), CAST(:stages AS text[]),
  CAST(:fenced AS boolean[]))
  AS given (pipeline_id, event_name, minute, changed, state, stages, fenced)
WHERE list.pipeline_id = given.pipeline_id AND list.event_name = given.event_name
  AND list.minute = given.minute
""")
_TAKE_OFF = text("""
DELETE FROM audit_minutes AS list
USING unnest(CAST(:pipelines AS text[]), CAST(:names AS text[]), CAST(:minutes AS int[]),
  CAST(:changed AS bigint[])) AS given (pipeline_id, event_name, minute, changed)
WHERE list.pipeline_id = given.pipeline_id AND list.event_name = given.event_name
  AND list.minute = given.minute AND list.changed = given.changed
""")
_UNNAMED = text("""
SELECT pipeline_id, event_name, minute, changed, state, stages,
  extract(epoch FROM clock_timestamp() - coalesce(balanced_at, since))::float AS waited_s
FROM audit_minutes
WHERE ids = '' AND changed = audited AND state IN ('balanced', 'breach', 'mixed')
ORDER BY state = 'balanced', minute LIMIT :most
""")
_NAMED = text("""
UPDATE audit_minutes SET ids = :ids WHERE pipeline_id = :pipeline AND event_name = :name
  AND minute = :minute AND changed = :changed
""")
_ROUND = text("INSERT INTO audit_rounds (ends) VALUES (CAST(:ends AS jsonb)) RETURNING number")
_REPORT = text("UPDATE audit_rounds SET report = CAST(:report AS jsonb) WHERE number = :number")
_LAST = text("SELECT report FROM audit_rounds WHERE report <> '{}' ORDER BY number DESC LIMIT 1")
_FORGET = text("""
DELETE FROM audit_rounds WHERE at < clock_timestamp() - interval '1 day'
  AND number < (SELECT max(number) FROM audit_rounds)
  AND NOT EXISTS (SELECT FROM audit_minutes WHERE fence = audit_rounds.number)
""")


@dataclass(frozen=True, slots=True)
class Due:
    """One minute to look at."""

    key: MinuteKey
    changed: int
    ids: str
    fence: Mapping[str, Any] | None
    """The ends of the log when the minute was first seen whole."""
    state: str


@dataclass(frozen=True, slots=True)
class Unnamed:
    """One minute whose ids were not compared since it changed."""

    key: MinuteKey
    changed: int
    state: str
    stages: Mapping[str, Any]
    waited_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What a round says of one minute."""

    due: Due
    state: str
    """moving; breach; mixed: both; balanced: its ids are still to be compared; empty: take it off.
    """
    stages: Mapping[str, Any]
    fenced: bool
    """All its first-pass events were in the log when this round looked."""


def take_turn(connection: Connection) -> bool:
    """Take the auditor's turn until the transaction ends; False: another round is at work."""
    return AdvisoryLock.AUDIT_ROUND.try_take(connection)


def read_due(connection: Connection, *, most: int) -> list[Due]:
    """Return what is to be looked at: of each pipeline what changed, then the oldest that moves."""
    return [_due(row) for row in connection.execute(_DUE, {"most": most}).mappings()]


def _due(row: RowMapping) -> Due:
    key = (row["pipeline_id"], row["event_name"], row["minute"])
    return Due(key, row["changed"], row["ids"], row["ends"], row["state"])


def read_unnamed(connection: Connection, *, most: int) -> list[Unnamed]:
    """Return minutes whose ids are to be compared, those with a breach first."""
    return [
        Unnamed(
            (row["pipeline_id"], row["event_name"], row["minute"]),
            row["changed"],
            row["state"],
            row["stages"],
            row["waited_s"],
        )
        for row in connection.execute(_UNNAMED, {"most": most}).mappings()
    ]


def end_naming(connection: Connection, one: Unnamed, said: str) -> None:
    """Say how a minute's ids were compared: take it off if it is in balance, else note it."""
    columns = dict(zip(("pipeline", "name", "minute"), one.key, strict=True))
    if one.state == "balanced":
        due = Due(one.key, one.changed, "", None, one.state)
        connection.execute(_TAKE_OFF, _columns([due]))
    else:
        connection.execute(_NAMED, {**columns, "changed": one.changed, "ids": said})


def begin_round(connection: Connection, in_log: InLog) -> int:
    """Write a round with the log's ends; returns its number."""
    ends = {
        name: {"id": topic.topic_id, "ends": sorted(topic.ends.items())}
        for name, topic in in_log.topics.items()
    }
    given = {"ends": orjson.dumps(ends).decode()}
    return int(connection.execute(_ROUND, given).scalar_one())


def has_passed(in_log: InLog, topic: str, fence: Mapping[str, Any] | None) -> bool:
    """Tell whether all that was in a topic at a fence was processed at this moment."""
    now, then = in_log.topics.get(topic), (fence or {}).get(topic)
    if now is None or then is None:
        return False
    return now.has_passed(then["id"], {int(n): int(end) for n, end in then["ends"]})


def write_seen(connection: Connection, seen: Sequence[Seen], number: int) -> None:
    """Keep what a round saw."""
    kept = [one for one in seen if one.state]
    if kept:
        more = {
            "states": [one.state for one in kept],
            "stages": [orjson.dumps(dict(one.stages)).decode() for one in kept],
            "fenced": [one.fenced for one in kept],
        }
        connection.execute(_WRITE, {**_columns([one.due for one in kept]), **more, "round": number})
    if through := [one.due for one in seen if not one.state]:
        connection.execute(_TAKE_OFF, _columns(through))


def end_round(connection: Connection, number: int, report: Mapping[str, Any]) -> None:
    """Keep a round's report, and forget what is a day old and needed no more."""
    values = {"number": number, "report": orjson.dumps(dict(report)).decode()}
    connection.execute(_REPORT, values)
    connection.execute(_FORGET)


def last_report(connection: Connection) -> dict[str, Any]:
    """Return the newest round's report; empty when there is none."""
    return dict(connection.execute(_LAST).scalar() or {})


def _columns(due: Sequence[Due]) -> dict[str, list[Any]]:
    return {
        "pipelines": [one.key[0] for one in due],
        "names": [one.key[1] for one in due],
        "minutes": [one.key[2] for one in due],
        "changed": [one.changed for one in due],
    }
