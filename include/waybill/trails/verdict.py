"""Where an event is now, in a word and a sentence: by its last stop and what the tracker knows.

What is said where nothing was found: what was searched, and the nearest thing that is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from typing import Any, Literal

from waybill.events import key_id
from waybill.tracing import Searched, Trace
from waybill.trails.question import KeyOf, key_spellings, spellings
from waybill.trails.tracker_facts import Known, ParkedNow, ReplayRow, asked_by, place_of

State = Literal[
    "delivered",
    "parked",
    "replaying",
    "discarded",
    "quarantined",
    "filtered",
    "superseded",
    "duplicate",
    "split",
    "in flight",
    "unknown",
]


_TAKEN = ("delivered", "deleted")
"""Outcomes of an event that a destination took."""
_MOST_NUMBERED = 10
"""Copies that are named by their numbers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where an event is now."""

    state: State
    said: str
    """A sentence, without a full stop."""
    first_at: datetime | None
    last_at: datetime | None
    copies: tuple[Verdict, ...] = ()
    """Where each copy is, the one that was taken in first first; empty: there was one, or it cannot
    be told."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "state": self.state,
            "said": self.said,
            "first_at": None if self.first_at is None else self.first_at.isoformat(),
            "last_at": None if self.last_at is None else self.last_at.isoformat(),
        }


def verdict_of(stops: Sequence[Trace], known: Known) -> Verdict:
    """Return where an event is, by its stops in order.

    The last stop says it; a parked one together with the state of its segment now.
    """
    if not stops:
        said = (
            "seen only by batches that are not committed: not yet, or they broke off and run again"
        )
        return Verdict("unknown", said, None, None)
    first_at = min(stop.at for stop in stops)
    last, later = _deciding(stops)
    coarse = all(stop.coarse for stop in stops if stop.at == first_at)
    took = _span((last.at - first_at).total_seconds(), coarse=coarse)
    state, said = _of_stop(last, took, known)
    return Verdict(state, said + later, first_at, max(stop.at for stop in stops))


_STATE_OF_COPY: dict[State, str] = {
    "delivered": "was delivered",
    "quarantined": "is quarantined",
    "parked": "is parked",
    "replaying": "is being replayed",
    "in flight": "is in flight",
    "split": "was split",
    "superseded": "changed nothing",
    "discarded": "was discarded",
    "filtered": "was filtered",
    "duplicate": "changed nothing",
    "unknown": "is of unknown state",
}
"""What is said of a copy beside one that says more of the event: the states of that first."""


def verdict_of_copies(ways: Sequence[Sequence[Trace]], known: Known) -> Verdict:
    """Return where an event is that was taken in several times, and where each of its copies is.

    Its state is that of the copy which says most: delivered where one was, else what may still be.

    Args:
        ways: the stops of each copy in order.
        known: what the tracker knows of them.
    """
    copies = [verdict_of(way, known) for way in ways]
    states: dict[State, list[int]] = {state: [] for state in _STATE_OF_COPY}
    for number, one in enumerate(copies, 1):
        states[one.state].append(number)
    (state, numbers), *others = ((one, those) for one, those in states.items() if those)
    every = {2: "both copies"}.get(len(copies), f"all {len(copies):,} copies")
    said = [f"{state} ({_numbered(numbers) if others else every})"]
    phrases: dict[str, list[int]] = {}
    for other, those in others:
        phrases.setdefault(_STATE_OF_COPY[other], []).extend(those)
    said += [_of_copies(those, phrase) for phrase, those in phrases.items()]
    first_at = min(one.first_at for one in copies if one.first_at is not None)
    last_at = max(one.last_at for one in copies if one.last_at is not None)
    return Verdict(state, "; ".join(said), first_at, last_at, tuple(copies))


def verdict_of_mixed(stops: Sequence[Trace], known: Known) -> Verdict:
    """Return where an event is, of whose stops it is not known which copy's they are.

    It was delivered if a copy was, whatever became of the others since: none is timed by another.

    Args:
        stops: of all copies, in order of time.
        known: what the tracker knows of them.
    """
    verdict = verdict_of(stops, known)
    delivered = [stop for stop in stops if stop.outcome in _TAKEN]
    if not delivered:
        return verdict
    last = delivered[-1]
    said = f"{_taken(last)} {_clock(last.at)}; it was taken in more than once"
    return replace(verdict, state="delivered", said=said)


def _of_copies(numbers: Sequence[int], phrase: str) -> str:
    """Return "copy 1 is parked", "copies 1 and 3 are parked"."""
    if numbers[1:]:
        phrase = phrase.replace("is ", "are ", 1).replace("was ", "were ", 1)
    return f"{_numbered(sorted(numbers))} {phrase}"


