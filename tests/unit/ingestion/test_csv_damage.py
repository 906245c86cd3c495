"""Nothing of a damaged file is lost, and nothing damaged touches its neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.ingestion.connectors import open_connector
from waybill.ingestion.connectors.csv_table import _exact, _fast, _without_header, read_table
from waybill.pipelines import Source


def read(content: bytes, **columns: str):
    return read_table(content, columns=columns, nulls=("NA", ""), where="x.csv")


def bad_of(table):
    return [(row.line, row.raw, row.code) for row in table.bad]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"1", "source_row_malformed"),
        (b"1,2,3", "source_row_malformed"),
        (b" ", "source_row_malformed"),
        (b'2,"x', "source_row_malformed"),
        (b'"2,x', "source_row_malformed"),
        (b"2,\xff\xfe", "source_encoding_invalid"),
        (b"\xc3,x", "source_encoding_invalid"),
        (b"two,x", "source_value_invalid"),
        (b"2.5,x", "source_value_invalid"),
        (b"0x1f,x", "source_value_invalid"),
        (b"99999999999999999999,x", "source_value_invalid"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_bad_record_is_kept_by_line_and_bytes_and_its_neighbours_pass(raw, code, place, ending):
    lines = [b"1,a", b'2,"b"']
    lines.insert(place, raw)
    table = read(ending.join([b"id,note", *lines]) + ending, id="int64")
    assert bad_of(table) == [(place + 2, raw, code)]
    assert table.table.to_pylist() == [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]


def test_every_kind_of_damage_at_once(tmp_path):
    content = b'id,at\n3,2024-01-01\n1\nx,2024-01-01\n2,2024-13-01\n4,\xff\n"5\n6,NA\n'
    (tmp_path / "x.csv").write_bytes(content)
    source = Source(
        connector="csv", event="e", path="x.csv", page_rows=1, order_by=("id",),
        null_values=("NA",), columns={"id": "int64", "at": "timestamp"},
    )  # fmt: skip
    connector = open_connector(source, tmp_path)
    first, second = connector.read(None)
    assert first.rows == [{"id": 3, "at": "2024-01-01T00:00:00Z"}]
    assert second.rows == [{"id": 6, "at": None}]
    assert [(row.line, row.raw, row.code) for row in first.bad] == [
        (3, b"1", "source_row_malformed"),
        (4, b"x,2024-01-01", "source_value_invalid"),
        (5, b"2,2024-13-01", "source_value_invalid"),
        (6, b"4,\xff", "source_encoding_invalid"),
        (7, b'"5', "source_row_malformed"),
    ]
    assert second.bad == []
    assert connector.count() == 7
    assert list(connector.read(first.cursor)) == [second]


def test_a_file_of_only_bad_rows_gives_them_once(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\n1\n2\n")
    connector = open_connector(Source(connector="csv", event="e", path="x.csv"), tmp_path)
    (page,) = connector.read(None)
    assert (page.rows, len(page.bad), connector.count()) == ([], 2, 2)
    assert list(connector.read(page.cursor)) == []


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int32", ["1", " 2 ", "-2147483648"], ["2147483648", "1.0", "", "1e3", "0X1"]),
        ("float64", ["1", "-2.5e3", " 7"], ["nan", "inf", "1e999", "1,", "x"]),
        ("decimal(5,2)", ["1.25", "-999.99", "3"], ["1.255", "1000", "x"]),
        ("bool", ["true", "False", "1"], ["yes", "2"]),
        ("date", ["2024-02-29"], ["2023-02-29", "2024-1-1", "x"]),
        ("timestamp", ["2024-01-01", "2024-01-01T10:00", "2024-01-01T10:00:00.123456+05:30"],
         ["2024-01-01T25:00:00Z", "2024-01-01T10:00:00.1234567Z", "10:00"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_its_type_names_column_type_and_value(kind, good, bad):
    texts = [text for pair in zip(good * 9, bad * 9, strict=False) for text in pair]
    content = "v\n" + "\n".join(f'"{text}"' for text in texts)
    table = read_table(content.encode(), columns={"v": kind}, nulls=("NA",), where="x")
    wrong = [text for text in texts if text in bad]
    assert [row.raw.decode() for row in table.bad] == [f'"{text}"' for text in wrong]
    said = table.bad[0].message
    assert said.startswith(f"column 'v': expected {kind}")
    assert said.endswith(f"; found {wrong[0]!r}")
    assert ("microseconds" in said) == (kind == "timestamp")
    assert table.table.num_rows == len(texts) - len(wrong)
    assert table.table["v"].null_count == 0


def test_a_record_with_two_wrong_values_is_one_bad_row():
    table = read(b"a,b\nx,y\n", a="int64", b="int64")
    assert len(table.bad) == 1
    assert table.bad[0].message.count("expected int64") == 2


def test_a_stray_quote_does_not_swallow_what_follows():
    rows = b"".join(b"%d,x\n" % number for number in range(3000))
    table = read(b'a,b\n1,"oops\n' + rows)
    assert bad_of(table) == [(2, b'1,"oops', "source_row_malformed")]
    assert table.table.num_rows == 3000


def test_two_stray_quotes_do_not_swallow_what_is_between():
    table = read(b'a,b\n1,"oops\n2,x\n3,y\n4,"again\n5,z\n')
    assert [row[0] for row in bad_of(table)] == [2, 5]
    assert table.table["a"].to_pylist() == [2, 3, 5]


def test_a_well_formed_field_of_many_lines_is_one_record():
    text = "\n".join(f"line {number}" for number in range(900))
    table = read(f'a,b\n1,"{text}"\n2,x\n'.encode())
    assert table.bad == []
    assert table.table.to_pylist() == [{"a": 1, "b": text}, {"a": 2, "b": "x"}]


def test_lines_count_through_records_of_several_lines():
    table = read(b'a,b\n1,"x\ny"\n\n2\n3,z\n')
    assert bad_of(table) == [(5, b"2", "source_row_malformed")]


def test_a_very_long_record_is_a_record():
    long = "x" * 3_000_000
    table = read(f"a,b\n1,{long}\n2,y\n".encode())
    assert table.bad == []
    assert table.table["b"].to_pylist() == [long, "y"]


PIECES = st.sampled_from([
    "a", "1", '"a"', '"a,b"', '"a""b"', '""', "NA", '"NA"', "", "é", "\x0b", "\x00", "\u2028",
    '"x\ny"', '4"', '"a"b', ' "a"', '"',
])  # fmt: skip
WELL = st.lists(st.lists(PIECES, min_size=2, max_size=2).map(",".join), max_size=6).map("\n".join)
WILD = st.text(alphabet='a",\n\r1 é', max_size=40)


@settings(deadline=None, max_examples=500)
@given(body=WELL | WILD, header=st.sampled_from(["x\n", "x,y\n"]))
def test_the_fast_way_gives_what_the_exact_way_gives_or_gives_way(body, header):
    text = _without_header((header + body).encode(), ("NA", ""), "x.csv")
    fast = _fast(text)
    exact, places, bad = _exact(text)
    assert exact.num_rows == len(places.lines)
    if fast is not None:
        assert bad == []
        assert fast.to_pylist() == exact.to_pylist()


@settings(deadline=None, max_examples=500)
@given(body=st.lists(st.sampled_from([b"1,a", b'2,"', b"\xff,", b'"x"', b"1,2", b'",\n', b'"']),
                     max_size=8).map(b"\n".join))  # fmt: skip
def test_every_byte_of_a_file_is_in_a_row_or_in_a_bad_row(body):
    text = _without_header(b"x,y\n" + body, (), "x.csv")
    _, places, bad = _exact(text)
    kept = sorted(
        [*zip(places.lines, places.raws, strict=True), *((row.line, row.raw) for row in bad)]
    )
    lines = [line for _, raw in kept for line in raw.split(b"\n") if line]
    assert lines == [line for line in body.split(b"\n") if line]
