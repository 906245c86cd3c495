"""The tracker's tables: made by the migrations, as the code says, by any number of processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from tests.support.books import open_books

from waybill.errors import InputError, RetryError, StopError
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore
from waybill.storage.tracker import engine
from waybill.storage.tracker.tables import METADATA

pytestmark = pytest.mark.serves


def differences(tracker: TrackerStore) -> list[Any]:
    with tracker.engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), METADATA))


def test_the_migrations_make_exactly_the_tables_of_the_code(postgres: Any) -> None:
    with open_books(postgres, "migrated") as tracker:
        assert differences(tracker) == []
        tables = set(inspect(tracker.engine).get_table_names())
        assert tables == {*METADATA.tables, "alembic_version"}


def test_checks_of_the_tables_are_migrated_too(postgres: Any) -> None:
    """Alembic compares no CHECK constraints."""
    with open_books(postgres, "checks") as tracker:
        found = inspect(tracker.engine)
        for table in METADATA.tables.values():
            declared = {
                str(c.name) for c in table.constraints if type(c).__name__ == "CheckConstraint"
            }
            assert {c["name"] for c in found.get_check_constraints(table.name)} == declared


def test_migrating_again_changes_nothing(postgres: Any) -> None:
    with open_books(postgres, "again") as tracker:
        with tracker.transaction() as connection:
            connection.execute(text("INSERT INTO load_positions VALUES ('w', 7)"))
        tracker.migrate()
        with tracker.transaction() as connection:
            assert connection.execute(text("SELECT last_commit FROM load_positions")).scalar() == 7


def test_the_tables_of_an_older_release_are_brought_up_with_what_they_hold(postgres: Any) -> None:
    with TrackerStore(TrackerSettings(dsn=postgres.database("older"))) as tracker:
        with tracker.transaction() as connection:
            config = engine._alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, "0001")
            connection.execute(text("INSERT INTO load_positions VALUES ('w', 7)"))
        tracker.migrate()
        assert differences(tracker) == []
        with tracker.transaction() as connection:
            assert connection.execute(text("SELECT last_commit FROM load_positions")).scalar() == 7


def test_processes_that_migrate_at_once_do_not_disturb_each_other(postgres: Any) -> None:
    dsn = postgres.database("at_once")
    program = (
        "import sys; from waybill.settings import TrackerSettings; from waybill.storage import TrackerStore\n"
        "sys.stdin.readline(); TrackerStore(TrackerSettings(dsn=sys.argv[1])).migrate()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, dsn],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": "include"},
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    with TrackerStore(TrackerSettings(dsn=dsn)) as tracker:
        assert differences(tracker) == []


def test_tables_of_a_newer_release_are_left_alone(postgres: Any) -> None:
    with open_books(postgres, "newer") as tracker:
        with tracker.transaction() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(StopError, match=r"'9999'.*upgrade Waybill"):
            tracker.migrate()


def test_a_migration_that_fails_leaves_nothing(postgres: Any) -> None:
    dsn = postgres.database("half")
    with TrackerStore(TrackerSettings(dsn=dsn)) as tracker:
        with tracker.transaction() as connection:
            connection.execute(text("CREATE TABLE segments (id int)"))  # in the migration's way
        with pytest.raises(Exception, match="already exists"):
            tracker.migrate()
        assert inspect(tracker.engine).get_table_names() == ["segments"]


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("mysql://h/db", "postgresql://"),
        ("host=127.0.0.1 dbname=x", "is not a URL"),
        ("", "is not a URL"),
    ],
)
def test_a_dsn_that_is_none_is_the_users_mistake(dsn: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        TrackerStore(TrackerSettings(dsn=dsn))


def test_a_database_that_is_not_there_is_the_users_mistake(postgres: Any) -> None:
    from sqlalchemy.engine import make_url

    dsn = make_url(postgres.database("there")).set(database="nowhere")
    with (
        TrackerStore(TrackerSettings(dsn=dsn.render_as_string(hide_password=False))) as tracker,
        pytest.raises(InputError, match="WAYBILL_TRACKER__DSN"),
        tracker.transaction(),
    ):
        raise AssertionError("unreachable")


def test_a_server_that_is_away_may_come_back() -> None:
    with (
        TrackerStore(TrackerSettings(dsn="postgresql://u@127.0.0.1:1/x")) as tracker,
        pytest.raises(RetryError, match="did not answer"),
        tracker.transaction(),
    ):
        raise AssertionError("unreachable")


def test_a_backend_that_is_killed_in_a_transaction_is_a_retry_and_the_pool_recovers(
    postgres: Any,
) -> None:
    with open_books(postgres, "killed") as tracker:
        with pytest.raises(RetryError), tracker.transaction() as connection:
            connection.execute(text("INSERT INTO load_positions VALUES ('w', 1)"))
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
            with tracker.transaction() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 120000)"), {"pid": pid})
            connection.execute(text("SELECT 1"))
        with tracker.transaction() as connection:
            assert connection.execute(text("SELECT count(*) FROM load_positions")).scalar() == 0
