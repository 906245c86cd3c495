"""Exit codes: the one place that says which error ends a command with which."""

from __future__ import annotations

from enum import IntEnum

from waybill.errors import InputError, NotFoundError, RetryError, WaybillError


class ExitCode(IntEnum):
    """How a command ended. 130: it was interrupted."""

    DONE = 0
    INPUT = 1
    """What was given is wrong, or a question was answered with no: nothing was done."""
    FOUND = 2
    """Something is not as it should be: not in balance, damaged, failing, different."""
    ABSENT = 3
    """Nothing of that name, number or id is there."""
    AWAY = 4
    """A server does not answer, or not now: the same command may succeed later."""


def exit_code(error: WaybillError) -> ExitCode:
    """Return the code that a command ends with on an error."""
    if isinstance(error, NotFoundError):
        return ExitCode.ABSENT
    if isinstance(error, InputError):
        return ExitCode.INPUT
    if isinstance(error, RetryError):
        return ExitCode.AWAY
    return ExitCode.FOUND
