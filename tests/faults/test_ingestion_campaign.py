"""Short form of ``make faults-ingestion``: runs and a collector killed while they ingest."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from confluent_kafka import Producer
from tests.faults import ingestion_campaign
from tests.faults.ingestion_campaign import (
    CONNECTORS,
    SHORTEST,
    Ground,
    Tally,
    exit_code,
    play,
    report_of,
)

from waybill.events import decode, encode
from waybill.pipelines import topic_name
from waybill.storage import open_log

SEED = int(os.environ.get("INGESTION_SEED", "20261126"))
PARTS = ("files", "sql-postgres", "postgres_cdc", "kafka")


@pytest.mark.serves
@pytest.mark.parametrize("part", PARTS)
def test_what_is_ingested_by_runs_that_are_killed_is_in_kafka_once(
    request, stack_settings, tmp_path, part
):
    chance = random.Random(f"{SEED} {part}")
    print(f"seed {SEED}")
    tally = play(part, Ground(stack_settings, tmp_path, request.getfixturevalue, SHORTEST, chance))
    assert (tally.lost, tally.doubled, tally.copies, tally.unbalanced) == (0, 0, 0, 0)
    assert tally.done == {"kills": SHORTEST.kills}
    assert tally.points.total() == SHORTEST.kills
    assert tally.records > 100


@pytest.mark.serves
def test_what_is_not_in_kafka_and_what_is_there_twice_is_counted(request, stack_settings, tmp_path):
    chance = random.Random(SEED)
    ground = Ground(stack_settings, tmp_path, request.getfixturevalue, SHORTEST, chance)
    killed = CONNECTORS["files"](ground)
    killed.grow()
    killed.ingest()
    whole = killed.judge()
    assert (whole.lost, whole.doubled, whole.unbalanced) == (0, 0, 0)
    log = open_log(stack_settings.kafka)
    topic = log.describe(topic_name(killed.team, "warehouse"))
    [first, *_] = log.read(topic.name, log.watermarks(topic))
    producer = Producer({"bootstrap.servers": stack_settings.kafka.bootstrap_servers})
    producer.produce(topic.name, first)
    stranger = decode(first)
    stranger.id, stranger.data["id"] = "of nobody", 0
    producer.produce(topic.name, encode(stranger))
    assert producer.flush(300) == 0
    killed.grow()
    found = killed.judge()
    assert (found.lost, found.doubled, found.copies) == (killed.added, 2, 1)
    assert found.unbalanced == 2 + 2  # Kafka has them and the books not; nor the balance


@pytest.mark.parametrize(
    ("done", "counts", "code", "words"),
    [
        ({"kills": 3, "grown": 1}, {}, 0, ""),
        ({"kills": 3, "grown": 1}, {"copies": 7}, 0, ""),
        ({"kills": 2, "grown": 1}, {}, 2, "celery: kills: 1 of 3 asked for not done"),
        ({"kills": 3}, {}, 2, "celery: grown: 1 of 1 asked for not done"),
        ({"kills": 3, "grown": 1}, {"lost": 4}, 1, "4 lost"),
        ({"kills": 3, "grown": 1}, {"doubled": 4}, 1, "4 doubled"),
        ({"kills": 3, "grown": 1}, {"unbalanced": 1}, 1, "1 unbalanced"),
        ({"kills": 3, "grown": 1}, {"stuck": 1}, 1, "1 stuck"),
        ({}, {"lost": 4}, 1, "4 lost"),
    ],
)
def test_the_command_fails_where_a_count_is_wrong_or_a_fault_was_not_done(
    capsys, done, counts, code, words
):
    tally = Tally("celery", Counter({"kills": 3, "grown": 1}), done=Counter(done), records=9)
    for name, count in counts.items():
        setattr(tally, name, count)
    assert exit_code([tally]) == code
    assert words in capsys.readouterr().err
    report = report_of([tally], seed=1, seconds=2.0)
    assert {name: report[name] for name in counts} == counts
    assert bool(report["missed"]) == (done != {"kills": 3, "grown": 1})


def test_a_part_that_is_not_there_is_named(capsys, monkeypatch):
    monkeypatch.setenv("PARTS", "files,fills")
    assert ingestion_campaign.main() == 2
    assert "no part 'fills'; there are files, sql-sqlite" in capsys.readouterr().err
