"""``waybill pipelines test``: example events and own tests of pipelines, without servers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waybill.cli import app
from waybill.errors import InputError
from waybill.testing import own_tests, run_pipeline

DECLARATION = """\
id: shop-orders
name: orders
team: shop
owner: shop
source: {connector: csv, path: orders.csv, event: order}
events:
  order:
    key: [id]
    version: changed
    table: orders
    policy: POLICY
    nested: flatten
    columns:
      id: int64
      changed: int64
      total: decimal(10,2) not null
      placed: timestamp
      day: date
      scan: bytes
      extra: json
      city: {type: string, from: address.city}
    children:
      items: {from: items, columns: {sku: string not null, price: "decimal(8,2)"}}
  note:
    key: [id]
    table: notes
    columns: {id: int64, text: string not null}
destination: {name: warehouse, schema: shop}
"""
CODE = """\
import os
from waybill.errors import ParkError

print("loaded")

def transform(event):
    order = event.data
    print("seen", order["id"])
    kind = order.pop("do", "")
    if kind == "filter": return None
    if kind == "raise": return order["gone"]
    if kind == "park": raise ParkError("record_invalid", "not that \\x1b[31m[red]one", where="do")
    if kind == "exit": os._exit(3)
    if kind == "loop":
        while True: pass
    if kind == "delete": event.op = "delete"
    if kind == "children":
        return [event] + [
            event.child(n, {"id": 10 * order["id"] + n, "text": text}, name="note")
            for n, text in enumerate(order.pop("notes"), 1)
        ]
    return event
