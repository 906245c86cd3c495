"""Virtual clusters in the real tracker: the coordinator's rounds, people's decisions, following them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import open_books
from tests.support.clustered import (
    LogInMemory,
    age_looks,
    deploy_teams,
    look_back,
    process,
    set_load,
    topic_of,
)

from waybill.access import Decision, read_audit
from waybill.clusters import (
    SET_BY_WAYBILL,
    ApplicationLease,
    Assignment,
    AssignmentWatcher,
    ClusterRequest,
    DrainRequest,
    DryRunInfra,
    GrowthPolicy,
    Heartbeat,
    HeldConsumer,
    PlaceRequest,
    ServedTopics,
    Serving,
    TopicGrowth,
    cluster_history,
    cluster_status,
    coordinate,
    create_cluster,
    drain_cluster,
    move_team,
    pin_team,
    read_application,
    set_cluster,
    topics_of_cluster,
    unpin_team,
)
from waybill.clusters.loads import HotSpot
from waybill.clusters.measurement import measure
from waybill.clusters.records import (
    read_assignment,
    read_capacities,
    read_clusters,
    read_demand_history,
    read_samples,
    read_topic_looks,
    write_assignment,
)
from waybill.errors import AwayError, InputError, RetryError
from waybill.ledger import FencedError, flip_generation, lock_generations
from waybill.pipelines import generation_name
from waybill.processing.spark import keep_running
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
ANN = Decision("ann", "it is slow")
_LISTENERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' "
    "AND pid <> pg_backend_pid()"
)


@pytest.fixture
def tracker(postgres: Any, tmp_path: Path) -> Iterator[TrackerStore]:
    """A tracker with three teams: red, green, blue."""
    with open_books(postgres, "clusters") as books:
        deploy_teams(books, tmp_path, "red", "green", "blue")
        yield books


@pytest.fixture
def log() -> LogInMemory:
    made = LogInMemory()
    made.ends = {topic_of(team): {0: 0, 1: 0} for team in ("red", "green", "blue")}
    return made


def round_of(tracker: TrackerStore, log: Any, infra: DryRunInfra | None = None) -> Any:
    return coordinate(tracker, log, infra or DryRunInfra())


def in_force(tracker: TrackerStore) -> Assignment:
    with tracker.transaction() as connection:
        found = read_assignment(connection)
    assert found is not None
    return found


def places(tracker: TrackerStore) -> dict[str, str]:
    return {team: at.cluster for team, at in in_force(tracker).placements.items()}


def two_clusters(tracker: TrackerStore) -> None:
    set_cluster(tracker, ClusterRequest(name="default", cores=4), ANN)
    create_cluster(tracker, ClusterRequest(name="second", cores=4), ANN)


def audited(tracker: TrackerStore) -> list[tuple[str, str, str]]:
    return [
        (one["who"], one["action"], one["target"]) for one in read_audit(tracker, None, limit=99)
    ]


# When nothing is configured


def test_without_a_round_the_default_cluster_serves_every_team(tracker: TrackerStore) -> None:
    served = {topic_of(team): "warehouse" for team in ("red", "green", "blue")}
    assert topics_of_cluster(tracker, "default") == served
    assert topics_of_cluster(tracker, "other") == {}


def test_rounds_leave_all_with_the_only_cluster_and_make_one_version(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    infra = DryRunInfra()
    first, second = round_of(tracker, log, infra), round_of(tracker, log, infra)
    assert places(tracker) == {"red": "default", "green": "default", "blue": "default"}
    assert (first.version, second.version) == (1, 1)
    assert (len(first.moves), second.moves) == (3, ())
    assert first.problems == ()
    assert len(infra.requests) == 2
    assert set(topics_of_cluster(tracker, "default")) == set(log.ends)


def test_a_new_team_is_the_default_clusters_until_the_next_round(
    tracker: TrackerStore, log: LogInMemory, tmp_path: Path
) -> None:
    two_clusters(tracker)
    round_of(tracker, log)
    deploy_teams(tracker, tmp_path, "late")
    assert topic_of("late") in topics_of_cluster(tracker, "default")
    assert topic_of("late") not in topics_of_cluster(tracker, "second")


# What is measured


def test_a_look_gives_rates_lag_and_the_cost_of_an_event(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    round_of(tracker, log)
    age_looks(tracker, 60)
    log.ends[topic_of("red")] = {0: 9_000, 1: 3_000}
    process(tracker, "red", {0: (0, 4_000), 1: (0, 2_000)}, tasks_ms=1_200)
    log.came_at_s[topic_of("red")] = time.time() - 30
    round_of(tracker, log)
    with tracker.transaction() as connection:
        before, after = read_samples(connection)["red"]
    assert (before.written, before.read) == (0, 0)
    assert (after.written, after.read, after.waiting) == (12_000, 6_000, 6_000)
    assert 29 < after.lag_s < 150
    assert (after.batches, after.batch_events) == (1, 6_000)
    assert after.core_s == pytest.approx(1.2)
    assert read_samples_of(tracker, "green").batches == 0


def read_samples_of(tracker: TrackerStore, team: str) -> Any:
    with tracker.transaction() as connection:
        return read_samples(connection)[team][-1]


def test_a_batch_counts_in_one_look_only(tracker: TrackerStore, log: LogInMemory) -> None:
    round_of(tracker, log)
    process(tracker, "red", {0: (0, 10)})
    round_of(tracker, log)
    assert read_samples_of(tracker, "red").batches == 1
    round_of(tracker, log)
    assert read_samples_of(tracker, "red").batches == 0


def test_a_clock_that_steps_back_freezes_no_figures(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    """What was seen before lies in the future then: it is not the newest, and it goes."""
    log.ends[topic_of("red")] = {0: 9_000_000, 1: 0}
    log.came_at_s[topic_of("red")] = time.time() - 500
    round_of(tracker, log)
    for table in ("team_loads", "topic_looks", "cluster_loads"):
        with tracker.transaction() as connection:
            connection.execute(text(f"UPDATE {table} SET at = at + interval '2 hours'"))
    log.ends[topic_of("red")] = {0: 10, 1: 0}
    log.came_at_s[topic_of("red")] = time.time()
    process(tracker, "red", {0: (0, 4)})
    round_of(tracker, log)
    with tracker.transaction() as connection:
        [sample] = read_samples(connection)["red"]
        known = read_topic_looks(connection, [topic_of("red")])[topic_of("red")]
        [minute] = read_capacities(connection, "default")
        assert len(read_demand_history(connection)["default"]) == 1
    assert (sample.written, sample.waiting, sample.batches) == (10, 6, 1)
    assert (known.written, round(known.lag_s / 100)) == (10, 0)
    assert minute["lag_s"] < 100


def test_where_tasks_did_not_say_what_they_took_a_batch_counts_a_core_a_partition(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    round_of(tracker, log)
    process(tracker, "red", {0: (0, 10), 1: (0, 10)}, took_ms=500)
    process(tracker, "red", {0: (10, 20)}, took_ms=None)
    round_of(tracker, log)
    assert read_samples_of(tracker, "red").core_s == pytest.approx(1.0)


def test_a_hot_partition_is_named(tracker: TrackerStore, log: LogInMemory) -> None:
    log.ends[topic_of("red")] = {0: 90_000, 1: 1_000}
    log.came_at_s[topic_of("red")] = time.time()
    [hot] = measured(tracker, log)["red"].hot_partitions
    assert (hot.topic, hot.partition, hot.waiting) == (topic_of("red"), 0, 90_000)
    assert hot.share > 0.9


def measured(tracker: TrackerStore, log: Any) -> dict[str, Any]:
    found = measure(tracker, log)
    return {one.team: one for one in found.samples}


def test_a_topic_without_a_leader_costs_its_own_figures_and_is_named(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    log.ends[topic_of("red")] = {0: 500}
    log.came_at_s[topic_of("red")] = time.time() - 40
    round_of(tracker, log)
    before = measured(tracker, log)["red"]
    log.away.add(topic_of("red"))
    log.ends[topic_of("green")] = {0: 70}
    log.came_at_s[topic_of("green")] = time.time()
    report = round_of(tracker, log)
    words = (
        f"topic {topic_of('red')} did not answer, its last known figures are used: partition 0 of "
        f"{topic_of('red')!r} has no leader"
    )
    assert report.problems == (words,)
    assert cluster_status(tracker).problems == (words,)
    red, green = read_samples_of(tracker, "red"), read_samples_of(tracker, "green")
    assert (red.written, red.waiting, red.lag_s) == (500, 500, pytest.approx(before.lag_s, abs=30))
    assert green.waiting == 70
    log.away.clear()
    assert round_of(tracker, log).problems == ()


def test_a_decision_that_was_made_without_a_topic_names_it(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    log.away.add(topic_of("red"))
    round_of(tracker, log)
    pin_team(tracker, PlaceRequest(team="blue", cluster="second"), ANN)
    assert [words.split(",")[0] for words in in_force(tracker).problems] == [
        f"topic {topic_of('red')} did not answer"
    ]


def test_a_topic_whose_oldest_record_does_not_come_has_the_lag_that_was_known(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    log.ends[topic_of("red")] = {0: 10, 1: 10}
    log.came_at_s[topic_of("red")] = time.time() - 50
    round_of(tracker, log)
    log.silent.add(topic_of("red"))
    log.ends[topic_of("red")] = {0: 30, 1: 10}
    found = measured(tracker, log)["red"]
    assert (found.waiting, found.unseen) == (40, {})
    assert 50 <= found.lag_s < 170


def test_a_round_asks_kafka_three_times_however_many_topics_there_are(
    tracker: TrackerStore, log: LogInMemory, tmp_path: Path
) -> None:
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "WITH made AS (INSERT INTO pipelines (id, name, team) "
                "SELECT 'many-' || n, 'many-' || n, 'team' || n FROM generate_series(1, 5000) AS n "
                "RETURNING id) INSERT INTO pipeline_versions "
                "(pipeline_id, number, version, declaration, deployed_by) "
                "SELECT made.id, 1, 'v', declaration, 'ann' FROM made, pipeline_versions "
                "WHERE pipeline_id = 'red-orders'"
            )
        )
    log.ends = {topic_of(f"team{n}"): {0: 5, 1: 5} for n in range(1, 5001)}
    log.came_at_s = dict.fromkeys(log.ends, time.time())
    log.away = {topic_of(f"team{n}") for n in range(1, 1001)}
    found = measure(tracker, log)
    assert log.calls == ["topics", "spans", "first_times"]
    assert (len(found.samples), len(found.topics)) == (5003, 4000)


def test_a_topic_that_is_gone_and_one_that_was_made_anew_are_no_error(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    process(tracker, "red", {0: (0, 100)})
    del log.ends[topic_of("green")]
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE topic_offsets SET topic_id = 'older'"))
    log.ends[topic_of("red")] = {0: 7}
    log.came_at_s[topic_of("red")] = time.time()
    found = measured(tracker, log)
    assert (found["red"].written, found["red"].read) == (7, 0)
    assert (found["green"].written, found["green"].consumers) == (0, 1)


# What is decided


def test_a_hot_team_moves_into_an_empty_cluster_with_its_reason(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    set_cluster(tracker, ClusterRequest(name="default", cores=4), ANN)
    for team in ("red", "green", "blue"):
        set_load(tracker, team, cores=0.5)
    round_of(tracker, log)
    set_load(tracker, "red", cores=3.0)
    create_cluster(tracker, ClusterRequest(name="spare", cores=4), ANN)
    assert in_force(tracker).teams_of("spare") == frozenset()  # its application starts later
    round_of(tracker, log)
    found = in_force(tracker)
    assert found.teams_of("spare") == {"red"}
    assert [(m.team, m.old, m.new, m.kind) for m in found.moves] == [
        ("red", "default", "spare", "hot")
    ]
    assert "of 4 cores of default" in found.moves[0].reason


def test_capacity_is_written_for_each_cluster_and_asked_for_as_a_sum(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    for team, cores in (("red", 3.0), ("green", 0.5), ("blue", 0.5)):
        set_load(tracker, team, cores=cores)
    infra = DryRunInfra()
    log.ends = {}
    round_of(tracker, log, infra)
    [demand] = infra.requests
    with tracker.transaction() as connection:
        rows = read_capacities(connection)
    assert {row["cluster"] for row in rows} == {"default", "second"}
    assert sum(row["needed_cores"] for row in rows) == demand.cores >= 6


# Topics that grow


def all_fall_behind(tracker: TrackerStore, log: LogInMemory) -> None:
    """Have three teams fall behind, red most and blue least, where there are cores for more."""
    set_cluster(tracker, ClusterRequest(name="default", cores=8), ANN)
    for number, team in enumerate(("red", "green", "blue")):
        fall_behind(tracker, log, team, for_s=1_000 - number)


def fall_behind(tracker: TrackerStore, log: LogInMemory, team: str, *, for_s: float) -> None:
    """Have a team's two partitions get more than a task each can process."""
    log.ends[topic_of(team)] = {0: 1_000, 1: 1_000}
    log.came_at_s[topic_of(team)] = time.time() - for_s
    process(tracker, team, {0: (0, 100), 1: (0, 100)}, took_ms=400_000, tasks_ms=900_000)


