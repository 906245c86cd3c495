from __future__ import annotations

import gzip
import importlib
import json
import zipfile

import pytest

from waybill.errors import InputError
from waybill.ingestion.connectors import open_connector
from waybill.pipelines import CONNECTORS, Column, EventDeclaration, Source, TableSpec

TYPES = {"id": "int64", "at": "timestamp", "day": "date", "price": "decimal(10,2)", "ok": "bool"}
TEXT = """\
id,at,day,price,ok,ratio,note
3,2024-01-02T03:04:05Z,2024-01-02,10.50,true,0.5,"a, b"
1,2024-01-01T00:00:00.25+01:00,NA,7,false,NA,NA
2,2024-01-01 00:00,2024-01-01,NA,NA,2,
"""


@pytest.fixture
def opened(tmp_path):
    def make(content, name="data.csv", **declared):
        if isinstance(content, str):
            content = content.encode()
        (tmp_path / name).write_bytes(content)
        source = {
            "connector": "csv",
            "event": "e",
            "path": name,
            "null_values": ("NA",),
            **declared,
        }
        return open_connector(Source(**source), tmp_path)

    return make


def rows_of(connector, cursor=None):
    return [row for page in connector.read(cursor) for row in page.rows]


@pytest.mark.parametrize("place", CONNECTORS.values())
def test_what_can_be_declared_can_be_opened(place):
    module, _, name = place.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_an_unknown_connector_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected one of csv.*; found 'xls'"):
        open_connector(Source(connector="xls", event="e", path="x"), tmp_path)


def test_rows_hold_plain_values_of_the_declared_types_sorted(opened):
    rows = rows_of(opened(TEXT, columns=TYPES, order_by=("id",)))
    assert rows == [
        {"id": 1, "at": "2023-12-31T23:00:00.250000Z", "day": None, "price": "7.00", "ok": False,
         "ratio": None, "note": None},
        {"id": 2, "at": "2024-01-01T00:00:00Z", "day": "2024-01-01", "price": None, "ok": None,
         "ratio": 2.0, "note": ""},
        {"id": 3, "at": "2024-01-02T03:04:05Z", "day": "2024-01-02", "price": "10.50", "ok": True,
         "ratio": 0.5, "note": "a, b"},
    ]  # fmt: skip
    assert json.loads(json.dumps(rows)) == rows


def test_an_undeclared_column_comes_through(opened):
    rows = rows_of(opened("a,new\n1,x\n", columns={"a": "int64"}))
    assert rows == [{"a": 1, "new": "x"}]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1", "-20", "0"], [1, -20, 0]),
        (["1", "2.5", "1e3"], [1.0, 2.5, 1000.0]),
        (["true", "false", "true"], [True, False, True]),
        (["007", "1", "2"], ["007", "1", "2"]),
        (["0x1f", "1", "2"], ["0x1f", "1", "2"]),
        (["+1", "1", "2"], ["+1", "1", "2"]),
        (["1234567890123456789", "1", "2"], [1234567890123456789.0, 1.0, 2.0]),
        (["nan", "1", "2"], ["nan", "1", "2"]),
        (["1e999", "1", "2"], ["1e999", "1", "2"]),
        (["2024-01-01", "x", "y"], ["2024-01-01", "x", "y"]),
        (["NA", "NA", "NA"], [None, None, None]),
    ],
)
def test_types_are_inferred_only_where_nothing_changes_its_meaning(opened, texts, values):
    rows = rows_of(opened("v\n" + "\n".join(texts)))
    assert [row["v"] for row in rows] == values
    assert [type(row["v"]) for row in rows] == [type(value) for value in values]


