"""ClickHouse's own engine within this process, by the package chdb: where recordings come from.

It is not part of the environment: ``pip install chdb`` into another one to make recordings.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa


class ChdbWire:
    """Answers calls of the ClickHouse driver."""

    def __init__(self) -> None:
        from chdb import session

        self._folder = tempfile.TemporaryDirectory()
        self._session = session.Session(self._folder.name)
        self.fault: Any = None
        self.lost = False

    def open(self) -> None:
        self.lost = False

    def command(self, statement: str, settings: dict[str, Any]) -> None:
        self._fail(statement)
        for name, value in {"join_use_nulls": 1, "insert_deduplicate": 1, **settings}.items():
            shown = f"'{value}'" if isinstance(value, str) else value
            self._session.query(f"SET {name} = {shown}")
        self._session.query(statement)
        for name in settings:
            self._session.query(f"SET {name} = DEFAULT")
        self._fail_after(statement)

    def query(self, statement: str) -> pa.Table:
        self._fail(statement)
        answer = self._session.query(
            f"{statement} SETTINGS output_format_arrow_string_as_string = 1", "Arrow"
        )
        return pa.ipc.open_file(pa.py_buffer(answer.bytes())).read_all()

    def insert(self, place: str, rows: pa.Table, settings: dict[str, Any]) -> None:
        self._fail(f"INSERT {place}")
        import pyarrow.parquet as pq

        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            pq.write_table(rows, file.name)
            names = ", ".join(f"`{name}`" for name in rows.column_names)
            token = settings.get("insert_deduplication_token", "")
            if token:
                self._session.query(f"SET insert_deduplication_token = '{token}'")
            self._session.query(
                f"INSERT INTO {place} ({names}) SELECT {names} FROM file('{file.name}', 'Parquet')"
            )
            if token:
                self._session.query("SET insert_deduplication_token = ''")
        self._fail_after(f"INSERT {place}")

    def close(self) -> None:
        self._session.close()
        self._folder.cleanup()

    def _fail(self, statement: str) -> None:
        self._raise(statement, after=False)

    def _fail_after(self, statement: str) -> None:
        self._raise(statement, after=True)

    def _raise(self, statement: str, *, after: bool) -> None:
        from tests.support.warehouse_wires import WireError

        if self.lost:
            raise WireError("the connection is closed", lost=True)
        fault = self.fault
        if fault is not None and fault.at in statement and fault.after is after:
            self.fault = None
            self.lost = True
            raise WireError(fault.message, **fault.fields)
