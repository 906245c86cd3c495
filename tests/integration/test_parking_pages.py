"""Pages, totals, groups and timelines of parked partitions, against a plain reading of all rows."""

import base64
import itertools
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import START

from waybill.errors import InputError
from waybill.parking import ParkedGroupFilter, groups

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots

FILL = (
    "INSERT INTO pipelines (id, name, team) SELECT 'pl-' || n, 'flow ' || (9 - n), "
    "'team ' || n % 3 FROM generate_series(0, 7) n",
    "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type) "
    "SELECT DISTINCT 'pl-' || n % 10, 'name ' || n % 7, "
    "(ARRAY['transformation', 'mapping'])[1 + n % 2], 'type ' || n % 5 "
    "FROM generate_series(1, 120) n",
    "INSERT INTO parked_objects (key, bytes) VALUES ('parked/x', 1)",
    "INSERT INTO segments (partition_id, object_key, position, length, count, bytes, sha256, "
    "first_event_at, last_event_at, state, scope, commit_number, kafka_partition, first_offset, "
    "fingerprint, last_message, parked_at) "
    "SELECT 1 + n * 11 % 70, 'parked/x', n, 1, 1 + n % 5, 10, '', "
    "timestamptz '2013-01-01Z' + n % 50 * interval '1 hour', "
    "timestamptz '2013-01-01Z' + (n % 50 + n % 4) * interval '1 hour', "
    "(ARRAY['parked', 'parked', 'replaying', 'replayed', 'discarded', 'quarantined'])"
    "[1 + n * n % 6], 'w', n, 0, n, lpad(to_hex(n % 3), 16, '0'), 'm ' || n, "
    "timestamptz '2026-01-01Z' + n * interval '1 minute' FROM generate_series(1, 400) n",
    "UPDATE parked_partitions p SET parked = s.parked, replaying = s.replaying, "
    "replayed = s.replayed, discarded = s.discarded, quarantined = s.quarantined, bytes = s.bytes, "
    "first_event_at = s.first_event, last_event_at = s.last_event, "
    "first_parked_at = s.first_parked - interval '1 second', "
    "last_parked_at = s.last_parked - interval '1 second' FROM (SELECT partition_id, "
    "coalesce(sum(count) FILTER (WHERE state = 'parked'), 0) AS parked, "
    "coalesce(sum(count) FILTER (WHERE state = 'replaying'), 0) AS replaying, "
    "coalesce(sum(count) FILTER (WHERE state = 'replayed'), 0) AS replayed, "
    "coalesce(sum(count) FILTER (WHERE state = 'discarded'), 0) AS discarded, "
    "coalesce(sum(count) FILTER (WHERE state = 'quarantined'), 0) AS quarantined, "
    "coalesce(sum(bytes) FILTER (WHERE state IN ('parked', 'replaying')), 0) AS bytes, "
    "min(first_event_at) first_event, max(last_event_at) last_event, min(parked_at) first_parked, "
    "max(parked_at) last_parked FROM segments GROUP BY partition_id) s WHERE s.partition_id = p.id",
)
PARKED = datetime(2026, 1, 1, tzinfo=UTC)
DIMENSIONS = (
    {},
    {"pipeline_id": "pl-3"},
    {"pipeline_id": "pl-9"},
    {"event_name": "name 2", "stage": "mapping"},
    {"error_type": "type 4", "teams": ("team 0", "team 2")},
    {"teams": ()},
)
WINDOWS = (
    {},
    {"since": START + timedelta(hours=20)},
    {"until": START + timedelta(hours=3)},
    {"since": START + timedelta(hours=10), "until": START + timedelta(hours=11)},
    {"parked_since": PARKED + timedelta(minutes=390)},
    {"parked_since": PARKED + timedelta(minutes=100), "parked_until": PARKED + timedelta(hours=3)},
    {
        "since": START + timedelta(hours=10),
        "until": START + timedelta(hours=20),
        "parked_until": PARKED + timedelta(minutes=60),
        "fingerprint": "0000000000000001",
    },
    {"fingerprint": "0000000000000002"},
)


@pytest.fixture
def filled(lot):
    for statement in FILL:
        lot.sql(statement)
    yield lot
    lot.sql("DELETE FROM segments")
    lot.sql("DELETE FROM parked_partitions")
    lot.sql("DELETE FROM parked_objects")


def every(lot):
    """All partitions, each with its segments' rows, to be filtered in Python."""
    found = {p.id: (p, []) for p in lot.parking.partitions()}
    for row in lot.sql(
        "SELECT partition_id, state, first_event_at, last_event_at, parked_at, fingerprint "
        "FROM segments"
    ):
        found[row[0]][1].append(row)
    return list(found.values())


def is_wanted(partition, rows, wanted):
    names = ("pipeline_id", "event_name", "stage", "error_type")
    if any(getattr(wanted, n) not in (None, getattr(partition, n)) for n in names):
        return False
    if wanted.teams is not None and partition.team not in wanted.teams:
        return False
    if wanted.held and not partition.held:
        return False
    given = {k for k in wanted.to_json() if k not in (*names, "teams", "held")}
    return not given or any(_segment_is_wanted(row, wanted) for row in rows)


def _segment_is_wanted(row, wanted):
    _, state, first, last, parked, fingerprint = row
    return (
        (not wanted.held or state in ("parked", "replaying"))
        and (wanted.since is None or last >= wanted.since)
        and (wanted.until is None or first < wanted.until)
        and (wanted.parked_since is None or parked >= wanted.parked_since)
        and (wanted.parked_until is None or parked < wanted.parked_until)
        and wanted.fingerprint in (None, fingerprint)
    )


