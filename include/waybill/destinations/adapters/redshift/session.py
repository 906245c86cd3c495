"""A session with Redshift: rows go as Parquet to S3, then COPY into a temporary table.

Its MERGE has no conditions and one arm: what Waybill means by it is written in steps, under a
LOCK of the books' lock table, which another load waits for. The first statement of the
transaction, before any that takes its snapshot, is that LOCK.

The bucket where rows wait for Redshift's COPY.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waybill.destinations.adapters.redshift.dialect import REDSHIFT
from waybill.destinations.drivers import Form, WarehouseError, driver
from waybill.destinations.transactional.destination import warehouse_opener
from waybill.destinations.transactional.dialect import BOOKS
from waybill.destinations.transactional.session import Columns, WarehouseSession
from waybill.destinations.transactional.warehouse import working_table
from waybill.errors import InputError
from waybill.settings import DestinationSettings

_TRANSIENT = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout"})


class StagingBucket:
    """Objects under one bucket, written and deleted.

    Args:
        region: of the bucket; None: as the environment says.
    """

    def __init__(self, region: str | None) -> None:
        import boto3
        from botocore.config import Config

        limits = Config(
            connect_timeout=5, read_timeout=60, retries={"mode": "standard", "max_attempts": 4}
        )
        self._client = boto3.client("s3", region_name=region, config=limits)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object."""
        with _translating():
            self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object."""
        with _translating():
            self._client.delete_object(Bucket=bucket, Key=key)


@contextmanager
def _translating() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _TRANSIENT:
            raise WarehouseError(f"the staging bucket: {error}", away=True) from error
        raise WarehouseError(f"the staging bucket: {error}", "s3") from error
    except BotoCoreError as error:
        raise WarehouseError(f"the staging bucket: {error}", away=True) from error


_FORM = Form(
    shape="redshift://user:password@host:5439/database?staging=s3://bucket/prefix&iam_role=arn:…",
    schemes=("redshift",),
    parts=(1, 1),
    options=frozenset({"region", "password"}),
    needs=frozenset({"user", "staging", "iam_role"}),
)
PACKAGE = "redshift-connector>=2.1"
_STATEMENT_LIMIT_MS = 1_800_000
_ANSWER_TIMEOUT_S = 1_900
"""Longer than the server lets a statement run."""


class RedshiftSession(WarehouseSession):
    """A session with one database of Redshift. Experimental."""

    dialect = REDSHIFT
    form = _FORM
    begin = "BEGIN"

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        super().__init__(name, settings)
        scheme, _, place = self.address.options["staging"].partition("://")
        self._bucket, _, self._prefix = place.strip("/").partition("/")
        if scheme != "s3" or not self._bucket:
            raise InputError(
                f"destination {name!r}, kind redshift: its staging folder must look like "
                "s3://bucket/prefix (docs/destinations.md)"
            )

    def connect(self) -> Any:
        """Open the driver's connection; transactions are opened in SQL."""
        connection = driver("redshift_connector", PACKAGE, "redshift").connect(
            user=self.address.user or self.address.options.get("user"),
            password=self.address.password or self.address.options.get("password"),
            host=self.address.host,
            port=self.address.port or 5439,
            database=self.address.parts[0],
            timeout=_ANSWER_TIMEOUT_S,
            tcp_keepalive=True,
            tcp_keepalive_idle=30,
            tcp_keepalive_interval=10,
            tcp_keepalive_count=3,
            application_name=f"waybill loading {self.name}"[:63],
        )
        connection.autocommit = True
        return connection

    def settle(self) -> None:
        """Set times in UTC, and a limit for statements."""
        self.execute_native("SET timezone TO 'UTC'")
        self.execute_native(f"SET statement_timeout TO {_STATEMENT_LIMIT_MS}")

    def run(self, statement: str) -> tuple[pa.Table | None, int]:
        """Run one statement."""
        cursor = self.connection.cursor()
        try:
            cursor.execute(statement)
            if statement.startswith("SELECT"):
                names = [item[0] for item in cursor.description]
                names = [n.decode() if isinstance(n, bytes) else n for n in names]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
                return _table(names, rows), -1
            return None, int(cursor.rowcount)
        finally:
            cursor.close()

    def translated(self, error: BaseException) -> WarehouseError | None:
        """Return the driver's error as ours: the server's come as a dict of fields."""
        module = driver("redshift_connector", PACKAGE, "redshift")
        if isinstance(error, (module.InterfaceError, module.OperationalError, OSError)):
            return WarehouseError(str(error), away=True)
        if not isinstance(error, module.Error):
            return None
        details = error.args[0] if error.args else ""
        if isinstance(details, dict):
            return WarehouseError(str(details.get("M", details)), state=str(details.get("C", "")))
        return WarehouseError(str(error))

    def stage(self, wanted: str, columns: Columns, rows: pa.Table) -> str:
        """Make a temporary table and fill it; times come naive, for COPY takes no zones."""
        times = [name for name, kind in columns if kind == "timestamp"]
        raw = f"{wanted}_raw" if times else wanted
        self.execute_native(_raw_table(self, raw, columns))
        key = "/".join(part for part in (self._prefix, f"{wanted}.parquet") if part)
        bucket = self.bucket()
        bucket.put(self._bucket, key, _naive(rows, times))
        try:
            source = self.dialect.literal(f"s3://{self._bucket}/{key}")
            role = self.dialect.literal(self.address.options["iam_role"])
            self.execute_native(
                f"COPY {self.dialect.working(raw)} FROM {source} IAM_ROLE {role} FORMAT AS PARQUET"
            )
        finally:
            bucket.delete(self._bucket, key)
        if times:
            self._with_zones(wanted, raw, columns)
        return wanted

    def bucket(self) -> StagingBucket:
        """Return the staging bucket."""
        return StagingBucket(self.address.options.get("region"))

    def _with_zones(self, wanted: str, raw: str, columns: Columns) -> None:
        quoted = self.dialect.quoted
        listed = ", ".join(
            f"{quoted(n)} AT TIME ZONE 'UTC' AS {quoted(n)}" if kind == "timestamp" else quoted(n)
            for n, kind in columns
        )
        self.execute_native(working_table(self, wanted, columns))
        self.execute_native(f"INSERT INTO {quoted(wanted)} SELECT {listed} FROM {quoted(raw)}")
        self.execute_native(f"DROP TABLE {quoted(raw)}")

    def lock(self) -> None:
        """Lock the books' lock table until the transaction ends: another load waits."""
        self.execute_native(f"LOCK {self.dialect.table(BOOKS, '_waybill_locks')}")


def _raw_table(session: WarehouseSession, name: str, columns: Columns) -> str:
    dialect = session.dialect
    kinds = [(n, "TIMESTAMP" if k == "timestamp" else dialect.sql_type(k)) for n, k in columns]
    listed = ", ".join(f"{dialect.quoted(n)} {kind}" for n, kind in kinds)
    return f"CREATE TEMPORARY TABLE {dialect.working(name)} ({listed})"


def _naive(rows: pa.Table, times: list[str]) -> bytes:
    for name in times:
        index = rows.column_names.index(name)
        rows = rows.set_column(index, name, rows[name].cast(pa.timestamp("us")))
    sent = io.BytesIO()
    pq.write_table(rows, sent)
    return sent.getvalue()


def _table(names: list[str], rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows) if rows else pa.table({name: pa.nulls(0) for name in names})


open_redshift = warehouse_opener(RedshiftSession)
