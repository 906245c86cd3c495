"""``waybill pipelines new``: what it writes runs at once; what it refuses, it leaves no trace of."""

from __future__ import annotations

import importlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time

import pytest
from tests.support.children import was_killed
from typer.testing import CliRunner

from waybill.cli import app
from waybill.errors import InputError
from waybill.ingestion.connectors import Record, open_connector
from waybill.pipelines import NewPipeline, form, load_pipeline, load_pipelines, write_new
from waybill.settings import Settings
from waybill.testing import declared_event, differences, read_examples, run_pipeline

CONNECTORS = ", ".join(form.CONNECTORS)
EXAMPLES = {"csv", "http"}
"""Connectors whose new pipelines have columns; of others the source is asked for them."""
LOCAL = {"csv", "files", "dlt"}
"""Connectors whose new pipelines can be read at once."""
FILES = ["events.jsonl", "pipeline.yaml", "records.csv", "test_orders.py", "transformation.py"]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder))
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    return folder


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout if code == 0 else " ".join(result.stderr.split())


def test_what_is_written_passes_check_and_test_at_once(root, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("pipelines", "new", "orders")
    assert max(map(len, said.replace(str(root), "").splitlines())) <= 80
    assert sorted(path.name for path in (root / "orders").iterdir()) == FILES
    checked = CliRunner().invoke(app, ["pipelines", "check"])
    assert (checked.exit_code, checked.stderr) == (0, "")  # no warning either
    tested = json.loads(run("pipelines", "test", "orders", "--json"))
    assert tested["ok"]
    (one,) = tested["pipelines"]
    assert [event["ok"] for event in one["events"]] == [True] * 4
    assert one["tests"]["summary"].startswith("2 passed")
    assert sorted(path.name for path in (root / "orders").iterdir()) == FILES


def test_a_pipeline_that_takes_tables_passes_check_and_test_at_once_too(root):
    run("new", "orders", "--batch", "--key", "id,status")
    assert sorted(path.name for path in (root / "orders").iterdir()) == FILES
    assert "def transform_batch(table)" in load_pipeline(root / "orders").transformation_code
    checked = CliRunner().invoke(app, ["pipelines", "check"])
    assert (checked.exit_code, checked.stderr) == (0, "")
    tested = json.loads(run("pipelines", "test", "orders", "--json"))
    (one,) = tested["pipelines"]
    assert tested["ok"], one
    assert [event["ok"] for event in one["events"]] == [True] * 4
    assert one["tests"]["summary"].startswith("2 passed")


def test_its_source_is_read_and_its_records_become_rows(root):
    run("new", "orders")
    folder = root / "orders"
    pipeline = load_pipeline(folder)
    [page] = open_connector(pipeline.source, folder).read(None)
    assert page.bad == []
    assert page.rows[0] == read_examples(folder)[0].data
    result = run_pipeline(pipeline, page.rows)
    assert result.parked == []
    assert [row["id"] for row in result.rows["orders"]] == ["A-1", "A-2"]


def test_options_end_up_in_the_declaration(root):
    made = json.loads(
        run(
            *(
                "new",
                "shop-orders",
                "--team",
                "shop",
                "--owner",
                "{{ owner }}: #1",
                "--id",
                "shop-1",
            ),
            *("--key", "user id, status", "--schedule", "*/5 * * * *", "--json"),
        )
    )
    assert (made["pipeline"], made["id"], made["destination"]) == (
        "shop-orders", "shop-1", "warehouse",
    )  # fmt: skip
    pipeline = load_pipelines(root)["shop-orders"]
    assert (pipeline.team, pipeline.owner) == ("shop", "{{ owner }}: #1")
    assert pipeline.schedule == "*/5 * * * *"
    table = pipeline.events["record"].table
    assert (table.name, table.key) == ("shop_orders", ("user id", "status"))
    results = [
        (result.rows, result.filtered, [one.error_type for one in result.parked])
        for result in run_pipeline(
            pipeline, [one.data for one in read_examples(root / "shop-orders")]
        ).events
    ]
    assert [(bool(rows), *rest) for rows, *rest in results] == [
        (True, False, []),
        (False, True, []),
        (False, False, ["record_invalid"]),
        (False, False, ["null_value"]),
    ]


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", ".", "..", ".x", "", "a b", "a\0b", "🙂", "x" * 300, "{{ 1 }}", "a\nb", '"', "a\udcff"],
)  # fmt: skip
def test_a_name_that_a_declaration_refuses_is_refused_in_its_words(root, name):
    said = run("pipelines", "new", "--", name, code=1)
    assert "name: expected text" in said
    assert len(said) < 300
    assert list(root.iterdir()) == list(root.parent.glob("x")) == []


