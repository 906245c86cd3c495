"""A session with Snowflake: rows go as Parquet, by PUT into a temporary stage and COPY INTO.

DDL commits an open transaction there, so that working tables are made before it. Transactions read
what is committed (READ COMMITTED), and a change of a row waits for the lock of another change: the
lock row of the books makes loads come one after the other.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waybill.destinations.adapters.snowflake.dialect import SNOWFLAKE
from waybill.destinations.drivers import Address, Form, WarehouseError, driver
from waybill.destinations.transactional import books
from waybill.destinations.transactional.destination import warehouse_opener
from waybill.destinations.transactional.session import Columns, WarehouseSession
from waybill.destinations.transactional.warehouse import working_table

_FORM = Form(
    shape="snowflake://user:password@account/database?warehouse=…&role=…",
    schemes=("snowflake",),
    parts=(1, 1),
    options=frozenset({"role", "authenticator", "private_key_file", "private_key_password",
                       "token", "password"}),
    needs=frozenset({"user", "warehouse"}),
)  # fmt: skip
PACKAGE = "snowflake-connector-python>=4"
_SETTINGS = {
    "TIMEZONE": "UTC",
    "LOCK_TIMEOUT": 180,
    "STATEMENT_TIMEOUT_IN_SECONDS": 1_800,
    "ABORT_DETACHED_QUERY": True,
    "AUTOCOMMIT": True,
}
_LIMITS = {"login_timeout": 60, "network_timeout": 1_900, "socket_timeout": 120}
"""Seconds: to sign in; for a request with all its repeats; for one answer (the server answers each
45 s, "still running")."""
_CONNECTION_CODES = range(250_000, 260_000)


class SnowflakeSession(WarehouseSession):
    """A session with one database of Snowflake. Experimental."""

    dialect = SNOWFLAKE
    form = _FORM

    def connect(self) -> Any:
        """Open the driver's connection."""
        connector = driver("snowflake.connector", PACKAGE, "snowflake")
        return connector.connect(**_arguments(self.address, self.name))

    def run(self, statement: str) -> tuple[pa.Table | None, int]:
        """Run one statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            if statement.startswith("SELECT"):
                rows = cursor.fetch_arrow_all(
                    force_return_table=True, force_microsecond_precision=True
                )
                return rows, -1
            return None, -1 if cursor.rowcount is None else int(cursor.rowcount)

    def translated(self, error: BaseException) -> WarehouseError | None:
        """Return the connector's error as ours."""
        errors = driver("snowflake.connector.errors", PACKAGE, "snowflake")
        if not isinstance(error, errors.Error):
            return None
        number = error.errno if isinstance(error.errno, int) else -1
        away = number in _CONNECTION_CODES or (
            number < 0 and isinstance(error, (errors.OperationalError, errors.InterfaceError))
        )
        return WarehouseError(
            str(error.msg), f"{number:06d}" if number >= 0 else "", error.sqlstate or "", away=away
        )

    def stage(self, wanted: str, columns: Columns, rows: pa.Table) -> str:
        """Make a temporary table and fill it."""
        self.execute_native(working_table(self, wanted, columns))
        files = self.dialect.working(f"{wanted}_files")
        self.execute_native(
            f"CREATE TEMPORARY STAGE {files} FILE_FORMAT = "
            "(TYPE = PARQUET USE_LOGICAL_TYPE = TRUE BINARY_AS_TEXT = FALSE)"
        )
        sent = io.BytesIO()
        pq.write_table(rows, sent)
        sent.seek(0)
        with self.translating(), self.connection.cursor() as cursor:
            cursor.execute(
                f"PUT 'file://rows.parquet' '@{files}' AUTO_COMPRESS = FALSE OVERWRITE = TRUE",
                file_stream=sent,
            )
        self.execute_native(
            f"COPY INTO {self.dialect.working(wanted)} FROM '@{files}' "
            "MATCH_BY_COLUMN_NAME = CASE_SENSITIVE ON_ERROR = ABORT_STATEMENT"
        )
        self.execute_native(f"DROP STAGE {files}")
        return wanted

    def lock(self) -> None:
        """Change the lock row: waits for the load that did, three minutes at most."""
        books.take_lock_row(self)


def _arguments(address: Address, name: str) -> dict[str, Any]:
    given = {key: value for key, value in address.options.items() if value}
    if address.password:
        given["password"] = address.password
    return given | {
        "account": address.host,
        "user": address.user or given.get("user"),
        "database": address.parts[0],
        "application": "waybill",
        **_LIMITS,
        "session_parameters": _SETTINGS | {"QUERY_TAG": f"waybill loading {name}"},
    }


open_snowflake = warehouse_opener(SnowflakeSession)
