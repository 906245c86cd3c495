"""The two sides of ``make bench-destinations``: Waybill's destination, and the same load by hand.

By hand is what one writes who needs nothing of Waybill's: the rows go into a staging table by the
engine's own bulk path (Delta: straight from Arrow), then one MERGE on the key, no versions, no books, no
outcome of a row, no columns but the 15. Each side has a table and a process of its own.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from tests.benchmarks.destinations_data import base_ids, commit_of, data_of, spec_of

_WORK_MEM = "64MB"
"""Of both sides: Waybill raises PostgreSQL's to this."""


class Side(Protocol):
    """One way to load a table."""

    def load(self, data: pa.Table) -> Callable[[], None]:
        """Return what loads the rows: what it does is measured."""
        ...

    def rows(self) -> int: ...


class Waybill:
    """Our destination."""

    def __init__(self, kind: str, place: str, table: str) -> None:
        from waybill.destinations import open_destination
        from waybill.settings import DestinationSettings

        settings = DestinationSettings.model_validate({"kind": kind, "dsn": place})
        self._destination = open_destination(f"bench-{table}", settings)
        self._spec = spec_of(table)
        self._number = 0
        self._loaded = 0

    def load(self, data: pa.Table) -> Callable[[], None]:
        self._number += 1
        commit = commit_of(self._number, self._spec, data, version=self._number)

        def run() -> None:
            (outcome,) = self._destination.load([commit], _never_park)
            delivered = sum(count.delivered for count in outcome.counts)
            if delivered != data.num_rows:
                raise SystemExit(f"{delivered} of {data.num_rows} rows were delivered")

        return run

    def rows(self) -> int:
        from waybill.destinations import CountLook

        (count,) = self._destination.count_rows([CountLook(self._spec)])
        return count.counted


class BarePostgres:
    """COPY into a temporary table, MERGE."""

    def __init__(self, place: str, table: str) -> None:
        from adbc_driver_postgresql import dbapi

        self._connection = dbapi.connect(place)
        self._table = f"shop.{table}"
        self._run(f"SET work_mem = '{_WORK_MEM}'")
        self._run("CREATE SCHEMA IF NOT EXISTS shop")
        self._run(
            f"CREATE TABLE {self._table} (id bigint PRIMARY KEY, code text, customer text, email text, "
            "note text, quantity integer, points bigint, stock bigint, price numeric(18,2), "
            "tax numeric(12,4), created_at timestamptz, changed_at timestamptz, active boolean, "
            "day date, weight double precision)"
        )
        self._connection.commit()

    def load(self, data: pa.Table) -> Callable[[], None]:
        def run() -> None:
            self._run(f"CREATE TEMPORARY TABLE stage (LIKE {self._table}) ON COMMIT DROP")
            with self._connection.cursor() as cursor:
                cursor.adbc_ingest("stage", data, mode="append", temporary=True)
            self._run(merge_of(self._table, "stage", data.column_names))
            self._connection.commit()

        return run

    def rows(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {self._table}")
            return int(cursor.fetchone()[0])

    def _run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)


class BareDuckdb:
    """INSERT from Arrow into a temporary table, MERGE; the file stays open."""

    def __init__(self, place: str, table: str) -> None:
        import duckdb

        self._connection = duckdb.connect(place)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._table = f"shop.{table}"
        self._connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
        self._connection.register("nothing", data_of(base_ids(0, 0), turn=0, seed=0))
        self._connection.execute(f"CREATE TABLE {self._table} AS SELECT * FROM nothing")

    def load(self, data: pa.Table) -> Callable[[], None]:
        def run() -> None:
            self._connection.register("given", data)
            self._connection.execute("BEGIN")
            self._connection.execute("CREATE TEMPORARY TABLE stage AS SELECT * FROM given")
            self._connection.execute(merge_of(self._table, "stage", data.column_names))
            self._connection.execute("COMMIT")
            self._connection.execute("DROP TABLE stage")
            self._connection.unregister("given")

        return run

    def rows(self) -> int:
        statement = f"SELECT count(*) FROM {self._table}"
        found = self._connection.execute(statement).fetchone()
        return int(found[0]) if found else 0


class BareDelta:
    """delta-rs's merge, straight from Arrow."""

    def __init__(self, place: str, table: str) -> None:
        from deltalake import DeltaTable

        self._folder = str(Path(place) / "bare" / table)
        empty = data_of(base_ids(0, 0), turn=0, seed=0)
        Path(self._folder).mkdir(parents=True)
        DeltaTable.create(self._folder, empty.schema)

    def load(self, data: pa.Table) -> Callable[[], None]:
        from deltalake import DeltaTable

        def run() -> None:
            table = DeltaTable(self._folder)
            merge = table.merge(
                source=data, predicate="t.id = s.id", source_alias="s", target_alias="t"
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

        return run

    def rows(self) -> int:
        from deltalake import DeltaTable

        return int(DeltaTable(self._folder).to_pyarrow_dataset().count_rows())


BARE: dict[str, Callable[[str, str], Side]] = {
    "postgres": BarePostgres,
    "duckdb": BareDuckdb,
    "delta": BareDelta,
}


def merge_of(target: str, stage: str, names: list[str]) -> str:
    """Return the MERGE that one writes by hand."""
    changed = ", ".join(f"{name} = s.{name}" for name in names if name != "id")
    values = ", ".join(f"s.{name}" for name in names)
    return (
        f"MERGE INTO {target} AS t USING {stage} AS s ON t.id = s.id "
        f"WHEN MATCHED THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})"
    )


def serve(there: Connection, kind: str, side: str, place: str, table: str) -> None:
    """Do what the other end asks for, in a process of its own; tell seconds and memory."""
    made: Side = Waybill(kind, place, table) if side == "waybill" else BARE[kind](place, table)
    while True:
        try:
            order: dict[str, Any] = there.recv()
        except EOFError:  # the benchmark has ended
            return
        if order["what"] == "rows":
            there.send({"rows": made.rows()})
        else:
            there.send(_timed(made, order["file"]))


def _timed(side: Side, file: str) -> dict[str, float]:
    """Load the rows of a file, compressed as staged objects are; reading them is not counted."""
    run = side.load(pa.ipc.open_file(file).read_all())
    began, cpu = time.monotonic(), time.process_time()
    run()
    return {
        "s": time.monotonic() - began,
        "cpu_s": time.process_time() - cpu,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _never_park(refused: object) -> None:
    raise SystemExit(f"refused: {refused}")
