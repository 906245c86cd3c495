"""A session with a SQL warehouse or a cluster: rows go as Parquet into a volume."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waybill.destinations.adapters.databricks.dialect import ERRORS, literal
from waybill.destinations.drivers import Form, WarehouseError, driver
from waybill.destinations.per_table.sql_table import SqlLakeSession
from waybill.errors import InputError
from waybill.settings import DestinationSettings

_FORM = Form(
    shape="databricks://token:dapi…@host/sql/1.0/warehouses/abc?catalog=main"
    "&staging=/Volumes/main/waybill/staging",
    schemes=("databricks",),
    parts=(1, 8),
    options=frozenset({"password"}),
    needs=frozenset({"catalog", "staging"}),
)
PACKAGE = "databricks-sql-connector>=4.1"
_STATEMENT_LIMIT_S = 1_800
_ANSWER_TIMEOUT_S = 1_900


class DatabricksSession(SqlLakeSession):
    """A session with one catalog. Experimental."""

    form = _FORM

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        super().__init__(name, settings)
        self._connection: Any = None
        self._staging = self.address.options["staging"].rstrip("/")
        if not self._staging.startswith("/Volumes/"):
            raise InputError(
                f"destination {name!r}, kind databricks: its staging folder must look like "
                "/Volumes/catalog/schema/volume (docs/destinations.md)"
            )

    def execute(self, statement: str) -> None:
        """Run a statement that has no rows."""
        with self._cursor() as cursor:
            cursor.execute(statement)

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows."""
        with self._cursor() as cursor:
            cursor.execute(statement)
            rows: pa.Table = cursor.fetchall_arrow()
            return rows

    @contextmanager
    def staged(self, rows: pa.Table) -> Iterator[str]:
        """Put rows into the volume; yield what to select them from; then remove them.

        After an error of the warehouse, which closes the connection, they stay.
        """
        path = f"{self._staging}/_waybill_{uuid.uuid4().hex}.parquet"
        sent = io.BytesIO()
        pq.write_table(rows, sent)
        sent.seek(0)
        with self._cursor() as cursor:
            cursor.execute(f"PUT '__input_stream__' INTO {literal(path)}", input_stream=sent)
        try:
            yield f"parquet.`{path}`"
        finally:
            if self._connection is not None:
                self.execute(f"REMOVE {literal(path)}")

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Lend a cursor; raise what the warehouse says as Waybill's errors.

        Raises:
            RetryError, InputError, StopError: as the engine's error says; the connection is closed.
        """
        exceptions = driver("databricks.sql.exc", PACKAGE, "databricks")
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._connection.cursor() as cursor:
                yield cursor
        except exceptions.Error as error:
            failure = warehouse_error(error, away=isinstance(error, exceptions.RequestError))
        except OSError as error:
            failure = WarehouseError(str(error), away=True)
        else:
            return
        self._connection, self.has_books = None, False
        raise ERRORS.sorted(failure, self.name) from failure

    def _connect(self) -> Any:
        options = self.address.options
        return driver("databricks.sql", PACKAGE, "databricks").connect(
            server_hostname=self.address.host,
            http_path="/" + "/".join(self.address.parts),
            access_token=self.address.password or options.get("password"),
            catalog=options["catalog"],
            session_configuration={"timezone": "UTC", "STATEMENT_TIMEOUT": str(_STATEMENT_LIMIT_S)},
            _socket_timeout=_ANSWER_TIMEOUT_S,
        )


def warehouse_error(error: Exception, *, away: bool) -> WarehouseError:
    """Return the driver's error as ours: its class stands in brackets at the words' beginning."""
    message = str(error)
    code = message[1:].partition("]")[0] if message.startswith("[") else ""
    state = message.rpartition("SQLSTATE: ")[2][:5] if "SQLSTATE: " in message else ""
    return WarehouseError(message, code, state, away=away)
