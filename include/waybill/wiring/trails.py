"""Where an event is: questions about traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from waybill.settings import Settings
from waybill.storage import open_owned_objects, open_tracker

if TYPE_CHECKING:
    from waybill.operations.trails.desk import TrailDesk


@contextmanager
def opened_trails(settings: Settings) -> Iterator[TrailDesk]:
    """Open the desk where people ask for events; at the end its runner gives back what runs."""
    from waybill.ledger import committed  # noqa: PLC0415
    from waybill.operations.trails.desk import TrailDesk  # noqa: PLC0415
    from waybill.operations.trails.runner import Runner  # noqa: PLC0415
    from waybill.operations.trails.trail import Books  # noqa: PLC0415
    from waybill.parking.whereabouts import whereabouts  # noqa: PLC0415
    from waybill.tracing import open_traces  # noqa: PLC0415

    with open_tracker(settings.tracker) as tracker:
        objects = open_owned_objects(settings)
        books = Books(tracker, partial(committed, tracker), partial(whereabouts, tracker, objects))
        opens, rolls_s = partial(open_traces, settings), settings.traces.roll_s
        runner = Runner(books, opens, shipped_after_s=rolls_s)
        with closing(runner):
            yield TrailDesk(tracker, runner)
