"""``waybill run --local`` and ``waybill dev``: from a source to rows on the screen, nothing written."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from decimal import Decimal

import pytest
import yaml
from typer.testing import CliRunner

from waybill.cli import app, local_runs
from waybill.pipelines import NewPipeline, write_new
from waybill.settings import Settings

PERSONAL = """\
id: team-people
name: people
team: team
owner: team
source: {connector: csv, path: people.csv, event: person, columns: {id: int64, email: string, address: string}}
events:
  person:
    key: [id]
    table: people
    personal: [email, address.street]
    columns: {id: int64, mail: {type: string, from: email}, address: json}
destination: {name: warehouse, schema: team}
"""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder))
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def orders(root):
    write_new(root, NewPipeline(name="orders"))
    return root / "orders"


def run(*arguments, code=0, typed=None):
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], input=typed)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def tree(folder):
    """Return each file below a folder with its time and content."""
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def test_rows_of_a_source_are_shown_and_what_would_be_parked_with_its_place(orders, tmp_path):
    with (orders / "records.csv").open("a") as file:
        file.write("A-3,2026-01-03T08:00:00Z,paid,-1.00\nA-4,2026-01-03T08:00:00Z,test,1\n")
        file.write("A-5,2026-01-03T08:00:00Z,paid,many\n,2026-01-03T08:00:00Z,paid,1\n")
        file.write("A-6,2026-01-03T08:00:00Z,\x1b[31m,1\n")
    before = tree(tmp_path)
    shown = run("orders", "--local", code=2).stdout
    assert tree(tmp_path) == before  # no cursor, no tracker, nothing
    assert "orders: 7 records of its source (csv records.csv)" in shown
    assert "\nA-1  2026-01-01T08:00:00Z  paid" in shown
    assert "\x1b" not in shown
    assert "filtered on purpose: 1 record" in shown
    assert "record 3: transformation/record_invalid: the amount is negative" in shown
    assert max(map(len, shown.splitlines())) <= 80
    value = json.loads(run("orders", "--local", "--json", code=2).stdout)
    assert [row["id"] for row in value["rows"]["orders"]] == ["A-1", "A-2", "A-6"]
    assert value["rows"]["orders"][0]["amount"] == "12.50"
    assert (value["read"], value["filtered"]) == (7, 1)
    parked = {one["at"]: (one["stage"], one["error_type"]) for one in value["parked"]}
    assert parked["record 3"] == ("transformation", "record_invalid")
    assert {stage for stage, _ in parked.values()} == {"ingestion", "transformation"}
    assert len(parked) == 3


def test_no_more_records_are_read_than_asked_for(orders):
    value = json.loads(run("orders", "--local", "--rows", "1", "--json").stdout)
    assert (value["read"], len(value["rows"]["orders"])) == (1, 1)


def test_that_the_source_has_more_is_said_with_the_option_that_reads_it(orders):
    cut = run("orders", "--local", "--rows", "1").stdout
    assert "1 record of its source" in cut
    assert "there are more: --rows N reads the first N, 10,000 at most" in " ".join(cut.split())
    assert json.loads(run("orders", "--local", "--rows", "1", "--json").stdout)["more"] is True
    assert "--rows" not in run("orders", "--local", "--rows", "2").stdout
    assert json.loads(run("orders", "--local", "--json").stdout)["more"] is False
    examples = ("orders", "--local", "--events", "examples")
    assert "there are more" in run(*examples, "--rows", "1").stdout


def test_a_transformation_says_its_line_and_what_it_prints_is_on_standard_error(orders):
    (orders / "transformation.py").write_text(
        "def transform(event):\n    print('seen', event.data['id'])\n    return event.data['gone']\n"
    )
    result = run("orders", "--local", "--json", code=2)
    [first, _] = json.loads(result.stdout)["parked"]
    assert (first["stage"], first["error_type"]) == ("transformation", "field_missing")
    assert first["where"].endswith("transformation.py:3 in transform")
    assert "seen A-1" in result.stderr


def test_a_transformation_that_ends_its_process_or_reads_the_disk_harms_nothing(orders, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (orders / "transformation.py").write_text(
        "import os\ndef transform(event):\n"
        "    if event.data['id'] == 'A-1': os._exit(3)\n"
        f"    event.data['status'] = open({str(secret)!r}).read()\n    return event\n"
    )
    parked = json.loads(run("orders", "--local", "--json", code=2).stdout)["parked"]
    assert [one["error_type"] for one in parked] == ["interpreter_crashed", "io_error"]


def test_of_what_sends_by_itself_the_examples_are_run_or_what_is_typed(root):
    write_new(root, NewPipeline(name="sent", connector="http"))
    value = json.loads(run("sent", "--local", "--json", code=2).stdout)
    assert (value["from"], value["read"]) == ("events.jsonl", 4)
    line = '{"id": "B", "changed_at": "2026-01-01T08:00:00Z", "status": "Paid", "amount": "1"}\n'
    value = json.loads(run("sent", "--local", "--events", "-", "--json", typed=line).stdout)
    assert value["rows"]["sent"][0]["id"] == "B"
    wrong = run("sent", "--local", "--events", "-", typed="\n5\n", code=1).stderr
    assert "standard input:2: expected a JSON object" in wrong
    (root / "sent" / "events.jsonl").unlink()
    assert "has no events.jsonl, whose events stand for" in " ".join(
        run("sent", "--local", code=1).stderr.split()
    )


def test_a_source_that_cannot_be_read_says_what_can_be_run_instead(root):
    write_new(root, NewPipeline(name="shop"))
    file = root / "shop" / "pipeline.yaml"
    declared = yaml.safe_load(file.read_text())
    options = {"table": "orders", "cursor": "changed_at"}
    declared["source"] = {
        "connector": "sql",
        "connection": "shop_db",
        "event": "record",
        "options": options,
    }
    file.write_text(yaml.safe_dump(declared))
    said = run("shop", "--local", code=3).stderr
    assert "there is no connection 'shop_db' here" in said
    assert "--events examples runs the events of events.jsonl instead" in said
    assert run("shop", "--local", "--events", "examples", code=2).stdout.startswith(
        "shop: 4 records"
    )


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ("gone.jsonl", "gone.jsonl: the events cannot be read: No such file"),
        ("a\0b", "the events cannot be read"),
        ("/dev/zero", "expected a file"),
        ("x" * 5000, "the events cannot be read"),
        (".", "expected a file"),
    ],
    ids=["gone", "nul", "device", "long", "folder"],
)
def test_a_file_of_events_that_cannot_be_read_is_told(orders, events, words):
    assert words in " ".join(run("orders", "--local", "--events", events, code=1).stderr.split())


def test_without_local_it_says_what_starts_a_run(orders):
    assert "`waybill ingest orders`" in " ".join(run("orders", code=1).stderr.split())


def test_personal_fields_are_masked_in_rows_and_messages(root):
    folder = root / "people"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(PERSONAL)
    (folder / "transformation.py").write_text(
        "import json\ndef transform(event):\n"
        "    if event.data['id'] == 2: raise ValueError('no mail for ' + event.data['email'])\n"
        "    event.data['address'] = json.loads(event.data['address'])\n    return event\n"
    )
    (folder / "people.csv").write_text(
        'id,email,address\n1,mia@home.example,"{""street"": ""Elm 7"", ""city"": ""Ulm""}"\n'
        "2,leo@home.example,{}\n"
    )
    result = run("people", "--local", "--json", code=2)
    value = json.loads(result.stdout)
    assert value["rows"]["people"] == [
        {"id": 1, "mail": "•••", "address": {"street": "•••", "city": "Ulm"}}
    ]
    shown = result.stdout + run("people", "--local", code=2).stdout
    assert "home.example" not in shown
    assert "Elm" not in shown


def test_personal_values_are_masked_where_a_name_has_a_dot_and_where_code_names_a_place(root):
    folder = root / "people"
    folder.mkdir()
    declared = PERSONAL.replace("[email, address.street]", "[contact.email]")
    declared = declared.replace("from: email", "from: contact.email")
    declared = declared.replace("email: string", "contact.email: string")
    (folder / "pipeline.yaml").write_text(declared)
    (folder / "transformation.py").write_text(
        "from waybill.errors import ParkError\ndef transform(event):\n"
        "    if event.data['id'] == 2:\n"
        "        raise ParkError('record_invalid', 'no', where='at ' + event.data['contact.email'])\n"
        "    event.data['address'] = None\n    return event\n"
    )
    (folder / "people.csv").write_text(
        "id,contact.email,address\n1,mia@home.example,x\n2,leo@home.example,x\n"
    )
    value = json.loads(run("people", "--local", "--json", code=2).stdout)
    assert value["rows"]["people"][0]["mail"] == "•••"
    [parked] = value["parked"]
    assert (parked["at"], parked["where"]) == ("record 2", "at •••")


def test_dev_bears_with_files_that_vanish_while_it_looks(orders, monkeypatch):
    monkeypatch.setattr(os.path, "isfile", lambda _: True)
    session = local_runs._Session(Settings(), orders, 20, str(orders / "gone.jsonl"))
    assert "records.csv" in session._look()
    (orders / "pipeline.yaml").unlink()
    assert local_runs._code_file(orders) == "transformation.py"


def test_dev_does_not_wait_for_ever_for_a_file_that_grows_on_and_on(orders, monkeypatch):
    session = local_runs._Session(Settings(), orders, 20, None)
    looks = itertools.count()
    monkeypatch.setattr(session, "_look", lambda: {"log": (next(looks), 1)})
    monkeypatch.setattr(local_runs, "_POLL_S", 0.01)
    monkeypatch.setattr(local_runs, "_SETTLE_S", 0.1, raising=False)
    told = []

    def run_once(changed):
        told.append(changed)
        if changed is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(session, "_run", run_once)
    watching = threading.Thread(target=lambda: _until_interrupted(session), daemon=True)
    watching.start()
    watching.join(300)
    assert told == [None, ["log"]]


def watched_until(session, monkeypatch, run_once, *, limit_s=300.0):
    """Watch with runs of a test's own until one raises KeyboardInterrupt, or for a time."""
    monkeypatch.setattr(local_runs, "_POLL_S", 0.01)
    monkeypatch.setattr(session, "_run", run_once)
    watching = threading.Thread(target=lambda: _until_interrupted(session), daemon=True)
    watching.start()
    watching.join(limit_s)
    return watching


