"""The simulator, and what the policy does in it."""

from __future__ import annotations

import json
from xml.dom import minidom

import pytest
from typer.testing import CliRunner

from waybill.capacity import (
    FixedScaler,
    PolicyScaler,
    Thresholds,
    ThresholdScaler,
    Workload,
    nodes_for,
    simulate,
    svg_plot,
    terminal_plot,
)
from waybill.capacity.simulation import Minute, count_reversals
from waybill.cli import app
from waybill.errors import InputError

LIMITS = Thresholds(max_nodes=40, most_added=16)
STORM = Workload("storm", hours=3, tasks_per_s=0.2)


def run(workload=STORM, scaler=None):
    first = nodes_for(workload, LIMITS)
    return simulate(workload, scaler or PolicyScaler(LIMITS), first_nodes=first)


def test_a_step_to_ten_times_the_load_is_answered_once_and_for_good():
    found = run()
    assert found.recovery_s is not None
    assert found.recovery_s <= 900
    assert found.reversals <= 1


def test_fixed_nodes_and_a_plain_autoscaler_leave_more_tasks_late():
    ours, fixed = run(), run(scaler=FixedScaler(nodes_for(STORM, LIMITS)))
    plain = run(scaler=ThresholdScaler(LIMITS))
    assert fixed.recovery_s is None
    assert ours.late_s < 0.1 * min(fixed.late_s, plain.late_s)


def test_where_nothing_changes_nodes_stay():
    found = run(Workload("homogeneous", hours=3))
    assert found.reversals <= 1
    assert max(one.nodes for one in found.minutes) <= nodes_for(Workload("homogeneous"), LIMITS) + 2


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    assert run().to_json() == run().to_json()
    other = run(Workload("storm", hours=3, tasks_per_s=0.2, seed=2))
    assert other.to_json() != run().to_json()


def test_reversals_are_turns_within_an_hour():
    def minutes(*nodes, step=60):
        return [Minute(step * i, n, n, 0, 0, 0.0) for i, n in enumerate(nodes)]

    assert count_reversals(minutes(1, 2, 3, 4)) == 0
    assert count_reversals(minutes(1, 2, 1, 2)) == 2
    assert count_reversals(minutes(1, 2, 1, step=3600)) == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "hail"}, "no workload 'hail'"),
        ({"hours": 0}, "hours must be from 0.1 to 72"),
        ({"teams": 0}, "teams must be from 1"),
        ({"tasks_per_s": 20.0, "hours": 72}, "too many to simulate"),
    ],
)
def test_what_cannot_be_simulated_says_why(values, words):
    with pytest.raises(InputError, match=words):
        Workload(**{"kind": "storm", **values})


def test_the_plot_fits_80_columns_and_the_drawing_is_xml():
    found = run()
    assert max(map(len, terminal_plot(found))) <= 80
    drawn = minidom.parseString(svg_plot(found, 'a <b> & "c"'))
    assert drawn.getElementsByTagName("text")[0].firstChild.data == 'a <b> & "c"'


def test_the_command_draws_and_gives_the_numbers(tmp_path):
    svg = tmp_path / "storm.svg"
    words = ["capacity", "simulate", "bursty", "--hours", "0.5", "--svg", str(svg), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["tasks"] > 100
    assert svg.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("thresholds", "words"),
    [("{", "no JSON"), ('{"min_nodes": 9}', "contradict"), ("[]", "must be an object")],
)
def test_thresholds_that_are_wrong_end_the_command_with_the_reason(thresholds, words):
    done = CliRunner().invoke(app, ["capacity", "simulate", "--thresholds", thresholds])
    assert done.exit_code == 1
    assert words in done.output