def test_a_folder_that_would_be_passed_over_is_refused(root):
    assert "begin with _" in run("new", "_orders", code=1)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--destination", "warehous"), "the settings have warehouse; did you mean 'warehouse'?"),
        (("--connector", "cvs"), f"there are {CONNECTORS}; did you mean 'csv'?"),
        (("--schedule", "@hurly"), "--schedule: expected null"),
        (("--schedule", "{{ 1 }}"), "--schedule: expected null"),
        (("--team", "a b"), "--team: expected text"),
        (("--team", "x" * 300), "--team: expected text"),
        (("--owner", "a\nb"), "--owner: expected who to ask"),
        (("--id", "X"), "--id: expected an id"),
        (("--key", ""), "--key: expected names"),
        (("--key", "id,,b"), "--key: expected names"),
        (("--key", "id,ID"), "--key: expected names that differ by more than case"),
        (("--key", "id,id"), "--key: expected each column once"),
        (("--key", "_waybill_id"), "--key: expected columns"),
        (("--key", "a\0b"), "--key: expected"),
    ],
)
def test_an_option_that_cannot_be_is_named_and_nothing_is_written(root, options, words):
    code = 3 if "did you mean 'warehouse'" in words else 1
    said = run("new", "orders", *options, code=code)
    assert words in said
    assert said.count("expected") <= 2
    assert list(root.iterdir()) == []


def test_the_destinations_are_those_of_the_settings(root, monkeypatch):
    monkeypatch.setenv("WAYBILL_DESTINATIONS", '{"lake": {"kind": "duckdb", "dsn": "x.db"}}')
    assert json.loads(run("new", "first", "--json"))["destination"] == "lake"
    assert "the settings have lake" in run("new", "orders", "--destination", "warehouse", code=3)
    both = {"lake": {"kind": "duckdb", "dsn": "x.db"}, "main": {"kind": "duckdb", "dsn": "y.db"}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(both))
    assert "--destination: say which; the settings have lake, main" in run("new", "x", code=1)


def test_a_key_may_have_the_names_of_the_columns_that_are_written(root):
    run("new", "orders", "--key", "changed_at,status,Amount,status_2")
    table = load_pipeline(root / "orders").events["record"].table
    assert [column.name for column in table.columns] == [
        "changed_at", "status", "Amount", "status_2", "changed_at_2", "status_2_2", "amount_2",
    ]  # fmt: skip
    assert json.loads(run("test", "orders", "--json"))["ok"]


def test_a_connector_of_another_package_gets_no_records_but_runs(root, tmp_path, monkeypatch):
    info = tmp_path / "site-packages" / "brought-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[waybill.connectors]\nlines = brought:Lines\n")
    monkeypatch.syspath_prepend(info.parent)
    importlib.invalidate_caches()
    made = json.loads(run("new", "orders", "--connector", "lines", "--json"))
    assert sorted(made["files"]) == [name for name in FILES if name != "records.csv"]
    discovered(root, "orders")
    assert load_pipeline(root / "orders").source.connector == "lines"
    assert f"there are {CONNECTORS}, lines; did you mean 'lines'?" in run(
        "new", "x", "--connector", "line", code=1
    )
    folder = root / "orders"
    assert run_pipeline(folder, [declared_event(folder)]).parked == []


