"""``waybill sources list|discover|test``: a source looked at before anything runs."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from waybill.access import masked_fields
from waybill.cli import app
from waybill.cli.output import print_json
from waybill.cli.source_values import shown_value
from waybill.errors import InputError
from waybill.ingestion.connectors import Discovered
from waybill.ledger import SourceLine
from waybill.ledger.source_runs import RunFigures
from waybill.mapping_proposals import Proposal, load_draft, write
from waybill.parking import masked_words
from waybill.pipelines import Column, load_pipeline

HEAD = """\
# orders of the shop
id: shop-orders
name: orders
team: shop
owner: shop@example.com
source:
  connector: singer   # a tap
  event: orders
  options: {tap: small, config: {rows: 20}, replication_keys: {orders: at}}
"""
TAIL = """\

# where to
destination: {name: warehouse, schema: shop}
"""
TAP = Path(__file__).parents[2] / "support" / "small_tap.py"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    installed = tmp_path / "tap" / "bin" / "small_tap.py"
    installed.parent.mkdir(parents=True)
    installed.write_text(TAP.read_text())
    monkeypatch.setenv(
        "WAYBILL_SOURCES__TAPS", json.dumps({"small": [sys.executable, str(installed)]})
    )
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", json.dumps([str(installed.parents[1])]))
    home = tmp_path / "orders"
    home.mkdir()
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    return home


def declare(folder: Path, events: str = "", head: str = HEAD) -> str:
    text = head + events + TAIL
    (folder / "pipeline.yaml").write_text(text)
    return text


def sources(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["sources", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    said = result.stdout if code in {0, 2} else result.stderr
    if code == 0 and not {"--json", "--write"} & set(arguments):
        assert max(map(len, said.splitlines())) <= 80
    return said


def test_kinds_and_taps_are_listed(folder):
    said = sources("list")
    kinds = {one["kind"]: one for one in json.loads(sources("list", "--json"))}
    assert {"csv", "dlt", "singer"} <= kinds.keys()
    assert "small" in kinds["singer"]["does"]
    assert "Reads a Singer tap" in said


@pytest.mark.parametrize(
    "events",
    [
        "",
        pytest.param("events:\n", marks=pytest.mark.campaign),
        pytest.param("events:   # none yet\n", marks=pytest.mark.campaign),
    ],
)
def test_discovered_events_are_written_and_every_other_line_stays(folder, events):
    before = declare(folder, events)
    said = sources("discover", str(folder), "--write")
    assert "written to" in said
    after = (folder / "pipeline.yaml").read_text()
    assert set(before.splitlines()) <= set(after.splitlines())
    found = load_pipeline(folder).events
    assert set(found) == {"orders", "others"}
    assert (found["orders"].key, found["orders"].version) == (("id",), "at")
    types = {column.name: column.type for column in found["orders"].table.columns}
    assert types == {"id": "int64", "at": "timestamp", "note": "string"}
    again = sources("discover", str(folder))
    assert "every event is declared" in again
    assert (folder / "pipeline.yaml").read_text() == after


def test_an_event_that_is_declared_stays_as_it_is(folder):
    declared = (
        "events:\n  orders:   # ours\n    key: [id]\n    table: bought\n    policy: evolve\n"
        "    columns: {id: string}\n"
    )
    before = declare(folder, declared)
    said = json.loads(sources("discover", str(folder), "--write", "--json"))
    assert [one["event"] for one in said["proposals"]] == ["others"]
    assert {one["event"]: one["key"] for one in said["found"]} == {
        "orders": ["id"],
        "others": ["id"],
    }
    after = (folder / "pipeline.yaml").read_text()
    assert set(before.splitlines()) <= set(after.splitlines())
    assert set(yaml.safe_load(after)["events"]) == {"orders", "others"}


def test_without_write_the_lines_to_paste_are_shown_and_nothing_changes(folder):
    before = declare(folder)
    said = sources("discover", str(folder))
    assert (
        "to paste under events:\n  orders:\n    key: [id]\n    version: at\n    table: orders"
        in said
    )
    assert (folder / "pipeline.yaml").read_text() == before


def test_an_event_name_that_the_source_does_not_have_is_named(folder):
    declare(folder, head=HEAD.replace("event: orders", "event: order"))
    said = " ".join(sources("discover", str(folder), code=1).split())
    assert "'order' is none of the event names that the source has: orders, others" in said


def test_a_source_that_knows_nothing_of_itself_is_discovered_by_its_records(folder):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    declare(folder, head=head)
    (folder / "o.csv").write_text("id,userId\n" + "".join(f"{n},{n % 3}\n" for n in range(9)))
    sources("discover", str(folder), "--write")
    found = load_pipeline(folder).events["order"]
    assert found.key == ("id",)
    assert [column.name for column in found.table.columns] == ["id", "user_id"]


DECLARED = """\
events:
  orders:
    key: [id, other]
    table: orders
    personal: [note]
    columns: {id: int64, other: string, note: string}
