"""What a message says, in words for people and as JSON. Values in, values out.

All names and messages come from users or from what they sent: in text each stands on one line, and
what is not printable (line ends, terminal commands, marks that turn the direction) is written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from shlex import quote
from typing import Any
from uuid import UUID

from waybill.events import error_type
from waybill.notices.writing import KINDS

MOST_NAMED = 20
"""Notices that a message names, the most urgent first; the rest it counts."""
LONGEST_TEXT = 30_000
_LONGEST_PART = 200
_LONGEST_SUBJECT = 150
_LONGEST_TASK = 1000
"""Of the words of a failed task, which say what to do."""
_TITLES = {
    "breach": ("message from the auditor", "messages from the auditor"),
    "topic": ("topic stopped", "topics stopped"),
    "hold": ("pipeline held", "pipelines held"),
    "missing": ("object gone", "objects gone"),
    "damage": ("damaged part of a parked file", "damaged parts of parked files"),
    "destination": ("message about a destination", "messages about destinations"),
    "log": ("message about a write-ahead log", "messages about write-ahead logs"),
    "release": ("pipeline released", "pipelines released"),
    "replay": ("replay ended", "replays ended"),
    "digest": ("digest", "digests"),
    "first": ("new kind of parked events", "new kinds of parked events"),
    "test": ("test message", "test messages"),
    "task": ("task failed", "tasks failed"),
    "upkeep": ("job of upkeep fails", "jobs of upkeep fail"),
}
_EMPTY = "(empty)"
"""Stands for an event name that is empty."""
HIDDEN = "(hidden: it may quote personal values)"
"""Stands for an error message of a pipeline with personal fields."""
_MESSAGE = "message"
_OWN_WORDS = frozenset({"event_name", "stage", "error_type", "message"})


@dataclass(frozen=True, slots=True)
class NamedCounts:
    """One notice that a message names."""

    kind: str
    pipeline: str
    """Its name; its id where nobody declared it."""
    made_at: datetime
    detail: Mapping[str, Any]

    def without_messages(self) -> NamedCounts:
        """Return it without error messages, which can hold values of events."""
        return replace(self, detail=_without_messages(self.detail))

    def with_messages_hidden(self) -> NamedCounts:
        """Return it with words in the place of error messages, however deep."""
        return replace(self, detail=_hidden_messages(self.detail))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, names as they are."""
        found = {"kind": self.kind, "pipeline": self.pipeline, "at": self.made_at.isoformat()}
        return {**self.detail, **found}


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one owner."""

    id: UUID
    """The same each time that it is sent."""
    owner: str
    named: tuple[NamedCounts, ...]
    counts: Mapping[str, int]
    """{kind: notices}, all of them."""
    attempts: int = 0
    """How often it failed before."""
    words: str = field(default="", kw_only=True)
    """What stands above the notices."""

    @property
    def more(self) -> int:
        """Return how many notices it only counts; 0 of a message that is words alone."""
        return sum(self.counts.values()) - len(self.named) if self.named else 0

    @property
    def subject(self) -> str:
        """Return one line: what, and where."""
        ordered = sorted(self.counts, key=lambda kind: (*KINDS, kind).index(kind))
        parts = [_counted(kind, self.counts[kind]) for kind in ordered]
        places = sorted({item.pipeline for item in self.named})
        where = f" in {places[0]}" if len(places) == 1 else ""
        return one_line(f"Waybill: {', '.join(parts)}{where}", _LONGEST_SUBJECT)

    @property
    def text(self) -> str:
        """Return the whole text, at most 30,000 characters."""
        lines = [self.subject, ""]
        if self.words:
            lines += [self.words, ""]
        for item in self.named:
            lines += _lines(item)
        if self.more:
            lines.append(f"- and {self.more:,} more: `waybill parked list` shows what is parked")
        whole = "\n".join(lines)
        return whole if len(whole) <= LONGEST_TEXT else whole[: LONGEST_TEXT - 8] + "\n… [cut]"

    def to_json(self) -> dict[str, Any]:
        """Return the message for programs."""
        return {
            "id": str(self.id),
            "owner": self.owner,
            "subject": self.subject,
            "counts": dict(self.counts),
            "notices": [item.to_json() for item in self.named],
            "more": self.more,
            "attempt": self.attempts + 1,
        }


def one_line(text: str, longest: int = _LONGEST_PART) -> str:
    """Return a text on one line, with what is not printable written out, cut where it is long."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