def test_equal_rows_keep_the_order_of_the_file_and_nulls_come_last(opened):
    text = "k,n\n" + "".join(f"{k},{n}\n" for n, k in enumerate(["b", "NA", "a"] * 500))
    rows = rows_of(opened(text, order_by=("k",), page_rows=7))
    assert [row["n"] for row in rows] == [
        *range(2, 1500, 3), *range(0, 1500, 3), *range(1, 1500, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("page_rows", [1, 2, 3, 100])
def test_pages_chain_and_any_cursor_gives_the_same_page_again(opened, page_rows):
    connector = opened(TEXT, order_by=("id",), page_rows=page_rows)
    pages = list(connector.read(None))
    assert pages[0].start is None
    assert [page.start for page in pages[1:]] == [page.cursor for page in pages[:-1]]
    for number, page in enumerate(pages):
        stored = json.loads(json.dumps(page.start))
        again = opened(TEXT, order_by=("id",), page_rows=page_rows)
        assert list(again.read(stored)) == pages[number:]
    assert list(connector.read(pages[-1].cursor)) == []


def test_a_changed_file_is_read_from_its_beginning(opened):
    end = list(opened("a\n1\n2\n").read(None))[-1].cursor
    (page,) = opened("a\n1\n2\n3\n").read(end)
    assert [row["a"] for row in page.rows] == [1, 2, 3]
    assert page.start == end
    assert page.cursor["file"] != end["file"]


@pytest.mark.parametrize(
    "changed", [{"order_by": ("a",)}, {"null_values": ("1",)}, {"columns": {"a": "string"}}]
)
def test_a_declaration_that_moves_rows_makes_old_cursors_start_again(opened, changed):
    end = list(opened("a\n1\n2\n").read(None))[-1].cursor
    assert len(rows_of(opened("a\n1\n2\n", **changed), end)) == 2


def test_the_size_of_pages_may_change_between_reads(opened):
    first = next(opened("a\n1\n2\n3\n", page_rows=1).read(None))
    assert rows_of(opened("a\n1\n2\n3\n", page_rows=2), first.cursor) == [{"a": 2}, {"a": 3}]


@pytest.mark.parametrize("row", ["2", -1, None, True, 1.5])
def test_a_cursor_that_is_none_of_ours_is_refused(opened, row):
    connector = opened("a\n1\n")
    cursor = next(connector.read(None)).cursor | {"row": row}
    with pytest.raises(InputError, match="is not one of this connector"):
        list(connector.read(cursor))


def test_a_file_with_only_a_header_has_no_pages(opened):
    connector = opened("a,b\n", columns={"a": "int64"}, order_by=("a",))
    assert list(connector.read(None)) == []
    assert connector.count() == 0


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_any_line_ending_will_do(opened, ending, last):
    text = ending.join(["a,b", "1,x", "", '2,"y"']) + (ending if last else "")
    assert rows_of(opened(text)) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_a_byte_order_mark_is_no_part_of_the_first_name(opened):
    assert rows_of(opened(b"\xef\xbb\xbfa\n1\n")) == [{"a": 1}]


def packed(kind: str, text: bytes, tmp_path) -> bytes:
    if kind == "gz":
        return gzip.compress(text)
    with zipfile.ZipFile(tmp_path / "made", "w") as archive:
        archive.writestr("README.txt", "about")
        archive.writestr("folder/data.CSV", text)
        archive.writestr("__MACOSX/folder/._data.csv", b"x")
    return (tmp_path / "made").read_bytes()


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_packed_files_are_unpacked_whatever_their_name(opened, tmp_path, kind):
    assert rows_of(opened(packed(kind, b"a\n1\n", tmp_path), name="data")) == [{"a": 1}]


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_a_damaged_package_is_an_input_error_at_any_cut(opened, tmp_path, kind):
    whole = packed(kind, b"a\n" + bytes(range(48, 58)) * 20, tmp_path)
    for cut in range(4, len(whole) - 1, 7):
        with pytest.raises(InputError, match=r"cannot be unpacked|no column|header"):
            opened(whole[:cut], columns={"a": "int64"}, order_by=("zz",)).count()


def test_a_zip_must_hold_exactly_one_csv(opened, tmp_path):
    with zipfile.ZipFile(tmp_path / "made", "w") as archive:
        archive.writestr("a.csv", "a")
        archive.writestr("b.csv", "b")
    with pytest.raises(InputError, match=r"one \.csv; found 2 \['a\.csv', 'b\.csv'\]"):
        opened((tmp_path / "made").read_bytes(), name="x.zip").count()


def test_a_file_of_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "unimportable" / "data"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "x.csv").write_text("a\n1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def at(path):
        return open_connector(Source(connector="csv", event="e", path=path), tmp_path)

    assert rows_of(at("package:unimportable/data/x.csv")) == [{"a": 1}]
    with pytest.raises(InputError, match="leaves the package"):
        at("package:unimportable/../x.csv").count()
    with pytest.raises(InputError, match=r"'not_there' is not installed here"):
        at("package:not_there/x.csv").count()
    for name in ("unimportable.data", "__main__", "sys"):
        with pytest.raises(InputError, match="is not installed here"):
            at(f"package:{name}/x.csv").count()


@pytest.mark.parametrize(
    ("content", "declared", "words"),
    [
        ("", {}, "is empty; its first line must name the columns"),
        ("\n\n", {}, "is empty"),
        ("a,b,a\n1,2,3\n", {}, r"names \['a'\] twice"),
        ("a,,c\n1,2,3\n", {}, "has a column without a name"),
        (b"a,\xff\n1,2\n", {}, "the header of .* cannot be read"),
        ('a,"b\n1,2\n', {}, "the header of .* cannot be read"),
        ("a\n".encode("utf-16"), {}, "is UTF-16; save it as UTF-8"),
        ("time,b\n1,2\n", {"order_by": ("tme",)},
         r"no column 'tme' \(is it 'time'\?\); its header has time, b; correct source\.order_by"),
        ("time,b\n1,2\n", {"columns": {"tme": "int64"}}, r"correct source\.columns"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_declared_gets_what_where_and_what_to_do(
    opened, content, declared, words
):
    with pytest.raises(InputError, match=words):
        opened(content, **declared).count()


@pytest.mark.parametrize("path", ["missing.csv", ".", "a\0b"])
def test_a_file_that_is_not_there_is_named(tmp_path, path):
    source = Source(connector="csv", event="e", path=path)
    with pytest.raises(InputError, match="source"):
        open_connector(source, tmp_path).count()


def test_records_are_counted_between_any_two_positions(opened):
    connector = opened("number,amount\n1,2\n3\n4,5\n6,7\n", page_rows=2)
    pages = list(connector.read(None))
    cursors = [page.cursor for page in pages]
    assert [connector.count_between(p.start, p.cursor) for p in pages] == [
        len(p.rows) + len(p.bad) for p in pages
    ]
    assert connector.count_between(None, None) == connector.count() == 4
    assert connector.count_between(cursors[0], None) == 1
    assert connector.count_between(cursors[-1], None) == 0
    assert connector.count_between(None, {"file": "another", "row": 1}) is None
    assert connector.count_between({"file": "another", "row": 1}, cursors[-1]) == 4


PLANES = "id,seats,note\n" + "".join(f"{n},{n * 10},x\n" for n in range(1, 9)) + "9,oops,y\n"


def declared_planes(**types):
    columns = tuple(Column(name=name, type=kind) for name, kind in types.items())
    table = TableSpec(schema_name="s", name="t", columns=columns, key=("id",))
    return {"e": EventDeclaration(name="e", key=("id",), table=table)}


def test_one_bad_cell_of_a_column_that_the_mapping_knows_is_one_bad_row(tmp_path):
    (tmp_path / "x.csv").write_text(PLANES)
    source = Source(connector="csv", event="e", path="x.csv")
    events = declared_planes(id="int64", seats="int32", note="string")
    [page] = open_connector(source, tmp_path, events=events).read(None)
    assert [row["seats"] for row in page.rows] == [n * 10 for n in range(1, 9)]
    [bad] = page.bad
    assert (bad.raw, bad.line, bad.code) == (b"9,oops,y", 10, "source_value_invalid")
    [page] = open_connector(source, tmp_path).read(None)
    assert page.rows[0]["seats"] == "10", "nobody knows that it is a number"


def test_a_column_of_mostly_text_stays_text_whatever_the_mapping_makes_of_it(tmp_path):
    (tmp_path / "x.csv").write_text("id,seats\n1,10 seats\n2,20 seats\n3,30\n")
    source = Source(connector="csv", event="e", path="x.csv")
    events = declared_planes(id="int64", seats="int32")
    [page] = open_connector(source, tmp_path, events=events).read(None)
    assert [row["seats"] for row in page.rows] == ["10 seats", "20 seats", "30"]


def test_a_file_without_the_events_key_fails_before_its_first_row(tmp_path):
    (tmp_path / "x.csv").write_text("ident,seats\n1,10\n")
    source = Source(connector="csv", event="e", path="x.csv")
    connector = open_connector(source, tmp_path, events=declared_planes(id="int64"))
    with pytest.raises(InputError, match="no column 'id'; its header has ident, seats"):
        next(connector.read(None))
