"""Drawing parked events: all of a choice, or a sample of each fingerprint's, from the real rows."""

from collections import Counter
from datetime import timedelta

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import START, make_event

from waybill.parking import ReplayConditions, Stratum

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
CAUSES = {"ship sank": 2_000, "rope tore": 300, "gull stole it": 12}


def park_causes(lot, objects=10):
    """Park events of three causes in some objects, mixed as they come."""
    events = [
        make_event(n, message=cause) for cause, number in CAUSES.items() for n in range(number)
    ]
    for number in range(objects):
        lot.park(events[number::objects], number)
    return lot.only().id


def drawn(lot, **options):
    choice = options.pop("choice", None)
    sample = lot.parking.draw(lot.only().id, choice, **options)
    return list(sample.events), sample


def reads(lot, monkeypatch):
    """Count the store's answers."""
    seen = []
    get = lot.objects.get
    monkeypatch.setattr(lot.objects, "get", lambda *a, **k: seen.append(a) or get(*a, **k))
    return seen


def test_all_are_given_in_the_order_of_a_replay(lot):
    park_causes(lot)
    events, sample = drawn(lot)
    assert Counter(event.message for _, event in events) == CAUSES
    partition = lot.only().id
    assert [e.value for _, e in events] == [e.value for e in lot.parking.events(partition)]
    assert sorted(numbers.population for numbers in sample.strata.values()) == [12, 300, 2_000]


def test_a_sample_has_some_of_each_fingerprint_and_says_what_they_stand_for(lot):
    park_causes(lot)
    events, sample = drawn(lot, n=200, seed=3)
    found = Counter(event.message for _, event in events)
    assert sum(found.values()) == 200
    assert found["gull stole it"] == 12
    assert found["rope tore"] >= 30
    assert {len({e.message for s, e in events if s == one}) for one in sample.strata} == {1}
    by_size = {numbers.population: numbers.drawn for numbers in sample.strata.values()}
    assert by_size == {CAUSES[cause]: number for cause, number in found.items()}
    assert (
        len({event.value for _, event in events if event.message == "ship sank"})
        == found["ship sank"]
    )
    again, _ = drawn(lot, n=200, seed=3)
    assert [e.value for _, e in again] == [e.value for _, e in events]


def test_every_event_is_as_likely_as_any_other_of_its_cause(lot):
    lot.park([make_event(n, message="a") for n in range(3)], 1)
    lot.park([make_event(n, message="a") for n in range(3, 40)], 2)
    lot.park([make_event(40, message="a")], 3)
    seen = Counter()
    for seed in range(120):
        events, _ = drawn(lot, n=10, seed=seed)
        seen.update(event.kafka_offset for _, event in events)
    assert set(seen) == set(range(41))
    assert 5 <= min(seen.values()) <= max(seen.values()) <= 60  # 29 expected, 4.7 deviation


def test_a_sample_reads_no_more_segments_than_it_has_events(lot, monkeypatch):
    for number in range(60):
        lot.park([make_event(number * 10 + n, message="a") for n in range(10)], number)
    seen = reads(lot, monkeypatch)
    events, _ = drawn(lot, n=8, seed=1)
    assert len(events) == 8
    assert len(seen) <= 8


def test_events_that_a_release_parked_without_fingerprint_are_sampled_together(lot):
    park_causes(lot)
    lot.sql("UPDATE segments SET fingerprint = ''")
    events, sample = drawn(lot, n=500, seed=1)
    assert {stratum for stratum, _ in events} == {Stratum("", whole=True)}
    assert [n.population for n in sample.strata.values()] == [sum(CAUSES.values())]
    one = events[0][1].fingerprint
    only, sample = drawn(lot, choice=ReplayConditions(fingerprint=one), n=500, seed=1)
    assert {event.fingerprint for _, event in only} == {one}
    [numbers] = sample.strata.values()
    assert (numbers.population, numbers.drawn) == (sum(CAUSES.values()), 500)
    assert len(only) < 500


def test_a_window_on_event_time_is_exact_and_a_sample_estimates_it(lot):
    park_causes(lot)
    choice = ReplayConditions(START + timedelta(hours=100), START + timedelta(hours=250))
    events, _ = drawn(lot, choice=choice)
    assert Counter(e.message for _, e in events) == {"ship sank": 150, "rope tore": 150}
    part, sample = drawn(lot, choice=choice, n=1_000, seed=2)
    estimate = sum(
        sample.strata[stratum].population / sample.strata[stratum].drawn for stratum, _ in part
    )
    assert estimate == pytest.approx(300, abs=60)
    assert all(100 <= event.kafka_offset < 250 for _, event in part)


def test_windows_on_parked_time_fingerprints_and_limits_choose(lot):
    park_causes(lot)
    lot.sql("UPDATE segments SET parked_at = '2020-01-01Z' WHERE commit_number < 4")
    early = ReplayConditions(parked_until="2020-01-02")
    late = ReplayConditions(parked_since="2020-01-02")
    first, second = drawn(lot, choice=early)[0], drawn(lot, choice=late)[0]
    assert len(first) + len(second) == sum(CAUSES.values())
    assert len(first) == sum(1 for n in range(sum(CAUSES.values())) if n % 10 < 4)
    every, _ = drawn(lot)
    torn = next(e.fingerprint for _, e in every if e.message == "rope tore")
    only, sample = drawn(lot, choice=ReplayConditions(fingerprint=torn), n=40)
    assert {event.message for _, event in only} == {"rope tore"}
    assert [(n.population, n.drawn) for n in sample.strata.values()] == [(300, 40)]
    head, _ = drawn(lot, choice=ReplayConditions(max_events=333))
    assert [e.value for _, e in head] == [e.value for _, e in every[:333]]
    some, sample = drawn(lot, choice=ReplayConditions(max_events=333), n=50)
    assert sum(numbers.population for numbers in sample.strata.values()) == 333
    assert {e.value for _, e in some} <= {e.value for _, e in head}


@pytest.mark.parametrize("n", [None, 20])
def test_damaged_segments_are_left_out_and_counted(lot, n):
    lot.park([make_event(n, message="a") for n in range(10)], 1)
    bad = lot.park([make_event(n, message="a") for n in range(10, 20)], 2)
    body = lot.objects.get(bad)
    lot.objects.put(bad, b"\0" * len(body))
    events, sample = drawn(lot, n=n)
    assert (len(events), sample.damage.events) == (10, 10)
    lot.objects.delete([bad])
    events, sample = drawn(lot, n=n)
    assert (len(events), sample.damage.events) == (10, 10)
    lot.sql("DELETE FROM segments WHERE object_key = :key", key=bad)
    lot.sql("UPDATE parked_partitions SET parked = parked - 10")
    lot.sql(
        "UPDATE parked_partitions SET bytes = (SELECT sum(bytes) FROM segments), "
        "last_event_at = (SELECT max(last_event_at) FROM segments)"
    )
