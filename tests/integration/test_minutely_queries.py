"""What runs each minute reads what is new and what waits, not all that ever was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.books import open_books
from tests.support.minutely import Minutely
from tests.support.plans import explained

from waybill.reconciliation.balance_report import balance
from waybill.settings import KafkaSettings
from waybill.storage import open_log

pytestmark = pytest.mark.serves
COMMITS, WAITING = 200_000, 500
MOST_ROWS = {"batches": 2_500, "ledger": 2_500, "staged_objects": 2_500}
"""Rows of a table that one node of a plan reads; `COMMITS` are in each (a million: `make bench-tracker`)."""
MOST_OF_OTHERS = 100_000
"""Of tables that have a row a minute, a pipeline or a destination."""
MOST_BUFFERS = 25_000


@pytest.fixture(scope="module")
def minutely(_postgres: Any, _kafka: Any, tmp_path_factory: Any) -> Iterator[Minutely]:
    _postgres.ensure()
    _kafka.ensure()
    log = open_log(KafkaSettings(bootstrap_servers=_kafka.bootstrap_servers))
    folder: Path = tmp_path_factory.mktemp("minutely")
    with open_books(_postgres, "minutely") as tracker:
        yield Minutely(tracker, log, folder, commits=COMMITS, waiting=WAITING)


def test_the_books_that_were_filled_balance(minutely: Minutely) -> None:
    found = balance(minutely.tracker, minutely.log)
    assert (found.unaccounted, found.ingested, found.delivered) == (0, COMMITS, COMMITS - WAITING)
    assert found.in_flight == WAITING


@pytest.mark.parametrize(
    "job",
    [
        "audit",
        "watch",
        "coordinate",
        "balance",
        "processing_commit",
        "latest_offset",
        "load_commit",
        "pages",
    ],
)
def test_all_batches_that_ever_were_are_not_read(minutely: Minutely, job: str) -> None:
    with explained(minutely.tracker) as scans:
        minutely.jobs()[job]()
    assert scans
    too_many = [s for s in scans if s.rows > MOST_ROWS.get(s.table, MOST_OF_OTHERS)]
    assert not too_many
    assert not [s for s in scans if s.table in MOST_ROWS and s.node == "Seq Scan"]
    assert sum(s.buffers for s in scans) < MOST_BUFFERS * (1 + len(scans) // 50)
