"""Files: which are read, what a bad one is refused for, and what of a bad line parks."""

from __future__ import annotations

import gzip
import os
import time
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors import file_formats, files, open_connector
from waybill.pipelines import Column, EventDeclaration, Source, TableSpec


def event(*columns: Column, version: str | None = None) -> EventDeclaration:
    own = (Column(name="id", type="int64"), *columns)
    table = TableSpec(schema_name="s", name="t", columns=own, key=("id",))
    return EventDeclaration(name="e", key=("id",), version=version, table=table)


@pytest.fixture
def opened(tmp_path):
    (tmp_path / "in").mkdir(exist_ok=True)

    def make(path="in/*", *, columns=None, page_rows=1000, declared=None, **options):
        source = Source(
            connector="files",
            event="e",
            page_rows=page_rows,
            columns=columns,
            options={"path": path, "settle_s": 0, **options},
        )
        events = {} if declared is None else {"e": declared}
        return open_connector(source, tmp_path, events=events)

    return make


def read(connector, cursor=None):
    pages = list(connector.read(cursor))
    rows = [row for page in pages for row in page.rows]
    bad = [bad for page in pages for bad in page.bad]
    return rows, bad, pages[-1].cursor if pages else cursor


def put(tmp_path, name, content, *, age_s=0.0):
    file = tmp_path / "in" / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    then = time.time() - age_s
    os.utime(file, (then, then))
    return file


def test_one_bad_cell_parks_its_row_alone_and_no_other_value_changes_its_type(opened, tmp_path):
    put(tmp_path, "planes.csv", "id,seats\n1,2\n2,oops\n3,149\n")
    rows, bad, _ = read(opened(columns={"id": "int64", "seats": "int64"}))
    assert rows == [{"id": 1, "seats": 2}, {"id": 3, "seats": 149}]
    [(raw, place, code)] = [(one.raw, one.place, one.code) for one in bad]
    assert raw == b"2,oops"
    assert place.endswith("planes.csv, line 3")
    assert code == "source_value_invalid"


def test_a_type_that_only_the_mapping_knows_is_tried_and_a_text_that_does_not_fit_stays(
    opened, tmp_path
):
    put(tmp_path, "planes.csv", "id,seats,note\n1,2,7\n2,oops,8\n")
    declared = event(Column(name="seats", type="int32"), Column(name="note", type="string"))
    rows, bad, _ = read(opened(declared=declared))
    assert rows == [{"id": 1, "seats": 2, "note": "7"}, {"id": 2, "seats": "oops", "note": "8"}]
    assert bad == []


REFUSED = [
    ("x.csv", "id;n\n1;2\n", {}, "expected column 'id'; found 'id;n'; is the delimiter ';'"),
    ("x.csv", "ident,n\n1,2\n", {}, "expected column 'id'; found 'ident', 'n'"),
    ("x.csv", "", {}, "expected column 'id'; it is empty"),
    ("x.csv", "id,id\n1,2\n", {}, "names a column twice"),
    ("x.csv", "id,n\n".encode("utf-16"), {}, "found UTF-16 or UTF-32.*options.encoding"),
    ("x.csv", "id,n\n" + "1,é\n" * 9, {"write": "latin-1"}, "found 9 of 9 lines"),
    ("x.csv", "1,2,3\n", {"names": ["id", "n"]}, "expected 2 columns; found '1', '2', '3'"),
    ("x.jsonl", "[1]\n[2]\n", {}, "expected an object of JSON on each line; found '.1.'"),
    ("x.jsonl", '{"n": 1}\n', {}, "expected field 'id'; its first record has 'n'"),
    ("x.parquet", b"PAR1nothing", {}, "cannot be read as Parquet"),
    ("x.bin", "id\n", {}, "its name does not say its format"),
    ("x.csv.gz", gzip.compress(b"id\n" * 9999, mtime=0)[:-9], {}, "is damaged"),
]


@pytest.mark.parametrize(("name", "content", "options", "said"), REFUSED)
def test_a_file_that_is_not_what_is_declared_is_refused_before_its_first_row(
    opened, tmp_path, name, content, options, said
):
    encoding = options.pop("write", "utf-8") if "write" in options else "utf-8"
    put(tmp_path, name, content if isinstance(content, bytes) else content.encode(encoding))
    with pytest.raises(InputError, match=said):
        next(opened(declared=event(), **options).read(None))


