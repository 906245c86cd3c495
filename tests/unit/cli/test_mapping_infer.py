"""``waybill mapping infer``: proposals from a source's first events, and into the declaration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waybill.cli import app
from waybill.pipelines import load_pipeline

HEAD = """\
# orders of the shop
id: shop-orders
name: orders
team: shop
owner: shop@example.com
source: {connector: csv, path: orders.csv, event: order}
events:
"""
TAIL = """\

destination: {name: warehouse, schema: shop}   # where to
"""
EVENT = """\
  order:
    table: orders   # the table
    policy: strict
"""
ROWS = "id,userId,placed,price,note\n" + "".join(
    f"{n},{n % 3},2013-01-31T05:17:00Z,{n}.25,{'' if n % 2 else 'x'}\n" for n in range(1, 21)
)
CODE = "def transform(event):\n    return event\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    home = tmp_path / "orders"
    home.mkdir()
    (home / "orders.csv").write_text(ROWS)
    (home / "transformation.py").write_text(CODE)
    return home


def declare(folder: Path, events: str = EVENT, *, newline: str = "\n", mark: bytes = b"") -> bytes:
    text = (HEAD + events + TAIL).replace("\n", newline)
    (folder / "pipeline.yaml").write_bytes(mark + text.encode())
    return mark + text.encode()


def infer(folder: Path, *options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["mapping", "infer", str(folder), *options])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout if code == 0 else result.stderr


def test_the_table_and_the_lines_to_paste(folder):
    declare(folder)
    said = infer(folder)
    assert max(map(len, said.splitlines())) <= 80
    assert "event order to shop.orders" in said
    assert "key id: proposed; it tells the 20 events of the sample apart" in said
    lines = said[said.index("to paste") :].splitlines()
    assert lines[1:] == [
        "    key: [id]",
        "    columns:",
        "      id: int64",
        "      user_id: {type: int64, from: userId}",
        "      placed: timestamp",
        "      price: decimal(18,2)",
        "      note: string",
        "",
        "20 records read",
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_written_lines_leave_every_other_byte(folder, newline, mark):
    before = declare(folder, newline=newline, mark=mark)
    infer(folder, "--write")
    after = (folder / "pipeline.yaml").read_bytes()
    lines = before.splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b"policy" in line) + 1
    added = after.splitlines(keepends=True)[place : place + 7]
    assert b"".join([*lines[:place], *added, *lines[place:]]) == after
    assert added[0] == f"    key: [id]{newline}".encode()
    assert [c.name for c in load_pipeline(folder).events["order"].table.columns] == [
        "id", "user_id", "placed", "price", "note",
    ]  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == [
        "orders.csv", "pipeline.yaml", "transformation.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        "  order:\n    table: orders\n    key:   # to come\n    columns: {}  # those too\n",
        "  order:\n    key: [id]\n    columns:\n    table: orders\n",
        "  order:\n      table: orders\n\n  # a comment\n",
    ],
)
def test_what_is_there_but_empty_is_filled_in(folder, event):
    declare(folder, event)
    infer(folder, "--write")
    text = (folder / "pipeline.yaml").read_text()
    for comment in ("# orders of the shop", "# where to", "# to come", "# those too"):
        assert (comment in text) == (comment in HEAD + event + TAIL)
    assert load_pipeline(folder).events["order"].table.key == ("id",)


def test_a_key_is_found_among_columns_that_are_declared(folder):
    declare(folder, EVENT + "    columns:\n      number: {type: int32, from: id}\n")
    infer(folder, "--write")
    event = load_pipeline(folder).events["order"]
    assert (event.key, event.table.key) == (("id",), ("number",))
    assert event.table.columns[0].type == "int32"


def test_a_key_that_is_named_as_its_column_reads_the_field_that_is_like_it(folder):
    source = HEAD.replace("event: order}", "event: order, columns: {id: int64, userId: int64}}")
    (folder / "pipeline.yaml").write_text(source + EVENT + "    key: [user_id]\n" + TAIL)
    said = infer(folder)
    assert "user_id: {type: int64, from: userId}" in said


def test_events_with_columns_are_shown_what_they_lack(folder):
    declare(folder, EVENT + "    key: [id]\n    columns: {id: int64, price: 'decimal(5,2)'}\n")
    answer = json.loads(infer(folder, "--json"))
    (proposal,) = answer["proposals"]
    assert answer["read"] == 20
    assert "      price: decimal(18,2)\n" not in proposal["yaml"]
    columns = {one["name"]: one["type"] for one in proposal["declaration"]["table"]["columns"]}
    assert columns == {
        "id": "int64", "price": "decimal(5,2)", "user_id": "int64", "placed": "timestamp",
        "note": "string",
    }  # fmt: skip
    assert "has its key and columns already" in infer(folder, "--write", code=1)


def test_times_with_a_few_texts_among_them_are_times(folder):
    lines = (f"{n},{'soon' if n == 5 else '2013-01-31T05:17:00Z'}\n" for n in range(40))
    (folder / "orders.csv").write_text("id,placed\n" + "".join(lines))
    declare(folder)
    said = " ".join(infer(folder).split())
    assert "placed: 39 times, 1 text (as 'soon'): timestamp is proposed, and would park 1" in said
    [proposal] = json.loads(infer(folder, "--json"))["proposals"]
    assert proposal["mixed"] == [
        {"column": "placed", "type": "timestamp", "counts": {"time": 39, "text": 1}, "parks": 1}
    ]


def test_fields_that_are_personal_by_name_are_named_where_columns_are_declared(folder):
    (folder / "orders.csv").write_text("id,email\n1,a@b\n2,c@d\n")
    declare(folder, EVENT + "    key: [id]\n    columns: {id: int64, email: string}\n")
    assert "personal by name, and not declared so: email" in " ".join(infer(folder).split())


def test_the_sample_is_as_large_as_asked(folder):
    declare(folder)
    assert json.loads(infer(folder, "--json", "--sample", "3"))["read"] == 3


def test_columns_come_from_what_the_transformation_makes(folder):
    (folder / "transformation.py").write_text(
        "def transform(event):\n"
        "    if event.data['id'] == 1:\n"
        "        return None\n"
        "    if event.data['id'] == 2:\n"
        "        raise ValueError('two')\n"
        "    event.data['double'] = event.data['id'] * 2\n"
        "    line = {'order': event.data['id'], 'n': 1}\n"
        "    return [event, event.child(1, line, name='line')]\n"
    )
    declare(folder, EVENT + "  line:\n    table: lines\n")
    answer = json.loads(infer(folder, "--json"))
    assert (answer["filtered"], answer["failed"]) == (1, {"value_error": 1})
    found = {one["event"]: one["declaration"]["table"] for one in answer["proposals"]}
    assert "double" in [column["name"] for column in found["order"]["columns"]]
    assert found["line"]["key"] == ["order"]
    only = json.loads(infer(folder, "--json", "--event", "line"))["proposals"]
    assert [one["event"] for one in only] == ["line"]
    assert "did you mean 'line'?" in infer(folder, "--event", "lin", code=3)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os\n\ndef transform(event):\n    os._exit(3)\n", "interpreter_crashed"),
        ("def transform(event):\n    return None\n", "20 were filtered"),
        (CODE + "raise RuntimeError('no')\n", "RuntimeError: no"),
    ],
)
def test_nothing_to_infer_from_says_why(folder, code, words):
    (folder / "transformation.py").write_text(code)
    (folder / "orders.csv").write_text("\n".join(ROWS.splitlines()[:21]))
    declare(folder)
    assert words in infer(folder, code=1)


def test_without_a_key_the_user_is_asked_for_it(folder):
    (folder / "orders.csv").write_text("a,b\n1,1\n1,1\n")
    declare(folder)
    assert "declare the key with `key:`" in infer(folder, code=1)


def test_other_mistakes_are_told_with_their_line(folder):
    declare(folder, EVENT.replace("policy: strict", "policy: strct"))
    assert "pipeline.yaml:10: events.order.policy" in infer(folder, code=1)


def test_an_event_within_braces_is_left_to_the_user(folder):
    before = declare(folder, "  order: {table: orders}\n")
    assert "written within braces" in infer(folder, "--write", code=1)
    assert (folder / "pipeline.yaml").read_bytes() == before


def test_an_event_that_is_said_once_for_two_is_left_to_the_user(folder):
    before = declare(
        folder,
        "  order: &all\n    table: orders\n  twin: *all\n",
    )
    infer(folder, "--write", "--event", "order", code=1)
    assert (folder / "pipeline.yaml").read_bytes() == before


def test_a_folder_that_takes_no_file_is_said(folder, monkeypatch):
    before = declare(folder)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("waybill.mapping_proposals.yaml_file.NamedTemporaryFile", refuse)
    assert "cannot be written: Permission denied" in infer(folder, "--write", code=1)
    assert (folder / "pipeline.yaml").read_bytes() == before


def test_a_file_that_dies_half_written_is_not_taken(folder, monkeypatch):
    before = declare(folder)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("waybill.mapping_proposals.yaml_file.os.fsync", full)
    assert "No space left on device" in infer(folder, "--write", code=1)
    assert (folder / "pipeline.yaml").read_bytes() == before
    assert len(list(folder.iterdir())) == 3


def test_hostile_names_are_quoted_and_read_back(folder):
    fields = ["id", "true", "no: yes", "#x", "a'\"b", "名前", "🙂", "x\u0085y", "- z", "null"]
    quoted = ",".join('"' + one.replace('"', '""') + '"' for one in fields)
    (folder / "orders.csv").write_text(quoted + "\n" + ",".join("1" * len(fields)) + "\n")
    declare(folder, EVENT + "    key: [id]\n")
    infer(folder, "--write")
    columns = load_pipeline(folder).events["order"].table.columns
    assert [column.source for column in columns] == fields


def test_a_name_that_is_no_pipeline_is_answered_with_those_there_are(folder, monkeypatch):
    declare(folder)
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder.parent))
    monkeypatch.chdir(folder.parent.parent)
    result = CliRunner().invoke(app, ["mapping", "infer", "order"])
    said = " ".join(result.stderr.split())
    assert result.exit_code == 3
    assert "no folder and no declared pipeline 'order'" in said
    assert f"{folder.parent} has orders; did you mean 'orders'?" in said
    assert "pipeline.yaml" not in said


def test_code_that_takes_tables_meets_the_types_that_values_suggest(folder):
    declare(folder)
    (folder / "transformation.py").write_text(
        "import pyarrow.compute as pc\n"
        "def transform_batch(table):\n"
        "    year = pc.year(table['placed'])\n"
        "    debt = pc.negate(table['price'])\n"
        "    return table.append_column('year', year).append_column('debt', debt)\n"
    )
    [proposal] = json.loads(infer(folder, "--json"))["proposals"]
    kinds = {c["source"]: c["type"] for c in proposal["declaration"]["table"]["columns"]}
    assert (kinds["id"], kinds["placed"], kinds["year"]) == ("int64", "timestamp", "int64")
    assert kinds["debt"].startswith("decimal")
