"""Messages in Kafka under the stamp of a lost log, as others may send them."""

from types import SimpleNamespace

import pytest

from waybill.events import Event, decode, encode
from waybill.ingestion import takeover
from waybill.ledger import ReplacedLog
from waybill.producer import HEADER, client

WAL = bytes(range(16))


def message(time):
    event = Event(
        id="e", pipeline_id="pl-1", team="a", name="n", key="[1]", source_version=1,
        intake_version=1, intake_minute=29_000_000, time="2026-01-01T00:00:00Z", data={"n": 1},
    )  # fmt: skip
    value = encode(event).replace(b"2026-01-01T00:00:00Z", time.encode())
    decode(value)  # processing takes it
    return SimpleNamespace(
        value=lambda: value,
        headers=lambda: [(HEADER, client._STAMP.pack(WAL, 1, 7))],
        partition=lambda: 0,
        offset=lambda: 3,
    )


class Log:
    """One message in one partition."""

    def __init__(self, only):
        self.only = only

    def describe(self, name):
        return SimpleNamespace(name=name)

    def watermarks(self, _info):
        return {0: (0, 10)}

    def read_messages(self, _topic, _ranges):
        yield self.only


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", "soon", "0001-01-01T00:00:00+23:59"])
def test_a_time_that_is_none_does_not_stop_the_source(monkeypatch, time):
    counted = []
    monkeypatch.setattr(takeover, "count_copies", lambda *_, **given: counted.append(given))
    monkeypatch.setattr(takeover, "ended_at", lambda *_: None)
    monkeypatch.setattr(takeover, "SETTLE_S", 0)
    gone = ReplacedLog(WAL.hex(), "pl-1", "t", "n", 0, {}, {}, 0, False)
    found = takeover.count_sent(None, Log(message(time)), gone)
    assert (found.counted, len(counted)) == (1, 1)