def _numbered(numbers: Sequence[int]) -> str:
    """Return "copy 2", "copies 1 and 3", "copies 1, 2 and 5"; of very many the first."""
    if not numbers[1:]:
        return f"copy {numbers[0]}"
    shown = [f"{number:,}" for number in numbers[:_MOST_NUMBERED]]
    last = f"{len(numbers) - len(shown):,} more" if numbers[_MOST_NUMBERED:] else shown.pop()
    return f"copies {', '.join(shown)} and {last}"


def _deciding(stops: Sequence[Trace]) -> tuple[Trace, str]:
    """Return the stop that says where the event is, and words on what came after it.

    A copy that came after the event was delivered changes nothing.
    """
    last = stops[-1]
    if last.outcome in ("duplicate", "superseded"):
        for stop in reversed(stops):
            if stop.outcome in _TAKEN:
                return stop, f"; a copy that came at {_clock(last.at)} changed nothing"
    return last, ""


def _of_stop(last: Trace, took: str, known: Known) -> tuple[State, str]:
    if last.outcome == "parked":
        return _of_parked(last, known)
    say = _SAID.get((last.phase, last.outcome)) or _SAID.get(("", last.outcome))
    if say is None:
        return "unknown", f"last seen at {_clock(last.at)}: {last.phase} {last.outcome}"
    return say(last, took, known)


def _delivered(last: Trace, took: str, _known: Known) -> tuple[State, str]:
    return "delivered", f"{_taken(last)} {_clock(last.at)} after {took}"


def _taken(stop: Trace) -> str:
    """Return what a destination did with an event, up to the time."""
    if stop.outcome == "deleted":
        return f"a delete: its row was deleted from {_destination(stop)}, or marked as deleted, at"
    return f"delivered to {_destination(stop)} at"


