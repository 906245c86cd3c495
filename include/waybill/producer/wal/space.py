"""How much disk the log may take, asked each time a segment is made (never per record)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from waybill.errors import InputError, RetryError
from waybill.settings import WalSettings

if TYPE_CHECKING:
    from waybill.producer.wal.disk import Disk

PAGE_BYTES = 4096


class WalFullError(RetryError):
    """The log may not grow now; nothing was appended, nothing was lost. Call again later."""

    appended = 0
    """Of a batch: how many messages were appended before."""


def check_room(
    disk: Disk, directory: Path, settings: WalSettings, *, used_bytes: int, need_bytes: int
) -> None:
    """Tell whether a new segment may be made.

    Raises:
        WalFullError: it would pass the threshold, or leave less free space than the floor.
    """
    if used_bytes + need_bytes > settings.disk_threshold_bytes:
        raise WalFullError(
            f"the log in {directory} takes {used_bytes} bytes and may take "
            f"{settings.disk_threshold_bytes} (WAYBILL_WAL__DISK_THRESHOLD_BYTES)"
        )
    free_bytes = disk.free_bytes(directory)
    if free_bytes - need_bytes < settings.disk_floor_bytes:
        raise WalFullError(
            f"{free_bytes} bytes are free below {directory}, of which "
            f"{settings.disk_floor_bytes} must stay free (WAYBILL_WAL__DISK_FLOOR_BYTES)"
        )


def check_settings(settings: WalSettings) -> None:
    """Refuse a threshold that two segments do not fit in: one is filled while one is settled.

    Raises:
        InputError: it does not.
    """
    if settings.disk_threshold_bytes < 2 * settings.segment_bytes:
        raise InputError(
            f"WAYBILL_WAL__DISK_THRESHOLD_BYTES is {settings.disk_threshold_bytes}; it must be at "
            f"least twice WAYBILL_WAL__SEGMENT_BYTES ({settings.segment_bytes})"
        )
