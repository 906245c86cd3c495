"""What is said where nothing was found: what was searched, and the nearest thing that is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from waybill.events import key_id
from waybill.tracing import Searched, Trace
from waybill.trails.question import KeyOf, key_spellings, spellings

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
        names: event names by pipeline id, of pipelines that may be told.
        windowed: the question had a window, so that the same id may be known outside of it.
    """

    def __init__(self, missing: Sequence[str], names: Names, *, windowed: bool) -> None:
        self._of: dict[str, dict[str, str]] = {}
        """What was asked for to {id to look for: what a hit means}."""
        keys = sum(map(len, names.values())) * 3
        for one in missing[:MOST_LOOKED_NEAR]:
            near = dict(_parents(one))
            if windowed:
                near |= dict.fromkeys(spellings(one), "outside")
            if keys * len(missing) <= MOST_NEAR_KEYS:
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
                said.append(_known(near, meaning, lines))
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


def _known(near: str, meaning: str, lines: Sequence[Trace]) -> str:
    first, last = lines[0], lines[-1]
    if meaning == "key":
        count = len({line.refers_to for line in lines})
        events = "an event" if count == 1 else f"{count:,} events"
        return (
            f"it is the primary key of {events} {first.event_name!r} of pipeline "
            f"{first.pipeline_id!r}: ask by key"
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
        f"{given} {'was' if given == 1 else 'were'} given"
        for name in sorted(named)
        if len(fields[name]) != given
    ]


def _fields(number: int) -> str:
    return "one field" if number == 1 else f"{number} fields"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def search_words(searched: Sequence[Searched], shipped_after_s: float) -> list[str]:
    """Return what was looked through, in sentences."""
    if not searched:
        return []
    hours = max(one.hours for one in searched)
    objects = sum(one.objects for one in searched)
    files = max(one.spool_files for one in searched)
    first = searched[0]
    if first.since is None and first.until is None:
        when = "all hours"
    else:
        edges = [
            f"{word} {at:%Y-%m-%d %H:%M:%S} UTC"
            for word, at in (("from", first.since), ("to", first.until))
            if at is not None
        ]
        when = " ".join(edges)
    read = f": {hours:,} with traces, {objects:,} objects read"
    where = "" if first.backend == "athena" else read
    last = f"{max(10, round(shipped_after_s * 3)):,} seconds"
    named = "trace file" if files == 1 else "trace files"
    waiting = f"{files:,} {named} of the machine that looked, not shipped yet"
    also = f", and {waiting}." if files else "; the machine that looked has shipped all of its own."
    return [
        f"The trace store was searched ({when}{where}){also}",
        f"What other machines have not shipped yet is not seen: usually the last {last}.",
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