"""


def test_a_test_shows_rows_with_personal_fields_masked_and_what_would_park(folder):
    declare(folder, DECLARED)
    said = sources("test", str(folder), "--rows", "2", code=2)
    assert "the source can be read: a first page of 40 rows" in said
    assert "no row has field 'other', which is declared as key of orders" in said
    assert "20 rows of others would park at ingestion: event_undeclared" in " ".join(said.split())
    assert "20 rows of orders would park at ingestion: key_missing" in said
    assert said.count("  note: •••") == 2
    assert "xxx" not in said
    assert "rows of others are not shown" in " ".join(said.split())
    found: dict[str, Any] = json.loads(
        sources("test", str(folder), "--json", "--rows", "1", code=2)
    )
    assert found["rows"] == {"orders": 20, "others": 20}
    assert [one["row"]["note"] for one in found["shown"]] == ["•••"]


VERSIONED_RIDES = """\
events:
  ride:
    key: [ride]
    version: {version}
    table: rides
    personal: [{personal}]
    columns: {{ride: int64, {personal}: string}}
"""


@pytest.mark.parametrize(
    ("version", "personal", "said"),
    [
        ("endd_at", "name", "no row has field 'endd_at', which is declared as version of ride"),
        ("ended_at", "name", "1 row of ride would park at ingestion: source_version_invalid: 'soon'"),
        ("ended_at", "ended_at", "1 row of ride would park at ingestion: source_version_invalid: •"),
    ],
)  # fmt: skip
def test_a_version_that_rows_do_not_have_is_found_by_the_test(folder, version, personal, said):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: r.csv, event: ride}\n"
    declare(folder, VERSIONED_RIDES.format(version=version, personal=personal), head=head)
    (folder / "r.csv").write_text(
        "ride,name,ended_at\n1,a,2026-01-01T00:00:00Z\n2,b,soon\n3,c,2026-01-02T00:00:00Z\n"
    )
    output = " ".join(sources("test", str(folder), "--rows", "0", code=2).split())
    assert said in output
    assert ("soon" in output) == (personal == "name" and version == "ended_at")


def test_a_table_of_what_a_source_says_of_itself_is_left_out_where_it_says_nothing(folder):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    declare(folder, head=head)
    (folder / "o.csv").write_text("id,n\n1,2\n")
    assert "in the source" not in sources("discover", str(folder))


def test_what_a_test_cannot_read_ends_with_what_to_do(folder):
    declare(folder, head=HEAD.replace("tap: small", "tap: large"))
    said = " ".join(sources("test", str(folder), code=1).split())
    assert "there is no tap 'large' (small)" in said


def test_personal_fields_are_masked_at_any_depth_and_by_any_writing():
    row = {
        "A B": {"mail": "x", "id": 1},
        "many": [{"mail": "y"}, {"mail": None}],
        "Pay": 3,
        "cut": "z",
    }
    assert masked_fields(row, ["ab.mail", "many.mail", "pay", "cut.deep"]) == {
        "A B": {"mail": "•••", "id": 1},
        "many": [{"mail": "•••"}, {"mail": None}],
        "Pay": "•••",
        "cut": "•••",
    }
    assert row["Pay"] == 3


def test_a_source_that_sends_by_itself_is_not_discovered(folder):
    options = "options: {auth: bearer, secret: env:TOKEN}"
    head = (
        HEAD[: HEAD.index("source:")] + f"source:\n  connector: http\n  event: order\n  {options}\n"
    )
    declare(folder, head=head)
    said = " ".join(sources("discover", str(folder), code=1).split())
    assert "sends to `waybill collector`: nothing can be read of it" in said


def test_a_source_in_which_nothing_is_says_so(folder):
    head = HEAD[: HEAD.index("source:")]
    head += "source: {connector: files, event: order, options: {path: '*.jsonl'}}\n"
    declare(folder, head=head)
    (folder / "new.jsonl").write_text('{"id": 1}\n')
    said = " ".join(sources("test", str(folder)).split())
    assert "a first page of 0 rows" in said
    assert "nothing is there to be read" in said
    assert "options.settle_s" in said


def test_records_that_the_transformation_refuses_are_counted_beside_the_proposal(folder):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    declare(folder, head=head)
    (folder / "o.csv").write_text("id,n\n" + "".join(f"{n},{n}\n" for n in range(9)))
    (folder / "transformation.py").write_text(
        "from waybill.errors import ParkError\n\n"
        "def transform(event):\n    if str(event.data['n']) in ('3', '4'):\n"
        "        raise ParkError('record_invalid', 'not this \\x1b[31mone')\n    return event\n"
    )
    said = " ".join(sources("discover", str(folder)).split())
    assert "2 of 9 records of order did not pass the transformation (first: record_invalid:" in said
    assert "\x1b" not in said
    found = json.loads(sources("discover", str(folder), "--json"))
    assert found["refused"] == {"order": {"record_invalid": 2}}


RIDES = """\
events:
  ride:
    table: rides
    policy: strict
