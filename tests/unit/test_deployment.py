"""Which version of a pipeline's history is meant by what somebody typed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from waybill.deployment import DeployedVersion, pick_version
from waybill.errors import InputError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HISTORY = [
    DeployedVersion("pl-1", number, digest, NOW, "ann")
    for number, digest in ((12, "850793aa0c1d"), (11, "0012345678ab"), (2, "8507e1aa0c1d"))
]


@pytest.mark.parametrize(
    ("given", "number"),
    [("12", 12), ("2", 2), ("850793", 12), ("850793AA", 12), ("8507e", 2), ("0012345678ab", 11)],
)
def test_a_number_or_a_digests_beginning_names_a_version_also_if_it_is_all_figures(given, number):
    assert pick_version(HISTORY, given).number == number


@pytest.mark.parametrize("given", ["8507", "85079", "850", "13", "00", "", "850794", "ffff"])
def test_few_figures_are_a_number_and_what_is_not_there_is_told_with_what_is(given):
    with pytest.raises(InputError, match=r"by number and digest there are 12 \(850793aa0c1d\)"):
        pick_version(HISTORY, given)
