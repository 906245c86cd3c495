"""A process that produces numbered messages is killed at random points; see ``producer_campaign``.

Whatever was killed whenever: every message whose `produce` returned is in Kafka, once where the
topic can be read, and so is every message of every committed page.
"""

import os
import random
import signal
import time

import pytest
from tests import servers
from tests.faults import producer_kills
from tests.faults.producer_campaign import Campaign, run
from tests.support import children, guarded_kafka, topics

pytestmark = [pytest.mark.serves, pytest.mark.slow]

SEED = int(os.environ.get("PRODUCER_SEED", "20251121"))
KILLS, KILLS_UNREAD = 10, 5
SOON_DELIVERED = 1000
"""Messages: a few hundredths of a second's."""


@pytest.fixture
def campaign_of(kafka, tmp_path):
    """Return a function that opens a campaign over a fresh topic of the session's broker."""

    def open_one(variant):
        client = {"bootstrap.servers": kafka.bootstrap_servers}
        topic = topics.new_topic(kafka.bootstrap_servers, "kills", producer_kills.PARTITIONS)
        return Campaign(variant, client, kafka.bootstrap_servers, topic, tmp_path)

    return open_one


@pytest.fixture
def guarded():
    home = servers.new_home()
    try:
        with servers.started(guarded_kafka.start, home) as server:
            yield server
    finally:
        servers.end_home(home)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)


def assert_all_there_in_order(tally):
    print(f"seed {SEED}, {tally}")
    assert tally.lost == []
    assert tally.strangers == []
    assert tally.disordered == []
    assert tally.outside == 0
    assert tally.recoveries["quarantined"] == 0


def assert_closed(campaign):
    """The last child closed its log: nothing but the checkpoint is left of it."""
    assert sorted(p.name for p in (campaign.home / "wal").iterdir()) == ["checkpoint", "lock"]


@pytest.mark.campaign
def test_no_kill_loses_or_doubles_a_message(campaign_of):
    campaign = campaign_of(producer_kills.PAGES)
    tally = run(campaign, KILLS, random.Random(SEED))
    assert_all_there_in_order(tally)
    assert tally.duplicates == 0
    assert tally.kills == KILLS
    assert tally.recoveries["replayed"] + tally.recoveries["found"] > 0  # else nothing was proved
    assert campaign.committed() == list(range(len(campaign.committed())))
    assert_closed(campaign)


@pytest.mark.campaign
def test_no_kill_loses_or_doubles_a_message_of_several_threads_without_marks(campaign_of):
    campaign = campaign_of(producer_kills.THREADS)
    tally = run(campaign, KILLS, random.Random(SEED + 1))
    assert_all_there_in_order(tally)
    assert tally.duplicates == 0
    assert tally.kills == KILLS
    assert tally.recoveries["replayed"] + tally.recoveries["found"] > 0
    assert_closed(campaign)


@pytest.mark.campaign
def test_no_kill_loses_or_doubles_a_message_of_columns(campaign_of):
    campaign = campaign_of(producer_kills.COLUMNS)
    tally = run(campaign, KILLS, random.Random(SEED + 3))
    assert_all_there_in_order(tally)
    assert tally.duplicates == 0
    assert tally.kills == KILLS
    assert tally.recoveries["replayed"] + tally.recoveries["found"] > 0
    assert_closed(campaign)


@pytest.mark.campaign
def test_a_topic_that_may_not_be_read_has_no_copies_but_of_what_a_kill_left_in_doubt(
    guarded, tmp_path
):
    campaign = producer_kills.open_campaign(producer_kills.BLIND, guarded, tmp_path / "log")
    life = campaign.start()
    campaign.wait_ready(life)
    children.wait_until(lambda: campaign.checkpoint().low_lsn > SOON_DELIVERED, what="a checkpoint")
    kill(life)
    assert campaign.note_window().low > SOON_DELIVERED  # what is delivered is not in doubt
    tally = run(campaign, KILLS_UNREAD, random.Random(SEED + 2))
    assert_all_there_in_order(tally)
    assert tally.kills == KILLS_UNREAD
    assert tally.recoveries["unreadable"] > 0
    assert tally.recoveries["found"] == 0
    assert tally.duplicates > 0  # else nothing was proved
    assert_closed(campaign)


@pytest.mark.campaign
def test_a_kill_while_kafka_is_away_loses_nothing(kafka, campaign_of):
    campaign = campaign_of(producer_kills.PAGES)
    process = campaign.start()
    campaign.wait_ready(process)
    time.sleep(0.3)
    kafka.stop()
    time.sleep(0.5)
    kill(process)
    campaign.note_window()
    pages = len(campaign.committed()) + 3
    last = campaign.start(pages)  # waits: something is in doubt
    time.sleep(2)
    assert last.poll() is None
    kafka.start()
    campaign.wait_ready(last)
    last.communicate(timeout=600)
    assert last.returncode == 0
    tally = campaign.tally(pages)
    assert_all_there_in_order(tally)
    assert tally.duplicates == 0
    assert tally.recoveries["replayed"] > 0
