"""Every error the library raises, sorted by what the caller must do.

WaybillError
  RetryError   call again later; nothing was lost
    AwayError  a server does not answer
    ThrottledError  a server asks for fewer requests
    NotDeletedError  some objects could not be deleted; all else was done
  ParkError    this event cannot pass; park it under its code, go on
  StopError    going on could lose, double or reorder events; stop the process
    SettleError  until somebody settles by name what was found
  InputError   what the user gave is wrong: says what, where and what to do
    NotFoundError  nothing of the name, number or id that was given is there
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

_SHOWN = 3
"""Objects that a sentence names."""


class WaybillError(Exception):
    """Root of all errors raised by waybill."""


class RetryError(WaybillError):
    """The same call may succeed later; nothing was lost.

    Args:
        code: the error type of ``waybill.events.CATALOGUE`` that an event would park under which is
            not to wait for it; empty: whoever parks chooses.
    """

    def __init__(self, *args: object, code: str = "") -> None:
        super().__init__(*args)
        self.code = code


class AwayError(RetryError):
    """A server does not answer.

    Args:
        message: which, where, and how it failed.
        setting: the variable that says where it is.
    """

    def __init__(self, message: str, *, setting: str) -> None:
        super().__init__(message)
        self.setting = setting


class ThrottledError(RetryError):
    """A server asks for fewer requests: slow down, then call again."""


class NotDeletedError(RetryError):
    """Some objects could not be deleted: denied, or held. All else that was asked for was done.

    Args:
        reasons: {key: why}.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        shown = ", ".join(f"{key!r} ({why})" for key, why in islice(reasons.items(), _SHOWN))
        more = ", and others" if len(reasons) > _SHOWN else ""
        super().__init__(
            f"could not delete {shown}{more}: a policy of the bucket, or a lock, may keep them"
        )
        self.reasons = dict(reasons)


class StopError(WaybillError):
    """Going on could lose, double or reorder events; stop the process."""


class SettleError(StopError):
    """Going on could lose, double or reorder events until somebody settles by name what was found.

    The message says with which command.
    """


class InputError(WaybillError):
    """What the user gave is wrong; the message says what, where and what to do.

    Args:
        code: as that of ``RetryError``.
    """

    def __init__(self, *args: object, code: str = "") -> None:
        super().__init__(*args)
        self.code = code


class NotFoundError(InputError):
    """Nothing of the name, number or id that was given is there; says what is, or how to see it."""


class ParkError(WaybillError):
    """This one event cannot pass this stage; park it and go on.

    A transformation may raise it by itself to choose the code:
    ``raise ParkError("record_incomplete", "left but never arrived")``.

    Args:
        code: an error type of ``waybill.events.CATALOGUE``.
        message: what is wrong with this event, in words.
        where: field, column or line, when known.
    """

    def __init__(self, code: str, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where
