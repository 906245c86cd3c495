"""An answer: trails, the ways of a key that hit, and what is known near what was not found.

An answer is bounded: at most 1,000 ids, 100 events of a key, 100 children of an event, and 5,000
stops in all; what is left out is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import func, select

from waybill.access import personal_of
from waybill.errors import InputError
from waybill.events import key_id
from waybill.storage import TrackerStore
from waybill.storage.tracker import parked_partitions, pipeline_versions, pipelines
from waybill.tracing import Searched, Trace
from waybill.trails.question import KeyOf, Question, key_spellings, spellings
from waybill.trails.trail import Trail, TrailBooks, made_trails
from waybill.trails.verdict import (
    MOST_NEAR_KEYS,
    Near,
    near_key,
    parked_at_ingestion,
    search_words,
    searched_json,
)

MOST_STOPS = 5000
MOST_OF_A_KEY = 100
MOST_KEYS = 2000
"""Ids that are looked for by a key: event names of the pipeline times ways to write the key."""


class TraceSearch(Protocol):
    """Looks traces up for one question; says how far it is, and what it searched."""

    def __call__(
        self, ids: Sequence[str], since: datetime | None, until: datetime | None
    ) -> dict[str, list[Trace]]:
        """Return the traces of each id that has any."""
        ...


@dataclass(slots=True)
class KeyWay:
    """One way in which a key may stand in the traces."""

    event_name: str
    key: str
    """The ordering key: a JSON array."""
    events: int = 0
    """Events that have it."""


@dataclass(slots=True)
class Answer:
    """What was found, and what was not."""

    trails: list[Trail] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    """``id`` and ``nearest``: sentences on what is known that is near it."""
    ways: list[KeyWay] = field(default_factory=list)
    """Of a question by key: the ways that hit; none did: all that were tried."""
    more: int = 0
    """Events of the key that are left out."""
    searched: dict[str, Any] | None = None
    searched_said: list[str] = field(default_factory=list)

    def note_search(self, searched: Sequence[Searched], *, shipped_after_s: float) -> None:
        """Keep what was looked through."""
        self.searched = searched_json(searched)
        self.searched_said = search_words(searched, shipped_after_s)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON, with so many stops at most that it stays small."""
        room = MOST_STOPS
        trails = []
        for trail in self.trails:
            number = len(trail.stops) + sum(len(child.stops) for child in trail.children)
            trails.append(trail if number <= room else _summary(trail))
            room -= min(room, number)
        return {
            "trails": [trail.to_json() for trail in trails],
            "missing": self.missing,
            "ways": [
                {"event_name": way.event_name, "key": way.key, "events": way.events}
                for way in self.ways
            ],
            "more": self.more,
            "searched": self.searched,
            "searched_said": self.searched_said,
        }


def _summary(trail: Trail) -> Trail:
    """Return a trail without its stops, which are counted."""
    children = [replace(c, stops=[], left_out=c.left_out + len(c.stops)) for c in trail.children]
    return replace(trail, stops=[], left_out=trail.left_out + len(trail.stops), children=children)


