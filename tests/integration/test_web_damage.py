"""What cannot be read of a partition is told beside what can, on every way to its events."""

from __future__ import annotations

import csv
import io
import json

import pytest
import zstandard
from tests.integration.parking_lot import make_event
from tests.support import web_app
from typer.testing import CliRunner

from waybill.cli import app
from waybill.parking import ParkedEvent, reading

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web

GONE = "the object is gone from the store"
CHANGED = "these are not the bytes that were parked"


@pytest.fixture
def hurt(web):
    """Nine events in three objects: of the first two one is gone, one was overwritten; (id, keys)."""
    web.deploy("pl-1", "flights", "aviation")
    keys = [
        web.lot.park([make_event(n) for n in numbers], number)
        for number, numbers in enumerate(([0, 1, 2, 3], [4, 5, 6], [7, 8]), 1)
    ]
    web.lot.objects.delete(keys[:1])
    whole = web.lot.objects.get(keys[1])
    web.lot.objects.delete(keys[1:2])
    web.lot.objects.put(keys[1], b"x" * len(whole))
    return web.lot.only().id, keys


def left_out(keys):
    return [
        {"object_key": keys[0], "events": 4, "reason": GONE},
        {"object_key": keys[1], "events": 3, "reason": CHANGED},
    ]


def test_a_page_gives_what_is_readable_and_tells_the_rest(web, hurt):
    partition_id, keys = hurt
    page = web.get("uma", f"/api/partitions/{partition_id}/events")
    assert [event["payload"]["n"] for event in page["events"]] == [7, 8]
    assert (page["damaged"], page["next"]) == (left_out(keys), None)
    described = web.get("uma", "/api/openapi.json")["components"]["schemas"]
    assert set(described["UnreadableOut"]["properties"]) == {"object_key", "events", "reason"}
    assert "damaged" in described["Events"]["required"]


def test_a_page_ends_after_many_segments_that_cannot_be_read_and_the_next_goes_on(
    web, hurt, monkeypatch
):
    partition_id, keys = hurt
    monkeypatch.setattr(reading, "_MOST_DAMAGED", 1)
    seen, told, after = [], [], {}
    while after is not None:
        page = web.get("uma", f"/api/partitions/{partition_id}/events", params=after)
        assert len(page["damaged"]) <= 1
        seen += [event["payload"]["n"] for event in page["events"]]
        told += page["damaged"]
        after = page["next"] and {"after": page["next"]}
    assert (seen, told) == ([7, 8], left_out(keys))


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "csv"])
def test_a_download_says_at_its_end_what_it_left_out(web, hurt, kind):
    partition_id, keys = hurt
    query = {"kind": kind}
    answer = web.ask("uma", "GET", f"/api/partitions/{partition_id}/download", params=query)
    assert answer.status_code == 200, answer.text
    events, said = parts_of(kind, answer.content)
    assert [json.loads(event)["n"] for event in events] == [7, 8]
    if kind == "csv":
        assert said == [
            f"4 events of {keys[0]} left out: {GONE}",
            f"3 events of {keys[1]} left out: {CHANGED}",
        ]
    else:
        assert said == [{"damaged": left_out(keys)}]


def parts_of(kind, content):
    """Return (the events' bytes, what stands at the end)."""
    if kind == "csv":
        lines = list(csv.reader(io.StringIO(content.decode(), newline="")))
        assert len({len(line) for line in lines}) == 1
        event = lines[0].index("event")
        return [one[event] for one in lines[1:3]], [one[0] for one in lines[3:]]
    if kind == "jsonl.zst":
        content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read()
    lines = content.splitlines()
    return [ParkedEvent.from_line(line).value for line in lines[:2]], [
        json.loads(line) for line in lines[2:]
    ]


def test_a_file_of_what_is_whole_has_nothing_at_its_end(web):
    own, _, _ = web.two_teams()
    answer = web.ask("uma", "GET", f"/api/partitions/{own}/download", params={"kind": "jsonl"})
    assert len([ParkedEvent.from_line(line) for line in answer.content.splitlines()]) == 3
    assert web.get("uma", f"/api/partitions/{own}/events")["damaged"] == []


def test_on_the_command_line_what_is_left_out_is_an_exit_code_and_said(web, hurt, tmp_path):
    _, keys = hurt
    path = tmp_path / "out.jsonl"
    for words in (["download", "-o", str(path), "--json"], ["sample", "-n", "9", "--json"]):
        done = CliRunner().invoke(app, ["parked", *words])
        assert done.exit_code == 2, done.output
        for line in left_out(keys):
            assert f"events of {line['object_key']} left out: {line['reason']}" in done.stderr
        given = json.loads(done.stdout)
        assert len(given) == 2 if "sample" in words else given["damaged"] == left_out(keys)
    assert len(path.read_bytes().splitlines()) == 3


def test_a_dry_run_counts_what_it_cannot_read(web, hurt):
    partition_id, _ = hurt
    for number in (None, 9):
        sample = web.lot.parking.draw(partition_id, n=number)
        assert (len(list(sample.events)), sample.damage.events) == (2, 7)
