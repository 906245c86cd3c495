"""Connections to the tracker, their limits, its migrations, and its errors sorted into ours.

Every connection has limits (`TrackerSettings`): a server that is gone is noticed, a lock is not
waited for without end, and a process that is frozen amid a transaction loses it, with all locks,
after ``idle_in_transaction_timeout_s``. When it wakes up, its next statement fails and nothing of
the transaction takes effect. So nothing that may take seconds (Kafka, the object store) happens
inside a transaction that holds rows. One exception: the end of a topic's generation is asked of
Kafka while its rows are held, once, two seconds at most (``waybill.topics.generations``).

No statement is pipelined: PostgreSQL does not count a process as idle that is frozen amid a
pipeline. Many rows are one ``INSERT``, 1,000 rows at a time; a row may not be in it twice where it
updates on a conflict. Anything else with many parameters is a statement each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from waybill.errors import AwayError, InputError, RetryError, StopError
from waybill.settings import TrackerSettings
from waybill.storage import AdvisoryLock
from waybill.waiting import answered

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from sqlalchemy.engine.interfaces import DBAPICursor

_MIGRATIONS = Path(__file__).parent / "migrations"
_DSN = "WAYBILL_TRACKER__DSN"
_NOT_MIGRATED = ("42P01", "42703")
"""PostgreSQL's codes for a table, and a column, that does not exist."""
_AGAIN = {
    "25P03": "it was idle in a transaction for too long (idle_in_transaction_timeout_s)",
    "25P04": "the transaction took too long",
    "40001": "other transactions were in the way",
    "40P01": "other transactions were in the way (deadlock)",
    "55P03": "another transaction held a lock for too long (lock_timeout_s)",
    "57014": "a statement took too long (statement_timeout_s), or was cancelled",
}
"""Codes under which a transaction was rolled back that may well succeed the next time."""
_AWAY = ("08", "53", "57P", "58")
"""How codes begin of a server that goes down, comes up, or has no room."""
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_COUNT = 3


class TrackerStore:
    """The tracker database. Safe for several threads; open it after a fork, not before."""

    def __init__(self, settings: TrackerSettings) -> None:
        self.dsn = settings.dsn
        self._settings = settings
        self.engine = _engine(settings)

    @contextmanager
    def transaction(
        self, *, long_statements: bool = False, long_idle: bool = False
    ) -> Iterator[Connection]:
        """One transaction: committed at the end of the block, rolled back on any error.

        Args:
            long_statements: a statement may take ``long_statement_timeout_s``, and wait for locks
                as long.
            long_idle: other servers are asked between the statements. Not where rows are locked:
                a frozen process would hold them for ``long_idle_in_transaction_timeout_s``.

        Raises:
            AwayError: it does not answer; when raised by the commit itself its outcome is not
                known: read back what was written.
            InputError: it cannot be reached because of how it is configured.
            RetryError: it was rolled back (a lock was waited for too long, a statement or a pause
                took too long, a deadlock), no connection was free, or its tables are not those of
                this version yet.
        """
        try:
            with answered(self._connected) as connection, connection.begin():
                if long_statements or long_idle:
                    connection.exec_driver_sql(
                        self._longer(long_statements=long_statements, long_idle=long_idle)
                    )
                yield connection
        except NoConnectionError as error:
            raise RetryError(f"tracker: no connection was free: {error}") from error
        except DBAPIError as error:
            if (ours := _sorted_error(error)) is None:
                raise
            raise ours from error

    def _connected(self) -> Connection:
        """Return a connection, on which nothing was asked yet.

        Raises:
            AwayError: it does not answer.
        """
        try:
            return self.engine.connect()
        except DBAPIError as error:
            if (ours := _sorted_error(error)) is None:
                raise
            raise ours from error

    def _longer(self, *, long_statements: bool, long_idle: bool) -> str:
        limits: dict[str, int] = {}
        if long_statements:
            most = self._settings.long_statement_timeout_s
            limits |= {"statement_timeout": most, "lock_timeout": most}
        if long_idle:
            most = self._settings.long_idle_in_transaction_timeout_s
            limits["idle_in_transaction_session_timeout"] = most
        return "; ".join(f"SET LOCAL {name} = '{most}s'" for name, most in limits.items())

    def migrate(self) -> None:
        """Bring the tables to this version; safe when several processes do it at once.

        Raises:
            StopError: the tables are newer than this version of Waybill.
        """
        scripts = _scripts()
        with self.transaction(long_statements=True, long_idle=True) as connection:
            AdvisoryLock.MIGRATION.take(connection)
            current = _current_revision(connection)
            if current == scripts.get_current_head():
                return
            known = {row.revision for row in scripts.walk_revisions()}
            if current is not None and current not in known:
                raise StopError(
                    f"the tracker's tables are at revision {current!r}, which this version of "
                    "Waybill does not know; upgrade Waybill"
                )
            _upgrade(connection)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_tracker(settings: TrackerSettings) -> TrackerStore:
    """Open the tracker; connects on first use."""
    return TrackerStore(settings)


