"""The drivers of ClickHouse and Databricks, as far as Waybill uses them, over a wire."""

from __future__ import annotations

import types
from typing import Any

import pyarrow.parquet as pq
from tests.support.warehouse_drivers import _module, table_of
from tests.support.warehouse_wires import WireError


def clickhouse(wire: Any) -> dict[str, types.ModuleType]:
    """As of clickhouse-connect 1.12.0."""
    module, exceptions = (
        _module("clickhouse_connect"),
        _module("clickhouse_connect.driver.exceptions"),
    )

    class Error(Exception):
        def __init__(self, *args, code=None):
            super().__init__(*args)
            self.code = code

    class OperationalError(Error):
        pass

    exceptions.Error, exceptions.OperationalError = Error, OperationalError

    def sent(action, *arguments):
        try:
            return action(*arguments)
        except WireError as error:
            if error.fields.get("lost"):
                raise OperationalError(error.message) from error
            raise Error(error.message, code=error.fields.get("code")) from error

    class Client:
        def command(self, cmd, *, settings):
            sent(wire.command, cmd, settings)

        def query_arrow(self, query, *, use_strings):
            assert use_strings
            return sent(wire.query, query)

        def insert_arrow(self, table, arrow_table, *, settings):
            sent(wire.insert, table, arrow_table, settings)

        def close(self):
            return None

    def get_client(**arguments):
        module.arguments = arguments
        wire.open()
        return Client()

    module.get_client = get_client
    return {"clickhouse_connect": module, "clickhouse_connect.driver.exceptions": exceptions}


def databricks(wire: Any) -> dict[str, types.ModuleType]:
    """As of databricks-sql-connector 4.9.0."""
    module, exceptions = _module("databricks.sql"), _module("databricks.sql.exc")

    class Error(Exception):
        pass

    class RequestError(Error):
        pass

    exceptions.Error, exceptions.RequestError = Error, RequestError

    class Cursor:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def execute(self, operation, *, input_stream=None):
            try:
                self._answer = self._run(operation, input_stream)
            except WireError as error:
                kind = RequestError if error.fields.get("lost") else Error
                raise kind(error.message) from error
            return self

        def _run(self, operation, input_stream):
            if operation.startswith("PUT"):
                assert operation.startswith("PUT '__input_stream__' INTO ")
                return wire.put(operation.split("'")[3], pq.read_table(input_stream))
            return wire.execute(operation)

        def fetchall_arrow(self):
            return table_of(self._answer)

    class Connection:
        def cursor(self):
            return Cursor()

        def close(self):
            return None

    def connect(**arguments):
        module.arguments = arguments
        wire.open()
        return Connection()

    module.connect = connect
    return {
        "databricks": _module("databricks"),
        "databricks.sql": module,
        "databricks.sql.exc": exceptions,
    }
