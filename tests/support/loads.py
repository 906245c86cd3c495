"""Commits that wait to be loaded, and a destination behind a gate, on the real servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import text
from tests.support.books import batch, nothing_parked
from tests.support.gate import Gate, opened_gate
from tests.unit.destinations.orders import EVENT, PIPELINE, SPEC, Order, rows_of

from waybill.destinations import Destination, open_destination
from waybill.errors import RetryError
from waybill.ledger import acquire_lease, commit_batch, load_position, staged_after
from waybill.ledger.commit import StagedObject
from waybill.loading.backoff import Patience
from waybill.loading.loader import Loader
from waybill.pipelines import TableSpec
from waybill.processing import StagedPacker
from waybill.processing.staged import StagedHead
from waybill.settings import DestinationSettings, S3Settings, TrackerSettings
from waybill.storage import ObjectStore, TrackerStore


@dataclass
class Waits:
    """A clock that only waiting moves on; tells after each wait what the time is.

    ``then``: what happens when a time is reached, in order.
    """

    now_s: float = 0.0
    stopped: bool = False
    waits: list[float] = field(default_factory=list)
    then: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    longest_s: float = 2_000.0

    def clock(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        if seconds:
            self.waits.append(seconds)
        self.now_s += seconds
        assert self.now_s < self.longest_s, "it waits for ever"
        while self.then and self.then[0][0] <= self.now_s:
            self.then.pop(0)[1]()
        return self.stopped


class AnswerLost:
    """A destination that does its first load, and is not heard of it; then it is away."""

    def __init__(self, loads: Loads) -> None:
        self._loads, self._real = loads, loads.open()

    per_table = False

    def held(self, *given: Any) -> Any:
        return self._real.held(*given)

    def load(self, *given: Any, **named: Any) -> Any:
        self._real.load(*given, **named)
        self._loads.gate.shut()
        raise RetryError("the connection broke")

    def check(self) -> None:
        self._real.check()

    def close(self) -> None:
        self._real.close()


class Loads:
    """A tracker, a bucket, and the destination ``name`` behind a gate."""

    def __init__(self, postgres: Any, s3: Any, gate: Gate, dsn: str, name: str) -> None:
        self.tracker_settings = TrackerSettings(dsn=postgres.tracker())
        self.tracker = TrackerStore(self.tracker_settings)
        self.tracker.migrate()
        self.s3: S3Settings = s3.bucket("loads")
        self.objects = ObjectStore(self.s3)
        self.objects.ensure_bucket()
        self.gate, self.name, self.dsn = gate, name, dsn
        behind = make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=gate.port)
        self.settings = DestinationSettings(dsn=behind)
        self.time = Waits()
        self.opened: list[Destination] = []
        self._offset = 0
        self._epoch = acquire_lease(self.tracker, "processing/events.t.w", holder="test")

    @property
    def parts(self) -> tuple[TrackerSettings, S3Settings, DestinationSettings, str]:
        """Return what another process needs to deliver the same: see ``of_parts``."""
        return self.tracker_settings, self.s3, self.settings, self.name

    @classmethod
    def of_parts(cls, parts: tuple[TrackerSettings, S3Settings, DestinationSettings, str]) -> Loads:
        """Return one that delivers, and stages nothing."""
        made = cls.__new__(cls)
        made.tracker_settings, made.s3, made.settings, made.name = parts
        made.tracker, made.objects = TrackerStore(made.tracker_settings), ObjectStore(made.s3)
        made.time, made.opened = Waits(), []
        return made

    def stage(self, orders: Sequence[Order], spec: TableSpec = SPEC, **columns: Any) -> int:
        """Commit a batch with these rows; returns its commit number."""
        staged = []
        if orders:
            rows = rows_of(orders, spec, **columns)
            packer = StagedPacker()
            head = StagedHead(PIPELINE, "shop", EVENT, "v1", spec)
            for part in rows.data.to_batches():
                packer.add(head=head, batch=part)
            key = f"staged/{uuid4()}"
            body = packer.finish()
            self.objects.put(key, body)
            staged = [StagedObject(key, len(orders), len(body), row_bytes=packer.row_bytes)]
        start, self._offset = self._offset, self._offset + max(1, len(orders))
        done = batch(self._epoch, (0, start, self._offset), destination=self.name, staged=staged)
        return commit_batch(self.tracker, done, nothing_parked)

    def stage_tables(self, *parts: tuple[TableSpec, Sequence[Order]]) -> int:
        """Commit a batch whose one object has rows of several tables, an event name each."""
        packer, rows = StagedPacker(), 0
        for place, (spec, orders) in enumerate(parts):
            head = StagedHead(PIPELINE, "shop", f"{EVENT}{place or ''}", "v1", spec)
            for part in rows_of(orders, spec).data.to_batches():
                packer.add(head=head, batch=part)
            rows += len(orders)
        key, body = f"staged/{uuid4()}", packer.finish()
        self.objects.put(key, body)
        start, self._offset = self._offset, self._offset + rows
        staged = [StagedObject(key, rows, len(body), row_bytes=packer.row_bytes)]
        done = batch(self._epoch, (0, start, self._offset), destination=self.name, staged=staged)
        return commit_batch(self.tracker, done, nothing_parked)

    def open(self) -> Destination:
        self.opened.append(open_destination(self.name, self.settings))
        return self.opened[-1]

    def open_losing(self) -> Any:
        """Return an opening of the destination whose first load is not heard of."""
        left = [1]

        def opening() -> Any:
            return AnswerLost(self) if left and left.pop() else self.open()

        return opening

    def loader(self, **changes: Any) -> Loader:
        opening = changes.pop("opening", self.open)
        return Loader(self.tracker, self.objects, opening, name=self.name, **changes)

    def patience(self, *, park_after_s: float | None = None, **changes: Any) -> Patience:
        time = self.time
        return Patience(
            self.loader(**changes), park_after_s=park_after_s, wait=time.wait, clock=time.clock
        )

    def deliver(self, patience: Patience, until: int) -> None:
        """Bring all commits up to a number to the destination, or where they go."""
        after = load_position(self.tracker, self.name)
        found = staged_after(self.tracker, self.name, after=after, until=until)
        patience.deliver(found, after=after, until=until)

    @property
    def position(self) -> int:
        return load_position(self.tracker, self.name)

    def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Ask the tracker."""
        with self.tracker.transaction() as connection:
            found = connection.execute(text(statement), values)
            return [tuple(row) for row in found] if found.returns_rows else []

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the destination's database, past the gate."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def ids(self) -> list[int]:
        """Return the ids of the orders in the destination."""
        return [row[0] for row in self.ask("SELECT id FROM shop.orders ORDER BY id")]

    def counts(self) -> dict[str, int]:
        """Return the sums of all that the ledger says of the stage destination."""
        from waybill.ledger import fold

        fold(self.tracker)
        names = ("in_first", "in_replayed", "passed", "superseded", "duplicate", "parked")
        sums = ", ".join(f"coalesce(sum({name}), 0)::int" for name in names)
        [row] = self.sql(f"SELECT {sums} FROM ledger_totals WHERE stage = 'destination'")
        return {name: number for name, number in zip(names, row, strict=True) if number}

    def parked(self) -> dict[str, int]:
        """Return error type to how many events are parked at the destination."""
        return dict(
            self.sql(
                "SELECT error_type, parked::int FROM parked_partitions "
                "WHERE stage = 'destination' AND parked > 0"
            )
        )

    def age_wait(self, seconds: float) -> None:
        """Let the destination be waited for so much longer."""
        self.sql(
            "UPDATE destination_states SET waiting_since = waiting_since - :s * interval '1 s'",
            s=seconds,
        )

    def audited(self) -> list[tuple[str, str]]:
        """Return who did what to destinations."""
        return [
            (row[0], row[1])
            for row in self.sql(
                "SELECT who, action FROM audit_log WHERE target LIKE 'destination %' ORDER BY id"
            )
        ]

    def close(self) -> None:
        for destination in self.opened:
            destination.close()
        self.tracker.close()


@contextlib.contextmanager
def opened_loads(postgres: Any, s3: Any, dsn: str, name: str = "warehouse") -> Iterator[Loads]:
    """Open all of it, with the gate open."""
    found = conninfo_to_dict(dsn)
    with opened_gate(f"{found['host']}/.s.PGSQL.{found.get('port', 5432)}") as gate:
        loads = Loads(postgres, s3, gate, dsn, name)
        try:
            yield loads
        finally:
            loads.close()


def some(first: int, number: int) -> list[Order]:
    """Return new orders with ids from ``first``."""
    return [Order(n, 1, n) for n in range(first, first + number)]
