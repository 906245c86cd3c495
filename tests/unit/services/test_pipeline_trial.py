"""A pipeline that is tried before it is deployed: what cannot work, what may, and what is left."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time

import duckdb
import pytest
from tests.support import orders

from waybill.pipelines import load_pipeline
from waybill.services import deep_check, pipeline_trial
from waybill.settings import Settings

HOLDER = """
import sys, time, duckdb
held = duckdb.connect(sys.argv[1])
print("held", flush=True)
time.sleep(1200)
"""


@pytest.fixture
def warehouse(tmp_path):
    folder = tmp_path / "warehouse"
    folder.mkdir()
    return folder / "shop.duckdb"


@pytest.fixture
def settings(warehouse, monkeypatch):
    given = {"warehouse": {"kind": "duckdb", "dsn": str(warehouse)}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(given))
    return Settings()


def written(tmp_path, code, rows=20):
    return orders.write_orders(tmp_path / "pipelines", rows=rows, code=code)


PASSES = "def transform(event):\n    return event\n"


def test_what_is_right_passes_and_nothing_of_the_trial_is_left(settings, warehouse, tmp_path):
    folder = written(tmp_path, PASSES, rows=1)
    found = deep_check(settings, folder)
    assert (found.problems, found.warnings) == ((), ())
    assert "'warehouse' can be loaded" in found.facts[0]
    assert found.facts[1] == "1 of the first 1 rows of its source pass"
    assert list(warehouse.parent.iterdir()) == []


def test_what_was_read_before_is_tried_whatever_the_folder_holds_by_now(settings, tmp_path):
    read = load_pipeline(written(tmp_path, PASSES, rows=1))
    folder = written(tmp_path, PASSES.replace("return event", "raise ValueError(event)"), rows=1)
    assert deep_check(settings, folder, read).problems == ()
    [problem] = deep_check(settings, folder).problems
    assert "the first row of its source parks" in problem.message


def test_a_file_that_is_there_is_as_it_was(settings, warehouse, tmp_path):
    with duckdb.connect(str(warehouse)) as made:
        made.execute("CREATE TABLE other (id int)")
    assert deep_check(settings, written(tmp_path, PASSES)).problems == ()
    with duckdb.connect(str(warehouse)) as read:
        names = read.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
        schemas = read.execute("SELECT schema_name FROM duckdb_schemas() WHERE NOT internal")
        assert (names, schemas.fetchall()) == ([("main", "other")], [])
    assert [one.name for one in warehouse.parent.iterdir()] == [warehouse.name]


def test_a_table_that_is_another_is_told_with_both_types(settings, warehouse, tmp_path):
    with duckdb.connect(str(warehouse)) as made:
        made.execute("CREATE SCHEMA shop.shop")
        made.execute("CREATE TABLE shop.shop.orders (number date, amount bigint)")
    [problem] = deep_check(settings, written(tmp_path, PASSES)).problems
    assert problem.field == "destination.name"
    assert problem.file.endswith("pipeline.yaml")
    assert problem.line > 1
    assert "declarations: " in problem.message
    assert "number" in problem.message


def test_a_destination_that_is_held_by_another_process_is_a_warning(settings, warehouse, tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(warehouse)], stdout=-1)
    try:
        assert holder.stdout.readline() == b"held\n"
        found = deep_check(settings, written(tmp_path, PASSES, rows=1))
    finally:
        holder.kill()
        holder.wait()
    assert found.problems == ()
    assert "waits, and nothing is lost" in found.warnings[0].message


def test_a_folder_that_is_not_there_cannot_work(warehouse, tmp_path, settings):
    warehouse.parent.rmdir()
    [problem] = deep_check(settings, written(tmp_path, PASSES)).problems
    assert "correct the dsn" in problem.message


def test_code_that_fails_for_every_row_cannot_work_and_for_some_is_a_warning(settings, tmp_path):
    every = "def transform(event):\n    import pandaz\n    return event\n"
    [problem] = deep_check(settings, written(tmp_path, every)).problems
    assert problem.file.endswith("transformation.py")
    assert "all of the first 20 rows of its source park" in problem.message
    assert "No module named 'pandaz'" in problem.message
    some = (
        "def transform(event):\n    if event.data['number'] == 7:\n        raise KeyError('x')\n"
        "    event.data['note'] = 'n'\n    return event\n"
    )
    found = deep_check(settings, written(tmp_path, some))
    assert found.problems == ()
    assert "1 of the first 20 rows of its source park: transformation/" in found.warnings[0].message


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("code", ["while True: pass", "import os; os._exit(9)"])
def test_code_that_never_ends_or_ends_its_process_is_found_in_time(tmp_path, monkeypatch, code):
    monkeypatch.setenv("WAYBILL_SPARK__EVENT_TIMEOUT_S", "0.5")
    began = time.monotonic()
    folder = written(tmp_path, f"def transform(event):\n    {code}\n")
    found = deep_check(Settings(), folder, limit_s=6)
    assert [one.file.endswith("transformation.py") for one in found.problems] == [True]
    assert time.monotonic() - began < 300


def test_where_code_runs_elsewhere_its_failure_is_a_warning(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("WAYBILL_SPARK__MASTER", "spark://there:7077")
    every = "def transform(event):\n    import pandaz\n    return event\n"
    found = deep_check(Settings(), written(tmp_path, every))
    assert found.problems == ()
    assert "pandaz" in found.warnings[0].message


def test_an_example_that_is_not_as_expected_is_named_by_its_line(settings, tmp_path):
    folder = written(tmp_path, PASSES)
    lines = [
        {"data": {"number": 1, "amount": 2, "note": "a"}},
        {
            "note": "of\ntwo",
            "data": {"number": 2, "amount": 2, "note": "b"},
            "filtered": True,
        },
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    [problem] = deep_check(settings, folder).problems
    assert (problem.file, problem.line) == (str(folder / "events.jsonl"), 2)
    assert "\n" not in problem.message
    assert "expected it to be filtered; it passes" in problem.message


def test_a_source_that_gives_nothing_is_not_waited_for_for_ever(settings, tmp_path):
    folder = written(tmp_path, PASSES)
    (folder / "orders.csv").unlink()
    missing = deep_check(settings, folder)
    assert missing.problems == ()
    assert "its source gave no rows" in missing.warnings[0].message
    os.mkfifo(folder / "orders.csv")
    began = time.monotonic()
    waiting = deep_check(settings, folder, limit_s=3)
    assert waiting.problems == ()
    assert "the transformation was not tried" in waiting.warnings[0].message
    assert time.monotonic() - began < 300


def test_messages_about_rows_are_not_shown_where_there_are_personal_fields(settings, tmp_path):
    code = "def transform(event):\n    raise ValueError(event.data['note'])\n"
    folder = written(tmp_path, code, rows=1)
    (folder / "orders.csv").write_text("number,amount,note\n1,2,ann@example.com\n")
    [seen] = deep_check(settings, folder).problems
    assert "ann@example.com" in seen.message
    declared = (folder / "pipeline.yaml").read_text()
    declared = declared.replace(
        "    policy: strict\n", "    policy: strict\n    personal: [note]\n"
    )
    (folder / "pipeline.yaml").write_text(declared)
    [hidden] = deep_check(settings, folder).problems
    assert "ann@example.com" not in hidden.message
    assert "transformation/value_error, once: ValueError: •••" in hidden.message


PERSONAL = ("    policy: strict\n", "    policy: strict\n    personal: [note]\n")


def test_a_place_that_code_names_by_a_personal_value_is_masked(settings, tmp_path):
    code = (
        "from waybill.errors import ParkError\n\n\ndef transform(event):\n"
        "    raise ParkError('record_invalid', 'it is wrong', where=f\"of {event.data['note']}\")\n"
    )
    folder = written(tmp_path, code, rows=1)
    (folder / "orders.csv").write_text("number,amount,note\n1,2,ann@example.com\n")
    [seen] = deep_check(settings, folder).problems
    assert "it is wrong (of ann@example.com)" in seen.message
    declared = (folder / "pipeline.yaml").read_text()
    (folder / "pipeline.yaml").write_text(declared.replace(*PERSONAL))
    [masked] = deep_check(settings, folder).problems
    assert "it is wrong (of •••)" in masked.message
    assert "ann" not in masked.message


def test_what_a_source_says_of_its_rows_is_not_shown_where_there_are_personal_fields(
    settings, tmp_path, monkeypatch
):
    folder = written(tmp_path, PASSES, rows=1)
    declared = (folder / "pipeline.yaml").read_text()
    (folder / "pipeline.yaml").write_text(declared.replace(*PERSONAL))

    def told(_trial):
        raise ValueError("ann@example.com is not what was expected")

    monkeypatch.setattr(pipeline_trial, "_read_rows", told)
    [hidden] = deep_check(settings, folder).warnings
    assert "its source gave no rows: what it says is not shown" in hidden.message
    assert "ann" not in hidden.message


def test_folders_of_trials_that_were_killed_are_swept_and_no_others(settings, warehouse, tmp_path):
    killed, running, strange = (
        warehouse.parent / name for name in (".waybill-trial-a", ".waybill-trial-b", ".waybill-x")
    )
    for folder in (killed, running, strange):
        folder.mkdir()
        (folder / "shop.duckdb").write_bytes(b"half")
    kept = tmp_path / "kept"
    kept.mkdir()
    link = warehouse.parent / ".waybill-trial-link"
    link.symlink_to(kept)
    an_hour_ago = time.time() - 3_700
    for one in (killed, strange, kept):
        os.utime(one, (an_hour_ago, an_hour_ago))
    os.utime(link, (an_hour_ago, an_hour_ago), follow_symlinks=False)
    assert deep_check(settings, written(tmp_path, PASSES, rows=1)).problems == ()
    left = {one.name for one in warehouse.parent.iterdir()}
    assert left == {running.name, strange.name, link.name}
    assert kept.is_dir()


TABLE = """\
source:
  connector: sql
  event: order
  options: {file: shop.db, table: orders, cursor: amount, deletes: compare}
