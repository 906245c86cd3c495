import base64
import csv
import io
from dataclasses import replace

import pytest
import zstandard
from tests.unit.parking.test_packed import EVENT

from waybill.errors import InputError
from waybill.parking import ParkedEvent, export

EVENTS = [replace(EVENT, kafka_offset=n, value=b'{"n":%d}' % n) for n in range(2500)]


def lines_of(path):
    body = path.read_bytes()
    if path.name.endswith(".zst"):
        body = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)).read()
    return [ParkedEvent.from_line(line) for line in body.splitlines()]


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.zst"])
def test_a_file_of_lines_holds_every_event(tmp_path, kind):
    path = tmp_path / f"out{kind}"
    report = export(path, iter(EVENTS))
    assert (report.events, report.bytes) == (2500, path.stat().st_size)
    assert lines_of(path) == EVENTS
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
def test_large_events_are_not_collected(kind):
    from waybill.parking.exporting import contents

    given = 0

    def events():
        nonlocal given
        for _ in range(5):
            given += 1
            yield replace(EVENT, value=b'"' + b"x" * 1024**2 + b'"')

    chunks = contents(kind, events())
    next(chunks)
    assert given == 1


@pytest.mark.parametrize("first", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_no_cell_of_a_csv_begins_as_a_formula_does(tmp_path, first):
    path = tmp_path / "out.csv"
    event = replace(
        EVENT, message=first, where=first, event_name=first, event_at=first, value=first.encode()
    )
    export(path, [event, replace(EVENT, kafka_partition=-1, kafka_offset=-1)])
    with path.open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert len(rows) == 3
    assert [c for row in rows for c in row if c[:1] in tuple("=+-@\t\r\n") and c] == []
    found = dict(zip(rows[0], rows[1], strict=True))
    assert found["message"] == found["event"] == "'" + first


def came_back(cell):
    """Return a cell as it was, by the way back that the documentation tells."""
    return cell.removeprefix("'")


@pytest.mark.parametrize(
    "value",
    [
        bytes([first, 0, 0xFF])
        for first in (0xF8, 0xF9, 0xFA, 0xFB, 0xFF)  # "+", and "/"
    ]
    + [b"=1", b"'=1", b"''", b"'", b"\t1", b"\x00", b"'\x00", b"plain", b'{"a":"=1"}', b"", b"\n"],
)
def test_every_cell_is_escaped_alike_and_comes_back(tmp_path, value):
    path = tmp_path / "out.csv"
    said = value.decode("latin-1").replace("\x00", "")
    event = replace(EVENT, value=value, message=said, where=said, topic=said)
    export(path, [event])
    with path.open(newline="", encoding="utf-8") as stream:
        [row] = list(csv.DictReader(stream))
    assert not [name for name, cell in row.items() if cell[:1] in tuple("=+-@\t\r\n") and cell]
    encoded = came_back(row["event_base64"])
    found = (
        base64.b64decode(encoded, validate=True) if encoded else came_back(row["event"]).encode()
    )
    assert found == value
    assert [came_back(row[name]) for name in ("message", "where", "topic")] == [said] * 3


def test_a_csv_holds_bytes_that_are_no_text_in_base64(tmp_path):
    path = tmp_path / "out.csv"
    export(path, [replace(EVENT, value=b"\xff\x00", message="\ud800\x00,\"'\n")])
    with path.open(newline="", encoding="utf-8") as stream:
        [row] = list(csv.DictReader(stream))
    assert base64.b64decode(row["event_base64"]) == b"\xff\x00"
    assert row["event"] == ""


def test_a_failure_half_way_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old")

    def broken():
        yield from EVENTS
        raise RuntimeError("store is away")

    with pytest.raises(RuntimeError):
        export(path, broken(), overwrite=True)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def test_bad_names_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"must end in one of .jsonl.zst, .jsonl, .csv"):
        export(tmp_path / "out.xlsx", [])
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(InputError, match="exists; choose another name"):
        export(tmp_path / "out.csv", [])
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        export(tmp_path / "no" / "out.csv", [])
    assert (tmp_path / "out.csv").read_text() == "mine"
