"""A topic that a task could not read whole is not committed; its neighbours are."""

from __future__ import annotations

import pytest
from tests.unit.processing.batches_in_process import Application, messages
from tests.unit.processing.made import pipeline

from waybill.errors import AwayError, RetryError, StopError
from waybill.processing.spark.batches import UnreadError

SHARES = {"t": [messages({"n": 1}), messages({"n": 2})], "other": [messages({"n": 3})]}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Application:
    return Application(monkeypatch, t=pipeline(), other=pipeline())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RetryError("silence"), UnreadError),
        (AwayError("no answer", setting="WAYBILL_KAFKA__BOOTSTRAP_SERVERS"), UnreadError),
        (StopError("the log does not have it"), StopError),
    ],
)
def test_one_of_two_tasks_cannot_read_and_the_topic_is_left_out_alone(made, error, kind):
    made.unread["t", 1] = error
    made.group.run(SHARES)
    assert made.runs == [{"t", "other"}]
    assert made.consumers["t"].committed == []
    assert [row["n"] for row in made.rows("other")] == [3]
    assert set(made.group.errors) == {"t"}
    assert type(made.group.errors["t"]) is kind
    assert str(error) in str(made.group.errors["t"])
    assert len(made.objects.bodies) == 2, "of the task that read all, and of the neighbour"


def test_the_gravest_of_a_topics_errors_is_told(made):
    made.unread |= {("t", 0): StopError("it is gone"), ("t", 1): RetryError("silence")}
    made.group.run(SHARES)
    assert type(made.group.errors["t"]) is StopError


def test_where_nothing_could_be_read_no_topic_is_blamed(made):
    made.unread = dict.fromkeys([("t", 0), ("t", 1), ("other", 0)], RetryError("silence"))
    made.group.run(SHARES)
    assert [type(error) for error in made.group.errors.values()] == [RetryError, RetryError]
    assert made.objects.bodies == {}
