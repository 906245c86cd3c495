"""What ``waybill demo --sources`` sends: the same at each try, in requests that are sent again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from waybill.cli import demo, demo_sources
from waybill.cli.demo_sources import Sender, changes_of, departures, difference, planes
from waybill.errors import InputError, RetryError, StopError
from waybill.ingestion.connectors.connections import Connection
from waybill.pipelines import load_pipeline
from waybill.settings import Settings

EVENTS = [{"id": f"e{n}"} for n in range(501)]


class Collector(ThreadingHTTPServer):
    """Answers with the statuses it is given, then with 202; keeps what was posted."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = list(answers)
        self.seen: list[tuple[str, bytes]] = []


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.headers["Authorization"], body))
        number = body.count(b"\n")
        taken = orjson.dumps({"accepted": number - 1, "duplicates": 1, "rejected": 0}).decode()
        status, text = self.server.answers.pop(0) if self.server.answers else (202, taken)
        self.send_response(status)
        self.send_header("Retry-After", "soon" if status == 500 else "0")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collector(*answers: tuple[int, str]) -> Iterator[tuple[Collector, str]]:
    with Collector(*answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}/v1/departures"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_sources, "_BACK_OFF", demo_sources.BackOff(0.01, 0.01))


def test_a_request_without_an_answer_that_takes_it_is_sent_again_as_it_was() -> None:
    with collector((401, ""), (503, ""), (429, ""), (500, "")) as (server, url):
        with Sender(url, "secret") as sender:
            assert sender.send(EVENTS) == 2
    assert [body.count(b"\n") for _, body in server.seen] == [500] * 5 + [1]
    assert len({body for _, body in server.seen}) == 2
    assert {head for head, _ in server.seen} == {"Bearer secret"}
    lines = b"".join(body for _, body in server.seen[4:]).splitlines()
    assert [orjson.loads(line) for line in lines] == EVENTS


def test_a_token_that_is_not_known_in_time_is_an_error_that_shows_no_token() -> None:
    with collector(*[(401, "no")] * 1000) as (_, url), Sender(url, "hush", limit_s=0.1) as sender:
        with pytest.raises(InputError, match="does not know the demo's token") as caught:
            sender.send(EVENTS)
    assert "hush" not in str(caught.value)


def test_a_collector_that_is_away_or_full_too_long_is_an_error() -> None:
    with collector(*[(503, "full")] * 1000) as (_, url), Sender(url, "t", limit_s=0.1) as sender:
        with pytest.raises(RetryError, match="503 full"):
            sender.send(EVENTS)
    with Sender(url, "t", limit_s=0.1) as sender, pytest.raises(RetryError, match="takes no"):
        sender.send(EVENTS)


@pytest.mark.parametrize(
    "answer",
    [
        (422, "no"),
        (207, "{}"),
        (202, '{"accepted": 1, "duplicates": 0}'),
        (202, "<html>"),
        (202, "[]"),
        (200, '{"accepted": 500, "duplicates": 0}'),
    ],
)
def test_a_refused_event_is_not_sent_again_and_stops_the_demo(answer: tuple[int, str]) -> None:
    with collector(answer) as (server, url), Sender(url, "t") as sender:
        with pytest.raises(StopError):
            sender.send(EVENTS)
    assert len(server.seen) == 1


def test_departures_are_real_flights_that_left_each_with_an_id_of_its_own() -> None:
    events = departures(3_000)
    assert len({event["id"] for event in events}) == 3_000
    assert events[0]["id"] == "2013-01-01T10:00:00Z:UA:1545"
    assert not any("NA" in event.values() for event in events)
    assert departures(3_000) == events
    rows = demo_sources.departure_rows(events)
    assert rows[0][1].isoformat() == "2013-01-01T10:00:00+00:00"
    assert difference(rows, rows[::-1]) == ""


def test_the_rounds_change_each_row_once_at_most() -> None:
    rows = planes()
    rounds = [changes_of(number, rows) for number in range(demo_sources.ROUNDS)]
    first = [row[0] for row in rows[:3_000]]
    inserted = [row[0] for one in rounds for row in one.inserted]
    updated = [key for one in rounds for key in one.updated]
    deleted = [key for one in rounds for key in one.deleted]
    assert (len(inserted), len(updated), len(deleted)) == (320, 1_000, 200)
    assert len({*inserted, *updated, *deleted}) == 1_520
    assert {*updated, *deleted} <= set(first)
    assert not set(inserted) & set(first)


def test_a_difference_says_what_is_missing_too_many_changed_and_twice() -> None:
    expected = [("a", 1), ("b", 2), ("c", 3)]
    assert difference(expected, expected) == ""
    assert difference([], []) == ""
    assert difference(expected, expected[1:]) == "1 missing ('a')"
    assert difference(expected[1:], expected) == "1 too many ('a')"
    assert difference(expected, [("a", 1), ("b", 9), ("c", 3)]) == "1 not as they were sent ('b')"
    assert difference(expected, [*expected, ("a", 1)]) == "1 twice"
    many = [(f"k{n}", n) for n in range(5_000)]
    assert difference(many, []) == "5,000 missing ('k0', 'k1', 'k2')"


def test_the_examples_are_declared_as_the_demo_names_them(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    folder = demo._examples(Settings())
    loaded = {path.name: load_pipeline(path) for path in sorted(folder.iterdir())}
    assert {name: one.id for name, one in loaded.items()} == demo.EXAMPLES
    assert loaded["departures"].source.options["secret"] == f"env:{demo._BEARER}"
    columns = {
        name: [column.name for event in one.events.values() for column in event.table.columns]
        for name, one in loaded.items()
    }
    assert columns == {
        "departures": list(demo_sources.DEPARTURE_COLUMNS),
        "planes": [*demo_sources.PLANE_COLUMNS, "status"],
    }


def test_a_token_is_drawn_once_unless_the_environment_has_one(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    monkeypatch.delenv(demo._BEARER, raising=False)
    monkeypatch.setattr(
        demo, "_fleet_dsn", lambda _: "postgresql://postgres@/demo_fleet?host=/run/pg"
    )
    given = demo._variables_of_sources(Settings())
    assert demo._variables_of_sources(Settings()) == given
    assert len(given[demo._BEARER]) > 40
    assert (tmp_path / "demo.json").stat().st_mode & 0o777 == 0o600
    found = Connection.parse("demo_fleet", given["WAYBILL_SOURCES__CONNECTIONS__DEMO_FLEET"])
    assert (found.kind, found.host, found.pipelines) == ("postgres", "/run/pg", {"planes"})
    connection = given["WAYBILL_SOURCES__CONNECTIONS__DEMO_FLEET"]
    assert connection.endswith("/demo_fleet?host=/run/pg&waybill_pipelines=planes")
    monkeypatch.setenv(demo._BEARER, "of-the-user the-old-one")
    assert demo._variables_of_sources(Settings())[demo._BEARER] == "of-the-user"
