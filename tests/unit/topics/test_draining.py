"""Generations that drain: those that Kafka does not answer for hold up no application's loop."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from waybill.errors import RetryError
from waybill.topics import Draining, generations


def test_one_generation_a_look_is_waited_for_and_each_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics, asked, now = ["a", "b", "c", "d"], list[str](), [100.0]

    def end(_tracker: object, _log: object, topic: str) -> bool:
        asked.append(topic)
        if topic == "d":
            return True
        now[0] += 15.0
        raise RetryError("a partition has no leader")

    monkeypatch.setattr(generations, "live_names", lambda _, own: {t: [f"{t}.1", t] for t in own})
    monkeypatch.setattr(generations, "_end", end)
    monkeypatch.setattr(generations.time, "monotonic", lambda: now[0])
    tracker = SimpleNamespace(transaction=nullcontext)
    draining = Draining(tracker, None)  # type: ignore[arg-type]
    ended: list[str] = []
    for _ in topics:
        began = now[0]
        ended += draining.end(topics)
        assert now[0] - began <= 15
        now[0] += 1
    assert asked[:3] == ["a", "b", "c"]
    assert ended == ["d.1"]