"""


def of_a_table(tmp_path, code):
    """Return the folder of a pipeline whose source brings deletes."""
    folder = written(tmp_path, code)
    text = (folder / "pipeline.yaml").read_text().replace("version: null", "version: amount")
    begin, end = text.index("source:"), text.index("events:")
    (folder / "pipeline.yaml").write_text(text[:begin] + TABLE + text[end:])
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("create table orders (number integer primary key, amount int, note text)")
        database.execute("insert into orders values (1, 2, 'a')")
    return folder


def test_a_delete_with_its_key_alone_is_tried_and_one_that_parks_is_a_warning(settings, tmp_path):
    code = "def transform(event):\n    event.data['note'] += '!'\n    return event\n"
    folder = of_a_table(tmp_path, code)
    found = deep_check(settings, folder)
    assert found.problems == ()
    what = "a delete of order with its key alone (number)"
    assert (
        f"{what} parks: transformation/field_missing, once: KeyError: 'note'"
        in found.warnings[0].message
    )
    (folder / "transformation.py").write_text(PASSES)
    found = deep_check(settings, folder)
    assert found.warnings == ()
    assert found.facts[-1] == f"{what} passes"


def test_a_delete_that_is_too_slow_is_a_warning(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("WAYBILL_SPARK__EVENT_TIMEOUT_S", "300")
    code = (
        "import time\n\ndef transform(event):\n    if event.op == 'delete':\n"
        "        time.sleep(600)\n    return event\n"
    )
    found = deep_check(Settings(), of_a_table(tmp_path, code), limit_s=15)
    assert found.problems == ()
    [warning] = found.warnings
    assert "0 of 1 deletes with their key alone were done after 15 s" in warning.message
