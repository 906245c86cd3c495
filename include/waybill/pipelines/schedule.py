"""When a pipeline's source is fetched: never by itself, a preset, or five cron fields in UTC."""

from __future__ import annotations

import re

PRESETS = (
    "@once",
    "@continuous",
    "@hourly",
    "@daily",
    "@weekly",
    "@monthly",
    "@quarterly",
    "@yearly",
)
_FIELDS = 5
_CHARACTERS = re.compile(r"[0-9A-Za-z*/,\-# ]{1,200}")


def check_schedule(text: str) -> str:
    """Return the schedule.

    Raises:
        ValueError: no preset and no cron expression, or a time that never comes.
    """
    if text in PRESETS:
        return text
    if text.startswith("@"):
        raise ValueError(f"the presets are {', '.join(PRESETS)}")
    if len(text.split(" ")) != _FIELDS or not _CHARACTERS.fullmatch(text):
        raise ValueError("cron has five fields, one space between: minute hour day month weekday")
    _refuse_impossible(text)
    return text


def _refuse_impossible(text: str) -> None:
    from croniter import (  # type: ignore[import-untyped]
        CroniterBadDateError,
        CroniterError,
        croniter,
    )

    try:
        croniter(text).get_next()
    except CroniterBadDateError as error:
        raise ValueError("this time never comes") from error
    except (CroniterError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(f"not a cron expression: {error}") from error
