"""The service that people ask for events: questions are written down, run, told to who may hear.

A question tells only of pipelines of the teams for which one may look when one asks; what was found
then is cut again to those for which one may look when one reads it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import or_, select

from waybill.access import ANY_EVENT, MASK, personal_of
from waybill.errors import InputError, NotFoundError
from waybill.parking import storable
from waybill.storage import TrackerStore
from waybill.storage.tracker import pipelines
from waybill.trails import queries as trace_queries
from waybill.trails.answer import pipelines_of
from waybill.trails.queries import Asked
from waybill.trails.question import KeyOf, Question
from waybill.trails.runner import Runner

_POLL_S = 0.03
_SLOWEST_POLL_S = 0.2
_FEWEST_DIGITS = 4


@dataclass(frozen=True, slots=True)
class PipelineOf:
    """A pipeline that somebody named."""

    id: str
    name: str
    team: str


class TrailService:
    """Questions about events, for one who asks. Safe for several threads.

    Args:
        tracker: where questions are kept.
        runner: runs them; started where questions are to be run beside the one who asks.
    """

    def __init__(self, tracker: TrackerStore, runner: Runner) -> None:
        self._tracker = tracker
        self._runner = runner

    def pipeline(self, name: str) -> PipelineOf | None:
        """Return a pipeline by its name or id; None: there never was one."""
        table, wanted = pipelines.c, storable(name)
        query = select(table.id, table.name, table.team)
        query = query.where(or_(table.name == wanted, table.id == wanted))
        query = query.order_by((table.name == wanted).desc()).limit(1)
        with self._tracker.transaction() as connection:
            row = connection.execute(query).first()
        return None if row is None else PipelineOf(*row)

    def ask(self, question: Question, *, who: str, limit_s: float) -> Asked:
        """Ask, and wait for the answer for so long at most; the runner's threads find it.

        Raises:
            TooManyQuestionsError: this person has too many open, or asked for too many keys.
        """
        self._runner.start()
        masked = self._key_is_personal(question.key)
        most_keys = trace_queries.MOST_KEYS_A_MINUTE if masked else None
        query_id = trace_queries.ask(
            self._tracker, question, who=who, masked=masked, most_keys=most_keys
        )
        self._runner.wake()
        return self.wait(query_id, limit_s=limit_s)

    def run(self, question: Question, *, who: str) -> Asked:
        """Ask, and run the question in this thread; it can be cancelled from elsewhere."""
        masked = self._key_is_personal(question.key)
        name = self._runner.name
        query_id = trace_queries.ask(self._tracker, question, who=who, runner=name, masked=masked)
        self._runner.run(self._known(query_id))
        return self._known(query_id)

    def wait(self, query_id: UUID, *, limit_s: float) -> Asked:
        """Return a question once it has ended, or after so many seconds."""
        until, pause = time.monotonic() + limit_s, _POLL_S
        while True:
            found = self._known(query_id)
            left = until - time.monotonic()
            if found.ended or left <= 0:
                return found
            time.sleep(min(pause, left))
            pause = min(_SLOWEST_POLL_S, pause * 1.5)

    def read(self, query_id: UUID) -> Asked | None:
        """Return a question with its answer; None: there is none. Others go on being run."""
        self._runner.start()
        return trace_queries.read(self._tracker, query_id)

    def newest(self, *, asked_by: str | None, limit: int) -> list[Asked]:
        """Return the newest questions without their answers: one person's, or everybody's."""
        return trace_queries.newest(self._tracker, asked_by=asked_by, limit=limit)

    def cancel(self, query_id: UUID, *, who: str) -> Asked | None:
        """Ask for a question's end; None: there is none."""
        return trace_queries.cancel(self._tracker, query_id, who=who)

    def find(self, text: str) -> Asked:
        """Return a question by its id, or by the beginning of it if it is one of the newest.

        Raises:
            InputError: none, or several.
        """
        wanted = text.strip().lower()
        try:
            found = trace_queries.read(self._tracker, UUID(wanted))
        except ValueError:
            found = self._beginning(wanted)
        if found is None:
            raise NotFoundError(f"there is no question {text!r}; `waybill queries list` shows them")
        return found

    def told(self, asked: Asked, teams: tuple[str, ...] | None, *, personal: bool) -> Asked:
        """Return a question as somebody may see it now.

        Args:
            asked: the question.
            teams: for which this person may look; None: all.
            personal: this person asked it, or may see what is personal: the key is not masked.
        """
        key = asked.question.key
        if key is not None and not personal and self._key_is_personal(key):
            asked = _masked(asked, key)
        if asked.answer is None or _covers(teams, asked.question.teams):
            return asked
        return replace(asked, answer=self._cut(asked.answer, key, teams or ()))

    def _cut(
        self, answer: dict[str, Any], key: KeyOf | None, teams: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return an answer without what belongs to other teams: as if it were not known."""
        own = pipelines_of(self._tracker, teams)
        kept = [trail for trail in answer["trails"] if trail["pipeline_id"] in own]
        shown = {trail["event_id"] for trail in kept}
        gone = {trail["event_id"] for trail in answer["trails"]} - shown
        ids = [*gone, *(one["id"] for one in answer["missing"])] if key is None else []
        foreign = key is not None and key.pipeline_id not in own
        return answer | {
            "trails": kept,
            "missing": [{"id": one, "nearest": []} for one in ids],
            "ways": [] if foreign else answer["ways"],
            "more": 0 if foreign else answer["more"],
        }

    def is_personal(self, question: Question) -> bool:
        """Tell whether a question is for a key that is personal."""
        return self._key_is_personal(question.key)

    def _key_is_personal(self, key: KeyOf | None) -> bool:
        if key is None:
            return False
        name = ANY_EVENT if key.event_name is None else key.event_name
        return personal_of(self._tracker, [key.pipeline_id]).is_key_personal(key.pipeline_id, name)

    def _beginning(self, wanted: str) -> Asked | None:
        if len(wanted) < _FEWEST_DIGITS:
            raise InputError(f"{wanted!r}: give {_FEWEST_DIGITS} characters of an id, or all")
        listed = self.newest(asked_by=None, limit=trace_queries.MOST_LISTED)
        found = [one.id for one in listed if str(one.id).startswith(wanted)]
        if len(found) > 1:
            raise InputError(f"{wanted!r} is the beginning of {len(found)} questions' ids")
        return trace_queries.read(self._tracker, found[0]) if found else None

    def _known(self, query_id: UUID) -> Asked:
        found = trace_queries.read(self._tracker, query_id)
        if found is None:
            raise InputError(f"question {query_id} was removed meanwhile; ask again")
        return found


def _masked(asked: Asked, key: KeyOf) -> Asked:
    """Return a question without the values of its key, also in the ways that were tried."""
    answer = asked.answer
    if answer is not None:
        answer = answer | {
            "ways": [way | {"key": MASK} for way in answer["ways"]],
            "missing": [one | {"id": MASK} for one in answer["missing"]],
        }
    question = replace(asked.question, key=replace(key, values=(MASK,)))
    return replace(asked, question=question, answer=answer)


def _covers(teams: tuple[str, ...] | None, asked_for: tuple[str, ...] | None) -> bool:
    """Tell whether who may look for these teams may see all that was asked for."""
    return teams is None or (asked_for is not None and set(asked_for) <= set(teams))