def summary(item: NamedCounts) -> str:
    """Return what a notice says, without its kind and pipeline, on one line."""
    if item.kind == "digest":
        return f"{item.detail['parked']:,} parked, {item.detail['new']:,} new"
    if place := _place("", item.detail):
        said = item.detail.get(_MESSAGE)
        return f"{place}: {one_line(str(said))}" if said else place
    rest = {name: value for name, value in item.detail.items() if name != _MESSAGE}
    parts = [one_line(str(item.detail.get(_MESSAGE) or "")), one_line(_plain(rest))]
    return "; ".join(filter(None, parts))


def _without_messages(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {n: _without_messages(item) for n, item in value.items() if n != "message"}
    return [_without_messages(item) for item in value] if isinstance(value, list) else value


def _hidden_messages(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if name == _MESSAGE and item else _hidden_messages(item)
            for name, item in value.items()
        }
    return [_hidden_messages(item) for item in value] if isinstance(value, list) else value


def _counted(kind: str, number: int) -> str:
    one, many = _TITLES.get(kind, (kind, kind))
    return f"{number:,} {one if number == 1 else many}"


def _lines(item: NamedCounts) -> Iterator[str]:
    if item.kind == "digest":
        yield from _digest(item)
        return
    title = _TITLES.get(item.kind, (item.kind, ""))[0]
    count = item.detail.get("count")
    events = f", {count:,} event{'' if count == 1 else 's'}" if isinstance(count, int) else ""
    now = item.detail.get("parked_now", count)
    if events and now != count:
        events += f" at first, {now:,} parked now"
    yield f"- {one_line(title)}: {_place(item.pipeline, item.detail)}{events}"
    is_task = item.kind == "task"
    yield from _reason(item.detail, _LONGEST_TASK if is_task else _LONGEST_PART)
    if is_task:
        name = one_line(quote(item.pipeline))
        yield f"  `waybill sources status {name}` shows the last error of its source"
    if item.kind == "first" and now:
        yield f"  `waybill parked show {one_line(quote(item.pipeline))}` gives the commands"
    rest = [
        f"{one_line(str(name))}: {one_line(_plain(value))}"
        for name, value in item.detail.items()
        if name not in _OWN_WORDS and not (name in {"count", "parked_now"} and events)
    ]
    if rest:
        yield f"  {', '.join(rest)}"


def _plain(value: Any, depth: int = 0) -> str:
    """Return a value as words, without what is empty in it; deeper names are a user's own."""
    if isinstance(value, Mapping):
        full = {name: item for name, item in value.items() if item not in (None, "", [], {})}
        names = {n: str(n) if depth else str(n).replace("_", " ") for n in full}
        return "; ".join(f"{names[n]} {_plain(v, depth + 1)}" for n, v in full.items())
    if isinstance(value, list):
        return ", ".join(_plain(item, depth + 1) for item in value)
    return f"{value:,}" if depth and type(value) is int else str(value)


def _digest(item: NamedCounts) -> Iterator[str]:
    numbers = item.detail
    partitions = numbers["partitions"]
    yield (
        f"- digest of {one_line(item.pipeline)}: {numbers['parked']:,} "
        f"{'event is' if numbers['parked'] == 1 else 'events are'} parked; "
        f"{numbers['new']:,} came since the last digest"
    )
    for row in partitions:
        oldest = f", oldest of {one_line(row['oldest'])}" if row["oldest"] else ""
        yield f"  - {_place('', row)}: {row['new']:,} new, {row['parked']:,} parked{oldest}"
        yield from (f"  {line}" for line in _reason(row))
    if left := numbers["kinds"] - len(partitions):
        yield f"  - and {left:,} more"


def _place(pipeline: str, detail: Mapping[str, Any]) -> str:
    event_name = _EMPTY if detail.get("event_name") == "" else detail.get("event_name")
    names = [pipeline, event_name, detail.get("stage"), detail.get("error_type")]
    return " / ".join(one_line(str(name)) for name in names if name)


def _reason(detail: Mapping[str, Any], longest: int = _LONGEST_PART) -> Iterator[str]:
    if code := detail.get("error_type"):
        known = error_type(str(code))
        is_over = detail.get("parked_now", detail.get("parked")) == 0
        advice = "Nothing of it is parked any more." if is_over else known.advice
        yield f"  {known.title}. {advice}"
    if message := detail.get("message"):
        yield f"  it said: {one_line(str(message), longest)}"
