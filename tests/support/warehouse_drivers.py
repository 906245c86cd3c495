"""The drivers of warehouses, as far as Waybill uses them, over a wire.

The shapes (names, arguments, what is returned and raised) are those of snowflake-connector-python
5.2.0, google-cloud-bigquery 3.47.0 and redshift-connector 2.2.0.
"""

from __future__ import annotations

import io
import types
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.warehouse_wires import WireError


def table_of(answer: Any) -> pa.Table:
    if not answer.rows:
        return pa.table({name: pa.nulls(0) for name in answer.names})
    return pa.Table.from_pylist(answer.rows)


def snowflake(wire: Any) -> dict[str, types.ModuleType]:
    """Return modules to put into ``sys.modules``."""
    connector, errors = _module("snowflake.connector"), _module("snowflake.connector.errors")

    class Error(Exception):
        def __init__(self, msg="", errno=-1, sqlstate=None):
            super().__init__(msg)
            self.msg, self.errno, self.sqlstate = msg, errno, sqlstate

    class OperationalError(Error):
        pass

    class InterfaceError(Error):
        pass

    def said(error: WireError) -> Error:
        if error.fields.get("lost"):
            return OperationalError(error.message, 250003)
        if error.fields.get("refused"):
            return Error(error.message, 100072, "22000")
        return Error(error.message, error.fields.get("code", 1), error.fields.get("state"))

    class Cursor:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def execute(self, operation, *, file_stream=None):
            try:
                self._answer = self._run(operation, file_stream)
            except WireError as error:
                raise said(error) from error
            self.rowcount = None if self._answer.changed < 0 else self._answer.changed
            return self

        def _run(self, operation, file_stream):
            if operation.startswith("PUT"):
                place = operation.split("'")[3]
                return wire.put(place, pq.read_table(file_stream))
            if operation.startswith("COPY INTO"):
                return wire.load(operation.split("'")[1], operation.split(" ")[2])
            if operation.startswith(("CREATE TEMPORARY STAGE", "DROP STAGE")):
                return wire.execute(f"SELECT 1 AS {'made' if 'CREATE' in operation else 'dropped'}")
            return wire.execute(operation)

        def fetch_arrow_all(self, *, force_return_table, force_microsecond_precision):
            assert force_return_table
            assert force_microsecond_precision
            return table_of(self._answer)

    class Connection:
        def cursor(self):
            return Cursor()

        def close(self):
            return None

    def connect(**arguments):
        connector.arguments = arguments
        wire.open()
        return Connection()

    connector.connect, connector.errors = connect, errors
    errors.Error, errors.OperationalError, errors.InterfaceError = (
        Error,
        OperationalError,
        InterfaceError,
    )
    return {
        "snowflake": _module("snowflake"),
        "snowflake.connector": connector,
        "snowflake.connector.errors": errors,
    }


def redshift(wire: Any) -> dict[str, types.ModuleType]:
    module = _module("redshift_connector")

    class Error(Exception):
        pass

    class InterfaceError(Error):
        pass

    class OperationalError(Error):
        pass

    class ProgrammingError(Error):
        pass

    def said(error: WireError) -> Error:
        if error.fields.get("lost"):
            return InterfaceError("BrokenPipe: server socket closed. Please check that client side "
                                  "networking configurations such as Proxies, firewalls")  # fmt: skip
        state = "23502" if error.fields.get("refused") else error.fields.get("state", "XX000")
        return ProgrammingError({"S": "ERROR", "C": state, "M": error.message})

    class Cursor:
        def execute(self, operation):
            try:
                self._answer = self._run(operation)
            except WireError as error:
                raise said(error) from error
            self.rowcount = self._answer.changed
            self.description = [(name.encode(), None) for name in self._answer.names]

        def _run(self, operation):
            if operation.startswith("COPY"):
                return wire.load(operation.split("'")[1], operation.split(" ")[1])
            if operation.startswith(("LOCK", "SET")):
                return wire.execute(f"SELECT '{operation.replace(chr(39), '')}' AS done")
            return wire.execute(operation)

        def fetchall(self):
            return [tuple(row.values()) for row in self._answer.rows]

        def close(self):
            return None

    class Connection:
        autocommit = False

        def cursor(self):
            assert self.autocommit
            return Cursor()

        def close(self):
            return None

    def connect(**arguments):
        module.arguments = arguments
        wire.open()
        return Connection()

    module.connect = connect
    for kind in (Error, InterfaceError, OperationalError, ProgrammingError):
        setattr(module, kind.__name__, kind)
    return {"redshift_connector": module}


