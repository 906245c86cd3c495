"""Versions of mappings: made one after the other, by whoever; whole, or not at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import open_books
from tests.support.mapped import RULES, declared, learn_payloads, names, pipeline, types

from waybill.errors import InputError
from waybill.mappings.versions import history, in_force, keep_declared
from waybill.pipelines import Pipeline
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves


@pytest.fixture(scope="module")
def opened(_postgres: Any) -> Iterator[TrackerStore]:
    with open_books(_postgres, "mapping_versions", pool_size=12) as tracker:
        yield tracker


@pytest.fixture
def tracker(opened: TrackerStore) -> TrackerStore:
    with opened.transaction() as connection:
        connection.execute(text("TRUNCATE mapping_versions, pipeline_versions, pipelines CASCADE"))
    return opened


def deploy(tracker: TrackerStore, one: Pipeline, author: str = "ann") -> list[str]:
    """Deploy as the registry does; return the events that got a new version."""
    with tracker.transaction() as connection:
        made = keep_declared(connection, one, RULES, author)
        connection.execute(
            text(
                "INSERT INTO pipelines (id, name, team) VALUES (:i, :n, :t) ON CONFLICT DO NOTHING"
            ),
            {"i": one.id, "n": one.name, "t": one.team},
        )
        connection.execute(
            text(
                "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, "
                "deployed_by) SELECT :i, count(*) + 1, :v, CAST(:d AS jsonb), :a "
                "FROM pipeline_versions"
            ),
            {"i": one.id, "v": one.version, "d": json.dumps(one.to_json()), "a": author},
        )
    return sorted(made)


def force(tracker: TrackerStore) -> Any:
    return in_force(tracker)["p1", "order"]


def test_a_version_has_its_author_its_reason_and_its_time(tracker):
    deploy(tracker, pipeline(declared()), "ann")
    learned = learn_payloads(tracker, "p1", declared(), [{"id": 1, "userId": 7}], RULES, "task 3")
    first, second = reversed(history(tracker, "p1"))
    assert (first.number, first.author, first.reason) == (1, "ann", "deployed")
    assert (second.number, second.author, second.reason) == (2, "task 3", "new column user_id")
    assert second.pipeline_version == first.pipeline_version
    assert second == learned == force(tracker)
    assert first.created_at <= second.created_at
    assert second.created_at.tzinfo is not None


def test_what_is_known_makes_no_version(tracker):
    one = pipeline(declared(columns={"amount": "int64"}))
    assert deploy(tracker, one) == ["order"]
    assert deploy(tracker, pipeline(declared(columns={"amount": "int64"}), code="x = 1")) == []
    payload = {"id": 1, "amount": 5, "none": None}
    assert learn_payloads(tracker, "p1", one.events["order"], [payload], RULES, "t").number == 1


def test_without_a_version_the_callers_declaration_is_the_first(tracker):
    version = learn_payloads(tracker, "p1", declared(), [{"id": 1}], RULES, "t")
    assert (version.number, version.declaration) == (1, declared())


def test_a_task_that_knows_an_old_declaration_learns_on_top_of_the_one_in_force(tracker):
    deploy(tracker, pipeline(declared(columns={"sum": ("int64", "total")})))
    version = learn_payloads(tracker, "p1", declared(), [{"total": 1, "new": 2}], RULES, "t")
    assert names(version.declaration) == {"id": "id", "total": "sum", "new": "new"}


@pytest.mark.parametrize("crowd", [8])
def test_threads_that_meet_a_field_at_once_add_it_once(tracker, crowd):
    deploy(tracker, pipeline(declared()))
    barrier, found = threading.Barrier(crowd), []

    def learn(number: int) -> None:
        barrier.wait(timeout=240)
        rows = [{"id": 1, "userId": 1, f"own{number}": 1}]
        found.append(learn_payloads(tracker, "p1", declared(), rows, RULES, f"t{number}"))

    threads = [threading.Thread(target=learn, args=(number,)) for number in range(crowd)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(version.number for version in found) == list(range(2, crowd + 2))
    sources = [column.source for column in force(tracker).declaration.table.columns]
    assert sorted(sources) == sorted({"id", "userId", *(f"own{n}" for n in range(crowd))})


def child(tracker: TrackerStore, author: str, payloads: Any) -> subprocess.Popen[str]:
    """Start a process that learns once it is told to."""
    command = [sys.executable, "-m", "tests.support.mapped", tracker.dsn.get_secret_value(), author]
    process = subprocess.Popen(
        [*command, json.dumps(payloads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_that_meet_a_field_at_once_add_it_once(tracker):
    deploy(tracker, pipeline(declared()))
    processes = [child(tracker, f"t{n}", [{"id": 1, "userId": n}]) for n in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [json.loads(process.communicate(timeout=240)[0]) for process in processes]
    assert said == [[2, {"id": "id", "userId": "user_id"}]] * 2
    assert [version.number for version in history(tracker, "p1", "order")] == [2, 1]


def test_a_task_killed_before_its_commit_leaves_nothing_and_its_lock_goes_with_it(tracker):
    deploy(tracker, pipeline(declared()))
    process = child(tracker, "killed", [{"id": 1, "userId": 1}])
    with tracker.transaction() as connection:
        # the version can be inserted, and not be committed, while this is held
        connection.execute(text("LOCK TABLE mapping_versions IN SHARE MODE"))
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        wait_until_it_inserts(tracker)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=240)
    assert force(tracker).number == 1
    version = learn_payloads(tracker, "p1", declared(), [{"id": 1, "userId": 1}], RULES, "next")
    assert (version.number, version.author) == (2, "next")


def wait_until_it_inserts(tracker: TrackerStore) -> None:
    """Wait until the other one has read what is in force, holds its lock, and inserts."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND query LIKE 'INSERT INTO mapping_versions%' AND datname = current_database()"
    )
    until = time.monotonic() + 600
    while time.monotonic() < until:
        with tracker.transaction() as connection:
            if connection.execute(query).scalar():
                return
        time.sleep(0.02)
    raise AssertionError("the task never came to its insert")


