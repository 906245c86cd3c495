"""What the jobs of upkeep hand on: launches that are the same each time, counts, failures."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from waybill import services
from waybill.capacity import CapacityReport, Decision
from waybill.clusters import CapacityDemand, CoordinatorReport, Move, TopicGrowth
from waybill.errors import RetryError, StopError
from waybill.notices import SendReport
from waybill.services import upkeep
from waybill.upkeep import JOBS

GROUP = {
    "pipeline": "flights",
    "event_name": "flight",
    "stage": "mapping",
    "error_type": "pipeline_held",
}


class Launcher:
    def __init__(self, refused=()):
        self.launched, self.refused = [], refused

    def launch(self, run_id, conf):
        self.launched.append((run_id, conf))
        if conf["event_name"] in self.refused:
            raise StopError(f"{run_id} is refused")


@pytest.fixture
def answers(monkeypatch):
    """Let a service answer; its own behaviour is tested where it lives."""

    def answer(name, value):
        monkeypatch.setattr(services, name, lambda *_, **__: value)

    answer("ended_replays", {})
    answer("held_to_replay", [])
    return answer


def held(number, event_name="flight", **changes):
    return {
        **GROUP,
        **{"id": number, "pipeline_id": "pl-1", "parked": 5, "event_name": event_name},
        "last_parked_at": "2026-01-01T00:00:00+00:00",
        **changes,
    }


def probe(answers, *rows, launcher=None):
    report = {"probes": [{"pipeline": "flights"}], "held": ["weather"], "to_replay": list(rows)}
    answers("probe_held_pipelines", SimpleNamespace(to_json=lambda: report))
    launcher = launcher or Launcher()
    counts = upkeep._probe_held_pipelines(None, launcher)
    return counts, launcher.launched


def test_there_is_work_for_each_job_and_no_other(monkeypatch):
    made = []
    monkeypatch.setattr(upkeep, "Shift", lambda _tracker, work, **_: made.append(set(work)))
    upkeep._shift(None, upkeep.UpkeepParts(Launcher(), "ann", str), None)
    assert made == [{job.name for job in JOBS}]


def test_a_round_with_nothing_to_send_back_launches_nothing(answers):
    assert probe(answers) == ({"held": 1, "probes": 1, "to_replay": 0}, [])


def test_what_waits_for_no_probe_goes_back_before_a_probe_can_take_its_time(answers, monkeypatch):
    waits, launcher = SimpleNamespace(to_json=lambda: held(1)), Launcher()
    answers("held_to_replay", [waits])

    def hangs(_settings):
        assert [conf for _, conf in launcher.launched] == [GROUP]
        raise RetryError("it took over 900 s")

    monkeypatch.setattr(services, "probe_held_pipelines", hangs)
    with pytest.raises(RetryError, match="900 s"):
        upkeep._probe_held_pipelines(None, launcher)
    counts, launched = probe(answers, held(1), held(2), launcher=Launcher())
    assert counts["to_replay"] == len(launched) == 2, "none is launched twice"


def test_what_was_held_is_launched_under_one_id_however_often_it_is_listed(answers):
    _, [first] = probe(answers, held(1))
    _, [again] = probe(answers, held(1))
    assert first == again
    assert first[1] == GROUP
    _, [more] = probe(answers, held(1, parked=9))
    answers("ended_replays", {1: "a replay that was cancelled"})
    _, [after] = probe(answers, held(1))
    assert len({first[0], more[0], after[0]}) == 3


def test_a_launch_that_is_refused_keeps_none_of_the_others_and_fails_the_job(answers):
    launcher = Launcher(refused={"bad"})
    with pytest.raises(StopError, match="is refused"):
        probe(answers, held(1, "bad"), held(2, "good"), held(3, "bad"), launcher=launcher)
    assert [conf["event_name"] for _, conf in launcher.launched] == ["bad", "good", "bad"]


def test_telling_counts_what_was_sent_and_fails_for_good_where_a_message_is_stuck(answers):
    answers("send_notices", SendReport(messages=2))
    assert upkeep._tell_owners(None)["messages"] == 2
    answers("send_notices", SendReport(failed=1, stuck=["smtp: message 7 to ann waits"]))
    with pytest.raises(StopError, match="message 7 to ann"):
        upkeep._tell_owners(None)


def test_a_round_of_the_coordinator_is_counted_and_what_it_could_not_do_logged(answers, caplog):
    move = Move("red", "a", "b", "hot", "hot: it took 3.10 of 4 cores of a; alone in b")
    grown = TopicGrowth("events.red.warehouse", "red", 2, 4, "2 of its 2 partitions")
    problems = ("cluster a is over its limits",)
    report = CoordinatorReport(7, (move,), problems, CapacityDemand(()), (grown,))
    answers("run_coordinator", report)
    with caplog.at_level(logging.INFO):
        counts = upkeep._coordinate(None)
    said = ["cluster a is over its limits"]
    assert counts == {"version": 7, "moves": 1, "growths": 1, "problems": 1, "said": said}
    assert "cluster a is over its limits" in caplog.text
    assert "topic events.red.warehouse: 2 -> 4 partitions" in caplog.text


def test_a_round_of_capacity_is_counted_and_says_the_first_thing_that_it_could_not_do(answers):
    added = Decision("grow", 1, 3, 3, ("60 tasks wait",))
    answers("scale_nodes", CapacityReport({"spark": added}, 7, (), ()))
    done = {"spark": "1 -> 3", "version": 7, "removed": 0, "problems": 0}
    assert upkeep._scale_nodes(None) == done
    problems = ("no ingestion nodes are added: AWS refused", "node a is gone")
    answers("scale_nodes", CapacityReport({"spark": added}, 7, (), problems))
    told = {"problems": 2, "problem": problems[0]}
    assert upkeep._scale_nodes(None) == done | told


def test_an_audit_whose_trace_store_is_away_succeeds_and_says_so(answers):
    report = dict.fromkeys(("number", "looked_at", "balanced", "moving", "breaches"), 3)
    away = {"opened": ["x"], "naming": None, "naming_problem": "S3 is away"}
    answers("run_audit", report | away)
    counts = upkeep._audit(None)
    assert (counts["opened"], counts["named"], counts["problem"]) == (1, 0, "S3 is away")


def test_a_destination_that_a_check_cannot_ask_fails_no_watch(answers):
    found = [SimpleNamespace(kind="quiet", words="w")] * 2
    answers("watch", SimpleNamespace(findings=found, problems=["S3 is away"]))
    assert upkeep._watch(None) == {"quiet": 2, "problems": 1}


def test_what_cannot_be_launched_now_is_not_noted_as_launched(answers, monkeypatch):
    launch = {**GROUP, "partition_id": 1, "before": {}, "seen": {"version": 2}, "why": "w"}
    answers("due_auto_replays", [SimpleNamespace(to_json=lambda: launch)])
    noted = []
    monkeypatch.setattr(services, "keep_auto_replays", lambda _, notes: noted.extend(notes) or 1)

    class Away(Launcher):
        def launch(self, run_id, conf):
            raise RetryError("Airflow does not answer")

    with pytest.raises(RetryError):
        upkeep._auto_replay(None, Away())
    assert noted == []
    launcher = Launcher()
    assert upkeep._auto_replay(None, launcher) == {"due": 1, "launched": 1}
    [(run_id, conf)] = launcher.launched
    assert conf == GROUP | {"canary": True}
    assert noted == [{"partition_id": 1, "before": {}, "seen": {"version": 2}, "run_id": run_id}]


def test_a_round_launches_no_more_than_it_has_time_for_and_all_have_their_turn(
    answers, monkeypatch
):
    monkeypatch.setattr(upkeep, "_MOST_LAUNCHES", 3)
    launched = set()
    for minute in range(4):
        monkeypatch.setattr(upkeep.time, "time", lambda now=minute * 60.0: now)
        counts, some = probe(answers, *(held(number) for number in range(10)))
        assert (counts["to_replay"], len(some)) == (10, 3)
        launched.update(run_id for run_id, _ in some)
    assert len(launched) == 10
