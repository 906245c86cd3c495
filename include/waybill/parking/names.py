"""Names and messages from users, in a form that PostgreSQL can store and index.

PostgreSQL's text takes neither NUL nor lone surrogates, and an index entry at most 2,704 bytes:
four names of 512 bytes fit. A name that is clean is stored as it is. Any other is stored escaped,
cut, and ended by ``~`` and a hash of the whole, so that two names stay two; the name itself stands
in every line of its segments.
"""

from __future__ import annotations

import hashlib
import re

LARGEST_NAME_BYTES = 512
LARGEST_TEXT_BYTES = 4096
LARGEST_SUMMARY_CHARS = 500

_CUT_NAME_BYTES = 480
_HASH_CHARS = 16
_ESCAPE = re.compile(r"\\(\\|u[0-9a-f]{4})")


def storable(name: str) -> str:
    """Return a name as the tracker holds it: the name itself when it is clean and short."""
    if len(name) <= LARGEST_NAME_BYTES and "\x00" not in name:
        try:
            if name.isascii() or len(name.encode()) <= LARGEST_NAME_BYTES:
                return name
        except UnicodeEncodeError:
            pass
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    head = escape(name[:LARGEST_NAME_BYTES]).replace("\x00", "\\0").encode()[:_CUT_NAME_BYTES]
    return f"{head.decode('utf-8', 'ignore')}~{digest}"


def capped(text: str) -> str:
    """Return a text of at most 4 KiB of UTF-8; a longer one is cut and says so at its end."""
    if len(text) <= LARGEST_TEXT_BYTES and (
        text.isascii() or _utf8_length(text) <= LARGEST_TEXT_BYTES
    ):
        return text
    marker = f" … [cut: {len(text)} characters]"
    room = LARGEST_TEXT_BYTES - len(marker.encode())
    head = text[:room].encode("utf-8", "surrogatepass")[:room]
    while head and head[-1] & 0xC0 == 0x80:  # noqa: PLR2004 - a UTF-8 character's later byte
        head = head[:-1]
    if head and head[-1] >= 0xC0:  # noqa: PLR2004 - its first byte
        head = head[:-1]
    return head.decode("utf-8", "surrogatepass") + marker


def summary(text: str) -> str:
    """Return the beginning of a message for the tracker: at most 500 characters, none refused."""
    short = text if len(text) <= LARGEST_SUMMARY_CHARS else text[: LARGEST_SUMMARY_CHARS - 1] + "…"
    if short.isascii() and "\x00" not in short:
        return short
    return short.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\0")


def escape(text: str) -> str:
    r"""Write lone surrogates as ``\udXXX`` and backslashes doubled; ``unescape`` undoes it."""
    return text.replace("\\", "\\\\").encode("utf-8", "backslashreplace").decode()


def unescape(text: str) -> str:
    """Undo ``escape``."""
    return _ESCAPE.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    return "\\" if code == "\\" else chr(int(code[1:], 16))


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
