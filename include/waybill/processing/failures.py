"""From an exception of user code to an error type of the catalogue, with where it arose."""

from __future__ import annotations

import decimal
import hashlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from waybill.errors import ParkError
from waybill.events import CATALOGUE, HELD_ERROR

CODE_FILE_PREFIX = "waybill-pipeline:"


class EventTimeoutError(BaseException):
    """User code took too long for one event. Not an Exception: user code must not swallow it."""


class TooLargeError(Exception):
    """What user code gave would take more memory here than results may have."""


_BY_TYPE: tuple[tuple[type[BaseException], str], ...] = (
    (EventTimeoutError, "transformation_timeout"),
    (SystemExit, "interpreter_crashed"),
    (RecursionError, "recursion_error"),
    (MemoryError, "memory_error"),
    (ImportError, "import_error"),
    (AssertionError, "assertion_failed"),
    (ZeroDivisionError, "division_by_zero"),
    (OverflowError, "overflow"),
    (decimal.Overflow, "overflow"),
    (KeyError, "field_missing"),
    (IndexError, "index_error"),
    (LookupError, "lookup_failed"),
    (AttributeError, "attribute_error"),
    (UnicodeError, "unicode_error"),
    (TypeError, "type_error"),
    (ValueError, "value_error"),
    (decimal.InvalidOperation, "value_error"),
    (OSError, "io_error"),
)
_NOT_SAID = frozenset({
    "interpreter_crashed", "memory_error", "transformation_timeout", "code_invalid", HELD_ERROR,
})  # fmt: skip
"""Error types that no ParkError gives an event: from them Waybill concludes what to do next."""
_LONGEST_CHARS = 4096
_CUT_CHARS = 4000
"""Of a longer text, where each is one byte; so that what is left, with its end, has 4 KiB."""
_name: Callable[[type], str] = type.__dict__["__name__"].__get__
_traceback: Callable[[BaseException], TracebackType | None] = BaseException.__dict__[
    "__traceback__"
].__get__
"""As the interpreter has them: a user's class may define both anew."""
_NO_NUMBER = ([decimal.ConversionSyntax],)
_RANGE_WORDS = ("must be in", "out of range", "out of bounds")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one event failed, in the catalogue's terms."""

    code: str
    message: str
    where: str = ""
    stack_hash: str = ""
    others: tuple[Fault, ...] = ()
    """What else is wrong with the event, where that is known."""


def describe(error: BaseException) -> Fault:
    """Return the fault an exception stands for. Cost: about 20 µs.

    Nothing that an exception's own class defines makes this fail, but for a time-out that comes
    meanwhile. A ParkError with a code that is not in the catalogue, or that Waybill draws
    conclusions from, is an ``unexpected_error`` that names it; words of more than 4,096 characters
    are cut.
    """
    where, stack = _where(error)
    if issubclass(type(error), ParkError):
        names = ("code", "message", "where")
        code, message, place = (_attribute(error, name) for name in names)
        if code not in CATALOGUE or code in _NOT_SAID:
            code, message = "unexpected_error", f"{code}: {message}"
        return Fault(code, cut(message), cut(place) or where, stack)
    words = words_of(error)
    return Fault(_code(error, words), words, where, stack)


def words_of(error: BaseException) -> str:
    """Return "Type: message", whatever the exception's own ``__str__`` does.

    What `decimal` says of a text that is no number is the representation of a list.
    """
    name = _name(type(error))
    try:
        if type(error) is decimal.InvalidOperation and error.args == _NO_NUMBER:
            return f"{name}: the text is no number (ConversionSyntax)"
        return cut(f"{name}: {error}")
    except (KeyboardInterrupt, EventTimeoutError):
        raise
    except BaseException as problem:  # noqa: BLE001 - the exception is user code as well
        return f"{name}: (its message raised {_name(type(problem))})"


def _attribute(error: BaseException, name: str) -> str:
    """Return a text of a ParkError; a user's subclass may lack it."""
    try:
        return str.__str__(str(getattr(error, name)))
    except (KeyboardInterrupt, EventTimeoutError):
        raise
    except BaseException as problem:  # noqa: BLE001 - the exception is user code as well
        return f"(no {name}: {_name(type(problem))})" if name != "where" else ""


def cut(text: str) -> str:
    """Return a text of at most 4 KiB, with what it had if it had more."""
    if len(text) <= _LONGEST_CHARS:
        return text
    kept = text[: _CUT_CHARS if text.isascii() else _CUT_CHARS // 4]
    return f"{kept} … [cut: {len(text)} characters]"


def _code(error: BaseException, words: str) -> str:
    own = type(error)
    if issubclass(own, TypeError | AttributeError) and "NoneType" in words:
        return "null_value"
    if issubclass(own, ValueError) and any(part in words for part in _RANGE_WORDS):
        return "value_out_of_range"
    if issubclass(own, decimal.InvalidOperation) and "DivisionUndefined" in words:
        return "division_by_zero"
    for kind, code in _BY_TYPE:
        if issubclass(own, kind):
            return code
    return "transformation_failed"


def _where(error: BaseException) -> tuple[str, str]:
    """Return (place in user code, hash of the stack's user frames)."""
    frames = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(_traceback(error))
        if frame.f_code.co_filename.startswith(CODE_FILE_PREFIX)
    ]
    if not frames:
        return "", ""
    last, line = frames[-1]
    path = "\n".join(f"{code.co_name}:{number}" for code, number in frames)
    text = f"{_name(type(error))}\n{path}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).hexdigest()
    file = last.co_filename.removeprefix(CODE_FILE_PREFIX)
    return cut(f"{file}:{line} in {last.co_name}"), digest