def test_a_few_lines_that_are_not_utf8_are_bad_by_themselves(opened, tmp_path):
    put(tmp_path, "x.csv", b"id,n\n1,\xe9\n" + "2,é\n".encode() * 9)
    rows, bad, _ = read(opened(declared=event()))
    assert len(rows) == 9
    assert [(one.code, one.line) for one in bad] == [("source_encoding_invalid", 2)]


def test_other_encodings_are_read_as_declared(opened, tmp_path):
    put(tmp_path, "x.csv", "id;n\n1;é\n2;ü\n".encode("utf-16"))
    rows, _, _ = read(opened(encoding="utf-16", delimiter=";"))
    assert rows == [{"id": "1", "n": "é"}, {"id": "2", "n": "ü"}]


@pytest.mark.parametrize("page_rows", [1, 2, 3, 100])
def test_quotes_and_line_ends_in_fields_are_what_they_are_wherever_a_page_ends(
    opened, tmp_path, page_rows
):
    text = 'id,n\r\n1,"a\r\nb"\r\n2,"c,""d"""\r\n3,e"f\r\n3,"x\r\n4,"g\n\nh"\r\n5,i'
    put(tmp_path, "x.csv", text)
    rows, bad, _ = read(opened(page_rows=page_rows))
    assert [row["n"] for row in rows] == ["a\r\nb", 'c,"d"', 'e"f', "g\n\nh", "i"]
    assert [(one.raw, one.line) for one in bad] == [(b'3,"x', 6)]


def test_new_and_changed_files_are_read_and_no_others(opened, tmp_path):
    put(tmp_path, "b.csv", "id\n1\n", age_s=20)
    put(tmp_path, "a.csv", "id\n2\n", age_s=10)
    rows, _, cursor = read(opened())
    assert [row["id"] for row in rows] == ["1", "2"], "the oldest first"
    assert read(opened(), cursor)[0] == []
    put(tmp_path, "c.csv", "id\n3\n", age_s=30)
    put(tmp_path, "a.csv", "id\n2\n4\n")
    rows, _, cursor = read(opened(), cursor)
    assert [row["id"] for row in rows] == ["3", "2", "4"]
    (tmp_path / "in" / "a.csv").unlink()
    assert read(opened(), cursor)[0] == []


