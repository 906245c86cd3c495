"""What an application reports of its consumers: how many run, which do not, and why.

A report is small however many consumers there are, and holds one line of plain text each: words of
errors are of servers and of user code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from waybill.errors import InputError, SettleError

HoldKind = Literal["waits", "stopped", "fails"]
"""``waits``: for its turn, or for who had it before; ``stopped``: until somebody settles what was
found; ``fails``: it is tried again and again."""
MOST_NAMED = 10
"""Consumers that do not run, of which a report says why."""
_LONGEST_WHY = 200
_LONGEST_NAME = 249  # of a topic
_MASKED_NAMES = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token|credential|signature"
    r"|(?:api|access|account|private)[_-]?key)[\w.-]{0,40}|\bauthorization"
)
_SECRETS = re.compile(
    r"(://[^/\s:]*:)\S{1,1000}(?=@)"  # of an address
    rf"|((?:{_MASKED_NAMES})(?:\\*[\"']\s*[=:,]|\s*[=:])\s*(?:(?:bearer|basic)\s+)?|\bbearer\s+)"
    r"(?:\\*\"(?:\\.|[^\"\\])*\"?|\\*'(?:\\.|[^'\\])*'?|[^\s\"',;}&]+)",
    re.IGNORECASE | re.DOTALL,
)
_NUMBERS = ("version", "wanted", "running", "failing", "stopped")
_FIRST = ("fails", "stopped", "waits")


@dataclass(frozen=True, slots=True)
class HeldConsumer:
    """A consumer that does not run."""

    name: str
    """Of its topic or destination."""
    kind: HoldKind
    why: str
    """As its error says it; `Serving.of` makes it short and plain, and masks secrets."""

    @classmethod
    def of(cls, name: str, error: BaseException | None, otherwise: str) -> Self:
        """Return why a consumer does not run: its last error, or what it waits for."""
        if error is None:
            return cls(name, "waits", otherwise)
        is_settled = isinstance(error, SettleError | InputError)  # by somebody, before it goes on
        return cls(name, "stopped" if is_settled else "fails", _words(error))


@dataclass(frozen=True, slots=True)
class Serving:
    """What an application serves."""

    version: int
    """Of the assignment that it follows; 0: there is none yet."""
    wanted: int
    """Consumers that it is to serve,"""
    running: int
    """those that run,"""
    failing: int
    """those that fail,"""
    stopped: int = 0
    """and those that are stopped; others wait."""
    held: tuple[HeldConsumer, ...] = ()
    """The first ``MOST_NAMED`` of those that do not run: what fails comes first."""

    @classmethod
    def of(cls, version: int, wanted: int, held: Collection[HeldConsumer]) -> Self:
        """Return the report of so many consumers, of which these do not run."""
        first = sorted(held, key=lambda one: (_FIRST.index(one.kind), one.name))[:MOST_NAMED]
        return cls(
            version,
            wanted,
            running=wanted - len(held),
            failing=sum(one.kind == "fails" for one in held),
            stopped=sum(one.kind == "stopped" for one in held),
            held=tuple(
                HeldConsumer(
                    plain_words(one.name, longest=_LONGEST_NAME), one.kind, plain_words(one.why)
                )
                for one in first
            ),
        )

    @property
    def is_unable(self) -> bool:
        """Tell whether none runs, and not only because somebody has to settle something."""
        return self.running == 0 and self.failing > 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def read(cls, value: object, *, epoch: int) -> Self | None:
        """Read what a start of this epoch reported: what ``to_json`` gave, with its epoch.

        None: nothing, what another start said, or what another release wrote otherwise.
        """
        if not isinstance(value, Mapping) or value.get("epoch") != epoch:
            return None
        try:
            numbers = {name: int(value[name]) for name in _NUMBERS}
            held = tuple(HeldConsumer(**one) for one in value["held"])
        except (TypeError, KeyError, ValueError):
            return None
        return cls(**numbers, held=held)


ASKED_TO_END = "it was asked to end"
"""Why an application ended that did not fail: by a signal, as of `waybill down`, or its row."""


@dataclass(frozen=True, slots=True)
class ApplicationEnd:
    """Why a start of an application ended, as it said itself; one that was killed says nothing."""

    epoch: int
    """Of the start that ended."""
    at_s: float
    """Seconds since the epoch."""
    why: str

    @classmethod
    def read(cls, value: object) -> Self | None:
        """Read what the tracker has; None: nothing, or what another release wrote otherwise."""
        if not isinstance(value, Mapping):
            return None
        try:
            return cls(int(value["epoch"]), float(value["at_s"]), str(value["why"]))
        except (TypeError, KeyError, ValueError):
            return None


def serving_words(serving: Serving, noun: str) -> str:
    """Return a report in a line: ``serving 48 of 50 topics; 1 fails, 1 waits``."""
    words = f"serving {serving.running:,} of {serving.wanted:,} {noun}{'s' * (serving.wanted != 1)}"
    counts = [f"{serving.failing:,} fail{'s' * (serving.failing == 1)}"] * (serving.failing > 0)
    counts += [f"{serving.stopped:,} stopped"] * (serving.stopped > 0)
    if waits := serving.wanted - serving.running - serving.failing - serving.stopped:
        counts.append(f"{waits:,} wait{'s' * (waits == 1)}")
    return "; ".join([words, *([", ".join(counts)] if counts else [])])


def held_words(held: HeldConsumer) -> str:
    """Return a line of a consumer that does not run."""
    verb = {"waits": "waits", "stopped": "is stopped:"}.get(held.kind, "fails:")
    return f"{held.name}: {verb} {held.why}"


def error_words(error: BaseException) -> str:
    """Return the class of an error and the beginning of its words, plain and without secrets."""
    return plain_words(_words(error))


def _words(error: BaseException) -> str:
    words = type(error).__name__
    with suppress(Exception):  # Py4J asks a JVM for its words, which may be gone
        words += f": {error}"
    return words


def plain_words(text: str, *, longest: int = _LONGEST_WHY) -> str:
    """Return a text on one line, cut, with what is not printable written out, no password in it."""
    line = " ".join(_SECRETS.sub(_hidden, text[: 20 * longest]).split())
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line[: longest + 1])
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def _hidden(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}***"