"""
ORDER = {"id": 1, "changed": 7, "total": "12.5"}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder))
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WAYBILL_SPARK__EVENT_TIMEOUT_S", "1")
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def orders(root):
    return declare(root)


def declare(root: Path, *, code: str = CODE, policy: str = "strict") -> Path:
    folder = root / "orders"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(DECLARATION.replace("POLICY", policy))
    (folder / "transformation.py").write_text(code)
    return folder


def write(folder: Path, *lines: object) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "events.jsonl").write_text("".join(f"{text}\n" for text in texts))


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["pipelines", "test", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def events_of(*arguments, code=0):
    (one,) = json.loads(run(*arguments, "--json", code=code).stdout)["pipelines"]
    return one["events"]


def test_each_event_is_shown_with_its_rows_or_the_error_that_it_parks_with(orders):
    write(
        orders,
        {"data": ORDER},
        {"data": ORDER | {"do": "filter"}},
        {"note": "a raise", "data": ORDER | {"do": "raise"}, "parked": "field_missing"},
        {"data": ORDER | {"do": "park"}, "parked": "transformation/record_invalid"},
        {"data": {"id": 1, "changed": 1}, "parked": "not_null_violation"},
        {"data": {"id": 1}, "parked": "source_version_invalid"},
        {"data": {"changed": 1}, "parked": "ingestion/key_missing"},
        {"data": ORDER | {"new": 1, "day": "no"}, "parked": "unknown_column"},
    )
    said = run("orders").stdout
    lines = [line.strip() for line in said.splitlines()]
    assert max(map(len, said.splitlines())) <= 80
    assert lines[:3] == ["orders", "line 1: ok, orders 1 row", "line 2: ok, filtered"]
    assert "line 3: ok, parks as transformation/field_missing (a raise)" in lines
    assert "where: orders/transformation.py:11 in transform" in lines
    assert r"not that \x1b[31m[red]one" in lines
    assert "\x1b" not in said
    assert "line 7: ok, parks as ingestion/key_missing" in lines
    assert any(line.startswith("also timestamp_invalid: ") for line in lines)
    assert lines[-1] == "8 of 8 example events as expected"


def test_events_are_compared_with_what_is_expected_value_by_value(orders):
    write(
        orders,
        {"data": ORDER | {"extra": {"b": 1, "a": [2]}, "address": {"city": "Bonn"}},
         "rows": {"orders": [{"id": 1, "total": 12.5, "city": "Bonn", "extra": {"a": [2], "b": 1}}]}},
        {"data": ORDER | {"placed": "2026-01-01T08:00:00Z", "day": "2026-01-31", "scan": "AAE="},
         "rows": {"orders": [{"placed": "2026-01-01T09:00:00+01:00", "day": "2026-01-31", "scan": "AAE="}]}},
        {"data": ORDER, "rows": {"orders": [{"total": "12.05", "totl": 1, "id": "1", "city": "Bonn"}]}},
        {"data": ORDER, "rows": {"ordrs": [{"id": 1}]}},
        {"data": ORDER, "rows": {}},
        {"data": ORDER, "parked": "null_value"},
        {"data": ORDER, "filtered": True},
        {"data": ORDER | {"do": "filter"}, "parked": "null_value"},
        {"data": ORDER | {"do": "filter"}, "rows": {"orders": [{}]}},
        {"data": ORDER | {"do": "raise"}, "rows": {"orders": [{}]}},
        {"data": ORDER | {"do": "raise"}, "parked": ["null_value"]},
        {"data": ORDER | {"do": "raise"}},
        {"data": ORDER | {"extra": "x" * 100 + "y"}, "rows": {"orders": [{"extra": "x" * 101}]}},
    )  # fmt: skip
    found = [event["differences"] for event in events_of("orders", code=2)]
    assert found[:12] == [
        [],
        [],
        [
            'orders, row 1, total: expected "12.05"; found "12.50"',
            "orders, row 1: there is no column 'totl'; did you mean 'total'?",
            'orders, row 1, id: expected "1"; found 1',
            'orders, row 1, city: expected "Bonn"; found null',
        ],
        [
            "ordrs: expected 1 row; found no rows; did you mean 'orders'?",
            "orders: expected no rows; found 1 row",
        ],
        ["orders: expected no rows; found 1 row"],
        ["expected it to park with null_value; it passes"],
        ["expected it to be filtered; it passes"],
        ["expected it to park with null_value; it is filtered"],
        ["expected rows; it is filtered"],
        ["expected it not to park; it parks with transformation/field_missing"],
        ["expected it to park with null_value; it parks with transformation/field_missing"],
        ["expected it not to park; it parks with transformation/field_missing"],
    ]
    [long] = found[12]
    assert long.endswith('xxxy"')
    assert len(long) < 200
    said = run("orders", code=2).stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "2 of 13 example events as expected" in said


def test_long_texts_and_many_differences_are_cut_for_people(orders):
    children = ORDER | {"do": "children", "notes": ["a"] * 100}
    write(
        orders,
        {"note": "n" * 10_000, "data": ORDER},
        {"data": children, "rows": {"orders": [{}], "notes": [{"text": "b" * 10_000}] * 100}},
    )
    said = run("orders", code=2).stdout
    assert len(said) < 5_000
    assert "and 88 differences more; --json has all" in said
    assert len(events_of("orders", code=2)[1]["differences"]) == 100


def test_numbers_that_are_no_json_are_shown_as_text(root):
    code = "def transform(event):\n    event.data['x'] = float('nan')\n    return event\n"
    folder = declare(root, code=code, policy="evolve")
    write(folder, {"data": ORDER})
    text = (folder / "pipeline.yaml").read_text()
    (folder / "pipeline.yaml").write_text(
        text.replace("id: int64\n      changed", "id: int64\n      x: float64\n      changed")
    )
    [event] = events_of("orders")
    assert event["rows"]["orders"][0]["x"] == "nan"


def test_children_deletes_and_items_have_tables_of_their_own(orders):
    write(
        orders,
        {"data": ORDER | {"items": [{"sku": "a", "price": "1.5"}, {"sku": "b"}]},
         "rows": {"orders": [{"id": 1}],
                  "items": [{"id": 1, "_waybill_item": 0, "sku": "a", "price": "1.50"},
                            {"id": 1, "_waybill_item": 1, "sku": "b", "price": None}]}},
        {"data": ORDER | {"do": "delete"}, "deleted": {"orders": [{"id": 1}]}},
        {"data": ORDER | {"do": "children", "notes": [str(n) for n in range(12)]},
         "rows": {"orders": [{}], "notes": [{"id": 11 + n, "text": str(n)} for n in range(12)]}},
        {"data": ORDER | {"do": "children", "notes": ["a", None, 5]},
         "parked": ["not_null_violation", "mapping/type_mismatch"],
         "rows": {"orders": [{}], "notes": [{"text": "a"}]}},
    )  # fmt: skip
    assert [event["differences"] for event in events_of("orders")] == [[], [], [], []]
    assert "line 2: ok, orders 1 row deleted" in run("orders").stdout


def test_code_that_hangs_or_ends_the_interpreter_parks_its_event_only(orders):
    write(
        orders,
        {"data": ORDER | {"do": "exit"}, "parked": "interpreter_crashed"},
        {"data": ORDER | {"do": "loop"}, "parked": "transformation_timeout"},
        {"data": ORDER, "rows": {"orders": [{}]}},
    )
    assert [event["differences"] for event in events_of("orders")] == [[], [], []]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("raise RuntimeError('no')", "RuntimeError: no (orders/transformation.py:4 in <module>)"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import os; os._exit(5)", "the code ended the Python interpreter (exit status 5)"),
    ],
)
def test_code_that_cannot_be_loaded_says_where(root, line, words):
    write(
        declare(root, code=f"def transform(event):\n    return event\n\n{line}\n"), {"data": ORDER}
    )
    [event] = events_of("orders", code=2)
    [parked] = event["parked"]
    assert (parked["stage"], parked["error_type"]) == ("transformation", "code_invalid")
    assert words in parked["message"]


def test_what_user_code_prints_is_not_among_the_answer(orders):
    write(orders, {"data": ORDER})
    result = run("orders", "--json")
    assert json.loads(result.stdout)["ok"]
    assert "loaded" in result.stderr


def test_new_fields_make_columns_where_the_policy_says_so(root):
    write(
        declare(root, policy="evolve"),
        {"data": ORDER | {"new": 5}, "rows": {"orders": [{"id": 1, "new": 5}]}},
    )
    assert events_of("orders")[0]["differences"] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", "events.jsonl:2: expected a JSON object; found"),
        ('{"data": NaN}', "events.jsonl:2: expected a JSON object; found NaN is not JSON"),
        ("[" * 100_000, "events.jsonl:2: expected a JSON object"),
        ("5", "events.jsonl:2: expected a JSON object"),
        (
            {"id": 1},
            "id: expected one of data, note, rows, deleted, parked, filtered, event, op; found 'id'",
        ),
        ({"id": 1}, "data: expected the payload, an object; it is missing"),
        ({"dat": {}}, "did you mean 'data'?"),
        ({"data": [1]}, "data: expected the payload, an object; found [1]"),
        ('{"data": ' + "[" * 600 + "]" * 600 + "}", "found a list that cannot be written as JSON"),
        ({"data": {}, "rows": {"orders": {}}}, "rows.orders: expected a list of objects"),
        ({"data": {}, "rows": {"orders": [1]}}, "rows.orders: expected a list of objects"),
        ({"data": {}, "rows": []}, "rows: expected rows by table"),
        ({"data": {}, "parked": "nul_value"}, "found 'nul_value'; did you mean 'null_value'?"),
        ({"data": {}, "parked": "maping/null_value"}, "did you mean 'mapping'?"),
        ({"data": {}, "parked": [5]}, "parked: expected text; found 5"),
        ({"data": {}, "parked": []}, "parked: expected one error type or more"),
        (
            {"data": {}, "parked": None},
            "parked: expected an error type, or a list of them; found null",
        ),
        ({"data": {}, "filtered": False}, "filtered: expected true"),
        ({"data": {}, "filtered": True, "parked": "null_value"}, "expected no parked beside it"),
        ({"data": {}, "op": "delet"}, "op: expected upsert or delete; found 'delet'; did you mean"),
        ({"data": {}, "event": 5}, "event: expected an event name of the pipeline; found 5"),
        ({"data": {}, "\x1b[31m" * 50: 1}, r"events.jsonl:2: \x1b[31m"),
    ],
)
def test_a_line_that_is_no_example_event_is_told_by_its_number(orders, line, words):
    write(orders, {"data": ORDER}, line)
    said = run("orders", code=1)
    assert words in said.stderr
    assert "\x1b" not in said.stderr
    assert len(said.stderr) < 2_000
    answer = json.loads(run("orders", "--json", code=1).stdout)
    assert not answer["ok"]
    assert any(words in error for error in answer["pipelines"][0]["errors"])


def test_all_mistakes_of_a_file_are_told_at_once(orders):
    write(orders, "a", "", {"dat": 1}, {"data": 5})
    said = run("orders", code=1).stderr
    assert [n for n in (1, 2, 3, 4) if f"events.jsonl:{n}: " in said] == [1, 3, 4]


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xff\n", None])
def test_a_file_without_events_is_told(orders, content, tmp_path):
    if content is None:
        (tmp_path / "outside.jsonl").write_text('{"data": {}}\n')
        (orders / "events.jsonl").symlink_to(tmp_path / "outside.jsonl")
    else:
        (orders / "events.jsonl").write_bytes(content)
    said = run("orders", code=1).stderr
    words = "outside of it" if content is None else "not" if content == b"\xff\n" else "is empty"
    assert "events.jsonl:1: expected" in said
    assert words in said


def test_a_pipe_in_the_files_place_is_not_waited_for(orders):
    os.mkfifo(orders / "events.jsonl")
    assert "expected a file 'events.jsonl'" in run("orders", code=1).stderr


def test_a_pipeline_without_anything_to_test_says_what_to_write(orders):
    said = " ".join(run("orders", code=1).stderr.split())
    assert "write example events into events.jsonl" in said
    assert str(orders) in said


@pytest.mark.parametrize("name", ["order", "../x", "a\0b", "🙂", "x" * 300, "{{ 1 }}", "\x1b[31m"])
def test_a_name_that_is_no_pipeline_is_answered_with_those_there_are(orders, name):
    said = run(name, code=3).stderr
    assert "no folder and no declared pipeline" in said
    assert "has orders" in " ".join(said.split())
    assert "\x1b" not in said


def test_a_declaration_with_mistakes_is_told_as_by_check(orders):
    (orders / "pipeline.yaml").write_text(DECLARATION)
    assert "pipeline.yaml:11: events.order.policy" in run("orders", code=1).stderr


def test_all_pipelines_are_tested_and_those_without_examples_are_named(orders, root):
    write(orders, {"data": ORDER})
    other = root / "quiet"
    shutil.copytree(orders, other)
    (other / "events.jsonl").unlink()
    text = DECLARATION.replace("POLICY", "strict").replace("shop-orders", "quiet-1")
    text = text.replace("name: orders", "name: quiet").replace("schema: shop", "schema: quiet")
    (other / "pipeline.yaml").write_text(text)
    said = run().stdout
    assert "1 of 1 example event as expected" in said
    assert "quiet: no example events and no tests" in said
    write(other, "{")
    assert "1 of 1 example event as expected" in run(code=1).stdout


def test_own_tests_are_run_and_what_fails_is_shown(orders):
    (orders / "test_orders.py").write_text(
        "from pathlib import Path\n"
        "from waybill.testing import run_pipeline\n\n"
        "def test_one():\n"
        "    result = run_pipeline(Path(__file__).parent, [{'id': 1, 'changed': 1, 'total': 2}])\n"
        "    assert result.rows['orders'][0]['total'] == 3, '[red]\\x1b[31mwrong'\n"
    )
    result = run("orders", code=2)
    assert "test_orders.py: 1 failed in " in result.stdout
    assert r"[red]\x1b[31mwrong" in result.stdout
    assert not list(orders.glob("__pycache__")) + list(orders.glob(".pytest_cache"))


def test_own_tests_have_nothing_of_the_platforms_settings(orders, monkeypatch):
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://canary@h/d")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("TEAMS_OWN", "kept")
    (orders / "test_orders.py").write_text(
        "import os\ndef test_environment():\n"
        "    assert 'canary' not in repr(dict(os.environ))\n"
        "    assert os.environ['TEAMS_OWN'] == 'kept'\n"
    )
    own = own_tests.run_own_tests(orders)
    assert own is not None
    assert own.exit_code == 0, own.output


def test_without_pytest_own_tests_are_an_error_that_says_how_to_get_it(orders, monkeypatch):
    write(orders, {"data": ORDER})
    (orders / "test_orders.py").write_text("def test_one():\n    pass\n")
    monkeypatch.setattr(own_tests, "find_spec", lambda _: None)
    result = run("orders", code=1)
    assert "1 of 1 example event as expected" in result.stdout
    assert "is run by pytest, which is not installed here: `pip install pytest`" in result.stderr
    assert sys.executable in result.stderr


def test_a_run_gives_rows_as_python_has_them(orders):
    result = run_pipeline(
        orders,
        [ORDER | {"extra": {"a": 1}, "scan": "AAE="}, {"id": 2}, ORDER | {"do": "filter"}],
    )
    [row] = result.rows["orders"]
    assert (row["total"], row["extra"], row["scan"]) == (Decimal("12.50"), {"a": 1}, b"\x00\x01")
    assert (result.rows["items"], result.rows["notes"], result.deleted["orders"]) == ([], [], [])
    assert [parked.way for parked in result.parked] == ["ingestion/source_version_invalid"]
    assert result.filtered == 1
    assert run_pipeline(str(orders), []).events == ()
    with pytest.raises(InputError, match="event 2: expected a mapping, got list"):
        run_pipeline(orders, [ORDER, []])


def test_a_run_changes_no_event_and_gives_the_same_again(orders):
    events = [ORDER | {"do": ""}]
    first, again = (run_pipeline(orders, events).events for _ in range(2))
    assert first == again
    assert events == [ORDER | {"do": ""}]


def test_the_demos_pipelines_have_examples_that_are_as_expected(monkeypatch):
    monkeypatch.setenv(
        "WAYBILL_PIPELINES_DIR", str(Path(__file__).parents[3] / "include/pipelines")
    )
    answer = json.loads(run("--json").stdout)
    assert [(one["pipeline"], len(one["events"])) for one in answer["pipelines"]] == [
        ("flights", 4),
        ("weather", 2),
    ]


CDC = "source: {connector: postgres_cdc, connection: shop, options: {tables: {order: orders}}}"


def test_a_delete_that_may_bring_the_whole_row_is_a_warning_where_its_key_alone_parks(root):
    folder = declare(
        root, code="def transform(event):\n    event.data['changed']\n    return event\n"
    )
    file = folder / "pipeline.yaml"
    source = "source: {connector: csv, path: orders.csv, event: order}"
    file.write_text(file.read_text().replace(source, CDC.replace("}}}", "}}, event: order}")))
    write(folder, {"data": ORDER})
    said = " ".join(run("orders").stdout.split())
    what = "a delete of order with its key alone (id)"
    assert f"{what}: a warning, parks as transformation/field_missing" in said
    assert "its key, or the whole row" in said
    [report] = json.loads(run("orders", "--json").stdout)["pipelines"]
    assert [(one["ok"], len(one["parked"])) for one in report["deletes"]] == [(True, 1)]


BATCH = """\
import pyarrow as pa

def transform_batch(table):
    changed = table.column("changed").to_numpy(zero_copy_only=False)
    text = pa.array([str(one) for one in changed])
    return table.set_column(table.column_names.index("total"), "total", text)
"""


def test_a_batch_of_examples_has_no_nulls_of_the_deletes_that_are_tried_beside_them(root):
    folder = declare(root, code=BATCH)
    file = folder / "pipeline.yaml"
    source = "source: {connector: csv, path: orders.csv, event: order}"
    file.write_text(file.read_text().replace(source, CDC.replace("}}}", "}}, event: order}")))
    large = 2**53 + 1
    wanted = {"orders": [{"id": 1, "total": str(large)}]}
    file.write_text(file.read_text().replace("decimal(10,2)", "decimal(20,2)"))
    write(folder, {"data": ORDER | {"changed": large}, "rows": wanted})
    said = run("orders").stdout
    assert "1 of 1 example event as expected" in said
    assert "a delete of order" in said
