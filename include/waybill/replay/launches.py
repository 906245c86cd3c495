"""Starting runs of the DAG ``replay`` for what a plan lists, once each.

A run is known by its id, which is made of what is asked for: asked again, by a process that was
killed in between or by another one beside it, it is there already. One that is there and *failed*
is cleared, which resumes its replay.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from waybill.errors import WaybillError

_LOG = logging.getLogger(__name__)
_NAMES = ("pipeline", "event_name", "stage", "error_type")


class ReplayLauncher(Protocol):
    """Starts runs of the DAG ``replay``."""

    def launch(self, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a run, or clear it where it failed; one that is there otherwise is kept.

        Raises:
            RetryError: it is not known whether it was started.
            StopError: it was refused.
        """


class Launches:
    """Launches runs one after the other; what cannot be launched keeps none of the others."""

    def __init__(self, launcher: ReplayLauncher) -> None:
        self._launcher = launcher
        self._errors: list[WaybillError] = []

    def launch(self, run_id: str, conf: Mapping[str, Any]) -> bool:
        """Launch a run; False: it could not be, see ``finish``."""
        try:
            self._launcher.launch(run_id, conf)
        except WaybillError as error:
            _LOG.warning("%s is not launched: %s", run_id, error)
            self._errors.append(error)
            return False
        _LOG.info("launched %s: %s", run_id, dict(conf))
        return True

    def finish(self) -> None:
        """Raise the first error, if there was one."""
        if self._errors:
            raise self._errors[0]


def group_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a parked group: the params of its replay."""
    return {name: row[name] for name in _NAMES}


def replay_run_id(partition_id: int, conf: Mapping[str, Any], salt: object) -> str:
    """Return the run id of one launch: the same for the same request, whoever asks.

    Only ASCII letters, digits and underscores, whatever names the partition has.
    """
    content = json.dumps([conf, salt], sort_keys=True, default=str)
    return f"replay__{partition_id}__{hashlib.sha256(content.encode()).hexdigest()[:12]}"


__all__ = ["Launches", "ReplayLauncher", "group_of", "replay_run_id"]
