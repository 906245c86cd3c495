"""``waybill audit`` and the DAG's operator on the real tracker and log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import orders
from tests.support.books import counts, nothing_parked
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.errors import RetryError, StopError
from waybill.ledger import IntakeCommit, commit_intake
from waybill.storage import open_log, open_tracker

pytestmark = pytest.mark.serves


@pytest.fixture
def settings(stack_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three events counted that never came into Kafka."""
    home = orders.write_orders(tmp_path / "pipelines", rows=1)
    made = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(made)
    services.run_deploy(made, home, who="test")
    open_log(made.kafka).ensure_topic(orders.topic_of(tmp_path / "pipelines"))
    page = counts("ingestion", pipeline="test-orders", in_first=3, passed=3, out=3)
    with open_tracker(made.tracker) as tracker:
        commit_intake(tracker, IntakeCommit("test-orders", 1, {}, 3, page), nothing_parked)
    for name, value in made.to_env().items():
        monkeypatch.setenv(name, value)
    return made


def called(*words: str, code: int = 0) -> str:
    run = CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})
    assert run.exit_code == code, run.output
    return run.output


def test_a_breach_is_found_listed_shown_and_closed(settings: Any) -> None:
    said = called("audit", "run", code=2)
    assert "1 with a breach" in said
    assert "new: 3 events missing between ingestion and transformation" in said
    assert "0 with a breach" in called("audit", "run")
    [one] = json.loads(called("audit", "breaches", "--json", "--pipeline", "orders", code=2))
    assert (one["pipeline"], one["gap"], one["state"]) == ("orders", 3, "open")
    listed = " ".join(called("audit", "breaches", code=2).split())
    assert f"{one['id']} open orders order 3 events missing" in listed
    assert "3 events missing" in called("audit", "show", str(one["id"]))
    report = json.loads(called("balance", "--json", code=2))
    assert (report["unaccounted"], report["verdicts"]["breach"]) == (3, 1)
    assert [b["id"] for b in report["open_breaches"]] == [one["id"]]
    refused = CliRunner().invoke(app, ["audit", "close", str(one["id"])])
    assert refused.exit_code != 0
    closed = called("audit", "close", str(one["id"]), "--why", "sent by hand", "--who", "anna")
    assert f"breach {one['id']} closed by anna: sent by hand" in closed
    assert "No breach is open." in called("audit", "breaches")
    assert "sent by hand" in called("audit", "show", str(one["id"]))
    assert len(json.loads(called("audit", "breaches", "--all", "--json"))) == 1
    report = json.loads(called("balance", "--json"))
    assert (report["unaccounted"], report["accounted"]) == (0, 3)
    called("audit", "close", str(one["id"]), "--why", "again", code=1)
    called("audit", "show", "4711", code=3)


def test_the_operator_returns_numbers_and_the_record_has_them(settings: Any) -> None:
    from waybill_airflow.operators.upkeep import UpkeepJobOperator

    run = SimpleNamespace(dag_id="audit", run_id="manual__1")
    context: Any = {"dag_run": run}
    audit = UpkeepJobOperator(task_id="audit", job="audit")
    report = audit.execute(context)
    assert (report["opened"], report["breaches"], report["named"]) == (1, 1, 0)
    assert audit.execute(context)["opened"] == 0
    first, *_ = services.upkeep_jobs(settings)
    assert (first.job, first.state, first.outcome["opened"]) == ("audit", "ok", 0)
    assert first.holder.startswith("audit/manual__1 on ")


@pytest.mark.parametrize(("before", "told"), [(None, 1), ("success", 1), ("failed", 0)])
def test_upkeep_that_stands_still_is_told_once_and_not_each_minute(
    settings: Any, monkeypatch: pytest.MonkeyPatch, before: str | None, told: int
) -> None:
    from waybill_airflow.notifiers.upkeep import UpkeepFailedNotifier

    words: list[str] = []
    monkeypatch.setattr(services, "tell_task_failed", lambda _, said, **given: words.append(said))
    run = None if before is None else SimpleNamespace(state=before)
    ti = SimpleNamespace(get_previous_dagrun=lambda: run)
    UpkeepFailedNotifier().notify({"ti": ti, "exception": RetryError("the tracker is away")})
    assert len(words) == told
    assert all("the tracker is away" in one for one in words)


def test_a_job_that_fails_is_told_by_each_sink_and_what_it_means(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow.sdk.log import mask_secret

    from waybill_airflow.operators.upkeep import UpkeepJobOperator

    def broken(_settings: Any) -> Any:
        raise StopError("the books are torn; user waybill, password waybill-very-secret")

    monkeypatch.setattr(services, "run_audit", broken)
    for shorter in ("waybill", "waybill-", "waybill-very"):  # Airflow's masker has no order
        mask_secret(shorter)
    monkeypatch.setenv("WAYBILL_NOTICES__SMTP_PASSWORD", "waybill-very-secret")
    run = SimpleNamespace(dag_id="audit", run_id="manual__1")
    context: Any = {"dag_run": run}
    with pytest.raises(StopError):
        UpkeepJobOperator(task_id="audit", job="audit").execute(context)
    [told] = [line for line in caplog.messages if "upkeep job audit failed 4 times" in line]
    assert "until it succeeds nobody looks for breaches" in told
    assert "very-secret" not in told
    assert "very-secret" not in services.upkeep_jobs(settings)[0].error


def test_the_word_that_the_audit_fails_goes_by_each_sink(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert services.tell_task_failed(settings, "the audit failed (x)", kind="upkeep") == {"log": ""}
    assert "the audit failed (x)" in caplog.text