def discovered(root, name):
    """Write into a declaration what `waybill sources discover --write` would find of its source."""
    file = root / name / "pipeline.yaml"
    text = file.read_text()
    [place] = [line for line in text.splitlines() if "sources discover --write" in line]
    assert "\n    columns:" not in text
    found = "    columns: {id: int64, at: timestamp not null}"
    found += "" if "connector: postgres_cdc" in text else "\n    version: at"
    found += "" if "    key: [" in text else "\n    key: [id]"
    file.write_text(text.replace(place, found))


def test_each_connector_gets_a_declaration_and_events_that_pass_check_and_test(root):
    """`waybill test` runs the events and the folder's tests; here pytest runs all of them at once."""
    for kind in form.CONNECTORS:
        made = json.loads(run("new", f"my-{kind}", "--connector", kind, "--json"))
        assert bool(made["advice"]) == (kind not in LOCAL)
        assert made["is_finished"] == (kind in EXAMPLES)
        if kind not in EXAMPLES:
            assert "`waybill sources discover" in run("pipelines", "check", f"my-{kind}", code=1)
            discovered(root, f"my-{kind}")
    checked = CliRunner().invoke(app, ["pipelines", "check", "--json"])
    assert json.loads(checked.stdout) == {
        "ok": True,
        "pipelines": sorted(f"my-{kind}" for kind in form.CONNECTORS),
        "problems": [],
        "warnings": [],
    }
    for kind in form.CONNECTORS:
        folder = root / f"my-{kind}"
        assert load_pipeline(folder).source.connector == kind
        examples = read_examples(folder)
        results = run_pipeline(folder, [one.given for one in examples]).events
        for example, result in zip(examples, results, strict=True):
            assert differences(example, result) == [], (kind, example)
        assert len(examples) == (4 if kind in EXAMPLES else 1)
    tests = sorted(root.glob("*/test_*.py"))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", *tests],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"{len(form.CONNECTORS) + len(EXAMPLES)} passed" in ran.stdout, ran.stdout