def test_topics_whose_tasks_do_not_keep_up_grow_and_what_keeps_one_from_it_keeps_no_other(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    all_fall_behind(tracker, log)
    asked: list[str] = []

    def grow(growth: TopicGrowth) -> int:
        asked.append(growth.team)
        if growth.team == "red":
            raise RetryError("Kafka refused it")
        return 3 if growth.team == "blue" else growth.partitions

    def grown(policy: GrowthPolicy) -> Any:
        look_back(tracker)
        return coordinate(tracker, log, DryRunInfra(), grow, policy=policy)

    policy = GrowthPolicy(limit=16)
    assert round_of(tracker, log).growths == (), "nobody would do it"
    found = grown(policy)
    assert asked == ["red", "green", "blue"], "what is behind most comes first"
    assert [(one.topic, one.before, one.partitions) for one in found.growths] == [
        (topic_of("green"), 2, 4),
        (topic_of("blue"), 2, 3),
    ], "what a killed growth left is said as it is"
    words = f"topic {topic_of('red')} needs 4 partitions, and: Kafka refused it"
    assert found.problems == (words,)
    assert "3.5 of 8 cores of default are free" in found.growths[0].reason
    assert len(grown(replace(policy, growths=1)).growths) == 1
    assert asked[3:] == ["red", "green"]
    assert grown(replace(policy, attempts=1)).growths == ()
    assert asked[5:] == ["red"]
    assert coordinate(tracker, log, DryRunInfra(), grow, policy=policy).growths == (), "none came"
    assert asked[6:] == []
    more = {0: (100, 500), 1: (100, 500)}
    process(tracker, "red", more, took_ms=1_000, tasks_ms=1_000_000)
    assert [one.team for one in grown(policy).growths] == ["green", "blue"]
    assert asked[6:] == ["green", "blue"], "red's batches get through more than comes in"


def test_a_topic_that_drains_or_has_just_drained_does_not_grow_nor_does_any_while_kafka_is_away(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    all_fall_behind(tracker, log)
    asked: list[str] = []

    def grow(growth: TopicGrowth) -> int:
        asked.append(growth.team)
        raise AwayError("Kafka does not answer", setting="WAYBILL_KAFKA__BOOTSTRAP_SERVERS")

    def round_asks() -> list[str]:
        asked.clear()
        look_back(tracker)
        coordinate(tracker, log, DryRunInfra(), grow, policy=GrowthPolicy(limit=16))
        return list(asked)

    assert round_asks() == [], "nobody knows yet what comes in"
    assert round_asks() == ["red"]
    red = topic_of("red")
    with tracker.transaction() as connection:
        flip_generation(connection, lock_generations(connection, red, alone=True), partitions=4)
    assert round_asks() == ["green"], "red drains"
    assert read_samples_of(tracker, "red").consumers == 1, "one generation is read at a time"
    second = generation_name(red, 2)
    log.ends[second] = log.ends.pop(red)
    log.came_at_s[second] = log.came_at_s[red]
    with tracker.transaction() as connection:
        connection.execute(
            text("UPDATE batches SET consumer = :after WHERE consumer = :before"),
            {"after": f"processing/{second}", "before": f"processing/{red}"},
        )
        ended = "UPDATE topic_generations SET state = 'ended', ends = '{}', ended_at = now()"
        connection.execute(text(f"{ended} WHERE state = 'draining'"))
    assert round_asks() == round_asks() == ["green"], "red rests"
    with tracker.transaction() as connection:
        connection.execute(
            text("UPDATE topic_generations SET ended_at = ended_at - interval '31 minutes'")
        )
    assert round_asks() == ["red"]


# What people decide


def test_a_pin_takes_effect_at_once_and_is_audited(tracker: TrackerStore, log: LogInMemory) -> None:
    two_clusters(tracker)
    pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
    assert places(tracker)["red"] == "second"
    assert ("ann", "pin_team", "team red") in audited(tracker)
    unpin_team(tracker, "red", ANN)
    round_of(tracker, log)
    assert places(tracker)["red"] == "second", "it stays until there is a reason to move"
    for team in ("red", "nobody", "a\x00b"):
        with pytest.raises(InputError, match=r"is not pinned; pinned are: none"):
            unpin_team(tracker, team, ANN)


def test_a_pin_that_is_refused_changes_nothing(tracker: TrackerStore) -> None:
    two_clusters(tracker)
    set_cluster(tracker, ClusterRequest(name="second", max_consumers=1), ANN)
    pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
    before = audited(tracker)
    for team, cluster, words in (
        ("green", "second", "'second' is full.*2 consumers of at most 1.*--max-consumers"),
        ("green", "thrid", "no cluster 'thrid'; there are default, second"),
        ("nobody", "second", "no deployed pipeline is of team 'nobody'"),
        ("green", "'; DROP TABLE segments; --", "no cluster"),
    ):
        with pytest.raises(InputError, match=words):
            pin_team(tracker, PlaceRequest(team=team, cluster=cluster), ANN)
    assert audited(tracker) == before


def test_a_team_is_moved_by_hand_and_stays(tracker: TrackerStore, log: LogInMemory) -> None:
    two_clusters(tracker)
    for team in ("red", "green", "blue"):
        set_load(tracker, team, cores=0.5)
    round_of(tracker, log)
    target = "second" if places(tracker)["red"] == "default" else "default"
    move_team(tracker, PlaceRequest(team="red", cluster=target), ANN)
    round_of(tracker, log)
    at = in_force(tracker).placements["red"]
    assert (at.cluster, at.kind, at.reason) == (target, "asked", "moved by ann: it is slow")
    with pytest.raises(InputError, match="is in cluster .* already"):
        move_team(tracker, PlaceRequest(team="red", cluster=target), ANN)
    pin_team(tracker, PlaceRequest(team="red", cluster=target), ANN)
    with pytest.raises(InputError, match="is pinned to .* by ann"):
        move_team(tracker, PlaceRequest(team="red", cluster="default"), ANN)


def test_a_drained_cluster_is_emptied_and_may_take_teams_in_again(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    round_of(tracker, log)
    drain_cluster(tracker, DrainRequest(name="second"), ANN)
    round_of(tracker, log)
    assert set(places(tracker).values()) == {"default"}
    with pytest.raises(InputError, match="'second' is being drained; choose another"):
        pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
    with pytest.raises(InputError, match="the only one that takes teams in"):
        drain_cluster(tracker, DrainRequest(name="default"), ANN)
    drain_cluster(tracker, DrainRequest(name="second", undo=True), ANN)
    pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
    with pytest.raises(InputError, match="teams are pinned to cluster 'second': red"):
        drain_cluster(tracker, DrainRequest(name="second"), ANN)


def test_settings_of_a_cluster_are_kept_and_checked(tracker: TrackerStore) -> None:
    asked = ClusterRequest(
        name="big",
        cores=8,
        memory_mb=4096,
        lag_objective_s=10,
        scheduler_pool="fast",
        spark_conf=["spark.executor.cores=4", "spark.extra=a=b"],
    )
    made = create_cluster(tracker, asked, ANN)
    changed = set_cluster(
        tracker, ClusterRequest(name="big", cores=0, spark_conf=["spark.extra="]), ANN
    )
    assert dict(made.spark_conf) == {"spark.executor.cores": "4", "spark.extra": "a=b"}
    assert (changed.cores, changed.memory_mb, changed.lag_objective_s) == (None, 4096, 10)
    assert dict(changed.spark_conf) == {"spark.executor.cores": "4"}
    for request, words in (
        (ClusterRequest(name="big", spark_conf=["cores"]), "write spark.<name>=<value>"),
        (ClusterRequest(name="big", spark_conf=["spark.cores.max=9"]), "by Waybill: use --cores"),
        (ClusterRequest(name="big", memory_mb=100), "memory_mb must be at least 512"),
        (ClusterRequest(name="big"), "nothing of cluster 'big' would change"),
        (ClusterRequest(name="bgi", cores=1), "no cluster 'bgi'"),
    ):
        with pytest.raises(InputError, match=words):
            set_cluster(tracker, request, ANN)
    for name in SET_BY_WAYBILL:
        with pytest.raises(InputError, match=f"--spark-conf {name} is set by Waybill"):
            set_cluster(tracker, ClusterRequest(name="big", spark_conf=[f"{name}=1"]), ANN)
    with pytest.raises(InputError, match="there is a cluster 'big' already"):
        create_cluster(tracker, ClusterRequest(name="big"), ANN)
    with pytest.raises(InputError, match="a name is made of"):
        create_cluster(tracker, ClusterRequest(name="../x"), ANN)


def test_decisions_and_rounds_at_once_take_turns(tracker: TrackerStore, log: LogInMemory) -> None:
    two_clusters(tracker)
    errors: list[BaseException] = []

    def decide(team: str) -> None:
        try:
            for _ in range(5):
                for cluster in ("second", "default"):
                    pin_team(tracker, PlaceRequest(team=team, cluster=cluster), ANN)
                round_of(tracker, log)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=decide, args=(team,)) for team in ("red", "green", "blue")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(places(tracker).values()) == {"default"}
    with tracker.transaction() as connection:
        versions = connection.execute(text("SELECT version FROM cluster_assignments ORDER BY 1"))
        numbers = [row.version for row in versions]
    assert numbers == list(range(1, len(numbers) + 1))


def test_versions_that_nobody_sees_are_trimmed(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.clusters.records._KEPT_VERSIONS", 3)
    with tracker.transaction() as connection:
        for version in range(1, 6):
            write_assignment(connection, Assignment(version, {}), made_by="coordinator")
        rows = connection.execute(text("SELECT version FROM cluster_assignments ORDER BY 1"))
        assert [row.version for row in rows] == [3, 4, 5]


# Following it


def test_a_watcher_is_told_within_moments(tracker: TrackerStore, log: LogInMemory) -> None:
    two_clusters(tracker)
    round_of(tracker, log)
    with AssignmentWatcher(tracker, "second") as watcher:
        watcher.read()
        watcher.wait(0.05)  # it listens now
        timer = threading.Timer(
            0.3, pin_team, (tracker, PlaceRequest(team="red", cluster="second"), ANN)
        )
        timer.start()
        began = time.monotonic()
        assert watcher.wait(300)
        assert time.monotonic() - began < 120, "it is told, and does not look by itself"
        timer.join()
        assert "red" in watcher.read().teams_of("second")


def test_a_version_between_reading_and_listening_is_not_missed(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    with AssignmentWatcher(tracker, "second") as watcher:
        watcher.read()
        pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
        assert watcher.wait(300)


def test_reading_what_did_not_change_gives_the_same_object(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    round_of(tracker, log)
    watcher = AssignmentWatcher(tracker, "default")
    assert watcher.read() is watcher.read()


class Following:
    """The loop of an application of a cluster, in a thread; keeps the topics of each look."""

    def __init__(self, tracker: TrackerStore, cluster: str, *, every_s: float) -> None:
        self.looks: list[set[str]] = []
        self.asked = False
        self._tracker, self._cluster, self._every_s = tracker, cluster, every_s
        self._thread = threading.Thread(target=self._follow)

    def wait(self, seconds: float) -> bool:
        time.sleep(min(seconds, 0.2))
        return self.asked

    def _follow(self) -> None:
        with TrackerStore(TrackerSettings(dsn=self._tracker.dsn)) as own:
            served = ServedTopics(own, self._cluster)
            with served.watcher as watcher:
                keep_running(
                    lambda topics: self.looks.append(set(topics)),
                    served.read,
                    self,  # type: ignore[arg-type]
                    every_s=self._every_s,
                    sleep=watcher.wait,
                )

    def __enter__(self) -> Following:
        self._thread.start()
        until(lambda: self.looks and listeners(self._tracker))
        return self

    def __exit__(self, *_: object) -> None:
        self.asked = True
        pin_team(self._tracker, PlaceRequest(team="green", cluster="second"), ANN)  # wakes it up
        self._thread.join()


def test_an_applications_loop_follows_a_new_assignment_within_moments(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    round_of(tracker, log)
    with Following(tracker, "second", every_s=3_600) as loop:
        pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
        until(lambda: topic_of("red") in loop.looks[-1])
        pin_team(tracker, PlaceRequest(team="red", cluster="default"), ANN)
        until(lambda: topic_of("red") not in loop.looks[-1])
        until(lambda: listeners(tracker) == 1)
        assert len(loop.looks) <= 4, "nothing new, no look"


def test_an_applications_loop_outlives_the_connection_that_it_listens_on(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    began, every_s = time.monotonic(), 0.5
    with Following(tracker, "second", every_s=every_s) as loop:
        end_listeners(tracker)
        until(lambda: listeners(tracker))  # a new one
        most = 10 + (time.monotonic() - began) / every_s
        assert len(loop.looks) < most, "it waits for that between its looks"
        pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
        until(lambda: topic_of("red") in loop.looks[-1])


def listeners(tracker: TrackerStore) -> int:
    """Return how many connections listen."""
    with tracker.transaction() as connection:
        return int(connection.execute(text(f"SELECT count(*) {_LISTENERS}")).scalar_one())


def end_listeners(tracker: TrackerStore) -> None:
    """End the connections that listen, as a restart of the server does."""
    with tracker.transaction() as connection:
        ended = connection.execute(text(f"SELECT pg_terminate_backend(pid, 120000) {_LISTENERS}"))
        assert ended.rowcount == 1


def until(condition: Any, limit_s: float = 180.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_every_topic_and_destination_is_one_clusters(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    for team in ("red", "green", "blue"):
        set_load(tracker, team, cores=1)
    round_of(tracker, log)
    pin_team(tracker, PlaceRequest(team="blue", cluster="second"), ANN)
    served = {name: ServedTopics(tracker, name) for name in ("default", "second")}
    topics = [topic for one in served.values() for topic in one.read()]
    assert sorted(topics) == sorted(log.ends)
    loaded = {name: one.read_destinations() for name, one in served.items()}
    assert loaded == {"default": set(), "second": {"warehouse"}}, "blue is the first of its teams"


def test_a_cluster_whose_application_can_read_nothing_gets_no_new_team(
    tracker: TrackerStore, log: LogInMemory, tmp_path: Path
) -> None:
    two_clusters(tracker)
    pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
    lease = ApplicationLease.acquire(tracker, "processing", "second")
    away = HeldConsumer.of(topic_of("red"), RetryError("its disk is full"), "")
    lease.renew(at_work=True, serving=Serving.of(1, 1, [away]))
    with tracker.transaction() as connection:
        unable = {one.name: one.is_unable for one in read_clusters(connection)}
    assert unable == {"default": False, "second": True}
    set_load(tracker, "green", cores=2.0)  # second has more room
    report = round_of(tracker, log)
    assert places(tracker) == {"red": "second", "green": "default", "blue": "default"}
    [words] = [one for one in report.problems if one.startswith("cluster second")]
    assert "has 1 team and serves none: its application of processing can read none" in words
    assert "RetryError: its disk is full" in words
    with pytest.raises(InputError, match="serves anybody.*its disk is full"):
        move_team(tracker, PlaceRequest(team="blue", cluster="second"), ANN)
    lease.renew(at_work=True, serving=Serving.of(1, 1, []))
    deploy_teams(tracker, tmp_path, "late")
    round_of(tracker, log)
    assert places(tracker)["late"] == "second"


def test_speed_and_hot_spots_of_a_cluster_are_those_of_its_teams_then(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    two_clusters(tracker)
    pin_team(tracker, PlaceRequest(team="red", cluster="second"), ANN)
    round_of(tracker, log)
    age_looks(tracker, 300)
    log.ends[topic_of("red")] = {0: 300_000, 1: 30_000}
    log.ends[topic_of("green")] = {0: 3_000}
    process(tracker, "red", {0: (0, 150_000)})
    log.came_at_s = {topic_of(team): time.time() for team in ("red", "green")}
    log.away.add(topic_of("blue"))
    round_of(tracker, log)
    found = cluster_history(tracker, "1h")
    drawn = {
        name: [
            [one for one in series[what] if one is not None][-1]
            for what in ("arrival_per_s", "processed_per_s")
        ]
        for name, series in found.series.items()
    }
    assert drawn["second"] == [pytest.approx(1_100, rel=0.1), pytest.approx(500, rel=0.1)]
    assert drawn["default"] == [pytest.approx(10, rel=0.1), 0]
    [spots] = found.hot["second"].values()
    assert spots == [HotSpot("red", topic_of("red"), 0)]
    assert "default" not in found.hot


def test_a_team_that_no_cluster_has_room_for_is_served_by_none_until_there_is(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    set_cluster(tracker, ClusterRequest(name="default", max_consumers=2), ANN)
    report = round_of(tracker, log)
    assert [words.split(":")[0] for words in report.problems] == [
        "team red is served by no cluster"
    ]
    assert topics_of_cluster(tracker, "default").keys() == {topic_of("blue"), topic_of("green")}
    set_cluster(tracker, ClusterRequest(name="default", max_consumers=3), ANN)
    assert topic_of("red") in topics_of_cluster(tracker, "default")


def test_an_assignment_that_names_a_team_that_is_gone_gives_no_topic(
    tracker: TrackerStore, log: LogInMemory
) -> None:
    round_of(tracker, log)
    with tracker.transaction() as connection:
        connection.execute(text("DELETE FROM pipeline_versions WHERE pipeline_id = 'red-orders'"))
    assert topic_of("red") not in topics_of_cluster(tracker, "default")
    round_of(tracker, log)
    assert places(tracker).keys() == {"green", "blue"}


def test_batches_of_many_commits_are_all_counted(
    tracker: TrackerStore, log: LogInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.clusters.measurement._CHUNK", 2)
    process(tracker, "red", {0: (0, 1)})
    age_looks(tracker, 700)
    for n in range(1, 6):
        process(tracker, "red", {0: (n, n + 1)}, tasks_ms=100)
    process(tracker, "green", {0: (0, 3)}, tasks_ms=50)
    found = measured(tracker, log)
    assert (found["red"].batches, found["red"].batch_events) == (5, 5)
    assert found["red"].core_s == pytest.approx(0.5)
    assert (found["green"].batches, found["green"].batch_events) == (1, 3)


def test_a_cluster_is_forecast_from_its_own_minutes_those_without_a_look_as_the_one_before(
    tracker: TrackerStore,
) -> None:
    with tracker.transaction() as connection:
        for minute, cores in ((9, 1.0), (8, 1.5), (8, 2.0), (4, 3.0)):
            connection.execute(
                text(
                    "INSERT INTO cluster_loads (cluster, at, teams, needed_cores, demand_cores) "
                    "VALUES ('default', date_trunc('minute', now()) "
                    "- make_interval(mins => :minute, secs => -:cores), 1, 1, :cores)"
                ),
                {"minute": minute, "cores": cores},
            )
        found = read_demand_history(connection)
    assert found == {"default": [1.0, 2.0, 2.0, 2.0, 2.0, 3.0]}


# Being at work


def seen_at(tracker: TrackerStore, lease: ApplicationLease) -> Any:
    with tracker.transaction() as connection:
        return read_application(connection, lease.kind, lease.cluster).heartbeat_s


def test_an_application_whose_look_takes_long_is_at_work(tracker: TrackerStore) -> None:
    lease = ApplicationLease.acquire(tracker, "processing", "slow")
    before = seen_at(tracker, lease)
    with Heartbeat(lease, every_s=0.05):
        until(lambda: seen_at(tracker, lease) > before)  # the loop does not come round


def test_an_application_whose_loop_hangs_is_not_at_work_until_it_goes_on(
    tracker: TrackerStore,
) -> None:
    lease = ApplicationLease.acquire(tracker, "processing", "slow")

    def is_seen_no_more() -> bool:
        before = seen_at(tracker, lease)
        time.sleep(0.3)
        return bool(seen_at(tracker, lease) == before)

    with Heartbeat(lease, every_s=0.02, hangs_s=0.3) as heartbeat:
        time.sleep(0.3)
        until(is_seen_no_more)  # a report may be on its way
        assert is_seen_no_more()
        before = seen_at(tracker, lease)
        heartbeat.beat()
        until(lambda: seen_at(tracker, lease) > before)


def test_reports_of_an_older_application_end_and_its_loop_is_told(tracker: TrackerStore) -> None:
    older = ApplicationLease.acquire(tracker, "processing", "slow")
    with Heartbeat(older, every_s=0.02) as heartbeat:
        ApplicationLease.acquire(tracker, "processing", "slow")
        after = seen_at(tracker, older)
        time.sleep(0.2)
        assert seen_at(tracker, older) == after
        with pytest.raises(FencedError):
            heartbeat.beat()
