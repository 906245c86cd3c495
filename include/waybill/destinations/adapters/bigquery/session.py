"""A session with BigQuery: rows go as Parquet, by a load job whose id comes from its contents.

So a job that was sent twice ran once: the second answer is "already exists", and its table is
there. Load jobs and DDL are in no transaction, and are done before it; working tables expire after
a day. Transactions see a snapshot, and of two that change the lock row of the books the second is
aborted: it is tried again.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waybill.destinations.adapters.bigquery.dialect import BIGQUERY
from waybill.destinations.drivers import Form, WarehouseError, driver
from waybill.destinations.transactional import books
from waybill.destinations.transactional.destination import warehouse_opener
from waybill.destinations.transactional.dialect import BOOKS, WORKING_PREFIX
from waybill.destinations.transactional.session import Columns, WarehouseSession

_FORM = Form(
    shape="bigquery://project?location=EU&credentials=/path/key.json",
    schemes=("bigquery",),
    parts=(0, 0),
    options=frozenset({"location", "credentials"}),
)
PACKAGE = "google-cloud-bigquery>=3.40"
_REQUEST_TIMEOUT_S = 120
_JOB_LIMIT_S = 1_900
_TRIES = 10
"""Jobs with the same contents: ids of failed ones cannot be used again."""


class BigQuerySession(WarehouseSession):
    """A session with one project of BigQuery. Experimental."""

    dialect = BIGQUERY
    form = _FORM
    _session_id: str | None = None

    def connect(self) -> Any:
        """Make a client; the session begins with its first statement."""
        bigquery = driver("google.cloud.bigquery", PACKAGE, "bigquery")
        place = {
            "project": self.address.host,
            "location": self.address.options.get("location"),
        }
        self._session_id = None
        key_file = self.address.options.get("credentials")
        if key_file:
            return bigquery.Client.from_service_account_json(key_file, **place)
        return bigquery.Client(**place)

    def run(self, statement: str) -> tuple[pa.Table | None, int]:
        """Run one statement in the session, the first one of which makes it."""
        bigquery = driver("google.cloud.bigquery", PACKAGE, "bigquery")
        config = bigquery.QueryJobConfig(use_legacy_sql=False)
        if self._session_id is None:
            config.create_session = True
        else:
            config.connection_properties = [
                bigquery.ConnectionProperty("session_id", self._session_id)
            ]
        job = self.connection.query(
            statement, job_config=config, job_retry=None, timeout=_REQUEST_TIMEOUT_S
        )
        result = job.result(timeout=_JOB_LIMIT_S)
        if self._session_id is None:
            self._session_id = job.session_info.session_id
        if statement.startswith("SELECT"):
            return result.to_arrow(create_bqstorage_client=False), -1
        changed = job.num_dml_affected_rows
        return None, -1 if changed is None else int(changed)

    def translated(self, error: BaseException) -> WarehouseError | None:
        """Return the client's error as ours."""
        exceptions = driver("google.api_core.exceptions", PACKAGE, "bigquery")
        auth = driver("google.auth.exceptions", PACKAGE, "bigquery")
        if isinstance(error, exceptions.GoogleAPICallError):
            reasons = [item.get("reason", "") for item in error.errors or () if item]
            away = isinstance(error, (exceptions.ServerError, exceptions.TooManyRequests))
            return WarehouseError(str(error.message), reasons[0] if reasons else "", away=away)
        if isinstance(error, auth.TransportError):
            return WarehouseError(str(error), away=True)
        if isinstance(error, auth.GoogleAuthError):
            return WarehouseError(str(error), "authError")
        if isinstance(error, (exceptions.RetryError, ConnectionError, TimeoutError)):
            return WarehouseError(str(error), away=True)
        return None

    def stage(self, wanted: str, columns: Columns, rows: pa.Table) -> str:
        """Load rows into a table named by its contents; the name wanted is not used."""
        del wanted
        sent = io.BytesIO()
        pq.write_table(rows, sent)
        fields = [(name, self.dialect.sql_type(kind)) for name, kind in columns]
        digest = hashlib.sha256(repr((self.name, fields)).encode())
        digest.update(_contents(rows))
        for attempt in range(_TRIES):
            table = f"{WORKING_PREFIX}{digest.hexdigest()[:32]}_{attempt}"
            with self.translating():
                if self._load(table, columns, sent):
                    return table
        raise WarehouseError(f"a load job failed {_TRIES} times", "backendError")

    def _load(self, table: str, columns: Columns, sent: io.BytesIO) -> bool:
        """Run the load job, or find it done; False: it failed, or its table is gone again."""
        bigquery = driver("google.cloud.bigquery", PACKAGE, "bigquery")
        exceptions = driver("google.api_core.exceptions", PACKAGE, "bigquery")
        config = bigquery.LoadJobConfig(
            source_format="PARQUET",
            write_disposition="WRITE_TRUNCATE",
            schema=[_field(bigquery, name, self.dialect.sql_type(kind)) for name, kind in columns],
        )
        job_id = f"waybill{table.removeprefix(WORKING_PREFIX[:-1])}"
        try:
            job = self.connection.load_table_from_file(
                sent, f"{self.address.host}.{BOOKS}.{table}", rewind=True, job_id=job_id,
                job_config=config, timeout=_REQUEST_TIMEOUT_S,
            )  # fmt: skip
            job.result(timeout=_JOB_LIMIT_S)
        except exceptions.Conflict:
            return self._found(job_id, table)
        self.execute_native(
            f"ALTER TABLE {self.dialect.working(table)} SET{self.dialect.working_suffix}"
        )
        return True

    def _found(self, job_id: str, table: str) -> bool:
        exceptions = driver("google.api_core.exceptions", PACKAGE, "bigquery")
        try:
            job = self.connection.get_job(job_id, timeout=_REQUEST_TIMEOUT_S)
            job.result(timeout=_JOB_LIMIT_S)
            self.connection.get_table(
                f"{self.address.host}.{BOOKS}.{table}", timeout=_REQUEST_TIMEOUT_S
            )
        except exceptions.GoogleAPICallError as error:
            if isinstance(error, exceptions.ServerError):
                raise
            return False
        return True

    def lock(self) -> None:
        """Change the lock row: another transaction that does so is aborted."""
        books.take_lock_row(self)


def _contents(rows: pa.Table) -> memoryview:
    """Return the same bytes for the same rows, whatever the release that writes Parquet."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.combine_chunks())
    return memoryview(sink.getvalue())


def _field(bigquery: Any, name: str, kind: str) -> Any:
    plain, _, size = kind.partition("(")
    if not size:
        return bigquery.SchemaField(name, plain)
    precision, scale = (int(part) for part in size.rstrip(")").split(","))
    return bigquery.SchemaField(name, plain, precision=precision, scale=scale)


open_bigquery = warehouse_opener(BigQuerySession)