"""


def rides(folder: Path, more: str = "") -> None:
    """Declare rides of a file of JSON lines: 998 prices, 2 texts among them; kinds by turns."""
    head = HEAD[: HEAD.index("source:")]
    head += "source: {connector: files, event: ride, options: {path: 'in/*.jsonl', settle_s: 0}}\n"
    declare(folder, RIDES + more, head=head)
    (folder / "in").mkdir()
    records = [
        {
            "ride_id": f"R-{n:05}",
            "rider_email": "n/a@mail.example" if n == 7 else f"ann{n}@mail.example",
            "phone": "unknown" if n == 9 else 4917600000 + n,
            "member": "yes" if n % 2 else "no",
            "price": "n/a" if n in {30, 500} else n / 4 + 0.01,
            "ended_at": "2026-01-02T00:00:00Z",
            "rider": {"name": "Ann", "age": 3},
            "station": {"name": "North"},
            "mark": n if n % 2 else "t\x1b[31m",
        }
        for n in range(1000)
    ]
    lines = "".join(json.dumps(one) + "\n" for one in records)
    (folder / "in" / "rides.jsonl").write_text(lines)


def test_nearly_all_values_give_the_type_and_the_others_are_said_to_park(folder):
    rides(folder)
    whole = sources("discover", str(folder))
    said = " ".join(whole.split())
    assert (
        "price: 998 numbers, 2 texts (as 'n/a'): decimal(18,2) is proposed, and would park 2"
        in said
    )
    assert "phone: 999 numbers, 1 text (as •••): int64 is proposed, and would park 1" in said
    assert "mark: 500 texts, 500 numbers (as 1): json, which takes all of them" in said
    assert "unknown" not in said
    assert "\x1b" not in whole
    assert "version: none found by name" in said
    assert "to declare: `version: <field>`, one that rises with each change (ended_at?)" in said
    sources("discover", str(folder), "--write")
    ran = CliRunner().invoke(app, ["run", str(folder), "--local", "--rows", "1000", "--json"])
    assert ran.exit_code in {0, 2}, ran.output
    assert ran.stdout.count("type_mismatch") >= 3, "two prices and a phone park"


def test_what_is_personal_by_name_is_written_and_can_be_taken_back(folder):
    rides(folder)
    said = " ".join(sources("discover", str(folder)).split())
    assert "personal rider_email, phone, rider.name: proposed, by name; masked wherever" in said
    sources("discover", str(folder), "--write")
    assert load_pipeline(folder).events["ride"].personal == ("rider_email", "phone", "rider.name")
    file = folder / "pipeline.yaml"
    file.write_text(re.sub(r"personal: \[.*\]", "personal: []", file.read_text()))
    assert "@mail.example" in sources("test", str(folder))
    assert load_pipeline(folder).events["ride"].personal == ()


def test_a_declaration_that_says_what_is_personal_gets_no_proposal(folder):
    rides(folder, "    personal: [member]\n")
    said = sources("discover", str(folder), "--write")
    assert "by name;" not in " ".join(said.split())
    assert load_pipeline(folder).events["ride"].personal == ("member",)


def test_until_somebody_says_a_test_masks_what_is_personal_by_its_name(folder):
    rides(folder)
    whole = sources("test", str(folder))
    said = " ".join(whole.split())
    assert "@mail.example" not in whole
    assert "Ann" not in whole
    assert 'station: {"name":"North"}' in whole
    assert "rider_email, phone, rider.name of ride: masked for the name" in said
    found = json.loads(sources("test", str(folder), "--json"))
    assert found["masked_by_name"] == {"ride": ["rider_email", "phone", "rider.name"]}


def test_a_record_of_the_source_becomes_the_example_that_the_test_runs(folder, monkeypatch):
    root = folder.parent / "pipelines"
    root.mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(root))
    made = CliRunner().invoke(app, ["new", "trips", "--connector", "files", "--path", "in/*.jsonl", "--yes"])  # fmt: skip
    assert made.exit_code == 0, made.output
    home = root / "trips"
    rides(folder)
    (folder / "in").rename(home / "in")
    declared = (home / "pipeline.yaml").read_text()
    declared = declared.replace("  options:\n", "  options:\n    settle_s: 0\n")
    (home / "pipeline.yaml").write_text(declared)
    said = " ".join(sources("discover", "trips", "--write").split())
    assert "an example event of record was added to events.jsonl" in said
    examples = (home / "events.jsonl").read_text()
    assert '"member":"no"' in examples
    assert "xxx1@xxxx.xxxxxxx" in examples
    assert "Ann" not in examples
    (home / "transformation.py").write_text(
        "MEMBER = {'yes': True, 'no': False}\n\n\ndef transform(event):\n"
        "    event.data['member'] = MEMBER[event.data['member']]\n    return event\n"
    )
    declared = (home / "pipeline.yaml").read_text()
    (home / "pipeline.yaml").write_text(declared.replace("member: string", "member: bool"))
    tested = CliRunner().invoke(app, ["test", "trips"])
    assert tested.exit_code == 0, tested.output
    assert "1 passed" in tested.output


@pytest.mark.parametrize(
    ("command", "declared"),
    [
        (("sources", "discover"), "note"),
        (("sources", "discover"), ""),
        (("sources", "discover"), None),
        (("mapping", "infer"), "note"),
        (("mapping", "infer"), ""),
    ],
)
def test_messages_about_refused_records_have_no_personal_value(folder, command, declared):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    personal = f", personal: [{declared}]" if declared else ""
    events = "" if declared is None else f"events:\n  order: {{table: orders{personal}}}\n"
    declare(folder, events, head=head)
    (folder / "o.csv").write_text("id,note,n\n" + "".join(f"{n},ann@shop,{n}\n" for n in range(9)))
    (folder / "transformation.py").write_text(
        "def transform(event):\n    if str(event.data['n']) in ('3', '4'):\n"
        "        raise ValueError(f\"wrong: {event.data['note']}\")\n    return event\n"
    )
    result = CliRunner().invoke(app, [*command, str(folder)])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "wrong: " in " ".join(result.output.split())
    assert ("ann@shop" in result.output) == (declared == ""), "of an undeclared event all is masked"
    # nothing passes: the message stands in the error
    (folder / "transformation.py").write_text(
        "def transform(event):\n    raise ValueError(f\"wrong: {event.data['note']}\")\n"
    )
    result = CliRunner().invoke(app, [*command, str(folder)])
    assert "wrong: " in " ".join(result.output.split())
    assert ("ann@shop" in result.output) == (declared == "")


def files_of(folder: Path, events: str, records: Sequence[dict[str, Any]] = ()) -> None:
    """Declare events of files in `in`; records are one file of JSON lines."""
    head = HEAD[: HEAD.index("source:")]
    head += "source: {connector: files, event: ride, options: {path: 'in/*', settle_s: 0}}\n"
    declare(folder, f"events:\n  ride:\n    table: rides\n{events}", head=head)
    (folder / "in").mkdir()
    if records:
        lines = "".join(json.dumps(one) + "\n" for one in records)
        (folder / "in" / "rides.jsonl").write_text(lines)


def written(folder: Path, examples: str = "") -> str:
    (folder / "events.jsonl").write_text(examples)
    said = " ".join(sources("discover", str(folder), "--write").split())
    assert "written to" in said
    return said


def test_declared_personal_values_of_any_type_are_replaced_in_an_example(folder):
    files_of(folder, "    policy: evolve\n    personal: [nachname, gebdatum, foto, seit]\n")
    day, moment = date(1990, 5, 17), datetime(2024, 7, 3, 8, tzinfo=UTC)
    records = [
        {"id": n, "Nachname": "Schmidt", "gebdatum": day, "foto": b"portrait", "seit": moment}
        for n in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(records), folder / "in" / "rides.parquet")
    said = written(folder, '{"event": "other", "data": {"id": 1}}\n')
    assert "an example event of ride was added to events.jsonl" in said
    example = json.loads((folder / "events.jsonl").read_text().splitlines()[1])["data"]
    assert {name: example[name] for name in ("id", "Nachname", "gebdatum")} == {
        "id": 0,
        "Nachname": "xxxxxxx",
        "gebdatum": "1111-11-11",
    }
    assert example["seit"].startswith("1111-11-11T11:11")
    assert set(example["foto"]) <= set("x1+/=")


def test_an_example_is_the_record_as_the_source_gave_it(folder):
    files_of(folder, "", [{"ride_id": n, "price": 2} for n in range(3)])
    (folder / "transformation.py").write_text(
        "def transform(event):\n    event.data['cost'] = event.data.pop('price')\n"
        "    return event\n"
    )
    written(folder)
    example = json.loads((folder / "events.jsonl").read_text())
    assert example["data"] == {"ride_id": 0, "price": 2}


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        ("", "with personal fields replaced no record passes: value_error"),
        ("nonsense\n", "events.jsonl:1: expected a JSON object"),
    ],
)
def test_why_no_example_was_added_is_said_beside_what_was_written(folder, examples, reason):
    files_of(folder, "", [{"id": n, "email": "ann@shop.example"} for n in range(3)])
    (folder / "transformation.py").write_text(
        "def transform(event):\n    if not event.data['email'].endswith('@shop.example'):\n"
        "        raise ValueError(event.data['email'])\n    return event\n"
    )
    before = (folder / "pipeline.yaml").read_text()
    said = written(folder, examples)
    assert "no example event of ride was added to events.jsonl: " in said
    assert reason in said
    assert (folder / "events.jsonl").read_text() == examples
    (folder / "pipeline.yaml").write_text(before)
    inferred = CliRunner().invoke(app, ["mapping", "infer", str(folder), "--write"])
    assert inferred.exit_code == 0, inferred.output
    assert reason in " ".join(inferred.output.split())
    assert load_pipeline(folder).events["ride"].personal == ("email",)


@pytest.mark.parametrize("nested", ["json", "flatten"])
@pytest.mark.parametrize("escaped", [False, True])
def test_a_personal_field_whose_name_has_a_dot_is_masked(folder, nested, escaped):
    records = [{"id": n, "contact.email": "ann@shop.example"} for n in range(3)]
    files_of(folder, f"    nested: {nested}\n", records)
    sources("discover", str(folder), "--write")
    file = folder / "pipeline.yaml"
    assert load_pipeline(folder).events["ride"].personal == ("contact.email",)
    if escaped:
        text = file.read_text().replace("personal: [contact.email]", r"personal: [contact\.email]")
        file.write_text(text)
    assert "contact.email: •••" in sources("test", str(folder))
    parked = masked_words(
        json.dumps(records[0]).encode(),
        "not ann@shop.example",
        load_pipeline(folder).events["ride"].personal,
    )
    assert parked == "not •••"
    (folder / "events.jsonl").write_text(json.dumps({"data": records[0]}) + "\n")
    ran = CliRunner().invoke(app, ["run", str(folder), "--local"])
    assert ran.exit_code == 0, ran.output
    assert "ann@" not in ran.output


@pytest.mark.parametrize("declared", ["", "    personal: []\n"])
def test_until_somebody_says_messages_have_no_value_that_may_be_personal(folder, declared):
    head = HEAD[: HEAD.index("source:")]
    head += (
        "source: {connector: csv, path: o.csv, event: ride, columns: {id: int64, phone: int64}}\n"
    )
    events = f"events:\n  ride:\n    key: [id]\n    table: rides\n{declared}"
    declare(folder, events, head=head)
    (folder / "o.csv").write_text("id,phone\n1,4930\n2,+49-170-555\n3\n")
    said = " ".join(sources("test", str(folder), code=2).split())
    assert "column 'phone': expected int64; found " in said
    assert ("+49-170" in said) == bool(declared), "nobody said that none is personal"
    (folder / "o.csv").write_text("id,phone\n1,4930\n2,4931\n")
    (folder / "transformation.py").write_text(
        "def transform(event):\n    if event.data['phone'] == 4931:\n"
        "        raise ValueError(f\"no phone: {event.data['phone']}\")\n    return event\n"
    )
    for command in (("sources", "discover"), ("mapping", "infer")):
        result = CliRunner().invoke(app, [*command, str(folder)])
        assert result.exit_code == 0, result.output
        assert "no phone: " in " ".join(result.output.split())
        assert ("no phone: 4931" in " ".join(result.output.split())) == bool(declared)


def test_what_a_personal_column_is_read_from_is_masked_in_a_record(folder):
    columns = "    columns: {id: int64, surname: {type: string, from: Nachname}}\n"
    files_of(
        folder,
        f"    personal: [surname]\n{columns}",
        [{"id": n, "Nachname": "Schmidt"} for n in "abc"],
    )
    assert "Nachname: •••" in sources("test", str(folder))
    (folder / "events.jsonl").write_text("")
    written(folder)
    assert "Schmidt" not in (folder / "events.jsonl").read_text()


@pytest.mark.parametrize("personal", ["Nachname", "5"])
def test_personal_fields_that_are_no_list_are_refused_before_a_value_is_shown(folder, personal):
    files_of(
        folder, f"    personal: {personal}\n", [{"id": n, "Nachname": "Schmidt"} for n in "ab"]
    )
    for command in ("discover", "test"):
        said = " ".join(sources(command, str(folder), code=1).split())
        assert "events.ride.personal: expected a list" in said


def test_a_great_number_of_names_is_counted_not_listed(folder):
    files_of(
        folder,
        "    key: [id]\n",
        [{"id": n} | {f"email_{n}_{m}": "a@b.c" for m in range(100)} for n in range(40)],
    )
    said = " ".join(sources("test", str(folder), "--rows", "1").split())
    assert "email_0_99 and 3,900 more of ride: masked for the name" in said
    assert "email_2_" not in said


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


@pytest.mark.parametrize("levels", [300, 900])
def test_a_record_that_is_nested_deeply_is_shown_shortened(folder, levels):
    head = HEAD[: HEAD.index("source:")]
    options = "options: {path: '*.jsonl', settle_s: 0}"
    head += f"source: {{connector: files, event: order, {options}}}\n"
    events = "events:\n  order: {key: [id], table: orders, personal: [a.mail]}\n"
    declare(folder, events, head=head)
    deep = nested(levels)
    (folder / "o.jsonl").write_text(f'{{"id": 1, "a": {deep}, "deep": {deep}}}\n{{"id": 2}}\n')
    said = sources("test", str(folder), code=2)
    assert "a first page of 2 rows" in said
    assert "1 row of order would park at ingestion" in " ".join(said.split())
    assert "id: 2" in said
    found = json.loads(sources("test", str(folder), "--json", code=2))
    assert found["rows"] == {"order": 2}
    assert json.dumps(found["shown"][-1]["row"]) == '{"id": 2}'
    if len(found["shown"]) == 2:
        assert "1" not in json.dumps(found["shown"][0]["row"]["a"])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({1, 2}, "[1,2]"),
        (timedelta(days=1), '"1 day, 0:00:00"'),
        ({1: {"a": timedelta(1)}}, '{"1":{"a":"1 day, 0:00:00"}}'),
        ({None: {2}}, '{"None":[2]}'),
        (10**5000, '"an integer of 16,610 bits"'),
        (json.loads(nested(300)), '[[[[[[[["…"]]]]]]]]'),
        ([datetime(2024, 1, 2, tzinfo=UTC)], '["2024-01-02T00:00:00Z"]'),
    ],
    ids=["set", "timedelta", "number as name", "null as name", "integer", "deep", "time"],
)  # fmt: skip
def test_values_that_json_does_not_take_are_shown_and_printed(value, shown, capsys):
    assert shown_value(value) == shown
    print_json({"value": value})
    assert set(json.loads(capsys.readouterr().out)) == {"value"}


def test_no_version_is_proposed_where_the_source_has_its_own(folder):
    declare(folder, "events:\n  orders: {table: orders}\n")
    own = Discovered("orders", "orders", key=("id",), versions_itself=True)
    other = Discovered("lines", "lines", key=("id",))
    missing = load_draft(folder, [own, other]).missing
    assert ("version" in missing["orders"], "version" in missing["lines"]) == (False, True)
    declare(folder)
    assert "version" not in load_draft(folder, [own]).missing["orders"]


LOANS = """
create table loans (
  loan_id integer primary key, member text not null, note text, due date, fine decimal(10,2),
  rate real, is_late boolean not null, came varchar(20), updated_at timestamp not null
)
"""


@pytest.fixture
def loans(tmp_path, monkeypatch) -> Path:
    """A pipeline of an SQLite table, as `waybill new` writes it, and its file filled in."""
    monkeypatch.setenv("COLUMNS", "80")
    root = tmp_path / "pipelines"
    root.mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(root))
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    with sqlite3.connect(tmp_path / "library.db") as database:
        database.execute(LOANS)
        database.executemany(
            "insert into loans values (?, ?, ?, '2026-02-03', ?, ?, ?, null, ?)",
            [
                (
                    n,
                    "Mia",
                    None if n % 2 else "late",
                    n * 1.25,
                    n / 3,
                    n % 2,
                    f"2026-01-01 10:00:{n}",
                )
                for n in range(10, 40)
            ],
        )
    assert CliRunner().invoke(app, ["new", "loans", "--connector", "sql"]).exit_code == 0
    file = root / "loans" / "pipeline.yaml"
    lines = [line for line in file.read_text().splitlines() if "connection: loans_db" not in line]
    at = next(n for n, line in enumerate(lines) if "# file:" in line)
    lines[at] = f"    file: {tmp_path / 'library.db'}"
    file.write_text("\n".join(lines) + "\n")
    return root / "loans"


def test_a_table_of_sqlite_is_a_pipeline_without_a_line_of_its_events_by_hand(loans, monkeypatch):
    said = " ".join(sources("discover", "loans", code=1).split())
    opened = json.dumps([str(loans.parents[1])])
    assert f"WAYBILL_SOURCES__ROOTS='{opened}'" in said
    assert "source.options.file" in said
    assert "source.path" not in said
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", opened)
    assert "is_late: true" in sources("test", "loans")
    said = " ".join(sources("discover", "loans", "--write").split())
    assert "key loan_id: as the source has it" in said
    assert "with `cursor: updated_at` in source.options" in said
    event = load_pipeline(loans).events["record"]
    assert (event.key, event.version, event.table.name) == (("loan_id",), "updated_at", "loans")
    columns = {one.name: (one.type, one.nullable) for one in event.table.columns}
    assert columns == {
        "loan_id": ("int64", False),
        "member": ("string", False),
        "note": ("string", True),
        "due": ("date", True),
        "fine": ("decimal(10,2)", True),
        "rate": ("float64", True),
        "is_late": ("bool", False),
        "came": ("string", True),
        "updated_at": ("timestamp", False),
    }
    for command in (["pipelines", "check", "loans"], ["test", "loans"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["run", "loans", "--local"])
    assert result.exit_code == 0, result.output
    assert "is_late: false" in " ".join(result.output.split())


def test_discovery_and_the_first_page_know_the_key_that_the_event_declares(loans, monkeypatch):
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", json.dumps([str(loans.parents[1])]))
    with sqlite3.connect(loans.parents[1] / "library.db") as database:
        database.execute("create view late as select * from loans where is_late")
    file = loans / "pipeline.yaml"
    file.write_text(file.read_text().replace("    table: loans # or a view", "    table: late"))
    said = " ".join(sources("discover", "loans", code=1).split())
    assert "table 'late' has no primary key: expected the columns that name a row" in said
    file.write_text(
        file.read_text().replace("    table: loans\n", "    table: loans\n    key: [loan_id]\n")
    )
    assert "15 rows" in sources("test", "loans")
    sources("discover", "loans", "--write")
    assert load_pipeline(loans).events["record"].key == ("loan_id",)


def test_what_a_schema_says_holds_only_where_the_values_agree(loans, monkeypatch):
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", json.dumps([str(loans.parents[1])]))
    with sqlite3.connect(loans.parents[1] / "library.db") as database:
        database.execute(
            "update loans set fine = 1.125, due = 'soon', is_late = 7 where loan_id = 12"
        )
        database.execute("update loans set due = 'soon', is_late = 7 where loan_id % 2 = 0")
    (loans / "transformation.py").write_text(
        "def transform(event):\n    event.data['came'] = 1\n    del event.data['member']\n"
        "    return event\n"
    )
    sources("discover", "loans", "--write")
    columns = {one.name: one.type for one in load_pipeline(loans).events["record"].table.columns}
    assert "member" not in columns
    assert (columns["fine"], columns["due"], columns["came"]) == (
        "decimal(18,4)",
        "string",
        "int64",
    )
    assert columns["is_late"] == "json"


def test_a_cursor_is_proposed_as_the_version_if_it_may_be_one(loans, monkeypatch):
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", json.dumps([str(loans.parents[1])]))
    file = loans / "pipeline.yaml"
    text = file.read_text()
    for cursor, version in (
        ("member", "updated_at"),
        ("fine", "updated_at"),
        ("updated_at", "updated_at"),
    ):
        file.write_text(text.replace("    # cursor: updated_at", f"    cursor: {cursor}"))
        [proposal] = json.loads(sources("discover", "loans", "--json"))["proposals"]
        assert proposal["declaration"]["version"] == version


def opened(loans, monkeypatch) -> sqlite3.Connection:
    monkeypatch.setenv("WAYBILL_SOURCES__ROOTS", json.dumps([str(loans.parents[1])]))
    return sqlite3.connect(loans.parents[1] / "library.db")


def test_columns_that_the_source_has_by_now_are_proposed_and_written_behind_the_others(
    loans, monkeypatch
):
    with opened(loans, monkeypatch) as database:
        sources("discover", "loans", "--write")
        assert "every event is declared" in " ".join(sources("discover", "loans").split())
        database.execute("alter table loans add column back timestamp")
        database.execute("alter table loans add column branch varchar(20)")
        database.execute("update loans set branch = 'North'")
        database.execute("update loans set back = '2026-05-06 07:08:09' where loan_id = 11")
    before = (loans / "pipeline.yaml").read_text()
    said = " ".join(sources("discover", "loans").split())
    assert "not declared: back, branch; a field without a column parks its event" in said
    assert "in record, behind its other columns: back: timestamp branch: string" in said
    [proposal] = json.loads(sources("discover", "loans", "--json"))["proposals"]
    assert (proposal["added"], proposal["yaml"]) == (
        ["back", "branch"],
        "back: timestamp\nbranch: string",
    )
    assert (loans / "pipeline.yaml").read_text() == before
    sources("discover", "loans", "--write")
    after = (loans / "pipeline.yaml").read_text().splitlines()
    assert [line for line in after if line not in before.splitlines()] == [
        "      back: timestamp",
        "      branch: string",
    ]
    event = load_pipeline(loans).events["record"]
    assert [one.name for one in event.table.columns[-3:]] == ["updated_at", "back", "branch"]
    assert "every event is declared" in " ".join(sources("discover", "loans").split())


def test_a_discovery_that_finds_nothing_says_how_many_records_it_read(loans, monkeypatch):
    with opened(loans, monkeypatch) as database:
        sources("discover", "loans", "--write")
        [number] = database.execute("select count(*) from loans").fetchone()
    said = " ".join(sources("discover", "loans", "--sample", str(number - 1)).split())
    assert f"that its first records have ({number - 1} records of record). A field that" in said
    assert "parked as unknown_column, is found with --sample 100000" in said
    said = " ".join(sources("discover", "loans").split())
    assert f"that its first records have ({number} records of record); what is taken out" in said


BRACES = """\
events:
  order:
    key: [id]
    table: orders
    columns: {id: int64}   # ours
