"""Who hears of a task that gave up, how often, and in which words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException

from waybill import services
from waybill.errors import RetryError
from waybill_airflow.notifiers.task_failed import TaskFailedNotifier


@pytest.fixture
def told(monkeypatch):
    said = []
    monkeypatch.setattr(
        services, "tell_task_failed", lambda _, words, *, kind, pipeline: said.append((kind, words))
    )
    return said


def failed(error, *, before=None, run_id="scheduled__1"):
    run = None if before is None else SimpleNamespace(state=before)
    ti = SimpleNamespace(
        dag_id="ingest_flights", task_id="ingest", run_id=run_id, get_previous_dagrun=lambda: run
    )
    return {"ti": ti, "exception": error}


@pytest.mark.parametrize(("before", "number"), [(None, 1), ("success", 1), ("failed", 0)])
def test_it_is_told_once_and_not_at_every_run(told, before, number):
    TaskFailedNotifier()(failed(RetryError("Kafka is away"), before=before))
    assert len(told) == number
    assert all(kind == "task" for kind, _ in told)


def test_the_librarys_words_are_told_and_a_drivers_are_not(told):
    for error in (RetryError("Kafka is away"), AirflowFailException("no pipeline 'x'"), OSError("ann@example.org")):  # fmt: skip
        TaskFailedNotifier()(failed(error))
    words = [words for _, words in told]
    assert words[0] == (
        "ingest_flights.ingest in run scheduled__1 failed after its last try: Kafka is away"
    )
    assert "no pipeline 'x'" in words[1]
    assert "OSError" in words[2]
    assert "ann@example.org" not in words[2]


def test_a_task_whose_process_was_killed_is_told_too(told):
    """Airflow's DAG processor calls the notifier then, and knows no exception."""
    TaskFailedNotifier()({**failed(None), "exception": None})
    [(_, words)] = told
    assert "its process ended amid its work" in words


def test_names_stay_on_one_line_and_secrets_are_masked(told, monkeypatch):
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://u:very-secret@127.0.0.1:1/x")
    TaskFailedNotifier()(failed(RetryError("very-secret\x1b[2J"), run_id="a\nb {{ 7*7 }}"))
    [(_, words)] = told
    assert "very-secret" not in words
    assert words.isprintable()
    assert "{{ 7*7 }}" in words


def test_a_sink_gets_a_message_that_says_in_its_subject_what_it_is(monkeypatch):
    sent = []
    sink = SimpleNamespace(name="webhook", send=sent.append)
    monkeypatch.setattr("waybill.notices.open_sinks", lambda _: [sink])
    TaskFailedNotifier()(failed(RetryError("Kafka is away")))
    [message] = sent
    assert message.subject == "Waybill: 1 task failed"
    assert "Kafka is away" in message.text
    assert "more:" not in message.text
    assert message.to_json()["more"] == 0