def test_advice_is_in_lines_that_a_terminal_has_room_for(root, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("new", "loans", "--connector", "sql").replace(str(root), "")
    lines = [line for line in said.splitlines() if "_CONNECTIONS__" not in line]
    assert max(map(len, lines)) <= 80
    assert max(line.count(":") for line in lines) <= 1
    assert "\n  WAYBILL_SOURCES__ROOTS='[\"/data\"]'\n" in said


def test_roots_that_are_there_stay_in_the_advice_and_a_folder_below_one_needs_none(
    root, monkeypatch
):
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", '["/srv/in"]')
    files = ("--connector", "files", "--path")
    assert "ROOTS=" not in run("new", "a", *files, "/srv/in/./loans/*.jsonl")
    assert "ROOTS=" not in run("new", "b", *files, "/srv/in/*.jsonl")
    for name, path in (("c", "/srv/inner/*.jsonl"), ("d", "/srv/in/../out/*.jsonl")):
        said = run("new", name, *files, path)
        assert 'WAYBILL_SOURCES__ROOTS=\'["/srv/in", "/srv/' in said, path


def test_files_of_the_users_own_are_named_and_opened(root):
    run("new", "rides", "--connector", "files", "--path", "in/*.jsonl")
    text = (root / "rides" / "pipeline.yaml").read_text()
    assert "# keep_source: true" in text
    assert not (root / "rides" / "inbox").exists()
    said = run("new", "far", "--connector", "files", "--path", "/data/it's/*.jsonl")
    opened = said.partition("WAYBILL_SOURCES__ROOTS=")[2].splitlines()[0]
    assert json.loads("".join(shlex.split(opened))) == ["/data/it's"]
    discovered(root, "far")
    assert load_pipeline(root / "far").source.options == {"path": "/data/it's/*.jsonl"}
    assert "--path: expected the files" in run("new", "csv", "--path", "x.csv", code=1)


@pytest.mark.parametrize("path", ["/srv/*.csv", "/srv/in/../a?.csv", "/srv/x.csv"])
def test_a_folder_outside_is_opened_and_none_around_it(root, path):
    wanted = "WAYBILL_SOURCES__ROOTS='[\"/srv\"]'"
    assert wanted in run("new", "far", "--connector", "files", "--path", path)
    assert wanted in run("sources", "discover", "far", code=1)


@pytest.mark.parametrize("path", ["/*.csv", "//x.csv", "/srv/../*.csv"])
def test_nobody_is_told_to_let_sources_read_all_of_a_machine(root, path):
    said = run("new", "far", "--connector", "files", "--path", path)
    for advice in (said, run("sources", "discover", "far", code=1)):
        assert "Move the files into a folder of their own" in advice
        assert "ROOTS=" not in advice


@pytest.mark.parametrize("batch", [(), ("--batch",)])
def test_deletes_go_on_through_what_is_written_for_a_log(root, batch):
    run("new", "orders", "--connector", "postgres_cdc", *batch)
    discovered(root, "orders")
    given = Record({"id": 1}, op="delete", version=7)
    assert run_pipeline(root / "orders", [given]).events[0].deleted == {"orders": [{"id": 1}]}


def test_a_key_of_any_names_is_fit_for_each_connector(root):
    """Of `dlt` the declaration; what a name is in Python, source.py has too."""
    for kind in form.CONNECTORS:
        run("new", f"my-{kind}", "--connector", kind, "--key", 'it\'s a "key", {x}: #1, é')
    said = run("pipelines", "check", code=1)
    assert f"{len(form.CONNECTORS) - len(EXAMPLES)} mistakes in" in said
    assert said.count(".columns expected columns") == len(form.CONNECTORS) - len(EXAMPLES)
    compile((root / "my-dlt" / "source.py").read_text("utf-8"), "source.py", "exec")
    table = load_pipeline(root / "my-csv").events["record"].table
    assert table.key == ('it\'s a "key"', "{x}: #1", "é")


def in_terminal(answers, *arguments):
    """Run `waybill new` in a terminal that types answers; return (exit code, what it shows)."""
    child, terminal = os.forkpty()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # this process may ignore it
        os.execv(sys.executable, [sys.executable, "-m", "waybill.cli", "new", *arguments])
    shown, end = b"", time.monotonic() + 300
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.2)[0]:
            if answers and shown.rstrip().endswith((b":", b"]")):
                os.write(terminal, answers.encode())
                answers = ""
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:  # its other end is closed
            break
        shown += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode()


def test_in_a_terminal_it_asks_for_what_is_not_given_until_it_can_be(root):
    (root / "there").mkdir()
    answers = "a b\nthere\norders\nhtpp\nhttp\n\nid,,\nid,line\n"
    code, shown = in_terminal(answers, "--team", "shop")
    assert code == 0, shown
    said = " ".join(shown.split())
    for words in (
        "expected text of 1 to 63 letters",
        "is there already",
        "did you mean 'http'?",
    ):
        assert words in said
    assert "Destination [warehouse]" in said
    assert "Team" not in said  # it was given
    pipeline = load_pipeline(root / "orders")
    assert (pipeline.team, pipeline.source.connector) == ("shop", "http")
    assert pipeline.events["record"].key == ("id", "line")


def test_in_a_terminal_yes_asks_nothing_and_ctrl_c_writes_nothing(root):
    code, shown = in_terminal("", "orders", "--yes")
    assert (code, "Destination [" in shown) == (0, False)
    code, shown = in_terminal("\x03", "lines")
    assert (code, "Traceback" in shown) == (1, False), shown
    assert sorted(path.name for path in root.iterdir()) == ["orders"]


def test_without_a_terminal_a_missing_name_is_told_and_nothing_is_asked(root):
    assert "name: expected the name of the new pipeline" in run("new", code=1)
    assert list(root.iterdir()) == []


