"""How much disk the log may take, asked each time a segment is made (never per record)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from waybill.errors import InputError, RetryError
from waybill.settings import WalSettings

PAGE_BYTES = 4096


class WalFullError(RetryError):
    """The log may not grow now; nothing was appended, nothing was lost. Call again later."""

    appended = 0
    """Of a batch: how many messages were appended before."""


def check_room(directory: Path, settings: WalSettings, *, used_bytes: int, need_bytes: int) -> None:
    """Tell whether a new segment may be made.

    Raises:
        WalFullError: it would pass the threshold, or leave less free space than the floor.
    """
    if used_bytes + need_bytes > settings.disk_threshold_bytes:
        raise WalFullError(
            f"the log in {directory} takes {used_bytes} bytes and may take "
            f"{settings.disk_threshold_bytes} (WAYBILL_WAL__DISK_THRESHOLD_BYTES)"
        )
    free = os.statvfs(directory)
    free_bytes = free.f_bavail * free.f_frsize
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


def allocate(fd: int, size_bytes: int) -> None:
    """Give a file real blocks.

    Raises:
        WalFullError: the disk (or the quota) has no room.
    """
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise WalFullError(f"no room for a segment of {size_bytes} bytes: {error}") from error
        raise


def sync_directory(directory: Path) -> None:
    """Make names in a directory (new, renamed, removed files) survive a power cut."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
