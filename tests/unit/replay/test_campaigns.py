"""What is decided of a campaign without its tables: when to look, how long it takes, what is said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from waybill.errors import InputError
from waybill.replay import Campaign, CampaignRequest, OpenCampaign, ReplayRequest, left_out_words
from waybill.replay.campaigns import run_id_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "mapping",
    "error_type": "null_value",
}


def open_one(launched: int, *, state: str = "running", waiting: bool = True) -> OpenCampaign:
    return OpenCampaign(state, 8, waiting, tuple(f"run {n}" for n in range(launched)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("campaign", "unfinished", "late", "due"),
    [
        (open_one(8), 8, False, False),
        (open_one(8), 5, False, False),
        (open_one(8), 4, False, True),  # half of its runs have ended: the others follow
        (open_one(8), 7, True, True),
        (open_one(8), 8, True, False),
        (open_one(0), 0, False, True),
        (open_one(0, waiting=False), 0, False, True),  # it is over
        (open_one(0, state="paused"), 0, True, False),
        (open_one(8, state="paused"), 0, False, True),  # their ends are written down
        (open_one(2, state="paused"), 2, True, False),
        (open_one(0, state="paused", waiting=False), 0, False, True),
        (open_one(0, state="cancelled"), 0, False, True),
        (open_one(2, state="cancelled"), 2, True, False),
        (open_one(2, state="cancelled"), 1, False, True),
        (open_one(3, waiting=False), 3, True, False),
        (open_one(3, waiting=False), 2, False, True),
    ],
)
def test_its_task_is_woken_when_it_can_do_something(
    campaign: OpenCampaign, unfinished: int, late: bool, due: bool
) -> None:
    assert campaign.is_due(unfinished, late=late) is due


def one(**changes: object) -> Campaign:
    found = Campaign(
        id=7,
        run_id="manual__1",
        asked_by="ann",
        asked_at=NOW,
        request={"stage": "mapping"},
        teams=("aviation",),
        max_unfinished=8,
        state="running",
        changed_by="",
        changed_at=None,
        groups=1_000,
        launched=108,
        ended=100,
        failed=3,
        left_out={},
        looked_at=NOW,
        ended_at=None,
        recent=45,
        recent_s=900.0,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_rate_and_time_left_are_those_of_the_last_quarter_of_an_hour() -> None:
    said = one().to_json()
    assert (said["waiting"], said["unfinished"], said["rate_per_min"]) == (892, 8, 3.0)
    assert said["eta_s"] == 900 * 20
    for unknown in (one(recent=0), one(state="paused"), one(state="done", ended_at=NOW)):
        assert unknown.to_json()["eta_s"] is None


def test_what_a_cancelled_one_never_launched_is_cancelled() -> None:
    said = one(state="cancelled").to_json()
    assert (said["waiting"], said["cancelled"], said["unfinished"]) == (0, 892, 8)


def test_each_reason_says_what_to_do() -> None:
    reasons = {"held": 1_200, "campaign 3": 7, "never_events": 9, "replaying": 1, "over_limit": 2}
    lines = left_out_words(reasons)
    assert lines[0].startswith("1,200 groups left out: their pipelines are held; run again")
    assert (
        "7 groups left out: they are in campaign 3; run again when it has ended, or cancel it"
        in lines
    )
    assert len(lines) == len(reasons)


def test_run_ids_are_of_the_request_and_the_group_and_hold_no_name() -> None:
    ids = {run_id_of(run, number) for run in ("manual__../\0🐦", "b") for number in (1, 2)}
    assert len(ids) == 4
    assert all(one.isascii() and one.replace("_", "").isalnum() for one in ids)


def test_a_run_takes_over_all_that_a_campaign_and_a_replay_have_in_common() -> None:
    asked = {"since": "2013-01-01", "fingerprint": "0123456789abcdef", "rate_per_s": 9}
    request = CampaignRequest.of({**asked, "stage": "mapping", "limit": 3, "canary": True})
    conf = request.of_group(NAMES)
    assert ReplayRequest.of(conf) == ReplayRequest.of({**NAMES, **asked, "canary": True})
    assert conf["since"] == "2013-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"since": "tomorrow"}, "since: 'tomorrow'"),
        ({"max_unfinished": 0}, "max_unfinished: "),
        ({"limit": 0}, "limit: "),
        ({"pipelin": "x"}, "pipelin: "),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CampaignRequest.of(given)
