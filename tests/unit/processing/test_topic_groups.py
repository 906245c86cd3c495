"""Topics of one application in groups: what is wrong with one stops no other for long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.clusters import Serving
from waybill.errors import RetryError, SettleError, StopError, WaybillError
from waybill.ledger import FencedError
from waybill.processing.spark import topic_groups
from waybill.processing.spark.batches import UnreadError
from waybill.processing.spark.topic_groups import TopicGroups, groups_for


class Consumer:
    """A topic that was opened."""

    def __init__(self, topic: str) -> None:
        self.name = topic
        self.released = False

    def release(self) -> None:
        self.released = True


class Query:
    """What Spark gives for a query that was started; ``end`` ends it, ``fail`` only topics of it."""

    def __init__(self, group: Group) -> None:
        self.isActive = True
        self.group = group
        self._text = ""

    def end(self, text: str) -> None:
        self.isActive, self._text = False, text

    def fail(self, **errors: WaybillError) -> None:
        self.group.errors.update(errors)

    def exception(self) -> Exception | None:
        """Return what Spark does: the offsets and the plan behind it name all topics."""
        if not self._text:
            return None
        plan = f"KafkaV2[Subscribe[{', '.join(self.group.topics)}]]"
        return RuntimeError(f"{self._text}\n=== Streaming Query ===\n{plan}")

    def stop(self) -> None:
        self.isActive = False


class Group:
    """A group as the application makes it; notes how it was ended."""

    def __init__(self, consumers: Any, name: str, number: int) -> None:
        self.topics = sorted(consumer.name for consumer in consumers)
        self.name, self.number = name, number
        self.errors: dict[str, WaybillError] = {}
        self.apart: set[str] = set()
        self.busy_cores = 0.0
        self.busy = False
        """Its batch runs."""
        self.ending = False
        """No batch has an effect any more."""

    def look(self) -> None:
        pass

    def take_apart(self) -> set[str]:
        apart, self.apart = self.apart, set()
        return apart

    def end(self, query: Query) -> bool:
        self.ending = True
        if not self.busy:
            query.stop()
        return not self.busy

    def clear(self) -> None:
        pass


class Application:
    """Groups over topics that open, or not; keeps what was opened and started."""

    def __init__(self, most_topics: int, spread: int = 1) -> None:
        self.opened: list[str] = []
        self.queries: list[Query] = []
        self.consumers: dict[str, Consumer] = {}
        self.ill: dict[str, WaybillError] = {}
        self.leaderless: set[str] = set()
        self.questions: list[list[str]] = []
        """Topics that Kafka was asked about, at once."""
        self.groups = TopicGroups(
            self._open,  # type: ignore[arg-type]
            Group,  # type: ignore[arg-type]
            self._start,  # type: ignore[arg-type]
            self._unreadable,
            most_topics=most_topics,
            spread=spread,
        )

    def _unreadable(self, topics: Any) -> dict[str, RetryError]:
        self.questions.append(sorted(topics))
        return {topic: RetryError("no leader") for topic in topics if topic in self.leaderless}

    def _open(self, topic: str) -> Consumer:
        self.opened.append(topic)
        if topic in self.ill:
            raise self.ill[topic]
        self.consumers[topic] = Consumer(topic)
        return self.consumers[topic]

    def _start(self, group: Group) -> Query:
        self.queries.append(Query(group))
        return self.queries[-1]

    @property
    def running(self) -> list[list[str]]:
        """Return the topics of each query that runs."""
        return sorted(query.group.topics for query in self.queries if query.isActive)

    def query_of(self, topic: str) -> Query:
        [query] = [one for one in self.queries if one.isActive and topic in one.group.topics]
        return query


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(topic_groups.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.usefixtures("clock")
def test_topics_share_queries_and_a_new_one_restarts_only_its_group():
    app = Application(most_topics=2)
    app.groups.look("abc")
    assert app.running == [["a", "b"], ["c"]]
    kept = app.query_of("a")
    app.groups.look("abcd")
    assert app.running == [["a", "b"], ["c", "d"]]
    assert app.query_of("a") is kept
    assert app.opened == ["a", "b", "c", "d"]  # nobody was taken over twice


@pytest.mark.parametrize(("cores", "groups"), [(1, 1), (3, 1), (4, 4), (64, 4)])
@pytest.mark.usefixtures("clock")
def test_few_topics_are_spread_over_four_groups_where_there_are_as_many_cores(cores, groups):
    app = Application(most_topics=50, spread=groups_for(cores))
    app.groups.look("abcdefg")
    assert len(app.running) == groups
    assert max(map(len, app.running)) - min(map(len, app.running)) <= 1
    assert len(app.queries) == groups  # each was started once


@pytest.mark.usefixtures("clock")
def test_each_group_is_made_with_the_least_number_that_is_free_and_keeps_it():
    app = Application(most_topics=50, spread=4)
    app.groups.look("abcd")
    assert [app.query_of(topic).group.number for topic in "abcd"] == [1, 2, 3, 4]
    app.groups.look("acd")
    app.groups.look("acde")
    assert [app.query_of(topic).group.number for topic in "acde"] == [1, 3, 4, 2]
    app.groups.look("acdef")
    assert app.query_of("f").group.topics == ["a", "f"]
    assert app.query_of("f").group.number == 1, "started anew, it ticks as before"


@pytest.mark.usefixtures("clock")
def test_a_topic_that_comes_restarts_the_smallest_group_and_a_group_more_is_made_where_all_are_full():
    app = Application(most_topics=2, spread=2)
    app.groups.look("abc")
    assert app.running == [["a", "c"], ["b"]]
    kept = app.query_of("a")
    app.groups.look("abcd")
    assert app.running == [["a", "c"], ["b", "d"]]
    app.groups.look("abcde")
    assert app.running == [["a", "c"], ["b", "d"], ["e"]]
    assert app.query_of("a") is kept


@pytest.mark.usefixtures("clock")
def test_a_topic_that_comes_goes_to_the_group_whose_batches_keep_the_fewest_cores_busy():
    app = Application(most_topics=50, spread=2)
    app.groups.look("ab")
    app.query_of("a").group.busy_cores, app.query_of("b").group.busy_cores = 0.9, 0.3
    app.groups.look("abc")
    app.query_of("b").group.busy_cores = 0.4
    app.groups.look("abcd")
    assert app.running == [["a"], ["b", "c", "d"]]


@pytest.mark.usefixtures("clock")
def test_topics_that_come_at_once_are_spread_though_one_group_is_idler():
    app = Application(most_topics=50, spread=2)
    app.groups.look("ab")
    app.query_of("a").group.busy_cores = 0.9
    app.groups.look("abcdef")
    assert app.running == [["a", "d", "f"], ["b", "c", "e"]]


@pytest.mark.parametrize(("busy_cores", "running"), [(0.04, "bd"), (0.06, "acd")])
@pytest.mark.usefixtures("clock")
def test_groups_that_are_as_idle_are_compared_by_their_topics(busy_cores, running):
    app = Application(most_topics=50, spread=2)
    app.groups.look("abc")
    app.query_of("b").group.busy_cores = busy_cores
    app.groups.look("abcd")
    assert app.query_of("d").group.topics == list(running)


def test_a_topic_that_is_slow_alone_in_its_group_goes_on_there_and_gets_no_neighbour(clock):
    app = Application(most_topics=50, spread=2)
    app.groups.look("ab")
    kept = app.query_of("a")
    kept.group.apart = {"a"}
    app.groups.look("abcd")
    assert app.query_of("a") is kept
    assert app.running == [["a"], ["b", "d"], ["c"]]
    clock[0] += 121
    app.groups.look("abcd")
    assert app.running == [["a", "c"], ["b", "d"]]


@pytest.mark.usefixtures("clock")
def test_a_topic_that_is_not_wanted_any_more_leaves_its_group_alone():
    app = Application(most_topics=2)
    app.groups.look("abcd")
    kept = app.query_of("c")
    app.groups.look("acd")
    assert app.running == [["a"], ["c", "d"]]
    assert app.query_of("c") is kept
    app.groups.look("cd")
    assert app.running == [["c", "d"]]
    app.groups.look("acd")
    assert app.running == [["a"], ["c", "d"]]
    assert app.opened == ["a", "b", "c", "d", "a"]


@pytest.mark.parametrize("error", [RetryError("no leader"), StopError("made anew")])
def test_a_topic_that_cannot_be_opened_waits_and_its_neighbours_start(clock, error):
    app = Application(most_topics=50)
    app.ill["b"] = error
    app.groups.look("abc")
    app.groups.look("abc")
    assert app.running == [["a", "c"]]
    assert app.opened == ["a", "b", "c"]
    clock[0] += 3
    app.groups.look("abc")
    assert app.opened == ["a", "b", "c", "b"]
    clock[0] += 3
    app.groups.look("abc")
    assert app.opened == ["a", "b", "c", "b"]  # the wait grows
    app.ill.clear()
    clock[0] += 60
    app.groups.look("abc")
    assert app.running == [["a", "b", "c"]]


def test_topics_without_a_leader_cost_one_question_and_are_not_opened(clock):
    app, names = Application(most_topics=50), [f"t{number:03}" for number in range(300)]
    app.leaderless = set(names[:200])
    app.groups.look(names)
    assert app.questions == [names]
    assert app.opened == names[200:]
    for _ in range(3):
        app.groups.look(names)
    assert len(app.questions) == 1  # none is due
    clock[0] += 3
    app.groups.look([*names, "new"])
    assert app.questions[1:] == [sorted([*names[:200], "new"])]
    assert app.opened == [*names[200:], "new"]
    app.leaderless.clear()
    clock[0] += 60
    app.groups.look([*names, "new"])
    assert {topic for topics in app.running for topic in topics} == {*names, "new"}


def test_however_many_topics_hang_while_they_are_opened_a_look_waits_for_one(clock):
    """Their leaders went after Kafka was asked; those that failed come after all others."""
    app, hang = Application(most_topics=50), [f"hangs{number}" for number in range(8)]
    names = [*hang, "a", "b"]
    open_one = app._open

    def slow(topic: str) -> Consumer:
        if topic in hang:
            app.opened.append(topic)
            clock[0] += 15
            raise RetryError("nobody tells where it ends")
        return open_one(topic)

    app.groups._open_consumer = slow  # type: ignore[assignment]
    for _ in range(9):
        began = clock[0]
        app.groups.look(names)
        assert clock[0] - began <= 15
    assert app.running == [["a", "b"]]
    app.groups.look([*names, "c"])
    assert {topic for topics in app.running for topic in topics} == {"a", "b", "c"}


def test_a_topic_that_raises_leaves_for_a_query_of_its_own_until_it_ran_well(clock):
    app = Application(most_topics=50)
    app.groups.look("abc")
    app.query_of("b").fail(b=StopError("b/0: the log has a hole"))
    app.groups.look("abc")
    assert app.running == [["a", "c"]]
    clock[0] += 3
    app.groups.look("abc")
    assert app.running == [["a", "c"], ["b"]]
    kept = app.query_of("a")
    clock[0] += 100
    app.groups.look("abc")
    assert app.query_of("a") is kept
    clock[0] += 30
    app.groups.look("abc")
    assert app.running == [["a", "b", "c"]]
    assert app.opened == ["a", "b", "c", "b"]


def test_topics_whose_server_was_away_come_back_to_their_group(clock):
    app = Application(most_topics=50)
    app.groups.look("abc")
    app.query_of("a").fail(a=RetryError("a changed its leader"), c=RetryError("c changed it too"))
    app.groups.look("abc")
    assert app.running == [["b"]]
    clock[0] += 3
    app.groups.look("abc")
    assert app.running == [["a", "b", "c"]]


def test_a_topic_that_could_not_be_read_beside_others_that_could_is_read_alone(clock):
    """Its neighbours would wait for it, or be started anew, at each try."""
    app = Application(most_topics=50)
    app.groups.look("abc")
    app.query_of("a").fail(a=UnreadError("nothing came of a/0"))
    app.groups.look("abc")
    assert app.running == [["b", "c"]]
    clock[0] += 3
    app.groups.look("abc")
    assert sorted(app.running) == [["a"], ["b", "c"]]


def test_a_topic_that_sparks_own_error_names_is_to_blame(clock):
    app = Application(most_topics=50)
    names = ["events.t.a", "events.t.a2", "events.t.b"]
    app.groups.look(names)
    app.query_of(names[0]).end("IllegalStateException: Partition events.t.a-3's offset was changed")
    app.groups.look(names)
    assert app.running == [["events.t.a2", "events.t.b"]]


def test_a_culprit_that_nobody_can_name_ends_up_alone(clock):
    app, names = Application(most_topics=50), [f"t{number:02}" for number in range(50)]
    app.groups.look(names)
    for _ in range(20):
        query = app.query_of("t17")
        if query.group.topics == ["t17"]:
            break
        query.end("a worker ended")
        app.groups.look(names)
        clock[0] += 61
        app.groups.look(names)
    assert ["t17"] in app.running
    assert sorted(topic for topics in app.running for topic in topics) == names


def test_a_topic_that_its_neighbours_wait_for_has_a_query_of_its_own_while_it_is_slow(clock):
    app = Application(most_topics=50)
    app.groups.look("abc")
    app.query_of("b").group.apart = {"b"}
    app.groups.look("abc")
    assert app.running == [["a", "c"], ["b"]]
    clock[0] += 119
    app.query_of("b").group.apart = {"b"}
    app.groups.look("abc")
    clock[0] += 119
    app.groups.look("abc")
    assert app.running == [["a", "c"], ["b"]]
    clock[0] += 2
    app.groups.look("abc")
    assert app.running == [["a", "b", "c"]]
    assert app.opened == ["a", "b", "c"]


def test_a_slow_topics_batch_is_waited_for_by_nobody_when_it_was_alone_for_long(clock):
    app = Application(most_topics=50)
    app.groups.look("abc")
    app.query_of("b").group.apart = {"b"}
    app.groups.look("abc")
    kept, slow = app.query_of("a"), app.query_of("b")
    slow.group.busy = True
    for _ in range(20):
        clock[0] += 60
        app.groups.look("abc")
        assert app.query_of("a") is kept
    slow.group.busy, slow.group.apart = False, {"b"}  # the batch is over: it was slow again
    app.groups.look("abc")
    assert app.running == [["a", "c"], ["b"]]
    assert not app.query_of("b").group.ending


@pytest.mark.usefixtures("clock")
def test_the_only_topic_of_a_group_that_is_slow_gets_no_neighbour():
    app = Application(most_topics=50)
    app.groups.look("a")
    app.query_of("a").group.apart = {"a"}
    app.groups.look("ab")
    assert app.running == [["a"], ["b"]]


@pytest.mark.usefixtures("clock")
def test_what_failed_in_the_last_batch_of_a_group_is_not_forgotten():
    app = Application(most_topics=50)
    app.groups.look("abc")
    busy = app.query_of("a")
    busy.group.busy, busy.group.apart = True, {"b"}
    app.groups.look("abc")
    assert app.running == [["a", "b", "c"]]  # until its batch is over
    busy.group.busy = False
    busy.fail(b=RetryError("whether it was committed is not known"))
    app.groups.look("abc")
    assert app.running == [["a", "c"]]  # "b" is opened anew: it reads where it stands


@pytest.mark.usefixtures("clock")
def test_no_topic_is_read_by_two_queries_while_a_batch_goes_on():
    app = Application(most_topics=2)
    app.groups.look("ab")
    busy = app.query_of("a")
    busy.group.busy = True
    app.groups.look("bc")
    assert not app.consumers["a"].released
    app.groups.look("abc")
    assert app.running == [["a", "b"]]
    assert app.opened == ["a", "b", "c"]  # "a" would fence the commit that its query may make
    first = app.consumers["a"]
    busy.group.busy = False
    app.groups.look("abc")
    app.groups.look("abc")
    assert app.running == [["a"], ["b", "c"]]
    assert first.released


@pytest.mark.usefixtures("clock")
def test_a_query_that_only_ends_gets_no_topic():
    app = Application(most_topics=50)
    app.groups.look("abc")
    app.query_of("b").group.apart = {"b"}
    app.groups.look("abc")
    app.query_of("a").group.busy = app.query_of("b").group.busy = True
    app.query_of("c").group.apart = {"c"}
    app.groups.look("ac")
    assert app.query_of("b").group.ending
    app.query_of("a").group.busy = False
    app.groups.look("ac")
    app.groups.look("ac")
    assert app.running == [["a"], ["b"], ["c"]]  # "c" waits for no batch of "b"


@pytest.mark.usefixtures("clock")
def test_a_topic_that_went_to_another_application_is_let_go():
    app = Application(most_topics=2)
    app.groups.look("ab")
    app.query_of("a").fail(b=FencedError("consumer 'b' was taken over"))
    app.groups.look("ab")
    app.groups.look("a")
    assert app.running == [["a"]]
    app.groups.look("ab")  # it came back
    assert app.running == [["a", "b"]]


def test_a_topic_that_was_moved_away_and_back_between_two_looks_is_taken_again(clock):
    """Another cluster's application had its lease: nothing was wrong with this one."""
    app = Application(most_topics=50)
    app.groups.look("ab")
    app.query_of("a").fail(b=FencedError("consumer 'b' was taken over"))
    app.groups.look("ab")
    assert app.running == [["a"]]
    assert app.opened == ["a", "b"]  # it waits
    app.ill["b"] = FencedError("processing of 'default' was started anew: epoch 1 is over")
    clock[0] += 3
    app.groups.look("ab")
    assert app.running == [["a"]]  # refused; the application ends at its next beat
    app.ill.clear()
    clock[0] += 60
    app.groups.look("ab")
    assert app.running == [["a", "b"]]  # with its neighbours, as before


