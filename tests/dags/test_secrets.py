"""No secret of the settings reaches a task's error, log or XCom, nor an import error."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.log import redact
from tests.dags.test_operators import Run, context
from tests.dags.test_task_failures import real_operators
from tests.support.marked import MARK, fields, is_secret, mark, marked, said

from waybill.settings import Settings
from waybill_airflow.failures import read_settings


@pytest.fixture
def variables(monkeypatch):
    """Let every secret be marked."""
    for name, value in Settings(_env_file=None, **marked()).to_env().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("number", range(len(real_operators())))
def test_a_failing_task_shows_no_secret(number, variables, caplog):
    caplog.set_level("DEBUG")
    run = Run()
    with pytest.raises(Exception) as caught:
        real_operators()[number].execute(context(ti=run))
    assert MARK not in said(caught.value)
    assert MARK not in caplog.text
    assert MARK not in str(run.pushed)


def test_wrong_settings_fail_the_task_and_the_import_without_being_quoted(variables, monkeypatch):
    monkeypatch.setenv("WAYBILL_NOTICES__WEBHOOK_URL", f"ftp://{MARK}")
    monkeypatch.setenv(
        "WAYBILL_TRACKER__DSN", f"postgresql://user:{MARK}:{MARK}@127.0.0.1:5432x/db"
    )
    with pytest.raises(AirflowFailException, match="webhook_url must start") as caught:
        read_settings()
    assert MARK not in said(caught.value)
    with pytest.raises(Exception, match="webhook_url must start") as caught:
        Settings()
    assert MARK not in said(caught.value)


def test_what_somebody_else_writes_to_the_log_of_a_task_is_masked(variables):
    """A driver's own words, for example."""
    read_settings()
    for path, field in fields():
        if is_secret(field):
            assert MARK not in redact(f"could not reach {mark(path)}!"), path