class WireBucket:
    """A bucket whose objects are on the wire."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self._wire.put(f"s3://{bucket}/{key}", pq.read_table(io.BytesIO(content)))

    def delete(self, bucket: str, key: str) -> None:
        self._wire.execute(f"SELECT 's3://{bucket}/{key}' AS deleted")


def bigquery(wire: Any) -> dict[str, types.ModuleType]:
    module, exceptions = _module("google.cloud.bigquery"), _module("google.api_core.exceptions")
    auth = _module("google.auth.exceptions")

    class GoogleAPICallError(Exception):
        def __init__(self, message, errors=()):
            super().__init__(message)
            self.message, self.errors = message, errors

    class ServerError(GoogleAPICallError):
        pass

    class TooManyRequests(GoogleAPICallError):  # noqa: N818 - the client's name
        pass

    class Conflict(GoogleAPICallError):  # noqa: N818 - likewise
        pass

    class RetryError(Exception):
        pass

    for kind in (GoogleAPICallError, ServerError, TooManyRequests, Conflict, RetryError):
        setattr(exceptions, kind.__name__, kind)

    class GoogleAuthError(Exception):
        pass

    class TransportError(GoogleAuthError):
        pass

    auth.GoogleAuthError, auth.TransportError = GoogleAuthError, TransportError

    def said(error: WireError) -> Exception:
        if error.fields.get("lost"):
            return ServerError(error.message, [{"reason": "backendError"}])
        if error.fields.get("exists"):
            return Conflict(error.message, [{"reason": "duplicate"}])
        message = (
            "Required field x cannot be null" if error.fields.get("refused") else error.message
        )
        return GoogleAPICallError(message, [{"reason": error.fields.get("reason", "invalidQuery")}])

    class Config(types.SimpleNamespace):
        create_session = False
        connection_properties = ()

    class Rows:
        def __init__(self, answer):
            self._answer = answer

        def to_arrow(self, *, create_bqstorage_client):
            assert not create_bqstorage_client
            return table_of(self._answer)

    class Job:
        session_info = types.SimpleNamespace(session_id="session-1")

        def __init__(self, call):
            self._call = call

        def result(self, *, timeout=None):
            try:
                self._answer = self._call()
            except WireError as error:
                raise said(error) from error
            return Rows(self._answer)

        @property
        def num_dml_affected_rows(self):
            return None if self._answer.changed < 0 else self._answer.changed

    class Client:
        def __init__(self, *, project, location):
            module.place = (project, location)
            wire.open()
            self._in_session = False

        def query(self, query, *, job_config, job_retry, timeout):
            assert timeout
            assert job_retry is None
            assert job_config.use_legacy_sql is False
            assert job_config.create_session is not self._in_session
            self._in_session = True
            if query.startswith("ALTER TABLE") and "SET OPTIONS" in query:
                return Job(lambda: wire.execute("SELECT 1 AS expires"))
            return Job(lambda: wire.execute(query))

        def load_table_from_file(
            self, file_obj, destination, *, rewind, job_id, job_config, timeout
        ):
            assert rewind
            assert timeout
            assert (job_config.source_format, job_config.write_disposition) == (
                "PARQUET",
                "WRITE_TRUNCATE",
            )
            file_obj.seek(0)
            try:
                wire.put(job_id, pq.read_table(file_obj))
            except WireError as error:
                raise said(error) from error
            table = destination.partition(".")[2]
            columns = ", ".join(f"`{f.name}` {f.kind}" for f in job_config.schema)
            return Job(lambda: wire.load(job_id, table, columns))

        def get_job(self, job_id, *, timeout):
            return Job(lambda: wire.execute(f"SELECT '{job_id}' AS job"))

        def get_table(self, table, *, timeout):
            name = table.partition(".")[2]
            return Job(lambda: wire.execute(f"SELECT COUNT(*) AS found FROM {name}")).result()

        def close(self):
            return None

    def schema_field(name, kind, *, precision=None, scale=None):
        size = f"({precision}, {scale})" if precision else ""
        return types.SimpleNamespace(name=name, kind=f"{kind}{size}")

    module.Client, module.QueryJobConfig, module.LoadJobConfig = Client, Config, Config
    module.SchemaField = schema_field
    module.ConnectionProperty = lambda key, value: (key, value)
    return {
        "google.cloud.bigquery": module,
        "google.api_core.exceptions": exceptions,
        "google.auth.exceptions": auth,
    }


def _module(name: str) -> types.ModuleType:
    return types.ModuleType(name)
