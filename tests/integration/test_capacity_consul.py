"""Thresholds of a real Consul, followed by blocking queries; ``make consul`` builds it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.support import consul as support
from tests.support.consul import Consul

from waybill.capacity import ConsulThresholds
from waybill.capacity.thresholds import parse
from waybill.errors import AwayError, InputError

pytestmark = pytest.mark.campaign
KEY = "waybill/capacity"
SOON_S = 15.0
"""Far less than the wait of a blocking query, on a machine that is busy with other tests."""
WAIT_S = 60.0


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consul]:
    if reason := support.why_not():
        pytest.skip(reason)
    server = Consul(tmp_path_factory.mktemp("consul"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(_server: Consul) -> Consul:
    put(_server, 4)
    return _server


def put(server: Consul, most: int) -> None:
    text = json.dumps({"ingestion": {"max_nodes": most}})
    assert server.ask("PUT", KEY, text).text.strip() == "true"


def store(server: Consul, token: str | None = None) -> ConsulThresholds:
    return ConsulThresholds(server.url, KEY, server.token if token is None else token)


def most(value: object) -> int:
    return parse(value, "Consul")["ingestion"].max_nodes


def after(watched: ConsulThresholds, change: Callable[[], None]) -> tuple[Future[Any], float]:
    """Change something while a blocking query waits; return its answer, and how long it took."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(watched.read, WAIT_S)
        time.sleep(2)
        assert not asked.done(), "it waits while nothing changes"
        began = time.monotonic()
        change()
        asked.exception(WAIT_S * 2)
        return asked, time.monotonic() - began


def test_a_change_is_seen_by_the_query_that_waits_for_it_one_after_the_other(server):
    watched = store(server)
    assert most(watched.read()) == 4
    for number in (5, 6):
        answer, took_s = after(watched, lambda number=number: put(server, number))
        assert most(answer.result()) == number
        assert took_s < SOON_S


def test_a_query_to_which_nothing_happens_ends_with_the_same_value(server):
    watched = store(server)
    watched.read()
    began = time.monotonic()
    assert most(watched.read(2)) == 4
    assert 1.5 < time.monotonic() - began < 2 + SOON_S


def test_another_key_that_changes_wakes_nobody_with_another_value(server):
    watched = store(server)
    watched.read()
    server.ask("PUT", "waybill/other", "1")
    assert most(watched.read(2)) == 4


def test_a_deleted_key_is_seen_at_once_as_nothing_set_and_a_new_one_after_it_too(server):
    watched = store(server)
    watched.read()
    answer, took_s = after(watched, lambda: server.ask("DELETE", KEY))
    assert (answer.result(), took_s < SOON_S) == ({}, True)
    answer, took_s = after(watched, lambda: put(server, 7))
    assert (most(answer.result()), took_s < SOON_S) == (7, True)


def test_killed_while_a_query_waits_it_is_away_and_started_again_it_is_followed_again(server):
    watched = store(server)
    watched.read()
    answer, took_s = after(watched, server.kill)
    assert isinstance(answer.exception(), AwayError)
    assert took_s < SOON_S
    with pytest.raises(AwayError, match="is not read"):
        watched.read(WAIT_S)
    server.start()
    assert most(watched.read()) == 4, "it had the key on its disk"
    answer, took_s = after(watched, lambda: put(server, 8))
    assert (most(answer.result()), took_s < SOON_S) == (8, True)


@pytest.mark.parametrize("token", ["", "00000000-0000-0000-0000-000000000000"], ids=["no", "other"])
def test_a_token_that_consul_refuses_is_an_error_that_names_the_setting_and_not_the_token(
    server, token
):
    with pytest.raises(InputError, match="WAYBILL_CAPACITY__CONSUL_TOKEN") as caught:
        store(server, token).read()
    assert "403" in str(caught.value)
    assert not token or token not in str(caught.value)


def test_what_is_no_json_is_an_error_and_the_next_good_value_is_taken(server):
    watched = store(server)
    server.ask("PUT", KEY, "{")
    with pytest.raises(InputError, match="no JSON"):
        watched.read()
    put(server, 9)
    assert most(watched.read(WAIT_S)) == 9
