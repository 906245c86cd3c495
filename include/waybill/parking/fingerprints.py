"""The fingerprint of a failure: the same for one cause, whatever the values that it met.

What varies from event to event is replaced before the words are hashed: quoted values, UUIDs,
times, numbers and all words with a digit, paths, addresses. The place counts as it is, but for the
number of a line, row or byte in the data.

Each alternative of the expression is entered at one kind of character only and never gives back
what it took, so that the cost grows with the length of the text, whatever it holds; and the length
is capped.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from waybill.errors import InputError
from waybill.parking.event import ParkedEvent

FINGERPRINT_CHARS = 16
_FINGERPRINT = re.compile(f"[0-9a-f]{{{FINGERPRINT_CHARS}}}")
_READ_CHARS = 256
_PLACE_CHARS = 256
_REMEMBERED = 2048

_VALUES = re.compile(
    r"""(?<!\w)(?:
    '(?:[^'\\]|\\.|'(?=\w))*+'?+                # quoted, with an apostrophe inside a word
    | "(?:[^"\\]|\\.|"(?=\w))*+"?+
    | `[^`]*+`?+
    | (?<![.\-])[\w.\-]*+(?:@|:?[/\\])[^\s'"`]*+  # a path, an address
    | [0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F\-]++
    | [+\-]?+[^\W\d]*+\d[\w.:+\-,%]*+             # a number, a time, a word with a digit
    )""",
    re.VERBOSE | re.DOTALL,
)
_LISTS = re.compile(r"#(?:[\s,;:]++#)++")
_DATA_PLACE = re.compile(r"\b(line|row|record|byte|page|column|index) \d+", re.IGNORECASE)


@lru_cache(maxsize=_REMEMBERED)
def _fingerprint(message: str, where: str) -> str:
    words = _VALUES.sub("#", message)
    if "# #" in words or ", #" in words:
        words = _LISTS.sub("#", words)
    place = _DATA_PLACE.sub(r"\1 #", where) if " " in where else where
    text = f"{place}\0{words}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=FINGERPRINT_CHARS // 2).hexdigest()


def fingerprint(message: str, where: str) -> str:
    """Return the fingerprint of a failure: 16 hex digits.

    Args:
        message: what went wrong; the first 256 characters count.
        where: place in the user's code, or column.

    Cost: 4 to 15 µs for a message that is new, at most 60 µs for one made to be slow, 0.2 µs for
    one that was seen lately.
    """
    return _fingerprint(message[:_READ_CHARS], where[:_PLACE_CHARS])


def fingerprint_of(event: ParkedEvent) -> str:
    """Return an event's fingerprint; computed where a release parked it that knew none."""
    return event.fingerprint or fingerprint(str(event.message), str(event.where))


def require_fingerprint(text: str) -> str:
    """Return what a user gave as a fingerprint.

    Raises:
        InputError: it is none.
    """
    if _FINGERPRINT.fullmatch(text) is None:
        raise InputError(
            f"fingerprint: {text[:80]!r} is not a fingerprint: it has {FINGERPRINT_CHARS} digits, "
            "0-9 and a-f; `waybill parked show` lists those of a partition"
        )
    return text
