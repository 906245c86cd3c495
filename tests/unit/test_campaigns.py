"""``make campaigns``: every part runs whatever becomes of the others, and the end says what did."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from tests import campaigns
from tests.campaigns import (
    PARTS,
    STAGES,
    Campaigns,
    Part,
    Result,
    chosen,
    environment,
    figures_in,
    report_of,
    sizes_of,
    summary,
)
from tests.faults import airflow_campaign, failpoints, loading_failpoints, processing_campaign
from tests.faults.processing_failpoints import BATCH, TASK
from tests.faults.producer_campaign import MOMENTS
from tests.servers import CHECKOUT, wait_for

MAKEFILE = (CHECKOUT / "Makefile").read_text(encoding="utf-8")


class Scripts(Campaigns):
    """Runs a script in place of each part: ``scripts`` by name."""

    scripts: dict[str, str]

    def command(self, part):
        return ("bash", "-c", self.scripts[part.name])


@pytest.fixture
def run(tmp_path):
    def running(scripts, stages=None, **named):
        made = Scripts(tmp_path / "logs", **named)
        made.scripts = scripts
        made.run(stages or [[tuple(map(Part, scripts))]])
        return made.results

    return running


def test_a_part_that_fails_keeps_no_other_from_running_and_is_named(run, capsys):
    results = run({
        "first": 'echo "{\\"kills\\": 3}"',
        "second": "echo it broke; exit 3",
        "third": 'echo "{\\"lost\\": 0}"; echo passed',
    })  # fmt: skip
    assert [(one.part, one.code) for one in results.values()] == [
        ("first", 0), ("second", 3), ("third", 0),
    ]  # fmt: skip
    assert "second: failed with 3" in capsys.readouterr().out
    report = report_of(results, 2.0)
    assert (report["parts"], report["failed"]) == (3, ["second"])
    lines = list(summary(results))
    assert len(lines) == 1 + 3
    assert '{"kills": 3}' in lines[1]
    assert lines[2].split()[:2] == ["second", "3"]
    assert "(no line of JSON)" in lines[2]
    assert '{"lost": 0}' in lines[3]


def test_what_a_part_that_fails_said_is_shown(run, capsys):
    run({"first": "echo what broke; exit 1"})
    assert "  | what broke" in capsys.readouterr().out


def test_lanes_run_side_by_side_and_stages_one_after_the_other(run, tmp_path):
    seen = tmp_path / "seen"
    wait = f"for i in $(seq 600); do [ -e {seen} ] && exit 0; sleep 0.1; done; exit 1"
    stages = [[(Part("waits"),), (Part("tells"),)], [(Part("last"),)]]
    scripts = {"waits": wait, "tells": f"touch {seen}", "last": f"rm {seen}"}
    results = run(scripts, stages)
    assert {name: one.code for name, one in results.items()} == dict.fromkeys(scripts, 0)
    assert list(results)[-1] == "last"


def test_a_part_that_does_not_end_is_ended_with_what_it_started_and_the_next_one_runs(
    run, tmp_path
):
    pid = tmp_path / "pid"
    endless = f"trap '' TERM; sleep 600 & echo $! >{pid}; wait; sleep 600"
    results = run({"endless": endless, "next": "true"}, limit_s=6.0, grace_s=0.5)
    assert (results["endless"].code, results["endless"].said) == (None, "not over after 6 s")
    assert results["next"].is_good
    assert report_of(results, 1.0)["failed"] == ["endless"]
    wait_for(lambda: not is_alive(int(pid.read_text())))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_who_ends_it_ends_the_part_that_runs_and_none_begins(tmp_path):
    made = Scripts(tmp_path / "logs", grace_s=30)
    began = tmp_path / "began"
    made.scripts = {"runs": f"touch {began}; sleep 600", "waits": "true"}
    thread = threading.Thread(target=made.run, args=([[(Part("runs"), Part("waits"))]],))
    thread.start()
    wait_for(began.exists)
    made.end()
    thread.join(300)
    assert not thread.is_alive()
    assert {name: one.said for name, one in made.results.items()} == {
        "runs": "ended", "waits": "not begun",
    }  # fmt: skip
    assert report_of(made.results, 1.0)["failed"] == ["runs", "waits"]


def test_a_part_that_cannot_be_started_is_told(tmp_path):
    class NoProgram(Campaigns):
        def command(self, part):
            return (str(tmp_path / "nothing"),)

    made = NoProgram(tmp_path / "logs")
    made.run([[(Part("first"),)]])
    assert "No such file" in made.results["first"].said
    assert not made.results["first"].is_good


def test_the_figures_are_the_last_line_that_is_an_object_whatever_else_is_said(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b'{"old": 1}\n{"kills": 2}\n\xff{"x": 3}\n{not json}\n[1]\nmake: ended\n')
    assert figures_in(log) == {"kills": 2}
    log.write_bytes(b"")
    assert figures_in(log) == {}


def test_a_part_sees_its_own_sizes_and_seed_and_nobody_elses():
    part = Part("faults-producer", "PRODUCER_SEED", {"KILLS": 60})
    given = {"EVENTS": "7", "SEED": "5", "ARGS": "-x", "MAKEFLAGS": "k", "HOME": "/h", "PARTS": "a"}
    assert environment(part, given) == {"HOME": "/h", "KILLS": "60", "PRODUCER_SEED": "5"}
    assert sizes_of(part, {"KILLS": "3"}) == {"KILLS": "3"}
    assert sizes_of(part, {"QUICK": "1"}) == {"QUICK": "1"}
    assert sizes_of(part, {"QUICK": "1", "KILLS": "3"}) == {"QUICK": "1", "KILLS": "3"}
    assert sizes_of(part, {"PRODUCER_SEED": "1", "SEED": "2"})["PRODUCER_SEED"] == "1"
    assert sizes_of(Part("oldest-airflow"), {"SEED": "2"}) == {}


def test_parts_are_chosen_by_name_in_their_order():
    some = ["faults-airflow", "faults-parking", "campaign-tests"]
    assert [[[p.name for p in lane] for lane in stage] for stage in chosen(some, lanes=True)] == [
        [["campaign-tests"]], [["faults-parking"], ["faults-airflow"]],
    ]  # fmt: skip
    alone = chosen([part.name for part in PARTS], lanes=False)
    assert all(len(stage) == 1 for stage in alone)
    assert [part for [lane] in alone for part in lane] == list(PARTS)


def test_a_name_that_is_no_part_is_answered_with_those_there_are(monkeypatch, capsys):
    monkeypatch.setenv("CAMPAIGNS", "faults-producer,faults-produce")
    assert campaigns.main() == 2
    assert "no part 'faults-produce'; there are campaign-tests, " in capsys.readouterr().err


def test_the_command_ends_with_1_where_a_part_failed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(campaigns, "LOGS", tmp_path)
    broken = ["faults-tracker"]

    def command(_self: Campaigns, part: campaigns.Part) -> tuple[str, ...]:
        return ("bash", "-c", f"exit {int(part.name in broken)}")

    monkeypatch.setattr(Campaigns, "command", command)
    monkeypatch.setattr(campaigns.signal, "signal", lambda *_: None)
    assert campaigns.main() == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["parts"], report["failed"]) == (len(PARTS), ["faults-tracker"])
    broken.clear()
    assert campaigns.main() == 0


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_part_is_a_target_of_the_makefile_that_knows_its_sizes_and_its_seed(part):
    [recipe] = re.findall(rf"^{part.name}:[^\n]*\n((?:\t[^\n]*\n)+)", MAKEFILE, re.MULTILINE)
    module = re.search(r"-m (tests\.faults\.\w+)", recipe)
    read = recipe
    if module:
        read += (CHECKOUT / f"{module[1].replace('.', '/')}.py").read_text()
    if "test_kills.py" in recipe:
        read += (CHECKOUT / "tests/integration/destinations/test_kills.py").read_text()
    for name in filter(None, (*part.sizes, part.seed)):
        known = f'"{name}"' in read or f"{{{name}" in read or f"({name})" in read
        # the campaign of processing reads the fields of its size
        assert known or re.search(rf"^    {name.lower()}: int$", read, re.MULTILINE), name


def test_no_target_of_campaigns_is_left_out():
    targets = set(re.findall(r"^(faults-[a-z]+|campaign-[a-z]+|oldest-airflow):", MAKEFILE, re.M))
    assert targets == {part.name for part in PARTS}
    assert len(PARTS) == len(targets)
    assert all(stage and all(stage) for stage in STAGES)


def test_each_kind_of_kill_comes_twice_or_more_in_the_standard_size():
    sizes = {part.name: dict(part.sizes) for part in PARTS}
    named = {name.lower(): number for name, number in sizes["faults-processing"].items()}
    done = processing_campaign.Size(**named)
    assert done.kills >= 2 * (len(BATCH) + 1)
    assert done.loader_kills >= 2 * (len(loading_failpoints.LOAD) + 1)
    assert done.executor_kills >= 2 * len(TASK)
    assert done.freezes >= 2 * 3
    assert done.coordinator_kills >= 2 * len(failpoints.COORDINATOR)
    assert min(done.code_kills, done.moves, done.growths) >= 2
    airflow = sizes["faults-airflow"]
    size = airflow_campaign.Size(airflow["REPLAYS"], airflow["KILLS"])
    assert size.each >= 2
    assert size.groups >= 2 * len(size.faults("CeleryExecutor"))  # each finds a task to kill
    kills = sizes["faults-producer"]["KILLS"]
    assert (kills - 2 * (kills * 2 // 5)) // len(MOMENTS) >= 2
    assert sizes["faults-ingestion"]["KILLS"] >= 4
    assert min(sizes[f"faults-{name}"]["KILLS"] for name in ("parking", "destinations")) >= 3


def test_a_step_at_which_nothing_was_killed_is_missed_where_there_were_kills_for_each():
    size = processing_campaign.QUICK
    tally = processing_campaign.Tally()
    for name in ("moves", "growths", "kills", "loader_kills", "executor_kills", "code_kills"):
        setattr(tally, name, getattr(size, name))
    tally.freezes, tally.coordinator_kills = size.freezes, size.coordinator_kills
    for step in (*BATCH, "any moment"):
        tally.kills_at[step] = 1
    for step in (*loading_failpoints.LOAD, "any moment"):
        tally.kills_at[f"loading, {step}"] = 1
    assert processing_campaign.missed(size, tally) == {}
    del tally.kills_at["offsets moved"]
    tally.moves -= 1
    assert processing_campaign.missed(size, tally) == {"moves": 1, "kill: offsets moved": 1}
    assert processing_campaign.missed(processing_campaign.SHORTEST, tally) == {}


@pytest.mark.parametrize(("code", "good"), [(0, True), (1, False), (2, False), (None, False)])
def test_only_who_ended_with_0_is_good(code, good):
    assert Result("a", code).is_good is good


def test_sigterm_ends_the_command_and_what_it_runs(tmp_path):
    """As Ctrl-C does; the part that it runs is in a session of its own."""
    import signal
    import subprocess

    began = tmp_path / "began"
    code = f"""
import sys
from pathlib import Path
from tests import campaigns
campaigns.LOGS = Path({str(tmp_path)!r})
campaigns.Campaigns.command = lambda *_: ("bash", "-c", "echo $$ >{began}; sleep 600")
sys.exit(campaigns.main())
"""
    path = os.pathsep.join(path for path in sys.path if path)
    child = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE
    )
    wait_for(lambda: began.exists() and began.read_text())
    started = time.monotonic()
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=600)
    assert time.monotonic() - started < 300
    report = json.loads(output.decode().splitlines()[-1])
    assert child.returncode == 1
    assert report["failed"] == [part.name for part in PARTS]
    assert not is_alive(int(began.read_text()))
