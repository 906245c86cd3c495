"""Times as text."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from waybill.events import rfc3339, rfc3339_us

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_microseconds_are_written_as_the_time_that_they_are() -> None:
    chance = random.Random(20261127)
    edges = [0, -1, 1, 999_999, 1_000_000, 951_782_400_000_000]
    for moment_us in (*edges, *(chance.randrange(-(10**15), 10**16) for _ in range(2_000))):
        assert rfc3339_us(moment_us) == rfc3339(EPOCH + timedelta(microseconds=moment_us))


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        (UTC, "2026-03-01T12:00:00.000001Z"),
        (ZoneInfo("UTC"), "2026-03-01T12:00:00.000001Z"),
        (ZoneInfo("Europe/London"), "2026-03-01T12:00:00.000001Z"),
        (ZoneInfo("Europe/Berlin"), "2026-03-01T11:00:00.000001Z"),
        (timezone(timedelta(seconds=-30)), "2026-03-01T12:00:30.000001Z"),
    ],
    ids=str,
)
def test_a_time_of_any_zone_is_written_in_utc(zone: timezone, expected: str) -> None:
    assert rfc3339(datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=zone)) == expected
