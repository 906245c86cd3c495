"""No secret of the settings stands in a command line: everybody on the machine can read those."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

import psutil
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from tests import servers
from tests.support.marked import MARK, fields, is_secret, marked_value, put, said

from waybill import services
from waybill.settings import Settings, TrackerSettings, secret_values
from waybill.storage import open_tracker

pytestmark = pytest.mark.serves


def command_lines(pid: int) -> list[str]:
    """Return the command lines of what this session started, and of ``pid`` and what it started.

    Not those of everybody: somebody else's may hold any text, and the servers' own secrets are short.
    """
    started = [psutil.Process().children(recursive=True)]
    with suppress(psutil.Error):
        application = psutil.Process(pid)
        started.append([application, *application.children(recursive=True)])
    found = []
    for process in chain.from_iterable(started):
        with suppress(psutil.Error):
            found.append("\0".join(process.cmdline()))
    return found


def with_marks(settings: Settings) -> Settings:
    """Return settings of running servers, with a marked secret wherever none is in use."""
    given = settings.model_dump()
    for path, field in fields():
        if is_secret(field) and path[0] in ("notices", "airflow", "destinations"):
            put(given, path, marked_value(path, field))
    dsn = settings.tracker.dsn.get_secret_value()
    given["tracker"] = {"dsn": dsn.replace("postgres@", f"postgres:{MARK}@")}
    return Settings(_env_file=None, **given)


def test_no_process_is_started_with_a_secret(stack_settings: Settings) -> None:
    """Kafka, PostgreSQL and S3 as they run, then a Spark application with its Java."""
    settings = with_marks(stack_settings)
    services.migrate(settings)
    hidden = secret_values(settings)
    assert MARK in hidden
    pid = services.start_application(settings, "processing", "default")
    seen: list[str] = []

    def java() -> bool:
        seen.extend(command_lines(pid))
        with suppress(psutil.Error):
            started = psutil.Process(pid).children(recursive=True)
            return any("SparkSubmit" in " ".join(one.cmdline()) for one in started)
        return False

    try:
        servers.wait_for(java, 300.0)
    finally:
        services.stop_application(settings, "processing", "default")
    assert any("kafka.Kafka" in line for line in seen)
    assert any("weed" in line for line in seen)
    assert [line for line in seen if any(value in line for value in hidden)] == []
    log = services.application_last_words(settings, "processing", "default")
    assert not any(value in log for value in hidden)


def test_an_error_of_the_tracker_quotes_no_value_of_its_statement(
    postgres: servers.PostgresServer,
) -> None:
    """Messages of events are among them, and so what is personal."""
    with (
        open_tracker(TrackerSettings(dsn=SecretStr(postgres.database("marked")))) as tracker,
        pytest.raises(DBAPIError, match="division by zero") as caught,
        tracker.transaction() as connection,
    ):
        connection.execute(text("SELECT length(:mark) / 0"), {"mark": MARK})
    assert MARK not in said(caught.value)
