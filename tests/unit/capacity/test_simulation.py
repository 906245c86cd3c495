"""The simulator, and what the policy does in it."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from xml.dom import minidom

import pytest
from PIL import Image
from typer.testing import CliRunner

from waybill.capacity import (
    FixedScaler,
    PolicyScaler,
    Thresholds,
    ThresholdScaler,
    Workload,
    nodes_for,
    png_plot,
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
    words = ["capacity", "simulate", "bursty", "--hours", "0.5", "--out", str(svg), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["tasks"] > 100
    assert svg.read_text().startswith("<svg")


def test_the_drawing_as_png_has_each_series_in_its_colour():
    image = Image.open(BytesIO(png_plot(run(), "storm <b>")))
    assert (image.format, image.size) == ("PNG", (990, 800))
    colours = {colour for _, colour in image.getcolors(10_000_000)}
    assert {
        (0xB4, 0x53, 0x09),
        (0x7C, 0x3A, 0xED),
        (0x0F, 0x76, 0x6E),
        (0x1D, 0x4E, 0xD8),
    } <= colours
    corner = image.crop((0, 0, 60, 20)).getcolors()
    assert corner == [(1200, (255, 255, 255))]


def test_the_command_draws_a_png(tmp_path):
    png = tmp_path / "Storm.PNG"
    words = ["capacity", "simulate", "bursty", "--hours", "0.5", "--out", str(png)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert Image.open(png).format == "PNG"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plot.gif", "must end with .png or .svg"),
        ("", "must end with .png or .svg"),
        ("no/such/folder.png", "there is no folder"),
        ("folder.svg", "is there already, and is no file"),
        ("a" * 300 + ".png", "File name too long"),
        ("\x1b[31m\n.gif", "must end with .png or .svg"),
        ("/proc/waybill.png", "is not written: "),
    ],
    ids=["gif", "none", "folder", "is-folder", "long", "hostile", "closed"],
)
def test_a_file_that_cannot_be_drawn_into_is_a_clear_error(tmp_path, name, words):
    (tmp_path / "folder.svg").mkdir()
    given = ["capacity", "simulate", "bursty", "--hours", "0.1", "--out", str(tmp_path / name)]
    done = CliRunner().invoke(app, given, env={"COLUMNS": "400"})
    assert done.exit_code == 1
    assert words in done.output
    assert "\x1b[31m" not in done.output


def test_without_pillow_a_png_is_refused_before_anything_is_simulated(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"waybill\[plots\]"):
        png_plot(run(), "storm")


@pytest.mark.parametrize(
    ("thresholds", "words"),
    [("{", "no JSON"), ('{"min_nodes": 9}', "contradict"), ("[]", "must be an object")],
)
def test_thresholds_that_are_wrong_end_the_command_with_the_reason(thresholds, words):
    done = CliRunner().invoke(app, ["capacity", "simulate", "--thresholds", thresholds])
    assert done.exit_code == 1
    assert words in done.output