def test_of_two_at_once_one_is_told_that_it_is_there(root, monkeypatch):
    request = NewPipeline(name="orders")

    def write_first(mask, real=os.umask):
        monkeypatch.setattr("waybill.pipelines.scaffold.os.umask", real)
        write_new(root, request)
        return real(mask)

    monkeypatch.setattr("waybill.pipelines.scaffold.os.umask", write_first)
    with pytest.raises(InputError, match="cannot be written: Directory not empty"):
        write_new(root, request)
    assert [path.name for path in root.iterdir()] == ["orders"]
    assert sorted(path.name for path in (root / "orders").iterdir()) == FILES


def test_nothing_is_overwritten(root):
    for name, make in (("orders", os.mkdir), ("file", lambda path: path.write_text("mine"))):
        make(root / name)
        assert "is there already; nothing was written" in run("new", name, code=1)
    (root / "link").symlink_to("nowhere")
    assert "is there already" in run("new", "link", code=1)
    assert (root / "file").read_text() == "mine"
    assert list((root / "orders").iterdir()) == []
    assert len(list(root.iterdir())) == 3


def test_an_id_or_table_that_another_pipeline_has_is_refused(root):
    run("new", "a-b")
    assert "name: expected a table of its own; found 'a_b'" in run(
        "new", "a_b", "--id", "other", code=1
    )
    said = run("new", "c", "--id", "team-a-b", code=1)
    assert "--id: expected a pipeline id of its own" in said
    assert "a-b/pipeline.yaml has too" in said
    assert [path.name for path in root.iterdir()] == ["a-b"]


@pytest.mark.parametrize(("kind", "dsn"), [("duckdb", "/x"), ("postgres", "postgresql://h/x")])
def test_a_table_that_the_engine_takes_for_another_pipelines_is_refused(monkeypatch, kind, dsn):
    given = {"warehouse": {"kind": kind, "dsn": dsn}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(given))
    run("new", "a-b")
    if kind == "postgres":
        run("new", "A_b", "--id", "other")
        return
    said = run("new", "A_b", "--id", "other", code=1)
    assert "name: expected a table of its own; found 'A_b'" in said
    assert "has too, as 'a_b'" in said


def test_another_pipelines_mistakes_are_in_nobodys_way(root):
    (root / "broken").mkdir()
    (root / "broken" / "pipeline.yaml").write_text("id: [")
    run("new", "orders")
    assert (root / "orders").is_dir()


def test_a_folder_of_pipelines_that_is_not_there_is_not_made(root, monkeypatch):
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(root / "gone"))
    assert "make that folder, or name yours in the variable" in run("new", "orders", code=1)
    run_in = root / "one"
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(root))
    run("new", "one")
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(run_in))
    assert "is no folder of pipelines" in run("new", "orders", code=1)


def test_a_full_disk_leaves_nothing(root, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("waybill.pipelines.scaffold.os.fsync", full)
    assert "cannot be written: No space left on device" in run("new", "orders", code=1)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("moment", range(1, 8))
def test_killed_at_any_moment_it_leaves_a_whole_pipeline_or_none(root, moment):
    """Each file is synced, then the folder; the rename; the folder of pipelines is synced."""
    child = os.fork()
    if child == 0:
        real, calls = os.fsync, [0]

        def sync(handle):
            calls[0] += 1
            if calls[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            real(handle)

        os.fsync = sync
        try:
            write_new(root, NewPipeline(name="orders"))
        finally:
            os._exit(0)
    assert was_killed(child)
    whole = moment == 7
    assert set(load_pipelines(root)) == ({"orders"} if whole else set())
    assert (root / "orders").exists() is whole
    if not whole:
        run("new", "orders")  # what was left is in nobody's way
    assert Settings().pipelines_dir == root
    assert sorted(path.name for path in (root / "orders").iterdir()) == FILES
