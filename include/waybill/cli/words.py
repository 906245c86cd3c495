"""Words that several commands say."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return "1 event", "2 events", "1,000 events"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
