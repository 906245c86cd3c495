"""How much memory a reply takes once it is objects: told from its bytes, before they are read.

A byte of MessagePack can become 77 of a process: ``{0: 0}`` has three, and is a dict of 232.
"""

from __future__ import annotations

from collections.abc import Iterable

LARGEST_MEMORY_BYTES = 256 * 1024**2
"""Of the objects that one reply becomes."""
_MOST_EXPANSION = 80
"""Bytes of objects that one byte can become."""
_MOST_JSON_EXPANSION = 64
"""As a character of JSON."""
_PLACE = 9
"""Of a value in the list that holds it, which may have some room left."""
_TEXT_BYTES, _EXTENSION_BYTES = 80, 136
"""Of an object, without its characters or digits, at most four bytes each."""
_PAIR_BYTES = 24
"""That a byte of an object with strange names can become in its dict, beside what is in it."""


def _dict_bytes(count: int) -> int:
    return 64 if count == 0 else 240 + 64 * max(0, count - 5)


def _tables() -> tuple[list[int], list[int]]:
    """Return what a value takes, and how far the next one is (0: its size is in it), by head."""
    cost, step = [_PLACE] * 256, [1] * 256  # small numbers, true, false, null: made once
    for count in range(16):
        cost[0x80 + count] = _PLACE + _dict_bytes(count)
        cost[0x90 + count] = _PLACE + 56
    for size in range(32):
        cost[0xA0 + size] = _PLACE + (_TEXT_BYTES + 4 * size if size > 1 else 0)
        step[0xA0 + size] = 1 + size
    for first, sizes in ((0xCA, (4, 8)), (0xCC, (1, 2, 4, 8)), (0xD0, (1, 2, 4, 8))):
        for width, size in enumerate(sizes):  # numbers
            cost[first + width], step[first + width] = _PLACE + 40, 1 + size
    for head in range(0xE0, 0x100):  # negative ones
        cost[head] = _PLACE + 32
    for head in (*range(0xC4, 0xCA), *range(0xD4, 0xE0)):
        step[head] = 0
    return cost, step


_COST, _STEP = _tables()
_BINARY, _EXTENSION, _TEXT, _ARRAY, _MAP = range(5)
_SIZED = {
    **{0xC4: (_BINARY, 1), 0xC5: (_BINARY, 2), 0xC6: (_BINARY, 4)},
    **{0xC7: (_EXTENSION, 1), 0xC8: (_EXTENSION, 2), 0xC9: (_EXTENSION, 4)},
    **{0xD9: (_TEXT, 1), 0xDA: (_TEXT, 2), 0xDB: (_TEXT, 4)},
    **{0xDC: (_ARRAY, 2), 0xDD: (_ARRAY, 4), 0xDE: (_MAP, 2), 0xDF: (_MAP, 4)},
}
"""By head: the kind, and how many bytes say its size."""
_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
"""By head: the size of an extension."""


def is_too_large(content: bytes | bytearray, *, within: int) -> bool:
    """Tell whether a message would take more than ``LARGEST_MEMORY_BYTES`` as objects.

    Cost: none for up to 3.3 MB; of more, 0.1 µs a value until it is decided.

    Args:
        content: MessagePack, of anybody.
        within: the number of the extension whose content is values again.
    """
    size = len(content)
    if size * _MOST_EXPANSION <= LARGEST_MEMORY_BYTES:
        return False
    total = at = 0
    while at < size and total <= LARGEST_MEMORY_BYTES:
        head = content[at]
        total += _COST[head]
        step = _STEP[head]
        if not step:
            step, more = _sized(content, at, head, within)
            total += more
        at += step
    return total > LARGEST_MEMORY_BYTES


def _sized(content: bytes | bytearray, at: int, head: int, within: int) -> tuple[int, int]:
    """Return how far the next value is, and what this one takes."""
    kind, width = _SIZED.get(head, (_EXTENSION, 0))
    size = _FIXED.get(head) or int.from_bytes(content[at + 1 : at + 1 + width], "big")
    step = 1 + width
    if kind == _ARRAY:
        return step, 56
    if kind == _MAP:
        return step, _dict_bytes(size)
    if kind == _TEXT:
        plain = content[at + step : at + step + size].isascii()
        return step + size, _TEXT_BYTES + (size if plain else 4 * size)
    if kind == _BINARY:
        return step + size, _TEXT_BYTES + size
    if content[at + step : at + step + 1] == bytes([within]):
        return step + 1, _dict_bytes(1) + _PAIR_BYTES * size
    return step + 1 + size, _EXTENSION_BYTES + 4 * size


def is_json_too_large(texts: Iterable[str | None]) -> bool:
    """Tell whether JSON texts may take more than ``LARGEST_MEMORY_BYTES`` as objects.

    A comma within quotes counts as well: alone, 3 million of them are too many. Cost: 0.1 µs a
    text, and where they are 4 MB or more, 5 ns a character.
    """
    known = [text for text in texts if text is not None]
    if sum(map(len, known)) * _MOST_JSON_EXPANSION <= LARGEST_MEMORY_BYTES:
        return False
    return sum(map(_json_bytes, known)) > LARGEST_MEMORY_BYTES


def _json_bytes(text: str) -> int:
    count = text.count
    values = count(",") + count(":") + count("[") + 1
    characters = len(text) if text.isascii() else 4 * len(text)
    return characters + (_TEXT_BYTES + _PLACE) * values + _dict_bytes(1) * count("{")