"""


def test_new_columns_go_into_the_braces_that_the_others_are_in(folder):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    (folder / "o.csv").write_text("id,price,email\n1,1.25,a@b\n2,2.25,c@d\n")
    before = declare(folder, BRACES, head)
    said = " ".join(sources("discover", str(folder), "--write").split())
    assert "personal by name, and not declared so: email" in said
    new = '{id: int64, price: "decimal(18,2)", email: string}   # ours'
    assert (folder / "pipeline.yaml").read_text() == before.replace("{id: int64}   # ours", new)
    assert "price" in load_pipeline(folder).events["order"].table.arrow_schema().names


def test_columns_that_two_events_share_are_left_to_the_user(folder):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    (folder / "o.csv").write_text("id,price\n1,1.25\n2,2.25\n")
    shared = BRACES.replace("columns: {", "columns: &same {")
    before = declare(
        folder, f"{shared}  other: {{key: [id], table: others, columns: *same}}\n", head
    )
    said = " ".join(sources("discover", str(folder), "--write", code=1).split())
    assert "'order' is written in a way that --write cannot add to; paste what is printed" in said
    assert (folder / "pipeline.yaml").read_text() == before


def test_new_columns_go_behind_the_others_of_a_map_with_an_anchor(folder):
    (folder / "o.csv").write_text("id,price\n1,1.25\n2,2.25\n")
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    shared = (
        "events:\n  order:\n    key: [id]\n    table: orders\n    columns: &same\n      id: int64\n"
    )
    before = declare(folder, shared, head)
    said = " ".join(sources("discover", str(folder), "--write").split())
    assert "price" in said
    assert '      price: "decimal(18,2)"\n' in (folder / "pipeline.yaml").read_text() or (
        "      price: decimal(18,2)\n" in (folder / "pipeline.yaml").read_text()
    ), "behind a column, not behind the anchor"
    assert before != (folder / "pipeline.yaml").read_text()


def test_a_column_that_two_events_lack_in_one_map_is_not_written_twice(folder):
    """Of two columns of one name the file does not load; nothing of it is replaced then."""
    events = BRACES.replace("columns: {", "columns: &same {")
    events += "  other: {key: [id], table: others, columns: *same}\n"
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    before = declare(folder, events, head)
    proposals = []
    for name, declared in load_pipeline(folder).events.items():
        columns = (*declared.table.columns, Column(name="note", type="string"))
        table = declared.table.model_copy(update={"columns": columns})
        wanted = declared.model_copy(update={"table": table})
        proposals.append(Proposal(name, wanted, 1, frozenset(), {}, declared, added=("note",)))
    with pytest.raises(InputError, match="a way that --write cannot add to"):
        write(folder, proposals)
    assert (folder / "pipeline.yaml").read_text() == before


def test_where_a_policy_takes_other_fields_none_is_proposed(folder):
    head = HEAD[: HEAD.index("source:")] + "source: {connector: csv, path: o.csv, event: order}\n"
    (folder / "o.csv").write_text("id,price\n1,1.25\n2,2.25\n")
    for policy in ("ignore", "evolve"):
        declare(folder, BRACES.replace("    table:", f"    policy: {policy}\n    table:"), head)
        assert json.loads(sources("discover", str(folder), "--json"))["proposals"] == []


def test_values_that_a_tables_type_does_not_take_are_counted(loans, monkeypatch):
    with opened(loans, monkeypatch) as database:
        database.execute("update loans set fine = 'n/a', due = '0000-00-00' where loan_id = 12")
    said = " ".join(sources("discover", "loans").split())
    assert (
        "due: 29 times, 1 other value (as '0000-00-00'): date is proposed, and would park 1" in said
    )
    assert "fine: 29 numbers, 1 other value (as 'n/a'): decimal(10,2) is proposed" in said
    with opened(loans, monkeypatch) as database:
        database.execute("update loans set due = '0000-00-00' where loan_id < 15")
    said = " ".join(sources("discover", "loans").split())
    assert (
        "due: 25 times, 5 other values (as '0000-00-00'): string, which takes all of them" in said
    )


def test_columns_are_in_the_tables_order_whatever_is_null_in_its_first_row(loans, monkeypatch):
    with opened(loans, monkeypatch) as database:
        database.execute("update loans set note = null, due = null where loan_id < 12")
    sources("discover", "loans", "--write")
    columns = load_pipeline(loans).events["record"].table.columns
    table = "loan_id member note due fine rate is_late came updated_at"
    assert [one.name for one in columns] == table.split()


UNSEEN = "deleted rows are not seen without `deletes: compare` in source.options"


def test_what_becomes_of_deleted_rows_is_said_before_anything_runs(loans, monkeypatch):
    made = CliRunner().invoke(app, ["new", "books", "--connector", "sql"])
    assert UNSEEN in " ".join(made.output.split())
    opened(loans, monkeypatch).close()
    for command in ("discover", "test"):
        assert UNSEEN in " ".join(sources(command, "loans").split())
    compares(loans)
    sources("discover", "loans", "--write")
    for command in ("discover", "test"):
        said = " ".join(sources(command, "loans").split())
        assert UNSEEN not in said
        assert "seen by comparing all keys, each 86400 s" in said
        assert "the transformation gets the key alone" in said


def compares(loans: Path) -> None:
    file = loans / "pipeline.yaml"
    declared = "    cursor: updated_at\n    deletes: compare\n    # cursor: updated_at"
    file.write_text(file.read_text().replace("    # cursor: updated_at", declared))


CODE = "def transform(event):\n    event.data['fine'] = event.data['fine']\n    return event\n"


def test_a_delete_with_its_key_alone_is_tried_before_one_comes(loans, monkeypatch):
    opened(loans, monkeypatch).close()
    compares(loans)
    sources("discover", "loans", "--write")
    what = "a delete of record with its key alone (loan_id)"
    passed = CliRunner().invoke(app, ["test", "loans"])
    assert f"{what}: ok, loans 1 row deleted" in " ".join(passed.output.split())
    assert passed.exit_code == 0, "what `waybill new` writes takes deletes"
    (loans / "transformation.py").write_text(CODE)
    (loans / "test_loans.py").unlink()
    failed = CliRunner().invoke(app, ["test", "loans"])
    said = " ".join(failed.output.split())
    assert failed.exit_code == 2
    assert f"{what}: not as expected, parks as transformation/field_missing" in said
    assert 'begin the transformation with `if event.op == "delete": return event`' in said
    [report] = json.loads(CliRunner().invoke(app, ["test", "loans", "--json"]).stdout)["pipelines"]
    assert [one["ok"] for one in report["deletes"]] == [False]
    with (loans / "events.jsonl").open("a") as file:
        file.write('{"op": "delete", "data": {"loan_id": 11}, "parked": "field_missing"}\n')
    told = CliRunner().invoke(app, ["test", "loans"])
    assert (told.exit_code, what in told.output) == (0, False), "an example says what it expects"


@pytest.mark.parametrize(
    ("read", "pages", "total", "said"),
    [
        (1, 1, None, ["1 row read,", "1 page,", "1 row by all runs"]),
        (2_000, 2, 3_000, ["2,000 rows read,", "2 pages,", "2,000 of 3,000 rows by all runs"]),
        (1, 1, 1, ["1 of 1 row by all runs"]),
    ],
)
def test_the_status_of_a_source_counts_one_as_one(
    read: int, pages: int, total: int | None, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: dict[str, Any] = {name: None for name in SourceLine.__slots__}
    nothing |= dict.fromkeys(("node", "error", "stop_asked_by", "waits_for"), "")
    figures = RunFigures(read=read, settled=read, pages=pages, total=total)
    line = SourceLine(
        **nothing
        | {"pipeline": "loans", "connector": "sql", "team": "library", "state": "succeeded"}
        | {"pipeline_id": "l", "schedule": "", "rows_read": read, "figures": figures}
    )
    monkeypatch.setattr("waybill.services.source_status", lambda *_: [line])
    shown = " ".join(sources("status", "loans").split())
    assert [words for words in said if words not in shown] == []
