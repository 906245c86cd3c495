"""Parked events as somebody may see them."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.parking import ParkedEvent, Unreadable


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """One event as somebody may see it."""

    event: ParkedEvent
    masked: tuple[str, ...]
    """Fields that were masked; ``*``: all."""


@dataclass(frozen=True, slots=True)
class ShownPage:
    """Some events of a partition."""

    events: tuple[ShownEvent, ...]
    next: str | None
    """The cursor of the page after it; None: this was the last."""
    damaged: tuple[Unreadable, ...]
    """What lay on this page and could not be read."""
