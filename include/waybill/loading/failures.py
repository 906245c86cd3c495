"""What keeps a load from being done: the destination's word, or our own; as values, too.

A task of an executor returns its error as a value, so that the driver raises one of the same type
with the same text. Nothing is told by an error's words. The form is ASCII JSON: text with lone
surrogates, which UTF-8 cannot say, comes back as it was.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from waybill.destinations import BehindError
from waybill.errors import (
    AwayError,
    InputError,
    ParkError,
    RetryError,
    StopError,
    ThrottledError,
    WaybillError,
)

_LOG = logging.getLogger(__name__)
_CLASSES: Mapping[str, type[WaybillError]] = {
    one.__name__: one
    for one in (
        AwayError, BehindError, InputError, ParkError, RetryError, StopError, ThrottledError,
        WaybillError,
    )
}  # fmt: skip
_LONGEST_TRACE = 20_000
"""Characters of a traceback that are sent for the driver's log."""
AWAY, UNKNOWN, EXECUTORS_FAILED = (
    "destination_unreachable",
    "unexpected_error",
    "executors_failed",
)
BY_HAND_ONLY = frozenset({UNKNOWN, EXECUTORS_FAILED})
"""Error types that say nothing of the destination: what waits is parked only by order."""


class ExecutorsFailedError(RetryError):
    """Executors did not carry a load out; what the destination would say of it is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=EXECUTORS_FAILED)


class NotTakenError(WaybillError):
    """The destination did not take a load, for a reason of its own.

    Where books are per table, some tables may have their part of it all the same: a repeat hears
    so from their books; who parks the load instead parks those rows, too.

    Args:
        error: what it said.
        unreached: an executor says so, which may not have come to it.
    """

    def __init__(self, error: Exception, *, unreached: bool = False) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.code: str = _code(error)
        self.by_hand_only = self.code in BY_HAND_ONLY
        """Nobody knows what it means: what waits is parked only by order."""
        self.unreached = unreached

    def may_be_unreached(self, reaches: Callable[[], bool]) -> bool:
        """Tell whether who says so may not have come to the destination.

        Args:
            reaches: asks the destination, from there; called for what it may have refused by
                itself.
        """
        if isinstance(self.__cause__, InputError):
            return not reaches()
        return self.code == AWAY and not isinstance(self.__cause__, BehindError)


def _code(error: Exception) -> str:
    if isinstance(error, RetryError):
        return error.code or AWAY
    if isinstance(error, InputError):
        return error.code or "destination_schema_conflict"
    return UNKNOWN


class ForeignError(Exception):
    """An error of another library, in another process; its text is that error's."""


@contextmanager
def destination_errors(consumer: str, own: Sequence[Exception] = ()) -> Iterator[None]:
    """Tell the destination's errors from our own.

    Args:
        consumer: for the log.
        own: errors that are not the destination's; they are raised as they are.

    Raises:
        NotTakenError: any other.
    """
    try:
        yield
    except NotTakenError:
        raise
    except Exception as error:
        if any(error is one for one in own):
            raise
        if not isinstance(error, WaybillError):
            _LOG.exception("%s: an error without a class", consumer)
        raise NotTakenError(error) from error


def failure_to_json(error: Exception) -> str:
    """Return an error as ASCII text; ``raise_failure`` raises it."""
    not_taken = isinstance(error, NotTakenError)
    cause = (error.__cause__ if not_taken else None) or error
    name = next((c.__name__ for c in type(cause).__mro__ if _CLASSES.get(c.__name__) is c), "")
    told = {
        "not_taken": not_taken,
        "unreached": isinstance(error, NotTakenError) and error.unreached,
        "class": name,
        "name": type(cause).__name__,
        "text": str(cause),
        "code": getattr(cause, "code", "") if name else "",
        "setting": getattr(cause, "setting", ""),
        "where": getattr(cause, "where", ""),
        "trace": "" if name else "".join(traceback.format_exception(cause))[-_LONGEST_TRACE:],
    }
    return json.dumps(told, default=str)


def raise_failure(text: str, consumer: str) -> None:
    """Raise the error that ``failure_to_json`` was given.

    Args:
        text: what it returned.
        consumer: for the log.

    Raises:
        NotTakenError: the destination's; its cause has the type that it had.
        WaybillError: ours, of the nearest type of ``waybill.errors``.
        StopError: ours, without a class.
    """
    told: Mapping[str, Any] = json.loads(text)
    if told["trace"]:
        _LOG.error("%s: an error without a class, on an executor: %s", consumer, told["trace"])
    error = _rebuilt(told)
    if told["not_taken"]:
        raise NotTakenError(error, unreached=told["unreached"]) from error
    if isinstance(error, WaybillError):
        raise error
    raise StopError(f"{told['name']}: {error}" if str(error) else told["name"]) from error


def _rebuilt(told: Mapping[str, Any]) -> Exception:
    kind = _CLASSES.get(told["class"])
    if kind is None:
        return ForeignError(told["text"] or told["name"])
    if issubclass(kind, ParkError):
        return kind(told["code"], told["text"], where=told["where"])
    if issubclass(kind, AwayError):
        return kind(told["text"], setting=told["setting"])
    if issubclass(kind, RetryError | InputError):
        return kind(told["text"], code=told["code"])
    return kind(told["text"])
