"""A trail is found however its id was copied; a producer's own id is taken as it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from waybill.operations.trails import trail
from waybill.tracing import Trace

HEX = "0123456789abcdef" * 2


class Traces:
    """Holds one trace for each id; notes what it was asked for."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.asked: list[str] = []

    def trail(self, event_id: str, **_: Any) -> list[Trace]:
        self.asked.append(event_id)
        return [made(event_id)] if event_id in self.ids else []


def made(event_id: str) -> Trace:
    texts = dict.fromkeys(("error_type", "host", "topic", "object_key", "batch", "replay_id"), "")
    texts["refers_to"] = ""
    numbers = dict.fromkeys(("kafka_partition", "kafka_offset", "commit_number", "attempt"))
    numbers["intake_minute"] = None
    return Trace(
        event_id=event_id,
        pipeline_id="p",
        event_name="order",
        phase="ingestion",
        outcome="accepted",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        **texts,
        **numbers,
    )


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        (HEX, f"  {HEX}\n"),
        (HEX, HEX.upper()),
        (f"{HEX}/3", f" {HEX.upper()}/3 "),
        ("Order-7", " Order-7"),
        (" padded ", " padded "),
        (HEX.upper(), HEX.upper()),
    ],
)
def test_blanks_and_capitals_do_not_hide_an_event(there: str, asked: str) -> None:
    traces: Any = Traces(there)
    found = trail(traces, None, asked)  # type: ignore[arg-type]
    assert found.event_id == there
    assert [stop.event_id for stop in found.stops] == [there]


def test_a_producers_own_id_is_never_changed_to_small_letters() -> None:
    traces: Any = Traces("order-7")
    found = trail(traces, None, "ORDER-7")  # type: ignore[arg-type]
    assert (found.event_id, found.stops) == ("ORDER-7", [])


def test_an_id_that_is_right_is_looked_for_once() -> None:
    traces: Any = Traces()
    assert trail(traces, None, HEX).stops == []  # type: ignore[arg-type]
    assert traces.asked == [HEX]
