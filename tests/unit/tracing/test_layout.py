from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.tracing.samples import ids

from waybill.errors import InputError
from waybill.tracing import bucket_of
from waybill.tracing.layout import (
    Hour,
    buckets_of,
    hour_of_marker,
    hours_between,
    layout_body,
    layout_buckets,
    object_key,
)

MOMENT = datetime(2026, 1, 31, 23, 59, 59, 999_999, UTC)


def test_the_bucket_is_crc32_of_the_utf8_bytes() -> None:
    # 0xCBF43926 is the check value that every CRC-32 (IEEE) gives for these nine digits.
    assert bucket_of("123456789", 1000) == 0xCBF43926 % 1000
    assert bucket_of("🛫", 16) == buckets_of(pa.array(["🛫"]), 16)[0]


def test_buckets_are_filled_evenly() -> None:
    counts = [0] * 16
    for bucket in buckets_of(pa.array(ids(16_000)), 16):
        counts[bucket] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


def test_keys_are_by_hour_of_utc_and_bucket() -> None:
    other_zone = MOMENT.astimezone(datetime.strptime("+0930", "%z").tzinfo)
    expected = "traces/dt=2026-01-31/hour=23/bucket=007/ship.parquet"
    assert object_key(Hour.of(other_zone), 7, "ship") == expected


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)))  # noqa: DTZ001
def test_an_hour_survives_the_trip_through_its_marker(moment: datetime) -> None:
    hour = Hour.of(moment.replace(tzinfo=UTC))
    assert hour_of_marker(hour.marker_key) == hour
    assert timedelta(0) <= moment.replace(tzinfo=UTC) - hour.start < timedelta(hours=1)


def test_hours_of_a_window_include_both_ends() -> None:
    hours = list(hours_between(MOMENT, MOMENT + timedelta(microseconds=1)))
    assert [hour.path for hour in hours] == ["dt=2026-01-31/hour=23", "dt=2026-02-01/hour=00"]
    assert len(list(hours_between(MOMENT, MOMENT))) == 1


def test_a_layout_survives_its_trip_and_others_are_refused() -> None:
    assert layout_buckets(layout_body(48)) == 48
    for wrong in (b"", b"{}", b"[1]", b'{"format":2,"hash":"crc32","buckets":3}'):
        with pytest.raises(InputError, match="_layout"):
            layout_buckets(wrong)