def test_it_says_what_runs_and_why_the_rest_does_not(clock):
    app = Application(most_topics=50)
    assert app.groups.serving(7) is None
    app.ill = {"b": SettleError("b was made anew"), "d": RetryError("nobody tells where it ends")}
    app.leaderless = {"c"}
    open_one = app._open
    app.groups._open_consumer = lambda topic: None if topic == "e" else open_one(topic)  # type: ignore[assignment, return-value]
    app.groups.look("abcde")
    found = app.groups.serving(7)
    assert found is not None
    assert (found.version, found.wanted, found.running, found.failing) == (7, 5, 1, 2)
    assert [(one.name, one.kind, one.why.partition(",")[0]) for one in found.held] == [
        ("c", "fails", "RetryError: no leader"),
        ("d", "fails", "RetryError: nobody tells where it ends"),
        ("b", "stopped", "SettleError: b was made anew"),
        ("e", "waits", "for its turn"),
    ]
    app.query_of("a").fail(a=RetryError("the tracker is away"))
    app.groups.look("abcde")
    found = app.groups.serving(7)
    assert found is not None
    assert (found.running, found.failing, found.is_unable) == (0, 3, True)
    app.ill, app.leaderless, app.groups._open_consumer = {}, set(), open_one  # type: ignore[assignment]
    clock[0] += 60
    app.groups.look("abcde")
    assert app.groups.serving(8) == Serving(8, 5, 5, 0)
    ids = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted\n"
    cause = 'py4j.Py4JException: x\nKeyError: "cents"\n\nwhile the records of a were processed\n'
    app.query_of("a").end(ids + cause)
    app.groups.look("abcde")
    found = app.groups.serving(9)
    assert found is not None
    assert [(one.name, one.why.partition(";")[0]) for one in found.held if one.kind == "fails"] == [
        ("a", 'WaybillError: KeyError: "cents"')
    ]