def _engine(settings: TrackerSettings) -> Engine:
    try:
        url = make_url(settings.dsn.get_secret_value())
    except (ArgumentError, ValueError):  # its words could show a part of the password
        raise InputError(f"{_DSN} is not a URL; write postgresql://…") from None
    if not url.drivername.startswith("postgresql"):
        raise InputError(f"{_DSN} must be postgresql://…, not {url.drivername}://")
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=settings.pool_size,
        pool_pre_ping=True,
        hide_parameters=True,  # errors go to logs, and values of events are among them
        connect_args=_limits(settings, url),
    )
    engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "do_executemany", _execute_each)
    return engine


def _execute_each(
    cursor: DBAPICursor, statement: str, parameters: Sequence[Mapping[str, Any]], _: object
) -> Literal[True]:
    """Send a statement for each of many parameters, where psycopg would send a pipeline of them."""
    for given in parameters:
        cursor.execute(statement, given)
    return True


def _limits(settings: TrackerSettings, url: URL) -> dict[str, str | int]:
    """Return libpq's parameters; those that the DSN has by itself win."""
    ours: dict[str, str | int] = {
        "application_name": "waybill",
        "connect_timeout": settings.connect_timeout_s,
        "keepalives": 1,
        "keepalives_idle": settings.keepalive_idle_s,
        "keepalives_interval": _KEEPALIVE_INTERVAL_S,
        "keepalives_count": _KEEPALIVE_COUNT,
        "tcp_user_timeout": settings.tcp_user_timeout_s * 1000,
    }
    session = {
        "tcp_user_timeout": settings.tcp_user_timeout_s,
        "lock_timeout": settings.lock_timeout_s,
        "statement_timeout": settings.statement_timeout_s,
        "idle_in_transaction_session_timeout": settings.idle_in_transaction_timeout_s,
    }
    given = [url.query["options"]] if isinstance(url.query.get("options"), str) else []
    options = [f"-c {name}={seconds * 1000}" for name, seconds in session.items()]
    kept = {name: value for name, value in ours.items() if name not in url.query}
    return {**kept, "options": " ".join([*options, *map(str, given)])}


def _no_tables(error: DBAPIError) -> str:
    first = str(error.orig).partition("\n")[0]
    return (
        f"the tracker does not have this version's tables yet ({first}): `waybill up` makes them; "
        "while it runs, wait until it is done"
    )


def _sorted_error(error: DBAPIError) -> AwayError | InputError | RetryError | None:
    """Return what PostgreSQL, or its driver, says as ours; None: the statement is to blame."""
    code = getattr(error.orig, "sqlstate", None) or ""
    said = str(error.orig).strip()
    if code in _NOT_MIGRATED:
        return RetryError(_no_tables(error))
    if code in _AGAIN:
        return RetryError(f"tracker: rolled back: {_AGAIN[code]}: {said}")
    if code.startswith(_AWAY) or error.connection_invalidated:
        return AwayError(f"tracker went away: {said}", setting=_DSN)
    if not isinstance(error, OperationalError):
        return None
    if "does not exist" in said or "authentication failed" in said:
        return InputError(f"tracker: {said}; check {_DSN}")
    return AwayError(f"tracker did not answer: {said}", setting=_DSN)


def _alembic_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config


@cache
def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_alembic_config())


def _current_revision(connection: Connection) -> str | None:
    from alembic.runtime.migration import MigrationContext

    revision = MigrationContext.configure(connection).get_current_revision()
    return None if revision is None else str(revision)


def _upgrade(connection: Connection) -> None:
    from alembic import command

    config = _alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
