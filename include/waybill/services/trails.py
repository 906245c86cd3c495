"""Where an event is: questions about traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from waybill.settings import Settings
from waybill.storage import open_owned_objects, open_tracker

if TYPE_CHECKING:
    from waybill.trails import TrailService


@contextmanager
def opened_trails(settings: Settings) -> Iterator[TrailService]:
    """Open the service that people ask for events; at the end its runner gives back what runs."""
    from waybill.ledger import committed
    from waybill.parking import whereabouts
    from waybill.tracing import open_traces
    from waybill.trails import Runner, TrailBooks, TrailService

    with open_tracker(settings.tracker) as tracker:
        objects = open_owned_objects(settings)
        books = TrailBooks(
            tracker, partial(committed, tracker), partial(whereabouts, tracker, objects)
        )
        opens, rolls_s = partial(open_traces, settings), settings.traces.roll_s
        runner = Runner(books, opens, shipped_after_s=rolls_s)
        with closing(runner):
            yield TrailService(tracker, runner)