def in_order(found, sort, descending):
    if sort == "name":
        keys = ("pipeline", "event_name", "stage", "error_type")
        known = sorted((p for p in found if p.team), key=lambda p: [getattr(p, k) for k in keys])
        others = sorted(
            (p for p in found if not p.team), key=lambda p: [getattr(p, k) for k in keys]
        )
        return (known + others)[:: -1 if descending else 1]
    return sorted(found, key=lambda p: (getattr(p, sort), p.id), reverse=descending)


def all_pages(lot, wanted, limit, **order):
    found, after = [], None
    while True:
        page = lot.parking.page(wanted, limit=limit, after=after, **order)
        assert len(page.partitions) == limit or page.next is None
        found += page.partitions
        after = page.next
        if after is None:
            return found


@pytest.mark.parametrize("few", [0, 30_000], ids=["walked", "looked-up"])
def test_pages_together_are_the_whole_list_in_order(filled, monkeypatch, few):
    monkeypatch.setattr(groups, "_FEW", few)
    everything = every(filled)
    cases = itertools.product(DIMENSIONS, WINDOWS, (True, False))
    seen = set()
    for index, (dimensions, window, held) in enumerate(cases):
        wanted = ParkedGroupFilter(**dimensions, **window, held=held)
        sort, descending = groups.SORTS[index % 4], bool(index // 4 % 2)
        expected = [p for p, rows in everything if is_wanted(p, rows, wanted)]
        got = all_pages(filled, wanted, 9, sort=sort, descending=descending)
        assert [p.id for p in got] == [p.id for p in in_order(expected, sort, descending)], wanted
        assert filled.parking.totals(wanted) == (
            len(expected),
            sum(p.parked for p in expected),
            sum(p.bytes for p in expected),
        )
        seen.add(len(expected))
    assert {0, 70} <= seen
    assert len(seen) > 10


@pytest.mark.parametrize("few", [0, 30_000], ids=["walked", "looked-up"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", groups.SORTS)
def test_each_order_goes_on_where_the_page_ended(filled, monkeypatch, sort, descending, few):
    monkeypatch.setattr(groups, "_FEW", few)
    for limit in (1, 69, 70, 71):
        got = all_pages(filled, ParkedGroupFilter(), limit, sort=sort, descending=descending)
        assert [p.id for p in got] == [
            p.id for p in in_order([p for p, _ in every(filled)], sort, descending)
        ]


def test_a_cursor_that_is_none_is_refused(filled):
    page = filled.parking.page(sort="parked", limit=5)
    whole = orjson.loads(base64.urlsafe_b64decode(page.next))

    def made(value):
        return base64.urlsafe_b64encode(orjson.dumps(value)).decode()

    bad = [
        "",
        "x",
        "é",
        page.next[:-2],
        page.next + "A" * 10_000,
        made([]),
        made({}),
        made(whole[:-1]),
        made([*whole, 1]),
        made([*whole[:2], "1; DROP TABLE segments", 1]),
        made([*whole[:2], None, 1]),
        made([*whole[:2], True, 1]),
        made([*whole[:2], 2**63, 1]),
        made(["name", False, 0, "a\x00", "b", "c", "d"]),
        made(["parked", True, *whole[2:]]),
    ]
    for after in bad:
        with pytest.raises(InputError, match="after"):
            filled.parking.page(sort="parked", after=after)
    with pytest.raises(InputError, match="after"):
        filled.parking.page(sort="name", after=made(["name", False, 0, "a\x00", "b", "c", "d"]))
    with pytest.raises(InputError, match="another order"):
        filled.parking.page(sort="parked", descending=True, after=page.next)


@pytest.mark.parametrize(
    "given", [{"limit": 0}, {"limit": 1001}, {"sort": "id"}], ids=["none", "many", "sort"]
)
def test_a_page_that_cannot_be_is_refused(lot, given):
    with pytest.raises(InputError):
        lot.parking.page(**given)


def test_groups_are_of_what_is_held(filled):
    found = filled.parking.causes(3)
    rows = filled.sql(
        "SELECT fingerprint, sum(count)::int, count(*)::int, min(parked_at), max(parked_at), "
        "(array_agg(last_message ORDER BY id DESC))[1] FROM segments "
        "WHERE partition_id = 3 AND state IN ('parked', 'replaying') "
        "GROUP BY 1 ORDER BY 2 DESC, 1"
    )
    assert rows
    assert [
        (g.fingerprint, g.events, g.segments, g.first_parked_at, g.last_parked_at, g.message)
        for g in found
    ] == rows
    assert filled.parking.causes(999) == []


def test_timelines_count_what_was_parked_in_each_step(filled):
    ids = [1, 2, 999]
    found = filled.parking.timelines(ids, PARKED, PARKED + timedelta(minutes=240), 4)
    for partition_id in ids:
        expected = [
            filled.sql(
                "SELECT coalesce(sum(count), 0)::int FROM segments WHERE partition_id = :id "
                "AND parked_at >= :at AND parked_at < :at + interval '1 hour'",
                id=partition_id,
                at=PARKED + timedelta(hours=hour),
            )[0][0]
            for hour in range(4)
        ]
        assert found[partition_id] == expected
    assert sum(found[1]) > 0
    with pytest.raises(InputError):
        filled.parking.timelines(ids, PARKED, PARKED)