class Answering:
    """Answers one question.

    Args:
        books: pipelines, batches, segments.
        look: looks traces up.
        asked: the question.
    """

    def __init__(self, books: TrailBooks, look: TraceSearch, asked: Question) -> None:
        self._books = books
        self._tracker = tracker = books.tracker
        self._look = look
        self._asked = asked
        self._told: frozenset[str] | None = None
        if asked.teams is not None:
            self._told = pipelines_of(tracker, asked.teams)

    def answer(self) -> Answer:
        """Return the answer.

        Raises:
            RetryError: the store or the query service is away.
            InputError: the pipeline of a key is not known.
        """
        if self._asked.key is None:
            return self._by_ids(self._asked.ids)
        return self._by_key(self._asked.key)

    def _by_ids(self, ids: Sequence[str]) -> Answer:
        ways = {one: spellings(one) for one in ids}
        found = self._trails(way for tried in ways.values() for way in tried)
        answer, seen = Answer(), set[str]()
        for one, tried in ways.items():
            hit = next((way for way in tried if found.get(way)), None)
            if hit is None:
                answer.missing.append({"id": one, "nearest": []})
            elif hit not in seen:
                seen.add(hit)
                answer.trails += found[hit]
        self._add_nearest(answer)
        return answer

    def _add_nearest(self, answer: Answer) -> None:
        """Say of what was not found what is known near it: one look for all of it."""
        if not answer.missing:
            return
        windowed = self._asked.since is not None or self._asked.until is not None
        ids = [one["id"] for one in answer.missing]
        near = Near(ids, self._names_to_try(len(ids)), windowed=windowed)
        found = self._look(near.ids, None, None) if near.ids else {}
        for one in answer.missing:
            one["nearest"] = near.sentences(one["id"], found, self.may_tell)

    def _names_to_try(self, missing: int) -> dict[str, list[str]]:
        """Return event names of which a text may be a primary key; none where these are many.

        Pipelines with personal keys are left out: an id may be asked for without the right to see
        what is personal, so it must not tell whether there is an event of such a key.
        """
        names = _names_of_all(self._tracker, self._told)
        if sum(map(len, names.values())) * 3 * missing > MOST_NEAR_KEYS:
            return {}
        personal = personal_of(self._tracker, names)
        return {one: own for one, own in names.items() if not personal.is_key_personal(one)}

    def _by_key(self, key: KeyOf) -> Answer:
        tried = self.ways_of(key)
        own = {key_id(key.pipeline_id, way.event_name, way.key): way for way in tried}
        found = self._look(list(own), self._asked.since, None)
        newest: dict[str, Trace] = {}
        for line_id, lines in found.items():
            refers = {line.refers_to: line for line in lines if line.refers_to}
            own[line_id].events = len(refers)
            newest |= refers
        ids = sorted(newest, key=lambda one: newest[one].at, reverse=True)
        answer = Answer(ways=[way for way in tried if way.events] or tried)
        if ids:
            trails = self._trails(ids[:MOST_OF_A_KEY])
            answer.trails = [trail for one in ids for trail in trails.get(one, ())]
            answer.more = max(0, len(ids) - MOST_OF_A_KEY)
        if not answer.trails:
            nearest = self._near_key(key, list(own))
            answer.missing.append({"id": ", ".join(key.values), "nearest": nearest})
        return answer

    def _near_key(self, key: KeyOf, line_ids: Sequence[str]) -> list[str]:
        """Say what is known near a key of which nothing was found."""
        seen: list[Trace] = []
        if self._asked.since is not None or self._asked.until is not None:
            lines = self._look(line_ids, None, None).values()
            seen = sorted((one for some in lines for one in some), key=lambda one: one.at)
        near = near_key(key, self._key_fields(key.pipeline_id), seen)
        return near or parked_at_ingestion(key.pipeline_id, self._parked_records(key.pipeline_id))

    def _parked_records(self, pipeline_id: str) -> int:
        """Return how many records of a pipeline are parked that never were events."""
        table = parked_partitions.c
        query = select(func.coalesce(func.sum(table.parked), 0)).where(
            table.pipeline_id == pipeline_id,
            table.stage == "ingestion",
            table.error_type.not_like("delivery\\_%"),
        )
        with self._tracker.transaction() as connection:
            return int(connection.execute(query).scalar_one())

    def _key_fields(self, pipeline_id: str) -> dict[str, list[str]]:
        """Return the key's fields of each event name, of the newest version that has it."""
        table = pipeline_versions.c
        query = (
            select(table.declaration["events"])
            .where(table.pipeline_id == pipeline_id)
            .order_by(table.number)
        )
        with self._tracker.transaction() as connection:
            rows = connection.execute(query).scalars().all()
        found = {name: event.get("key") or [] for events in rows for name, event in events.items()}
        return {name: list(fields) for name, fields in found.items()}

    def ways_of(self, key: KeyOf) -> list[KeyWay]:
        """Return all ways in which a key may stand in the traces.

        Raises:
            InputError: the pipeline is not known, or there are too many names to try.
        """
        names = [key.event_name] if key.event_name is not None else self._names(key.pipeline_id)
        ways = key_spellings(key.values)
        if len(names) * len(ways) > MOST_KEYS:
            raise InputError(
                f"the pipeline has {len(names):,} event names, so that a key can be of too many "
                "kinds of events; say which event name it is of"
            )
        return [KeyWay(name, way) for name in names for way in ways]

    def _names(self, pipeline_id: str) -> list[str]:
        """Return the event names of all versions of a pipeline."""
        table = pipeline_versions.c
        query = select(table.declaration["events"]).where(table.pipeline_id == pipeline_id)
        with self._tracker.transaction() as connection:
            rows = connection.execute(query).scalars().all()
        if not rows:
            raise InputError(
                f"no version of pipeline {pipeline_id!r} was ever deployed here, so its event "
                "names are not known; say which event name the key is of"
            )
        return sorted({name for events in rows for name in events})

    def _trails(self, ids: Iterable[str]) -> dict[str, list[Trail]]:
        wanted = list(dict.fromkeys(ids))
        found = self._look(wanted, self._asked.since, self._asked.until)
        return made_trails(self._books, found, may_tell=self.may_tell)

    def may_tell(self, pipeline_id: str) -> bool:
        """Tell whether the one who asks may hear of a pipeline's events."""
        return self._told is None or pipeline_id in self._told


def _names_of_all(tracker: TrackerStore, told: frozenset[str] | None) -> dict[str, list[str]]:
    """Return the event names of deployed pipelines that may be told, by pipeline id."""
    table = pipeline_versions.c
    query = select(table.pipeline_id, table.declaration["events"])
    if told is not None:
        query = query.where(table.pipeline_id.in_(told))
    names: dict[str, set[str]] = defaultdict(set)
    with tracker.transaction() as connection:
        for pipeline_id, events in connection.execute(query):
            names[pipeline_id].update(events)
    return {pipeline_id: sorted(found) for pipeline_id, found in names.items()}


def pipelines_of(tracker: TrackerStore, teams: Sequence[str]) -> frozenset[str]:
    """Return the ids of the pipelines of these teams."""
    query = select(pipelines.c.id).where(pipelines.c.team.in_(teams))
    with tracker.transaction() as connection:
        return frozenset(connection.execute(query).scalars())
