"""What a round writes of breaches: opened, updated, explained; and told, many in one notice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from waybill.ledger import MinuteKey
from waybill.reconciliation.breaches import BreachKey, open_breach, settle, tell_of
from waybill.reconciliation.verdicts import Gap, minute_words

_OPEN = text("""
SELECT pipeline_id, event_name, stage, minute, kind FROM breaches WHERE state = 'open'
""")
_AGAIN = "the books balance again"
_OF_COUNTS = ("on_the_way", "in_stage")


@dataclass(frozen=True, slots=True)
class Found:
    """One equation that holds (gap 0) or does not."""

    pipeline_id: str
    kind: str
    gap: int
    words: str
    event_name: str = ""
    stage: str = ""
    minute: int = 0

    @property
    def key(self) -> BreachKey:
        """Return what it is of."""
        return BreachKey(self.pipeline_id, self.kind, self.event_name, self.stage, self.minute)


class Writer:
    """Writes breaches in one transaction; ``tell`` writes the notices, one for each cause."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        rows = connection.execute(_OPEN)
        self._open = {BreachKey(r[0], r[4], r[1], r[2], r[3]) for r in rows}
        self._new: dict[tuple[str, str, str], list[Found]] = {}
        self._ended: dict[tuple[str, str, str], list[BreachKey]] = {}
        self.explained = 0

    def minute(self, key: MinuteKey, gaps: Sequence[Gap]) -> list[Gap]:
        """Write what the counts of a minute say; returns the gaps that ended, and stand so."""
        pipeline_id, event_name, minute = key
        stand, found = [], set()
        for gap in gaps:
            one = Found(pipeline_id, gap.kind, gap.gap, gap.words, event_name, gap.stage, minute)
            found.add(one.key)
            if not self.open(one):
                stand.append(gap)
        for known in self._open_of(key) - found:
            self._settle(known)
        return stand

    def one(self, found: Found) -> None:
        """Write one equation: a gap opens its breach, no gap settles it."""
        if found.gap:
            self.open(found)
        elif found.key in self._open:
            self._settle(found.key)

    def open(self, found: Found) -> bool:
        """Open or update a breach; False: it ended with this gap before, and stands so."""
        done = open_breach(
            self._connection, found.key, words=found.words, gap=found.gap, tell=False
        )
        if done is not None and done.new:
            cause = (found.pipeline_id, found.stage, found.kind)
            self._new.setdefault(cause, []).append(found)
        return done is not None

    def tell(self) -> list[str]:
        """Write the notices; returns the words of the breaches that are new."""
        for found in self._new.values():
            self._tell_new(found)
        for keys in self._ended.values():
            words = f"{_AGAIN}{_more(len(keys) - 1)}"
            tell_of(self._connection, keys[0], words=words, event="explained")
        return [one.words for found in self._new.values() for one in found]

    def _tell_new(self, found: Sequence[Found]) -> None:
        first = found[0]
        more = _more(len(found) - 1, (one.minute for one in found))
        gap = sum(one.gap for one in found)
        words = first.words + more
        tell_of(self._connection, first.key, words=words, event="opened", gap=gap)

    def _settle(self, key: BreachKey) -> None:
        if settle(self._connection, key, reason=_AGAIN, tell=False) is not None:
            self.explained += 1
            cause = (key.pipeline_id, key.stage, key.kind)
            self._ended.setdefault(cause, []).append(key)

    def _open_of(self, key: MinuteKey) -> set[BreachKey]:
        pipeline_id, event_name, minute = key
        return {
            known
            for kind in _OF_COUNTS
            for stage in ("ingestion", "transformation", "mapping", "destination")
            for known in [BreachKey(pipeline_id, kind, event_name, stage, minute)]
            if known in self._open
        }


def _more(number: int, minutes: Iterable[int] = ()) -> str:
    if number <= 0:
        return ""
    words = f"; and {number:,} more like it"
    if len(known := {minute for minute in minutes if minute}) > 1:
        words += f", from {minute_words(min(known))} to {minute_words(max(known))}"
    return words
