"""The rate of a stratified sample is unbiased, and its interval holds what it says."""

from __future__ import annotations

import random

import pytest

from waybill.parking.sampling import allocated, merged
from waybill.replay.dry_run import EstimateTally, rate

GROUPS = {"large": (9_000, 0.97), "half": (3_000, 0.5), "rare": (60, 0.1), "bad": (2_500, 0.0)}
TRUE = sum(n * round(p * n) / n for n, p in GROUPS.values()) / sum(n for n, _ in GROUPS.values())


def sampled(n: int, rng: random.Random) -> list[EstimateTally]:
    shares = allocated({name: size for name, (size, _) in GROUPS.items()}, n)
    tallies = []
    for name, (size, p) in GROUPS.items():
        picked = rng.sample(range(size), shares[name])
        good = sum(number < round(p * size) for number in picked)
        tallies.append(EstimateTally(size, shares[name], good))
    return tallies


@pytest.mark.parametrize("n", [100, 1_000])
def test_over_many_samples_the_rate_is_right_and_the_interval_holds_it(n: int) -> None:
    rng = random.Random(7)
    rates = [rate(sampled(n, rng)) for _ in range(1_000)]
    assert sum(found.value for found in rates) / len(rates) == pytest.approx(TRUE, abs=0.004)
    held = sum(found.low <= TRUE <= found.high for found in rates) / len(rates)
    assert 0.93 <= held <= 0.995
    if n == 1_000:
        near = sum(abs(found.value - TRUE) <= 0.02 for found in rates) / len(rates)
        assert near >= 0.97


def test_what_was_tried_whole_leaves_no_doubt_and_what_was_not_leaves_some() -> None:
    whole = rate([EstimateTally(10, 10, 7), EstimateTally(5, 5, 0)])
    assert whole.low == whole.value == whole.high == pytest.approx(7 / 15)
    none_failed = rate([EstimateTally(10_000, 100, 100)])
    assert (none_failed.value, none_failed.high) == (1.0, 1.0)
    assert 0.95 < none_failed.low < 0.97
    assert rate([]).high == 1.0


@pytest.mark.parametrize("n", [1, 2, 7, 50, 333, 1_000, 99_999])
def test_shares_add_up_and_leave_no_group_out(n: int) -> None:
    rng = random.Random(n)
    sizes = {f"g{i}": rng.choice([1, 2, 3, 40, 5_000]) for i in range(min(n, 60))}
    shares = allocated(sizes, n)
    assert sum(shares.values()) == min(n, sum(sizes.values()))
    assert all(1 <= shares[key] <= sizes[key] for key in sizes)


def test_large_groups_get_in_proportion_and_small_ones_their_floor() -> None:
    shares = allocated({"a": 90_000, "b": 9_000, "c": 40, "d": 5}, 1_000)
    assert (shares["c"], shares["d"]) == (30, 5)
    assert shares["a"] / shares["b"] == pytest.approx(8.3, abs=0.9)


def test_more_groups_than_the_sample_has_room_for_share_one() -> None:
    sizes = {f"g{i:02}": 100 - i for i in range(50)}
    together = merged(sizes, 50, "rest")
    assert [together[f"g{i:02}"] for i in range(10)] == [f"g{i:02}" for i in range(9)] + ["rest"]
    assert merged(sizes, 10_000, "rest") == {name: name for name in sizes}