def test_dev_does_not_run_on_and_on_for_what_the_pipelines_own_code_writes(
    orders, monkeypatch, capsys
):
    session = local_runs._Session(Settings(), orders, 20, None)
    runs = []

    def writes(changed):
        runs.append(changed)
        if len(runs) > 5 or changed == ["mine.txt"]:
            raise KeyboardInterrupt
        (orders / f"own-{len(runs)}.log").write_text("x")
        if len(runs) == 2:
            threading.Timer(3.0, lambda: (orders / "mine.txt").write_text("saved")).start()

    watching = watched_until(session, monkeypatch, writes)
    assert not watching.is_alive()
    assert runs == [None, ["own-1.log"], ["mine.txt"]]
    said = " ".join(capsys.readouterr().out.split())
    assert "own-2.log changed while the sample ran, twice in a row" in said


def test_dev_runs_again_for_a_file_that_was_saved_while_it_ran(orders, monkeypatch):
    session = local_runs._Session(Settings(), orders, 20, None)
    runs = []

    def saved(changed):
        runs.append(changed)
        if len(runs) == 1:
            (orders / "transformation.py").write_text("def transform(event):\n    return event\n")
        elif changed == ["late.txt"]:
            raise KeyboardInterrupt
        else:
            threading.Timer(1.0, lambda: (orders / "late.txt").write_text("x")).start()

    watched_until(session, monkeypatch, saved)
    assert runs == [None, ["transformation.py"], ["late.txt"]]


