"""The services and the settings of this web server, opened at the first request and kept."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fastapi import HTTPException, status
from pydantic import ValidationError

from waybill.errors import InputError
from waybill.services import opened_parked_events, opened_trails
from waybill_airflow.hooks.waybill import WaybillHook

if TYPE_CHECKING:
    from waybill.inspection import ParkedEventsService
    from waybill.settings import Settings
    from waybill.trails import TrailService


class _Opened:
    """Opened once a process, by whichever request is first; wrong settings stop no other page."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._settings: Settings | None = None
        self._read_at = 0
        """Time of the file that destinations were read from last."""
        self._parked_events: ParkedEventsService | None = None
        self._trails: TrailService | None = None

    def settings(self) -> Settings:
        with self._lock:
            if self._settings is None:
                self._settings = _read_settings()
            elif (changed_at := _changed_at(self._settings)) != self._read_at:
                self._read_destinations(self._settings)
                self._read_at = changed_at
            return self._settings

    def _read_destinations(self, settings: Settings) -> None:
        """Take what `waybill destination add` changed; all else stays as this server has it."""
        destinations = _read_settings().destinations
        self._settings = settings.model_copy(update={"destinations": destinations})
        if self._parked_events is not None:
            self._parked_events.destinations = destinations

    def parked_events(self) -> ParkedEventsService:
        settings = self.settings()
        with self._lock:
            if self._parked_events is None:
                self._parked_events = self._stack.enter_context(opened_parked_events(settings))
            return self._parked_events

    def trails(self) -> TrailService:
        settings = self.settings()
        with self._lock:
            if self._trails is None:
                self._trails = self._stack.enter_context(opened_trails(settings))
            return self._trails

    def close(self) -> None:
        with self._lock:
            self._stack.close()
            self._settings = self._parked_events = self._trails = None


def _changed_at(settings: Settings) -> int:
    """Return when the embedded stack's settings were written, in ns; 0: it has none."""
    from waybill.settings import ENV_FILE_NAME

    try:
        return (settings.home / ENV_FILE_NAME).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _read_settings() -> Settings:
    """Read the settings; what is wrong with them is said without their values."""
    try:
        return WaybillHook().get_conn()
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        words = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found)
        raise _wrong(words) from error
    except InputError as error:
        raise _wrong(str(error)) from error


def _wrong(words: str) -> HTTPException:
    return HTTPException(
        status.HTTP_500_INTERNAL_SERVER_ERROR,
        f"settings of this web server are wrong: {words}; correct them and restart it",
    )


OPENED = _Opened()


def parked_events() -> ParkedEventsService:
    """Return the service of parked events."""
    return OPENED.parked_events()


def trails() -> TrailService:
    """Return the service of questions about events."""
    return OPENED.trails()


__all__ = ["OPENED", "parked_events", "trails"]
