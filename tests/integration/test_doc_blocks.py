"""Blocks of the docs that ask servers, page by page, on those of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from tests.servers import CHECKOUT
from tests.support import parked_orders
from tests.support.doc_blocks import shell_blocks
from tests.support.doc_shell import DocShell

from waybill import services
from waybill.clusters import ApplicationLease
from waybill.events import Event, encode
from waybill.parking import Packer, ParkedEvent
from waybill.settings import Settings
from waybill.stack import environment
from waybill.storage import open_log, open_tracker

pytestmark = pytest.mark.serves

STACK = shell_blocks("stack")
CANCELLED = {
    "year": 2013, "month": 1, "day": 1, "hour": 16, "minute": 30,
    "time_hour": "2013-01-01T21:00:00Z", "carrier": "EV", "tailnum": "N18120",
    "dep_time": None, "sched_dep_time": 1630, "dep_delay": None,
    "arr_time": None, "sched_arr_time": 1815, "arr_delay": None,
    "origin": "EWR", "dest": "RDU", "air_time": None, "distance": 416,
}  # fmt: skip


@dataclass(frozen=True)
class Checkout:
    """A folder with pipelines, and settings over the servers."""

    folder: Path
    settings: Settings

    def deploy(self, *, times: int = 1) -> None:
        """Deploy flights, each time with another line of code."""
        folder = self.folder / "include" / "pipelines" / "flights"
        code = folder / "transformation.py"
        text = code.read_text("utf-8")
        for number in range(times):
            code.write_text(f"{text}\n# {number} of {times}\n", "utf-8")
            services.run_deploy(self.settings, folder, who="ann")


@pytest.fixture
def checkout(stack_settings: Settings, tmp_path: Path) -> Checkout:
    folder = tmp_path / "waybill"
    for name in ("pipelines", "fixes"):
        shutil.copytree(CHECKOUT / "include" / name, folder / "include" / name)
    nowhere = stack_settings.airflow.model_copy(update={"url": "http://127.0.0.1:1"})
    settings = stack_settings.model_copy(
        update={"pipelines_dir": folder / "include" / "pipelines", "airflow": nowhere}
    )
    services.migrate(settings)
    return Checkout(folder, settings)


def deployed(checkout: Checkout) -> None:
    checkout.deploy()


def at_work(checkout: Checkout) -> None:
    """Applications that the cluster has."""
    checkout.deploy()
    with open_tracker(checkout.settings.tracker) as tracker:
        for kind in ("processing", "loading"):
            ApplicationLease.acquire(tracker, kind, "default").renew(at_work=True)


def with_rows(checkout: Checkout) -> None:
    """A table of flights with a row, as loads make it."""
    dsn = checkout.settings.destinations["warehouse"].dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE SCHEMA aviation")
        connection.execute(
            "CREATE TABLE aviation.flights AS SELECT 1545 AS flight, 2475 AS distance"
        )


def with_versions_and_parked_flights(checkout: Checkout) -> None:
    """Three versions of flights more."""
    with_parked_flights(checkout)
    checkout.deploy(times=3)


def with_parked_flights(checkout: Checkout) -> None:
    """Three flights that were cancelled, which the code that is deployed cannot bear."""
    checkout.deploy()
    open_log(checkout.settings.kafka).ensure_topic("events.aviation.warehouse")
    packer = Packer()
    for number in range(3):
        packer.add(parked_flight(number))
    parked_orders.park(checkout.settings, packer)


def parked_flight(number: int) -> ParkedEvent:
    flight = CANCELLED | {"flight": 4308 + number}
    event = Event(
        id=f"{number:032x}",
        pipeline_id="nyc-flights",
        team="aviation",
        name="flight",
        key=orjson.dumps([flight["time_hour"], "EV", flight["flight"]]).decode(),
        source_version=0,
        intake_version=number + 1,
        intake_minute=29_000_000,
        time="2026-11-21T00:00:00Z",
        data=flight,
    )
    return ParkedEvent(
        pipeline_id="nyc-flights",
        event_name="flight",
        stage="transformation",
        error_type="null_value",
        message="unsupported operand type(s) for //: 'NoneType' and 'int'",
        where="flights/transformation.py:43 in transform",
        stack_hash="",
        pipeline_version="1",
        event_at="2026-11-21T00:00:00Z",
        parked_at="2026-11-21T00:00:01Z",
        topic="events.aviation.warehouse",
        kafka_partition=0,
        kafka_offset=number,
        attempt=0,
        value=encode(event),
    )


GIVEN: dict[str, Callable[[Checkout], Any]] = {
    "docs/auditor.md": deployed,
    "docs/command-line.md": with_rows,
    "docs/destinations.md": at_work,
    "docs/parked-events.md": with_parked_flights,
    "docs/pipelines.md": with_versions_and_parked_flights,
    "docs/virtual-clusters.md": deployed,
}
"""What a page takes to be there."""


@pytest.mark.parametrize("page", STACK)
def test_blocks_do_what_the_page_shows(page: str, checkout: Checkout, tmp_path: Path) -> None:
    GIVEN.get(page, lambda _: None)(checkout)
    environment.write(checkout.settings)
    home = {"WAYBILL_HOME": str(checkout.settings.home)}
    with DocShell(checkout.folder, tmp_path / "shell", home) as shell:
        for block in STACK[page]:
            shell.run(block)


def test_what_is_given_is_for_pages_that_are_there() -> None:
    assert set(GIVEN) <= set(STACK)