def _superseded(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    where = _destination(last)
    return "superseded", (
        f"superseded at {_clock(last.at)}: {where} had a newer version of its row already"
    )


def _duplicate(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    return "duplicate", (
        f"recognised as a copy at {_clock(last.at)}: {_destination(last)} had this version already"
    )


def _filtered(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    return "filtered", f"filtered on purpose by the {last.phase} at {_clock(last.at)}"


def _split(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    return "split", f"the transformation made other events of it at {_clock(last.at)}"


def _accepted(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    place = f" in topic {last.topic}" if last.topic else ""
    return "in flight", f"in flight: taken in at {_clock(last.at)},{place} not processed yet"


def _sent_back(last: Trace, _took: str, known: Known) -> tuple[State, str]:
    who = _by(known.replays.get(last.replay_id))
    said = f"in flight: sent back in a replay{who} at {_clock(last.at)}, not processed yet"
    return "in flight", said


def _mapped(last: Trace, _took: str, known: Known) -> tuple[State, str]:
    staged = known.staged.get(last.object_key)
    if staged is None or staged.state == "staged":
        return "in flight", f"in flight: staged at {_clock(last.at)}, not loaded yet"
    when = "" if staged.loaded_at is None else f" at {_clock(staged.loaded_at)}"
    return "in flight", (
        f"its commit {staged.commit_number} was loaded into {staged.destination}{when}; the trace "
        "that says what became of this event is not in yet, or was never shipped"
    )


_Say = Callable[[Trace, str, Known], tuple[State, str]]
_SAID: dict[tuple[str, str], _Say] = {
    ("destination", "delivered"): _delivered,
    ("destination", "deleted"): _delivered,
    ("", "superseded"): _superseded,
    ("", "duplicate"): _duplicate,
    ("", "filtered"): _filtered,
    ("", "replayed"): _sent_back,
    ("ingestion", "accepted"): _accepted,
    ("transformation", "passed"): _split,
    ("mapping", "passed"): _mapped,
}
"""By phase and outcome; without a phase: whatever it is."""


def _of_parked(last: Trace, known: Known) -> tuple[State, str]:
    now = known.parked_now(last)
    held = f"parked since {_clock(last.at)} at {last.phase}: {last.error_type}"
    if now is None and place_of(last) in known.unasked:
        return "parked", f"{held}; what became of it since was not looked up: ask for fewer events"
    if now is None:
        return "parked", f"{held}; the tracker has no row of it: was the tracker restored?"
    say = _NOW.get(now.state)
    if say is None:
        return "parked", f"{held}; now {now.state}"
    return say(last, held, now, known)


def _still(last: Trace, held: str, _now: ParkedNow, _known: Known) -> tuple[State, str]:
    again = "; parked again by its replay" if last.attempt else "; not replayed yet"
    return "parked", held + again


def _replaying(_last: Trace, held: str, now: ParkedNow, known: Known) -> tuple[State, str]:
    return "replaying", f"{held}; a replay{_by(known.replays.get(now.replay_id))} takes it back now"


def _replayed(last: Trace, _held: str, now: ParkedNow, known: Known) -> tuple[State, str]:
    when = "" if now.at is None else f" at {_clock(now.at)}"
    who = _by(known.replays.get(now.replay_id))
    return "in flight", (
        f"parked at {_clock(last.at)} at {last.phase} ({last.error_type}), and replayed{who}"
        f"{when}; traces of its way since are not in yet"
    )


def _thrown_away(last: Trace, _held: str, now: ParkedNow, _known: Known) -> tuple[State, str]:
    who = f" by {now.by}" if now.by else ""
    when = "" if now.at is None else f" at {_clock(now.at)}"
    why = f": {now.why}" if now.why else ""
    gone = ", and cleaned up since" if now.state.startswith("deleted") else ""
    parked = f"parked at {_clock(last.at)} at {last.phase}, {last.error_type}"
    return "discarded", f"discarded{who}{when}{why} ({parked}){gone}"


def _copied(last: Trace, _held: str, _now: ParkedNow, _known: Known) -> tuple[State, str]:
    return "duplicate", (
        f"recognised as a copy at {_clock(last.at)}: the event itself was parked at {last.phase} "
        f"({last.error_type}) already"
    )


def _quarantined(_last: Trace, held: str, _now: ParkedNow, _known: Known) -> tuple[State, str]:
    return "quarantined", f"{held}; its parked file is damaged or gone: `waybill parked recheck`"


_NOW: dict[str, Callable[[Trace, str, ParkedNow, Known], tuple[State, str]]] = {
    "parked": _still,
    "replaying": _replaying,
    "replayed": _replayed,
    "deleted after a replay": _replayed,
    "discarded": _thrown_away,
    "deleted after a discard": _thrown_away,
    "quarantined": _quarantined,
    "copy": _copied,
}


def _by(replay: ReplayRow | None) -> str:
    return "" if replay is None else f" by {asked_by(replay.requested_by)}"


def _destination(stop: Trace) -> str:
    return stop.object_key or "the destination"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float, *, coarse: bool = False) -> str:
    """Return "0.42 s" (coarse: "0.4 s"), "12.3 s", "3 min 5 s", "2 h 10 min", "3 d 4 h"."""
    if coarse and seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f} s" if seconds >= 0.1 else "less than 0.1 s"  # noqa: PLR2004
    if seconds < 10:  # noqa: PLR2004 - below it two digits count
        return f"{seconds:.2f} s"
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, below, small in ((60, "min", "s"), (3600, "h", "min"), (86400, "d", "h")):
        if whole < unit * _STEPS[below]:
            return f"{whole // unit} {below} {whole % unit // _UNIT[small]} {small}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


_STEPS = {"min": 60, "h": 24, "d": 10**9}
_UNIT = {"s": 1, "min": 60, "h": 3600}


MOST_LOOKED_NEAR = 20
"""Ids that were not found for which something near is looked for."""
MOST_NEAR_KEYS = 300
"""Ids that are looked for because a text may be somebody's primary key."""
_HEX = re.compile(r"[0-9a-fA-F]+")
_OWN_DIGITS = 32
_FEWEST_DIGITS = 6
Names = Mapping[str, Sequence[str]]
"""Event names of pipelines."""


class Near:
    """Ids near those that were not found, to be looked for in one go.

    Args:
        missing: what was asked for, as it was written.
        names: event names by pipeline id, whose keys are looked for.
        windowed: the question had a window, so that the same id may be known outside of it.
    """

    def __init__(self, missing: Sequence[str], names: Names, *, windowed: bool) -> None:
        self._of: dict[str, dict[str, str]] = {}
        """What was asked for to {id to look for: what a hit means}."""
        for one in missing[:MOST_LOOKED_NEAR]:
            near = dict(_parents(one))
            if windowed:
                near |= dict.fromkeys(spellings(one), "outside")
            near |= dict(_keys(one, names))
            self._of[one] = near

    @property
    def ids(self) -> list[str]:
        """What to look for."""
        return list(dict.fromkeys(near for ids in self._of.values() for near in ids))

    def sentences(
        self, one: str, found: Mapping[str, Sequence[Trace]], may_tell: Callable[[str], bool]
    ) -> list[str]:
        """Return what is known near an id that was not found, and hints on its form."""
        said = []
        for near, meaning in self._of.get(one, {}).items():
            lines = [line for line in found.get(near, ()) if may_tell(line.pipeline_id)]
            if lines:
                said.append(_known(one, near, meaning, lines))
        return [*dict.fromkeys(said), *_hints(one)]


def _parents(one: str) -> Iterator[tuple[str, str]]:
    """Yield the events that this one would have been made from."""
    whole = spellings(one)[-1] if spellings(one) else one
    while "/" in whole:
        whole = whole.rpartition("/")[0]
        if whole:
            yield whole, "parent"


def _keys(one: str, names: Names) -> Iterator[tuple[str, str]]:
    for pipeline_id, events in names.items():
        for name in events:
            for key in key_spellings([one]):
                yield key_id(pipeline_id, name, key), "key"


def _known(asked: str, near: str, meaning: str, lines: Sequence[Trace]) -> str:
    first, last = lines[0], lines[-1]
    if meaning == "key":
        count = len({line.refers_to for line in lines})
        events = "an event" if count == 1 else f"{count:,} events"
        return (
            f"it is the primary key of {events} {first.event_name!r} of pipeline "
            f"{first.pipeline_id!r}: ask by key, "
            f"`waybill trail --pipeline {quote(first.pipeline_id)} --key {quote(asked)}`"
        )
    span = f"{first.at:%Y-%m-%d %H:%M:%S} to {last.at:%H:%M:%S} UTC"
    if meaning == "outside":
        return f"it was seen outside of the time that was asked for: {span}"
    return f"{near!r}, which it would have been made from, is known: {span}"


def _hints(one: str) -> Iterator[str]:
    bare = spellings(one)[-1].partition("/")[0] if spellings(one) else one
    if bare.startswith("key-"):
        yield "`key-…` is what a primary key's events are found under, not an event: ask by key"
    elif _HEX.fullmatch(bare) and _FEWEST_DIGITS <= len(bare) != _OWN_DIGITS:
        yield (
            f"it has {len(bare)} hex digits, ids that Waybill makes have {_OWN_DIGITS}: was it cut "
            "off, or is something else copied with it?"
        )


def near_key(key: KeyOf, fields: Mapping[str, Sequence[str]], seen: Sequence[Trace]) -> list[str]:
    """Return what is known near a primary key of which nothing was found.

    Args:
        key: what was asked for.
        fields: the key's fields, by event name of the pipeline.
        seen: lines of the key outside of the time that was asked for, oldest first.
    """
    if seen:
        span = f"{seen[0].at:%Y-%m-%d %H:%M:%S} to {seen[-1].at:%Y-%m-%d %H:%M:%S} UTC"
        return [f"it was taken in outside of the time that was asked for: {span}"]
    named = {key.event_name} & fields.keys() if key.event_name is not None else fields.keys()
    if fields and not named:
        return [f"the pipeline has no event name {key.event_name!r}; it has {_listed(fields)}"]
    given = len(key.values)
    return [
        f"the key of {name!r} has {_fields(len(fields[name]))} ({', '.join(fields[name])}); "
        f"{given} {'value was' if given == 1 else 'values were'} given"
        f"{'; for several events give their ids' if given > len(fields[name]) else ''}"
        for name in sorted(named)
        if len(fields[name]) != given
    ]


def parked_at_ingestion(pipeline_id: str, records: int) -> list[str]:
    """Return that a key may be in a record that never was an event; nothing where none is parked.

    Args:
        pipeline_id: where the key was looked for.
        records: that are parked at ingestion.
    """
    if not records:
        return []
    number = "one record" if records == 1 else f"{records:,} records"
    return [
        f"{number} of this pipeline parked at ingestion and never became an event: no key finds "
        f"such a record, `waybill parked sample {quote(pipeline_id)} --stage ingestion` shows some"
    ]


def _fields(number: int) -> str:
    return "one field" if number == 1 else f"{number} fields"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def search_words(searched: Sequence[Searched], shipped_after_s: float) -> list[str]:
    """Return what was looked through, in sentences."""
    if not searched:
        return []
    first = searched[0]
    edges = [
        f"{word} {at:%Y-%m-%d %H:%M:%S} UTC"
        for word, at in (("from", first.since), ("to", first.until))
        if at is not None
    ]
    when = " ".join(edges) or "of all time that is kept"
    last = f"{max(10, round(shipped_after_s * 3)):,} seconds"
    return [
        f"Looked through: the traces {when}.",
        f"An event that another machine took in during the last {last} may not be seen yet: "
        "ask again then.",
    ]


def searched_json(searched: Sequence[Searched]) -> dict[str, Any] | None:
    """Return the sum of what was looked through."""
    if not searched:
        return None
    return searched[0].to_json() | {
        "hours": max(one.hours for one in searched),
        "objects": sum(one.objects for one in searched),
        "spool_files": max(one.spool_files for one in searched),
    }
