"""What is asked: events by their ids, or by a primary key of a pipeline; and how people write both.

An id is copied with blanks, quotes or capitals around it; a key is "4711" whether the source holds
the number or the text. Every way to write what was given is tried, in order, and the answer says
which one hit.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import Field

from waybill.errors import InputError
from waybill.events import dumps, loads, window_edge
from waybill.request import Request

MOST_IDS = 1000
MOST_ID_CHARS = 500
MOST_KEY_CHARS = 2000
_MOST_MIXED = 4
"""Values of a key whose ways are all combined: 16 combinations."""
_HEX_ID = re.compile(r"[0-9a-fA-F]{32}(/\d+)*")
_DASHED_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(/\d+)*")
_AROUND = " \t\r\n\ufeff,;\"'`"


@dataclass(frozen=True, slots=True)
class KeyOf:
    """A primary key as somebody wrote it."""

    pipeline_id: str
    values: tuple[str, ...]
    """One text for each field of the key, or one text that is the whole key as a JSON array."""
    event_name: str | None = None
    """None: whichever of the pipeline's."""


@dataclass(frozen=True, slots=True)
class Question:
    """Which events, and for whom."""

    ids: tuple[str, ...] = ()
    key: KeyOf | None = None
    since: datetime | None = None
    until: datetime | None = None
    teams: tuple[str, ...] | None = None
    """Only events of pipelines of these teams are told; None: of all, and of none."""

    def to_json(self) -> dict[str, Any]:
        """Return the question as JSON."""
        key = self.key
        return {
            "ids": list(self.ids),
            "key": None
            if key is None
            else {
                "pipeline_id": key.pipeline_id,
                "values": list(key.values),
                "event_name": key.event_name,
            },
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "teams": None if self.teams is None else list(self.teams),
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Question:
        """Return the question that ``to_json`` wrote."""
        key = given["key"]
        return cls(
            tuple(given["ids"]),
            None
            if key is None
            else KeyOf(key["pipeline_id"], tuple(key["values"]), key["event_name"]),
            _moment(given["since"]),
            _moment(given["until"]),
            None if given["teams"] is None else tuple(given["teams"]),
        )

    def for_teams(self, teams: tuple[str, ...] | None) -> Question:
        """Return the question of somebody who may look for these teams; None: for all."""
        return replace(self, teams=teams)

    @property
    def words(self) -> str:
        """Return the question in few words, for a list."""
        if self.key is not None:
            name = "" if self.key.event_name is None else f"{self.key.event_name} "
            return f"{name}{', '.join(self.key.values)} of {self.key.pipeline_id}"
        more = len(self.ids) - 1
        return self.ids[0] if not more else f"{self.ids[0]} and {more:,} more"


def ask_for_ids(
    texts: Iterable[str], *, since: datetime | None = None, until: datetime | None = None
) -> Question:
    """Return a question for event ids as they were pasted: doubles and empty lines left out.

    Raises:
        InputError: none, too many, or a text that is no id; a window the wrong way round.
    """
    ids = tuple(dict.fromkeys(text for text in texts if text.strip(_AROUND)))
    if not ids:
        raise InputError("no event id was given; paste ids, one a line")
    if len(ids) > MOST_IDS:
        raise InputError(f"{len(ids):,} ids were given; at most {MOST_IDS:,} can be asked at once")
    for one in ids:
        _check_text(one, "an event id", MOST_ID_CHARS)
    return _windowed(Question(ids), since, until)


def ask_for_key(
    pipeline_id: str,
    values: Sequence[str],
    *,
    event_name: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Question:
    """Return a question for the events of a primary key.

    Raises:
        InputError: no value, an empty one, or too long a text; a window the wrong way round.
    """
    if not values or not all(value.strip() for value in values):
        raise InputError("no key was given; a key has one value for each of its fields")
    for one in values:
        _check_text(one, "a key", MOST_KEY_CHARS)
    if event_name is not None:
        _check_text(event_name, "an event name", MOST_KEY_CHARS)
    return _windowed(Question(key=KeyOf(pipeline_id, tuple(values), event_name)), since, until)


def ids_in(text: str) -> list[str]:
    """Return the ids of a pasted text: one a line; ids of 32 hex digits also in one line."""
    found: list[str] = []
    for line in text.splitlines():
        parts = [part for part in re.split(r"[\s,;]+", line) if part.strip(_AROUND)]
        alike = len(parts) > 1 and all(_is_own(part.strip(_AROUND)) for part in parts)
        found += parts if alike else [line]
    return [one for one in found if one.strip(_AROUND)]


def spellings(event_id: str) -> list[str]:
    """Return the ways in which an id may stand in the traces, each once, as it is first.

    A producer's own id may have blanks or capitals: only ids of hex digits are made small.
    """
    bare = event_id.strip(_AROUND)
    ways = [event_id, event_id.strip(), bare]
    if _DASHED_ID.fullmatch(bare):
        ways += [bare.lower(), bare.lower().replace("-", "")]
    elif _HEX_ID.fullmatch(bare):
        ways.append(bare.lower())
    return list(dict.fromkeys(way for way in ways if way))


def key_spellings(values: Sequence[str]) -> list[str]:
    """Return the ordering keys that the given values may be, the likeliest first.

    ``4711`` may be a number or a text in the source's JSON, a value in quotes is the text inside
    or with them; a single value that is a JSON array is tried as the whole key first.
    """
    found: list[str] = []
    if len(values) == 1 and isinstance(whole := _parsed(values[0]), list) and whole:
        found.append(dumps(whole).decode())
    ways = [_value_ways(value) for value in values]
    if len(values) <= _MOST_MIXED:
        mixed: Iterable[Sequence[Any]] = itertools.product(*ways)
    else:
        mixed = ([way[0] for way in ways], [way[-1] for way in ways])
    found += [dumps(list(one)).decode() for one in mixed]
    return list(dict.fromkeys(found))


def parsed_moment(text: str | None, name: str) -> datetime | None:
    """Return a time in UTC; without a zone it is UTC.

    Raises:
        InputError: it is none.
    """
    return window_edge(text or None, name)


def _value_ways(value: str) -> list[Any]:
    bare = value.strip()
    parsed = _parsed(bare)
    found: list[Any] = []
    if isinstance(parsed, bool | int | float | str | Decimal):
        found.append(parsed)
    found += [bare, value]
    return _each_once(found)


def _each_once(found: Iterable[Any]) -> list[Any]:
    """Return values without doubles; 1, 1.0 and true are three."""
    return list({dumps([one]): one for one in found}.values())


def _parsed(text: str) -> Any:
    try:
        value = loads(text.encode())
        dumps(value)
    except (ValueError, TypeError, RecursionError):
        return None
    return value


def _is_own(text: str) -> bool:
    return bool(_HEX_ID.fullmatch(text) or _DASHED_ID.fullmatch(text))


def _check_text(text: str, what: str, most: int) -> None:
    shown = text[:40]
    if len(text) > most:
        raise InputError(f"{what} has at most {most} characters; {shown!r}… has {len(text):,}")
    if "\x00" in text:
        raise InputError(f"{what} has no NUL character; {shown!r} has one")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is Unicode text; {shown!r} is none") from error


def _windowed(asked: Question, since: datetime | None, until: datetime | None) -> Question:
    edges = [None if at is None else _utc(at) for at in (since, until)]
    if edges[0] is not None and edges[1] is not None and edges[0] > edges[1]:
        raise InputError(f"since {edges[0].isoformat()} is later than until {edges[1].isoformat()}")
    return replace(asked, since=edges[0], until=edges[1])


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


class TrailRequest(Request):
    """A primary key, and a time; both may be left out where events are asked for by id."""

    pipeline: str | None = Field(None, description="With --key: the pipeline, by name or id.")
    key: list[str] | None = Field(
        None,
        description="The primary key; once for each of its fields, or as a JSON array.",
    )
    event_name: str | None = Field(
        None, description="With --key: only this kind of event; else all there are."
    )
    since: str | None = Field(None, description="Only traces from this time on (UTC): reads less.")
    until: str | None = Field(None, description="Only traces until then.")
