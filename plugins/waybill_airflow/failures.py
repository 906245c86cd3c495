"""How an error of the library ends a task.

=================  ==============================================================================
InputError         the task fails at once: the same input would fail again, so no retry
wrong settings     the same
RetryError         raised as it is: the task's retries call the library again, which goes on; the
                   log says which connection gave the address of a server that is away
StopError          raised as it is: a retry is a new process, and the library checks again there
=================  ==============================================================================
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from waybill_airflow.hooks.waybill import WaybillHook, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waybill.settings import Settings


_LOG = logging.getLogger(__name__)


@contextmanager
def as_task_failures() -> Iterator[None]:
    """Turn bad input into a failure without retries; let every other error pass.

    :raises AirflowFailException: the block raised ``waybill.errors.InputError``.
    """
    from waybill.errors import AwayError, InputError

    try:
        yield
    except AwayError as error:
        if (origin := named(error.setting)) != error.setting:
            _LOG.warning("where it is looked for: %s", origin)
        raise
    except InputError as error:
        raise AirflowFailException(named(str(error))) from error


def read_settings() -> Settings:
    """Read the settings for this task, and have their secrets masked in the task's log.

    :raises AirflowFailException: a setting is unknown or has a value that is not allowed, in the
        connection or in the environment.
    """
    from pydantic import ValidationError

    from waybill.errors import InputError

    try:
        return WaybillHook().get_conn()
    except InputError as error:
        raise AirflowFailException(str(error)) from error
    except ValidationError as error:
        raise AirflowFailException(f"settings of this worker are wrong: {error}") from error


__all__ = ["as_task_failures", "read_settings"]
