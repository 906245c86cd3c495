"""A console of rich that writes out what a terminal would obey, whoever prints what on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from waybill.cli.output import plain_lines


class SafeConsole(Console):
    """Rich's, with its own styles, line ends and movements of the cursor, and no others.

    Emoji codes (``:100:``) stay what they are: messages and names may have them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is printed; all that rich prints goes through here."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(plain_lines(segment.text), segment.style)
