"""Values where a text quotes them, masked: all values in one pass over the text.

The spellings of the values are the patterns of an automaton (Aho and Corasick, "Efficient string
matching", 1975), over folded case. Its state after a character is the longest beginning of a
spelling that stands there, so that a value that is cut off (``'Ann-Mar…``, or at the text's end)
is found by the same pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from waybill.parking.spellings import spellings as spelled

MASK = "•••"
_CUT = "…"
_SHORT = 4
"""Below this many characters a value is only masked where it stands as a word of its own."""
_MOST_CHARACTERS = 100_000
"""Of all spellings together; with more of them, texts are masked whole."""


class QuotedValues:
    """Masks values wherever a text quotes them, in any of their ``spellings``.

    Cost: what ``spellings`` takes, once; for each text 0.05 µs a spelling to see whether it can be
    there, and some 0.2 µs a character of the text and of those that can.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._spellings: frozenset[str] = frozenset()
        self._too_many = False
        spellings: set[str] = set()
        characters = 0
        for spelling in (one for value in values for one in _searched(value)):
            if spelling not in spellings:
                spellings.add(spelling)
                characters += len(spelling)
            if characters > _MOST_CHARACTERS:
                self._too_many = True
                return
        self._spellings = frozenset(spellings)

    def masked(self, text: str) -> str:
        """Return a text without the values."""
        if text and self._too_many:
            return MASK
        folded, origins = _folded(text)
        # whole or cut off, its first four characters have to be there
        possible = [one for one in self._spellings if one[:_SHORT] in folded]
        if not possible:
            return text
        parts: list[str] = []
        done = 0
        for start, end in _joined(_Automaton(possible).spans(folded)):
            begin = origins[start]
            parts += (text[done:begin], MASK)
            done = origins[end - 1] + 1
        return "".join([*parts, text[done:]])

    def masked_within(self, value: Any) -> Any:
        """Return texts in lists and dicts without the values; keys and numbers stay."""
        if isinstance(value, str):
            return self.masked(value)
        if isinstance(value, dict):
            return {name: self.masked_within(item) for name, item in value.items()}
        return [self.masked_within(item) for item in value] if isinstance(value, list) else value


def _searched(value: Any) -> Iterator[str]:
    yield from (one.casefold() for one in spelled(value) if one != MASK)


def _folded(text: str) -> tuple[str, Sequence[int]]:
    """Return a text in folded case, and the place in the text of each of its characters."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded, range(len(text))
    return folded, [at for at, character in enumerate(text) for _ in character.casefold()]


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield spans in order, those that overlap as one."""
    begin = end = 0
    for start, stop in sorted(spans):
        if start >= end:
            if end:
                yield begin, end
            begin = start
        end = max(end, stop)
    if end:
        yield begin, end


class _Automaton:
    """States are numbers; 0 is the start. Memory: about 300 bytes a character of the spellings."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        """Characters from the start to a state."""
        self._whole = [0]
        """Length of the longest spelling that ends in a state, short ones left out."""
        self._short: list[tuple[int, ...]] = [()]
        """Lengths of the short ones that end there."""
        self._fail = [0]
        """The state of the longest beginning of a spelling that ends where this state ends."""
        for spelling in spellings:
            self._add(spelling)
        self._link()

    def _add(self, spelling: str) -> None:
        state = 0
        for character in spelling:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._whole.append(0)
                self._short.append(())
                self._fail.append(0)
            state = following
        if len(spelling) < _SHORT:
            self._short[state] = (len(spelling),)
        else:
            self._whole[state] = len(spelling)

    def _link(self) -> None:
        """Link each state with where to go on, the shortest first."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            back = self._fail[state]
            self._whole[state] = self._whole[state] or self._whole[back]
            self._short[state] += self._short[back]
            for character, child in self._next[state].items():
                self._fail[child] = self._step(back, character)
                waiting.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    def spans(self, folded: str) -> list[tuple[int, int]]:
        """Return where spellings stand in a text, and where it is cut off in one."""
        found: list[tuple[int, int]] = []
        state = 0
        for at, character in enumerate(folded):
            if character == _CUT:
                self._note_cut(found, state, at)
            state = self._step(state, character)
            end = at + 1
            if self._whole[state]:
                found.append((end - self._whole[state], end))
            for length in self._short[state]:
                if _stands_alone(folded, end - length, end):
                    found.append((end - length, end))
        self._note_cut(found, state, len(folded))
        return found

    def _note_cut(self, found: list[tuple[int, int]], state: int, at: int) -> None:
        if self._depth[state] >= _SHORT:
            found.append((at - self._depth[state], at))


def _stands_alone(text: str, start: int, end: int) -> bool:
    before = start > 0 and _is_of_word(text[start - 1])
    return not before and not (end < len(text) and _is_of_word(text[end]))


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"