def _until_interrupted(session):
    with contextlib.suppress(KeyboardInterrupt):
        session.watch()


INTERRUPTED = """\
import signal
import sqlite3
from waybill.cli import app
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background ignores it
app()
"""


class Dev:
    """``waybill dev`` as a user runs it, in a process group of its own."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, "dev", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, words, limit_s=300.0):
        end = time.monotonic() + limit_s
        while not any(words in line for line in self.lines):
            assert time.monotonic() < end, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)
        said, self.lines[:] = list(self.lines), []
        return said

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(300)
        self.reader.join(60)
        return code


def test_dev_shows_what_differs_survives_mistakes_and_ends_with_ctrl_c(orders, tmp_path):
    dev = Dev("orders")
    try:
        assert any("A-1" in line for line in dev.wait_for("watching"))
        code = (orders / "transformation.py").read_text()
        (orders / "transformation.py").write_text(code + "def (\n")
        said = dev.wait_for("waiting for a change")
        assert any("transformation.py:" in line for line in said)
        (orders / "transformation.py").write_text(code.replace(".lower()", ".upper()"))
        said = dev.wait_for("~ orders  id: A-2")
        assert "~ orders  id: A-1  status: paid → PAID" in said, "the columns that changed, alone"
        assert not any(line.startswith(("-", "+")) for line in said)
        (orders / "records.csv").write_text(
            (orders / "records.csv").read_text() + "A-3,2026-01-03T08:00:00Z,paid,-1\n"
        )
        said = dev.wait_for("+ parked  record 3: transformation/record_invalid")
        assert not any(line.startswith("-") for line in said)
        (orders / "README.md").write_text("for people")
        dev.wait_for("no row differs")
        assert dev.interrupt() == 0
    finally:
        dev.process.kill()
    assert dev.lines[-1] == "stopped; nothing was written"
    assert not any("Traceback" in line for line in dev.lines)
    assert not (tmp_path / "home").exists()


def test_dev_shows_new_and_changed_rows_as_the_table_does_in_the_width_of_the_terminal(
    orders, monkeypatch, capsys
):
    """A decimal has no quotes, here or there; where values look alike, their types are said."""
    monkeypatch.setenv("COLUMNS", "60")
    key = ("id",)
    row = {"id": "A-1", "heat": Decimal("3.92"), "note": None, "at": "x", "odd": "7"}
    old = {("t", "id: A-1", 0): local_runs._Line("t", values=row, key=key)}
    new = {
        ("t", "id: A-1", 0): local_runs._Line(
            "t", values=row | {"heat": Decimal("4.10"), "note": "\x1b[2J", "odd": 7}, key=key
        ),
        ("t", "id: A-2", 0): local_runs._Line("t", values=row | {"id": "A-2"}, key=key),
    }
    local_runs._show_difference(old, new)
    shown = capsys.readouterr().out
    said = " ".join(shown.split())
    changed = "heat: 3.92 → 4.10, note: null → \\x1b[2J, odd: 7 (str) → 7 (int)"
    assert f"~ t id: A-1 {changed} + t id: A-2, heat: 3.92, note: null, at: x, odd: 7" in said
    assert max(map(len, shown.splitlines())) <= 60
    local_runs._show_difference(new, old)
    assert "- t id: A-2, heat: 3.92" in " ".join(capsys.readouterr().out.split())
    local_runs._show_difference(old, dict(old))
    assert capsys.readouterr().out == "no row differs\n"


def test_dev_takes_no_standard_input(orders):
    result = CliRunner().invoke(app, ["dev", "orders", "--events", "-"])
    assert (result.exit_code, "can be read once" in result.stderr) == (1, True)


SQL = """\
id: team-people
name: people
team: team
owner: team
source:
  connector: sql
  event: person
  options: {file: people.db, table: people, cursor: seq, deletes: compare, compare_every: 0}