@given(
    most=st.integers(1, 4),
    spread=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sets(st.sampled_from("abcdef")), st.sampled_from(["", "stop", "retry", "?"])),
        max_size=12,
    ),
)
def test_each_wanted_topic_that_opens_is_in_exactly_one_query(most, spread, steps):
    with pytest.MonkeyPatch.context() as patch:
        now = [1000.0]
        patch.setattr(topic_groups.time, "monotonic", lambda: now[0])
        app = Application(most, spread)
        for wanted, how in steps:
            app.groups.look(sorted(wanted))
            if how and app.running:
                topic = app.running[0][0]
                error = {"stop": StopError("x"), "retry": RetryError("x")}.get(how)
                query = app.query_of(topic)
                query.end("gone") if error is None else query.fail(**{topic: error})
            for _ in range(2):  # the end of a query is seen, then its topic has waited
                app.groups.look(sorted(wanted))
                now[0] += 61  # longer than any wait
            app.groups.look(sorted(wanted))
            topics = [topic for group in app.running for topic in group]
            assert sorted(topics) == sorted(wanted)
            assert all(len(group) <= most for group in app.running)
            assert not any(query.group.ending for query in app.queries if query.isActive)


@pytest.mark.usefixtures("clock")
def test_a_generation_that_ended_is_let_go_of_though_its_lease_was_fenced():
    app = Application(most_topics=2)
    app.groups.look(["first", "other"])
    app.query_of("first").fail(first=FencedError("the generation has ended"))
    app.groups.look(["second", "other"])
    app.groups.look(["second", "other"])
    assert {topic for topics in app.running for topic in topics} == {"other", "second"}
