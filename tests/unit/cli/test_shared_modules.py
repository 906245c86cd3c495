"""Shared modules by the command line, without servers: check, run, test, dev, pytest."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest
from tests.unit.cli.test_local_runs import Dev
from typer.testing import CliRunner

from waybill.cli import app
from waybill.pipelines import NewPipeline, write_new
from waybill.testing import pytest_plugin

STATUS = "def status(text):\n    return text.strip().{}()\n"
CODE = """\
from shared.words import status


def transform(event):
    event.data["status"] = status(event.data["status"])
    return event
"""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Two pipelines that import ``shared/words.py``, and one that does not."""
    folder = tmp_path / "pipelines"
    (folder / "shared").mkdir(parents=True)
    for name in ("orders", "refunds", "visits"):
        write_new(folder, NewPipeline(name=name))
        (folder / name / "events.jsonl").unlink()
        (folder / name / f"test_{name}.py").unlink()
        if name != "visits":
            (folder / name / "transformation.py").write_text(CODE)
    (folder / "shared" / "words.py").write_text(STATUS.format("upper"))
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder))
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


def run(*words, code=0):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def statuses(name):
    value = json.loads(run("run", name, "--local", "--json").stdout)
    return {row["status"] for row in value["rows"][name]}


def test_a_run_on_the_screen_has_the_shared_module_as_it_is_now(root):
    assert statuses("orders") == statuses("refunds") == {"PAID"}
    (root / "shared" / "words.py").write_text(STATUS.format("title"))
    assert statuses("orders") == {"Paid"}
    (root / "shared" / "words.py").write_text("def status(text):\n    return text['gone']\n")
    parked = json.loads(run("run", "orders", "--local", "--json", code=2).stdout)["parked"]
    assert {one["where"] for one in parked} == {"shared/words.py:2 in status"}
    (root / "shared" / "words.py").write_text("def status(:\n")
    assert (
        f"{root}/shared/words.py:1: expected Python"
        in run("run", "orders", "--local", code=1).stderr
    )


def test_check_says_each_mistake_of_a_shared_module_once_and_show_names_the_modules(root):
    assert "3 pipelines, no mistakes" in run("pipelines", "check").stdout
    (root / "shared" / "words.py").write_text("import pandaz\n" + STATUS.format("upper"))
    done = run("pipelines", "check", code=1)
    assert done.stderr.count("shared/words.py:1") == 1
    assert "1 mistake in 1 file" in done.stderr
    (root / "shared" / "words.py").write_text("A = 1\n")
    done = run("pipelines", "check", "orders", "--json", code=1)
    [problem] = json.loads(done.stdout)["problems"]
    assert problem["message"].startswith("expected a name of ")
    assert run("pipelines", "check", "shared", code=1).stderr.count("that they share") == 1
    (root / "shared" / "words.py").write_text(STATUS.format("upper"))
    shown = run("pipelines", "show", "orders").stdout
    assert "shared/words.py" in shown
    assert "shared" not in run("pipelines", "show", "visits").stdout


def test_own_tests_import_shared_modules_as_the_code_does(root):
    # what lies about under the same name is not meant
    (root.parent / "shared").mkdir()
    (root.parent / "shared" / "words.py").write_text("raise SystemExit('another folder')\n")
    text = (
        "from shared.words import status\n\n\ndef test_a_status(waybill_pipeline):\n"
        "    event = {'id': '1', 'changed_at': '2026-01-01T00:00:00Z', 'status': ' paid'}\n"
        "    result = waybill_pipeline.run(event)\n"
        "    assert [row['status'] for row in result.rows['orders']] == [status(' paid')] == ['PAID']\n"
    )
    (root / "orders" / "test_orders.py").write_text(text)
    (root / "shared" / "test_words.py").write_text(
        "from shared import words\n\n\ndef test_words():\n    assert words.status('a') == 'A'\n"
    )
    value = json.loads(run("test", "--json").stdout)
    told = {one["pipeline"]: one["tests"] for one in value["pipelines"]}
    assert {name for name, tests in told.items() if tests} == {"orders", "shared"}
    assert all(tests["summary"].startswith("1 passed") for tests in told.values() if tests)
    (root / "shared" / "words.py").write_text(STATUS.format("lower"))
    assert "1 failed" in run("test", "shared", code=2).stdout


def test_tests_of_two_folders_of_pipelines_do_not_mix_their_shared_modules(
    root, tmp_path, monkeypatch
):
    other = tmp_path / "others"
    (other / "shared").mkdir(parents=True)
    write_new(other, NewPipeline(name="orders"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    collect = pytest_plugin.pytest_pycollect_makemodule
    for test in (root / "orders" / "test_a.py", root / "shared" / "deep" / "test_b.py"):
        collect(test, pytest.Collector)
        found = find_spec("shared")
        assert found is not None
        assert found.submodule_search_locations == [str(root / "shared")]
    collect(tmp_path / "elsewhere" / "shared" / "test_c.py", pytest.Collector)
    with pytest.raises(pytest.Collector.CollectError, match="each folder of pipelines by itself"):
        collect(other / "orders" / "test_d.py", pytest.Collector)


def test_dev_watches_the_shared_modules_of_its_pipeline_and_no_others(root):
    dev = Dev("orders")
    try:
        assert any("PAID" in line for line in dev.wait_for("watching"))
        (root / "shared" / "unused.py").write_text("A = 1\n")
        (root / "shared" / "words.py").write_text(STATUS.format("title"))
        said = dev.wait_for("~ orders  id: A-2  status: PAID → Paid")
        assert any("../shared/words.py" in line for line in said)
        (root / "shared" / "unused.py").write_text("A = 2\n")
        dev_idle(dev)
        (root / "shared" / "words.py").unlink()
        assert any("'shared.words', which is not there" in one for one in dev.wait_for("waiting"))
        (root / "shared" / "words.py").write_text(STATUS.format("title"))
        dev.wait_for("no row differs")
        assert dev.interrupt() == 0
    finally:
        dev.process.kill()


def dev_idle(dev):
    """Look that nothing is printed for as long as a change would take, and half as long again."""
    dev.reader.join(1.5)
    assert dev.lines == []
