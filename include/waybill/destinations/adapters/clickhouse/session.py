"""A session with ClickHouse, over HTTP: rows go and come as Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from waybill.destinations.adapters.clickhouse.dialect import ERRORS, quoted
from waybill.destinations.drivers import Form, WarehouseError, driver
from waybill.destinations.per_table.sql_table import SqlLakeSession
from waybill.settings import DestinationSettings

_FORM = Form(
    shape="clickhouse://user:password@host:8443/?secure=true",
    schemes=("clickhouse",),
    parts=(0, 0),
    options=frozenset({"secure", "password", "user"}),
)
PACKAGE = "clickhouse-connect>=0.8"
_SETTINGS = {
    "max_execution_time": 1_800,
    "insert_deduplicate": 1,
    "async_insert": 0,
    "wait_end_of_query": 1,
    "join_use_nulls": 1,
    "mutations_sync": 1,
    "alter_sync": 1,
}
_CONNECT_TIMEOUT_S = 10
_ANSWER_TIMEOUT_S = 1_900


class ClickHouseSession(SqlLakeSession):
    """A session with one server. Experimental."""

    form = _FORM

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        super().__init__(name, settings)
        self._client: Any = None

    def execute(self, statement: str, settings: Mapping[str, Any] | None = None) -> None:
        """Run a statement that has no rows."""
        self._call("command", statement, settings=dict(settings or {}))

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows; texts are strings."""
        rows: pa.Table = self._call("query_arrow", statement, use_strings=True)
        return rows

    def insert(self, database: str, table: str, rows: pa.Table, token: str = "") -> None:
        """Insert rows, columns by name.

        Args:
            database: of the table.
            table: its name.
            rows: what to insert.
            token: an insert with the same one is not done again; "": it has none.
        """
        settings = {"insert_deduplication_token": token} if token else {}
        place = f"{quoted(database)}.{quoted(table)}"
        self._call("insert_arrow", place, rows, settings=settings)

    def close(self) -> None:
        """Close the client."""
        client, self._client = self._client, None
        self.has_books = False
        if client is not None:
            client.close()

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        exceptions = driver("clickhouse_connect.driver.exceptions", PACKAGE, "clickhouse")
        try:
            if self._client is None:
                self._client = self._connect()
            return getattr(self._client, method)(*arguments, **named)
        except exceptions.Error as error:
            code = getattr(error, "code", None)
            away = isinstance(error, exceptions.OperationalError) and code is None
            failure = WarehouseError(str(error), "" if code is None else str(code), away=away)
        except OSError as error:
            failure = WarehouseError(str(error), away=True)
        self.close()
        raise ERRORS.sorted(failure, self.name) from failure

    def _connect(self) -> Any:
        options = self.address.options
        return driver("clickhouse_connect", PACKAGE, "clickhouse").get_client(
            host=self.address.host,
            port=self.address.port,
            username=self.address.user or options.get("user") or "default",
            password=self.address.password or options.get("password", ""),
            secure=options.get("secure", "").lower() in ("1", "true"),
            settings=_SETTINGS,
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=_ANSWER_TIMEOUT_S,
            client_name=f"waybill loading {self.name}",
        )