def test_a_name_once_given_is_the_fields_whatever_happened_to_its_column(tracker):
    deploy(tracker, pipeline(declared()))
    learn_payloads(tracker, "p1", declared(), [{"userId": 1}], RULES, "t")
    # declared under a name of its own, then dropped again: the field is learned anew
    deploy(tracker, pipeline(declared(columns={"customer": ("int64", "userId")})))
    assert names(force(tracker).declaration) == {"id": "id", "userId": "customer"}
    deploy(tracker, pipeline(declared("strict")))
    assert names(force(tracker).declaration) == {"id": "id"}
    deploy(tracker, pipeline(declared(), code="x = 2"))
    rows = [{"user_id": 1}, {"userId": 1}]
    again = names(learn_payloads(tracker, "p1", declared(), rows, RULES, "t").declaration)
    assert again["userId"] == "customer"  # the name it was given last
    assert again["user_id"] not in {"user_id", "customer"}  # the column of that name is another's


def test_a_deploy_keeps_what_was_learned_and_what_no_type_joins_is_refused(tracker):
    deploy(tracker, pipeline(declared(columns={"amount": "int32"})))
    learn_payloads(tracker, "p1", declared(), [{"amount": 2**40, "note": "x"}], RULES, "t")
    deploy(tracker, pipeline(declared(columns={"amount": "int32", "shop": "string"})))
    expected = {"id": "int64", "amount": "int64", "shop": "string", "note": "string"}
    assert types(force(tracker).declaration) == expected
    with pytest.raises(InputError, match=r"'amount': expected int64.*found string\. Declare int64"):
        deploy(tracker, pipeline(declared(columns={"amount": "string"})))
    assert force(tracker).number == 3


def test_dropped_columns_leave_under_strict_but_not_what_was_learned(tracker):
    deploy(tracker, pipeline(declared(columns={"a": "int64", "b": "int64"})))
    learn_payloads(tracker, "p1", declared(), [{"note": "x"}], RULES, "t")
    # a deploy that changes nothing of the mapping, and one that declares what was learned
    deploy(tracker, pipeline(declared(columns={"a": "int64", "b": "int64"}), code="x = 1"))
    deploy(tracker, pipeline(declared("strict", columns={"a": "int64"})))
    assert list(types(force(tracker).declaration)) == ["id", "a", "note"]


def test_names_of_many_versions_are_kept_over_several_deploys(tracker):
    deploy(tracker, pipeline(declared(columns={"one": ("int64", "a")})))
    learn_payloads(tracker, "p1", declared(), [{"B": 1}], RULES, "t")
    learn_payloads(tracker, "p1", declared(), [{"C": 1}], RULES, "t")
    # all that is declared goes; then under evolve the fields come again, beside others like them
    both = {"b": ("int64", "x"), "c": ("int64", "y")}
    deploy(tracker, pipeline(declared("strict", columns=both)))
    deploy(tracker, pipeline(declared("strict")))
    deploy(tracker, pipeline(declared()))
    rows = [{"a": 1, "one": 1, "B": 1, "b": 1, "x": 1}]
    found = names(learn_payloads(tracker, "p1", declared(), rows, RULES, "t").declaration)
    assert (found["a"], found["x"]) == ("one", "b")
    assert found["B"].startswith("b_")  # what it was is x's since
    assert found["one"].startswith("one_")
    assert len({*found.values()}) == len(found)


def test_a_child_tables_name_is_not_anothers_table(tracker):
    other = declared().table.model_copy(update={"name": "orders__items"})
    line = declared().model_copy(update={"name": "line", "table": other})
    deploy(tracker, pipeline(declared(arrays="child"), line))
    rows = [{"items": [{"a": 1}], "tags": ["x"]}]
    known = declared(arrays="child")
    learned = learn_payloads(tracker, "p1", known, rows, RULES, "t").declaration
    items, tags = learned.table.children
    assert items.name.startswith("orders__items_")
    assert tags.name == "orders__tags"
    # and the other way round: a deploy cannot take what an array has
    taken = line.model_copy(update={"table": other.model_copy(update={"name": "orders__tags"})})
    with pytest.raises(InputError, match="'orders__tags' has the items of an array of event"):
        deploy(tracker, pipeline(declared(arrays="child"), taken))


def test_only_the_pipelines_asked_for_are_read(tracker):
    deploy(tracker, pipeline(declared()))
    assert in_force(tracker, []) == {}
    assert list(in_force(tracker, ["p1", "p2"])) == [("p1", "order")]
