from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.tracing.samples import ids

from waybill.errors import InputError
from waybill.tracing import bucket_of
from waybill.tracing.layout import (
    Hour,
    Layout,
    TracePlace,
    hashes_of,
    holds,
    hours_between,
    line_of,
    object_key,
    place_of,
    prefixes,
)

MOMENT = datetime(2026, 1, 31, 23, 59, 59, 999_999, UTC)


def test_the_bucket_is_crc32_of_the_utf8_bytes_of_the_root() -> None:
    # 0xCBF43926 is the check value that every CRC-32 (IEEE) gives for these nine digits.
    assert bucket_of("123456789", 1000) == 0xCBF43926 % 1000
    assert bucket_of("123456789/4/0", 1000) == 0xCBF43926 % 1000
    assert bucket_of("🛫", 16) == hashes_of(pa.array(["🛫/1"]))[0] % 16


def test_the_line_of_a_child_goes_up_to_its_root() -> None:
    assert list(line_of("a/2/7")) == ["a/2/7", "a/2", "a"]
    assert list(line_of("a")) == ["a"]
    assert list(line_of("/a")) == ["/a", ""]
    assert list(line_of("")) == [""]


def test_buckets_are_filled_evenly() -> None:
    counts = [0] * 16
    for number in hashes_of(pa.array(ids(16_000))):
        counts[number % 16] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


def test_keys_are_by_bucket_then_hour_of_utc() -> None:
    other_zone = MOMENT.astimezone(datetime.strptime("+0930", "%z").tzinfo)
    expected = "traces/bucket=007/dt=2026-01-31/hour=23/ship.parquet"
    assert object_key(7, Hour.of(other_zone), "ship") == expected


@settings(deadline=None)
@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)),
    st.integers(0, 999),
)
def test_a_place_survives_the_trip_through_its_key(moment: datetime, bucket: int) -> None:
    hour = Hour.of(moment.replace(tzinfo=UTC))
    assert place_of(object_key(bucket, hour, "a_1")) == TracePlace(bucket, hour, "a_1")
    assert place_of(f"traces/{hour.path}/bucket={bucket:03d}/a.parquet") == TracePlace(
        bucket, hour, "a"
    )
    assert timedelta(0) <= moment.replace(tzinfo=UTC) - hour.start < timedelta(hours=1)


@pytest.mark.parametrize(
    "key",
    [
        "traces/_layout.json",
        "traces/_hours/dt=2026-01-31/hour=23",
        "traces/bucket=007/dt=2026-01-31/hour=23/ship.json",
        "traces/bucket=x/dt=2026-01-31/hour=23/ship.parquet",
        "traces/bucket=007/dt=2026-01-31/hour=25/ship.parquet",
    ],
)
def test_other_keys_are_no_place(key: str) -> None:
    assert place_of(key) is None


def test_hours_of_a_window_include_both_ends() -> None:
    hours = list(hours_between(MOMENT, MOMENT + timedelta(microseconds=1)))
    assert [hour.path for hour in hours] == ["dt=2026-01-31/hour=23", "dt=2026-02-01/hour=00"]
    assert len(list(hours_between(MOMENT, MOMENT))) == 1
    first, second = hours
    assert holds(first, MOMENT, MOMENT)
    assert not holds(second, None, MOMENT)
    assert holds(second, None, second.start)
    assert not holds(first, second.start, None)
    assert holds(first, None, None)


def test_a_short_time_is_listed_by_hour_or_day_and_a_long_one_whole() -> None:
    assert prefixes(3, MOMENT, MOMENT) == ["traces/bucket=003/dt=2026-01-31/hour=23/"]
    assert prefixes(3, MOMENT - timedelta(hours=5), MOMENT + timedelta(hours=5)) == [
        "traces/bucket=003/dt=2026-01-31/",
        "traces/bucket=003/dt=2026-02-01/",
    ]
    whole = ["traces/bucket=003/"]
    assert prefixes(3, MOMENT, MOMENT + timedelta(days=30)) == whole
    assert prefixes(3, MOMENT, None) == prefixes(3, None, MOMENT) == whole


def test_a_layout_survives_its_trip_and_others_are_refused() -> None:
    for layout in (Layout(48), Layout(16, early=True)):
        assert Layout.decode(layout.encode()) == layout
    assert Layout.decode(b'{"buckets":16,"hash":"crc32","format":1}') == Layout(16, early=True)
    for wrong in (b"", b"{}", b"[1]", b'{"format":3,"hash":"crc32","buckets":3}'):
        with pytest.raises(InputError, match="_layout"):
            Layout.decode(wrong)