events:
  person:
    key: [id]
    version: seq
    table: people
    columns: {id: int64, seq: int64, name: string}
destination: {name: warehouse, schema: team}
"""


def test_a_table_whose_deletes_are_found_by_comparing_keys_is_shown_without_any_server(
    root, tmp_path, monkeypatch
):
    folder = root / "people"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(SQL)
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    with contextlib.closing(sqlite3.connect(folder / "people.db")) as database:
        database.execute("CREATE TABLE people (id integer PRIMARY KEY, seq integer, name text)")
        people = [(number, number, f"name {number}") for number in range(1, 30)]
        database.executemany("INSERT INTO people VALUES (?, ?, ?)", people)
        database.commit()
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://127.0.0.1:1/nowhere")
    monkeypatch.setenv("WAYBILL_S3__ENDPOINT_URL", "http://127.0.0.1:1")
    before = tree(tmp_path)
    for _ in range(2):  # the second reading compares with nothing that the first one kept
        value = json.loads(run("people", "--local", "--rows", "12", "--json").stdout)
        assert [row["id"] for row in value["rows"]["people"]] == list(range(1, 13))
        assert (value["parked"], value["deleted"], value["filtered"]) == ([], {}, 0)
    assert tree(tmp_path) == before
    with contextlib.closing(sqlite3.connect(folder / "people.db")) as database:
        database.execute("DELETE FROM people WHERE id < 10")
        database.commit()
    value = json.loads(run("people", "--local", "--json").stdout)
    assert [row["id"] for row in value["rows"]["people"]] == list(range(10, 30))
    assert value["deleted"] == {}