def test_the_cursor_does_not_grow_without_end(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_KNOWN", 5)
    cursor = None
    for number in range(12):
        put(tmp_path, f"{number:02}.csv", f"id\n{number}\n", age_s=100 - number)
        rows, _, cursor = read(opened(), cursor)
        assert [row["id"] for row in rows] == [str(number)]
    assert len(cursor["done"]) == 5
    assert read(opened(), cursor)[0] == []


def test_a_file_that_is_being_written_waits(opened, tmp_path):
    put(tmp_path, "x.csv", "id\n1\n", age_s=3600)
    connector = opened(settle_s=60)
    assert read(connector)[0] == [], "its time was set back, but it is of now"
    assert connector.waiting().startswith("1 file waits for the next run: changed less than 60 s")
    assert read(opened(settle_s=0))[0] == [{"id": "1"}]


def test_a_file_that_waits_is_told_beside_those_that_were_read(opened, tmp_path):
    put(tmp_path, "old.csv", "id\n1\n")
    _, _, cursor = read(opened(settle_s=0))
    connector = opened(settle_s=60)
    assert read(connector, cursor)[0] == []
    assert connector.waiting() == "", "it is written anew, but was read as it is"
    put(tmp_path, "new.csv", "id\n2\n")
    read(connector, cursor)
    standing = connector.standing(cursor)
    assert standing.position == connector.waiting() != ""
    assert standing.behind == len("id\n2\n")
    read(opened(), cursor)
    assert opened().standing(cursor).position == "all files are read"


def test_a_file_that_cannot_be_read_says_how_to_leave_it_out(opened, tmp_path):
    put(tmp_path, "x.jsonl", "[]\n")
    with pytest.raises(InputError, match="To leave this file out, move it .* begins with a dot"):
        read(opened())
    (tmp_path / "in" / "x.jsonl").rename(tmp_path / "in" / ".x.jsonl")
    assert read(opened())[0] == []


def test_what_is_not_about_a_files_content_has_no_advice_to_move_it(opened, tmp_path):
    file = put(tmp_path, "x.jsonl", "{}\n")
    connector = opened()
    file.rename(tmp_path / "in" / "x.dat")
    with pytest.raises(InputError, match="declare it in source.options.format$"):
        read(connector)


def test_a_file_from_before_1970_is_read_once(opened, tmp_path):
    file = put(tmp_path, "x.csv", "id\n1\n")
    os.utime(file, (-5, -5))
    rows, _, cursor = read(opened())
    assert rows == [{"id": "1"}]
    assert read(opened(), cursor)[0] == []


def test_a_file_that_changes_between_list_and_open_is_for_the_next_run(opened, tmp_path):
    put(tmp_path, "a.csv", "id\n1\n", age_s=20)
    later = put(tmp_path, "b.csv", "id\n2\n", age_s=10)
    pages = opened().read(None)
    next(pages)
    later.write_text("id\n2\n3\n")
    with pytest.raises(RetryError, match="is being written"):
        next(pages)


def test_hidden_files_folders_and_links_out_are_left_alone(opened, tmp_path):
    secret = tmp_path.parent / f"{tmp_path.name}-secret.csv"
    secret.write_text("id\n666\n")
    put(tmp_path, ".x.csv", "id\n1\n")
    (tmp_path / "in" / "folder.csv").mkdir()
    (tmp_path / "in" / "link.csv").symlink_to(secret)
    assert read(opened())[0] == []
    (tmp_path / "out").symlink_to(tmp_path.parent)
    with pytest.raises(InputError, match="outside of them"):
        opened(f"out/{secret.name}")


def test_a_record_that_is_too_long_parks_and_the_next_is_read(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(file_formats, "_TEXT_BYTES", 1024**2)
    monkeypatch.setattr(file_formats, "_RECORD_BYTES", 2 * 1024**2)
    put(tmp_path, "x.jsonl", b'{"id":1}\n{"id":"' + b"x" * 5 * 1024**2 + b'"}\n{"id":3}\n')
    rows, bad, _ = read(opened())
    assert rows == [{"id": 1}, {"id": 3}]
    [one] = bad
    assert (one.code, one.line, len(one.raw)) == ("payload_too_large", 2, 1024**2)


def test_records_that_are_too_long_and_begin_alike_are_known_apart_by_their_places(
    opened, tmp_path, monkeypatch
):
    monkeypatch.setattr(file_formats, "_TEXT_BYTES", 1024**2)
    monkeypatch.setattr(file_formats, "_RECORD_BYTES", 2 * 1024**2)
    long = b'{"id":"' + b"x" * 5 * 1024**2
    put(tmp_path, "x.jsonl", b'{"id":1}\n' + long + b'1"}\n' + long + b'2"}\n')
    pages = [page for page in opened().read(None) if page.bad]
    assert [page.origin for page in pages] == [None, None]
    first, second = (page.bad[0] for page in pages)
    assert first.raw == second.raw
    assert first.place != second.place


def test_parquets_values_are_as_json_has_them(opened, tmp_path):
    moment = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    table = pa.table(
        {
            "id": [1],
            "price": [Decimal("1.10")],
            "at": [moment],
            "ns": pa.array([1704164645000000007], pa.timestamp("ns")),
            "raw": [b"\x00\xff"],
            "many": [[{"at": moment, "n": Decimal("2.50")}]],
        }
    )
    pq.write_table(table, tmp_path / "in" / "x.parquet")
    [row] = read(opened(declared=event()))[0]
    assert row == {
        "id": 1,
        "price": "1.10",
        "at": "2024-01-02T03:04:05.000006Z",
        "ns": "2024-01-02T03:04:05.000000007Z",
        "raw": "AP8=",
        "many": [{"at": "2024-01-02T03:04:05.000006Z", "n": "2.50"}],
    }


@pytest.mark.parametrize("begun", [0, 1])
def test_files_of_one_time_are_all_read_though_a_run_ends_among_more_than_are_known(
    opened, tmp_path, monkeypatch, begun
):
    monkeypatch.setattr("waybill.ingestion.connectors.files._MOST_KNOWN", 3)
    for number in range(8):
        file = put(tmp_path, f"{number}.csv", f"id\n{number}\n")
        os.utime(file, (1_000_000, 1_000_000))
    pages = opened().read(None)
    rows, cursor = [], None
    for _ in range(5):
        page = next(pages)
        rows, cursor = rows + page.rows, page.cursor
    if begun:  # and others come, of the time before
        file = put(tmp_path, "late.csv", "id\nlate\n")
        os.utime(file, (999_999, 999_999))
    more, _, cursor = read(opened(), cursor)
    found = [row["id"] for row in rows + more]
    assert sorted(found) == sorted([*map(str, range(8)), *["late"] * begun])
    put(tmp_path, "9.csv", "id\n9\n", age_s=0)
    os.utime(tmp_path / "in" / "9.csv", (1_000_000, 1_000_000))
    assert read(opened(), cursor)[0] == [{"id": "9"}]


def test_the_cursor_does_not_pass_an_older_file_that_waits_behind_the_one_that_was_begun(
    opened, tmp_path, monkeypatch
):
    monkeypatch.setattr("waybill.ingestion.connectors.files._MOST_KNOWN", 2)
    for number, age_s in enumerate((400, 300, 200)):
        put(tmp_path, f"{number}.csv", f"id\n{number}\n{number}\n", age_s=age_s)
    pages = opened(page_rows=1).read(None)
    cursor = [next(pages).cursor for _ in range(5)][-1]  # half of the newest
    put(tmp_path, "a.csv", "id\na\n", age_s=450)
    put(tmp_path, "b.csv", "id\nb\n", age_s=250)
    first = next(opened(page_rows=1).read(cursor))
    assert [row["id"] for row in first.rows] == ["2"]
    rest, _, _ = read(opened(), first.cursor)
    assert [row["id"] for row in rest] == ["a", "b"]


def put_parquet(tmp_path, columns, **options):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, tmp_path / "in" / "x.parquet", **options)
    return tmp_path / "in" / "x.parquet"


@pytest.mark.parametrize("page_rows", [1, 70, 100, 1000])
def test_parquet_is_gone_on_with_though_its_pages_are_declared_of_another_size(
    opened, tmp_path, page_rows
):
    put_parquet(tmp_path, {"id": list(range(300))}, row_group_size=120)
    pages = opened(page_rows=50).read(None)
    begun = [row["id"] for page in (next(pages), next(pages), next(pages)) for row in page.rows]
    rows, _, _ = read(opened(page_rows=page_rows), page_cursor(opened, 3))
    assert begun + [row["id"] for row in rows] == list(range(300))


def page_cursor(opened, number):
    pages = opened(page_rows=50).read(None)
    return [next(pages).cursor for _ in range(number)][-1]


YEAR_10000_US = 253_402_300_800_000_000
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(),
    2,
    [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")],
)


@pytest.mark.parametrize(
    ("column", "kept"),
    [
        (pa.array([0, YEAR_10000_US], pa.timestamp("us")), b"253402300800000000"),
        (pa.array([0, YEAR_10000_US], pa.timestamp("us", "UTC")), b"253402300800000000"),
        (pa.array([0, 2**30], pa.int32()).cast(pa.date32()), b"1073741824"),
        (NOT_UTF8, rb"b'\xff'"),
    ],
)
def test_a_value_of_parquet_without_a_form_parks_its_row_alone(opened, tmp_path, column, kept):
    put_parquet(tmp_path, {"id": [1, 2], "v": column})
    rows, [bad], _ = read(opened())
    assert [row["id"] for row in rows] == [1]
    assert kept in bad.raw
    assert (bad.code, bad.line) == ("source_value_invalid", 2)
    assert bad.message.startswith("column 'v'")


def test_parquet_that_names_a_column_twice_is_refused(opened, tmp_path):
    ids = pa.array([1])
    put_parquet(tmp_path, pa.Table.from_arrays([ids, ids], names=["id", "id"]))
    with pytest.raises(InputError, match="names a column twice"):
        read(opened())


def test_a_small_file_of_parquet_makes_no_page_of_gigabytes(opened, tmp_path):
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 10**6]))
    file = put_parquet(tmp_path, {"id": range(3000), "v": text}, store_schema=False)
    assert file.stat().st_size < 10**6
    page = next(opened(page_rows=10_000).read(None))
    assert 1 <= len(page.rows) <= 70
    assert page.rows[0] == {"id": 0, "v": "x" * 10**6}
