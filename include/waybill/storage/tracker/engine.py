"""Connections to the tracker, its migrations, and its errors sorted into ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from waybill.errors import AwayError, InputError, RetryError, StopError
from waybill.settings import TrackerSettings

if TYPE_CHECKING:
    from alembic.config import Config

_MIGRATIONS = Path(__file__).parent / "migrations"
_DSN = "WAYBILL_TRACKER__DSN"
_MIGRATION_LOCK = 7_301_994
_NOT_MIGRATED = ("42P01", "42703")
"""PostgreSQL's codes for a table, and a column, that does not exist."""


class TrackerStore:
    """The tracker database. Safe for several threads; open it after a fork, not before."""

    def __init__(self, settings: TrackerSettings) -> None:
        self.dsn = settings.dsn
        self.engine = _engine(settings)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed at the end of the block, rolled back on any error.

        Raises:
            AwayError: it does not answer; when raised by the commit itself its outcome is not
                known: read back what was written.
            InputError: it cannot be reached because of how it is configured.
            RetryError: its tables are not those of this version yet.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except OperationalError as error:
            raise _sorted_error(error) from error
        except (InterfaceError, DBAPIError) as error:
            if error.connection_invalidated:
                raise AwayError(f"tracker went away: {error.orig}", setting=_DSN) from error
            if getattr(error.orig, "sqlstate", None) in _NOT_MIGRATED:
                raise RetryError(_no_tables(error)) from error
            raise

    def migrate(self) -> None:
        """Bring the tables to this version; safe when several processes do it at once.

        Raises:
            StopError: the tables are newer than this version of Waybill.
        """
        from alembic.script import ScriptDirectory  # noqa: PLC0415

        config = _alembic_config()
        with self.transaction() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            known = {row.revision for row in ScriptDirectory.from_config(config).walk_revisions()}
            current = _current_revision(connection)
            if current is not None and current not in known:
                raise StopError(
                    f"the tracker's tables are at revision {current!r}, which this version of "
                    "Waybill does not know; upgrade Waybill"
                )
            _upgrade(config, connection)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_tracker(settings: TrackerSettings) -> TrackerStore:
    """Open the tracker; connects on first use."""
    return TrackerStore(settings)


def _engine(settings: TrackerSettings) -> Engine:
    try:
        url = make_url(settings.dsn)
    except ArgumentError as error:
        raise InputError(f"{_DSN} is no URL; write postgresql://…") from error
    if not url.drivername.startswith("postgresql"):
        raise InputError(f"{_DSN} must be postgresql://…, not {url.drivername}://")
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=settings.pool_size,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10, "application_name": "waybill"},
    )


def _no_tables(error: DBAPIError) -> str:
    first = str(error.orig).partition("\n")[0]
    return (
        f"the tracker does not have this version's tables yet ({first}): `waybill up` makes them; "
        "while it runs, wait until it is done"
    )


def _sorted_error(error: OperationalError) -> AwayError | InputError:
    words = str(error.orig)
    if "does not exist" in words or "authentication failed" in words:
        return InputError(f"tracker: {words.strip()}; check {_DSN}")
    return AwayError(f"tracker did not answer: {words.strip()}", setting=_DSN)


def _alembic_config() -> Config:
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config


def _current_revision(connection: Connection) -> str | None:
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415

    revision = MigrationContext.configure(connection).get_current_revision()
    return None if revision is None else str(revision)


def _upgrade(config: Config, connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415

    config.attributes["connection"] = connection
    command.upgrade(config, "head")
