"""A process that produces pages of numbered messages with marks is killed at random points.

The child works as ingestion does: a file stands for the tracker, one line a committed page.
Whatever was killed whenever: every message whose `produce` returned is in Kafka, once, and so is
every message of every committed page.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter

import pytest

pytestmark = [pytest.mark.serves, pytest.mark.slow]

SEED = int(os.environ.get("PRODUCER_SEED", "20251121"))
KILLS = 10

CHILD = """
import json, os, sys
from pathlib import Path
from waybill.producer import LosslessProducer
from waybill.settings import WalSettings

servers, topic, home, pages = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
tracker = os.open(home / "tracker", os.O_RDWR | os.O_CREAT | os.O_APPEND)
said = os.open(home / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def commit(page):
    os.write(tracker, b"%d\\n" % page)

def committed():
    lines = (home / "tracker").read_bytes().split(b"\\n")
    return int(lines[-2]) if len(lines) > 1 else -1

settings = WalSettings(
    dir=home, segment_bytes=256 * 1024, disk_floor_bytes=0, checkpoint_interval_ms=100
)
kafka = {"bootstrap.servers": servers, "linger.ms": 20}
with LosslessProducer(settings, kafka, name="wal", marks=True) as producer:
    recovered = producer.recovered
    for lsn, payload in recovered.marks:
        if json.loads(payload)["page"] > committed():
            commit(json.loads(payload)["page"])
        producer.confirm(lsn)
    print(json.dumps([recovered.replayed, recovered.found, recovered.quarantined]), flush=True)
    there = {record.value.split(b" ")[0] for record in recovered.unmarked}
    for page in range(committed() + 1, pages):
        for row in range(1 + page * 7 % 60):
            name = b"%d.%d" % (page, row)
            if name not in there:
                producer.produce(topic, name + b" " * (page * 13 % 900), b"%d" % (row % 7))
                os.write(said, name + b"\\n")
        lsn = producer.mark(json.dumps({"page": page}).encode())
        commit(page)
        producer.confirm(lsn)
    assert producer.flush(60) == 0
    print(json.dumps(producer.stats.appended), flush=True)
"""


def child(kafka, topic, home, pages):
    command = [sys.executable, "-c", CHILD, kafka.bootstrap_servers, topic, str(home), str(pages)]
    path = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, text=True
    )


def read_names(kafka, topic):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "log_level": 0}
    )
    names = []
    for partition in (0, 1, 2):
        at = TopicPartition(topic, partition, 0)
        _, high = consumer.get_watermark_offsets(at, 10)
        consumer.assign([at])
        last = -1
        while last < high - 1:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None
                names.append((message.value().split(b" ")[0].decode(), message.key()))
                last = message.offset()
    consumer.close()
    return names


@pytest.fixture
def topic(kafka):
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"kills-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
    return name


def kill_at_random(kafka, topic, home, order, kill):
    """Start a child, kill it; return what its recovery said, if it came so far."""
    process = child(kafka, topic, home, 10**9)
    recovery = {}
    if kill % 3 == 2:  # anywhere in its start and recovery
        time.sleep(order.uniform(0.1, 1.2))
    else:
        recovery = said_of_recovery(process.stdout.readline())
        time.sleep(order.uniform(0.0, 0.5))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    return recovery


def said_of_recovery(line):
    assert line, "the child died by itself"
    return dict(zip(("replayed", "found", "quarantined"), json.loads(line), strict=True))


def finish(kafka, topic, home, more_pages):
    """Let a child finish a few pages more; return how many there are, and its recovery."""
    pages = len((home / "tracker").read_bytes().split(b"\n")) + more_pages
    last = child(kafka, topic, home, pages)
    out, _ = last.communicate(timeout=120)
    assert last.returncode == 0
    return pages, said_of_recovery(out.splitlines()[0])


def names_of(pages):
    return [f"{page}.{row}" for page in range(pages) for row in range(1 + page * 7 % 60)]


def assert_each_once_and_in_order(found, expected):
    there = Counter(name for name, _ in found)
    assert sorted(set(expected) - there.keys()) == []
    assert sorted(there.keys() - set(expected)) == []
    assert {name: count for name, count in there.items() if count > 1} == {}
    by_key = {}
    for name, key in found:
        by_key.setdefault(key, []).append(tuple(int(part) for part in name.split(".")))
    assert all(names == sorted(names) for names in by_key.values())


def test_no_kill_loses_or_doubles_a_message(kafka, topic, tmp_path):
    order = random.Random(SEED)
    print(f"seed {SEED}")
    totals = Counter()
    for kill in range(KILLS):
        totals.update(kill_at_random(kafka, topic, tmp_path, order, kill))
    pages, recovery = finish(kafka, topic, tmp_path, 20)
    totals.update(recovery)
    expected = names_of(pages)
    print(f"kills {KILLS}, messages {len(expected)}, {dict(totals)}")
    found = read_names(kafka, topic)
    assert set((tmp_path / "said").read_text().split()) <= {name for name, _ in found}
    assert_each_once_and_in_order(found, expected)
    assert totals["quarantined"] == 0
    assert totals["replayed"] + totals["found"] > 0  # else the kills proved nothing
    committed = [int(line) for line in (tmp_path / "tracker").read_text().split()]
    assert committed == list(range(pages))
    assert sorted(p.name for p in (tmp_path / "wal").iterdir()) == ["checkpoint", "lock"]


def test_a_kill_while_kafka_is_away_loses_nothing(kafka, topic, tmp_path):
    process = child(kafka, topic, tmp_path, 10**9)
    assert process.stdout.readline()
    time.sleep(0.3)
    kafka.stop()
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    said = (tmp_path / "said").read_text().split()
    pages = len((tmp_path / "tracker").read_bytes().split(b"\n")) + 3
    last = child(kafka, topic, tmp_path, pages)  # waits: something is in doubt
    time.sleep(2)
    assert last.poll() is None
    kafka.start()
    out, _ = last.communicate(timeout=120)
    assert last.returncode == 0
    recovery = said_of_recovery(out.splitlines()[0])
    print(recovery)
    assert recovery["replayed"] > 0
    found = read_names(kafka, topic)
    assert set(said) <= {name for name, _ in found}
    assert_each_once_and_in_order(found, names_of(pages))
