"""Two teams and a pool of two slots on a whole Airflow: who waits gets a slot, and no run loses a try."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr
from tests import servers
from tests.integration.test_deployed_dags import declare
from tests.support import processes, real_airflow

from waybill import services
from waybill.events import decode
from waybill.ledger import SourceFilter, read_sources
from waybill.pipelines import shard_of
from waybill.stack.airflow import USER
from waybill.storage import open_log, open_tracker

pytestmark = [pytest.mark.serves, pytest.mark.campaign, pytest.mark.timeout(1800)]
LONG, SHORT, PAGE_ROWS = 30_000, 40, 10
FLOOD = ("a1", "a2", "a3")
LAST = "a4"
"""Of team a as well, read after the others."""
NAMES = (*FLOOD, LAST, "b1")
WITHIN_S = 400.0


class Shop:
    """Five pipelines of two teams, in an Airflow."""

    def __init__(self, settings: Any, airflow: Any) -> None:
        self.settings, self.airflow, self.run = settings, airflow, "first"
        secret = airflow.airflow.credentials.airflow_password
        own = {"url": airflow.airflow.url, "user": USER, "password": SecretStr(secret)}
        reached = settings.airflow.model_copy(update=own)
        self.sharing = settings.model_copy(update={"airflow": reached})

    def share(self) -> dict[str, int] | None:
        """Have a round of what the job of upkeep does."""
        return services.share_slots(self.sharing)

    def start(self, *names: str) -> None:
        for name in names:
            self.airflow.trigger(f"ingest_{name}", self.run)

    def line(self, name: str) -> Any:
        with open_tracker(self.settings.tracker) as tracker:
            [found] = read_sources(tracker, SourceFilter(name=name)).sources
        return found

    def tasks(self) -> dict[str, tuple[str, int]]:
        """Return {pipeline: (state of its task, try)}."""
        names = "dag_id, state, try_number"
        query = f"SELECT {names} FROM task_instance WHERE run_id = '{self.run}'"
        return {
            dag.removeprefix("ingest_"): (state, n) for dag, state, n in self.airflow.sql(query)
        }

    def wait(self, true: Callable[[], Any], limit_s: float = WITHIN_S) -> None:
        def looked() -> bool:
            self.airflow.keep_up()
            time.sleep(0.3)
            return bool(true())

        servers.wait_for(looked, limit_s)

    def report(self, name: str) -> dict[str, Any]:
        path = (
            f"/dags/ingest_{name}/dagRuns/{self.run}/taskInstances/ingest/xcomEntries/return_value"
        )
        with self.airflow.client() as client:
            found: dict[str, Any] = client.get(path).raise_for_status().json()["value"]
        return found

    def log(self, name: str) -> str:
        page = f"/dags/ingest_{name}/dagRuns/{self.run}/taskInstances/ingest/logs/1"
        with self.airflow.client() as client:
            return client.get(page, params={"full_content": True}).raise_for_status().text

    def in_kafka(self, team: str) -> Counter[str]:
        log = open_log(self.settings.kafka)
        topic = log.describe(f"events.{team}.warehouse")
        return Counter(decode(value).id for value in log.read(topic.name, log.watermarks(topic)))


def write_rows(folder: Any, rows: int) -> None:
    lines = ["number,amount,note", *(f"{n},{n},note" for n in range(rows))]
    (folder / "orders.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def shop(_postgres, _kafka, _s3, airflow_metadata, tmp_path_factory):
    home = tmp_path_factory.mktemp("shares")
    settings = servers.stack_settings(_postgres, _kafka, _s3, home)
    folder = home / "pipelines"
    folder.mkdir()
    airflow = settings.airflow.model_copy(
        update={"unpaused_dags": "all", "ingest_slots": 2, "kafka_wait_s": 3.0}
    )
    settings = settings.model_copy(update={"pipelines_dir": folder, "airflow": airflow})
    services.migrate(settings)
    for name in NAMES:
        own = declare(folder / name, name)
        text = (
            (own / "pipeline.yaml").read_text().replace("page_rows: 100", f"page_rows: {PAGE_ROWS}")
        )
        text = text.replace(f"team: team-{name}", f"team: {home.name}-{name[0]}")
        (own / "pipeline.yaml").write_text(text)
        write_rows(own, SHORT if name == "b1" else LONG)
        services.run_deploy(settings, own, who="test")
    files = [*real_airflow.DAGS, *sorted({f"ingest_{shard_of(name):02}" for name in NAMES})]
    with real_airflow.started(settings, airflow_metadata, files=files) as started:
        found = Shop(settings, started)
        known = "SELECT dag_id FROM serialized_dag WHERE dag_id LIKE 'ingest_%'"
        found.wait(lambda: len(started.sql(known)) >= len(NAMES))
        yield found


def test_a_team_that_waits_gets_a_slot_within_pages_and_the_reads_that_gave_it_go_on_and_are_exact(
    shop,
):
    shop.start(*FLOOD)
    shop.wait(lambda: Counter(s for s, _ in shop.tasks().values())["running"] == 2)
    shop.wait(lambda: sum(shop.line(name).figures.read > 0 for name in FLOOD) == 2)
    assert shop.share()["leaving"] == 0, "a team alone has all slots"
    shop.start("b1")
    shop.wait(lambda: shop.tasks().get("b1", ("", 0))[0] in {"scheduled", "queued"}, 60)
    time.sleep(3)
    assert shop.tasks()["b1"][0] == "scheduled", "both slots are held by reads of minutes"

    said = shop.share()
    assert (said["first"], said["leaving"]) == (1, 1)
    began = time.monotonic()
    shop.wait(lambda: any(shop.line(name).waits_for == "share" for name in FLOOD), 60)
    left = {name: shop.line(name) for name in FLOOD}
    shop.wait(lambda: shop.tasks()["b1"][0] in {"running", "success"}, 60)
    assert time.monotonic() - began < 60
    assert all(one.state != "success" for one in left.values()), "no read had ended"
    [leaver] = [name for name, one in left.items() if one.waits_for == "share"]
    assert left[leaver].figures.read % PAGE_ROWS == 0

    while not all(state == "success" for state, _ in shop.tasks().values()):
        shop.share()
        shop.wait(lambda: True)
        assert all(state not in {"failed", "up_for_retry"} for state, _ in shop.tasks().values())
        time.sleep(1)
    assert set(shop.tasks().values()) == {("success", 1)}, "no try was used up"
    for name in (*FLOOD, "b1"):
        rows = SHORT if name == "b1" else LONG
        assert shop.report(name)["read"] == rows
        assert (shop.line(name).state, shop.line(name).figures.read) == ("success", rows)
    assert "gives its slot back at this page: another team waits for one" in shop.log(leaver)
    team = shop.line("a1").team
    found = shop.in_kafka(team)
    assert (len(found), found.total()) == (len(FLOOD) * LONG, len(FLOOD) * LONG)
    assert services.balance(shop.settings).unaccounted == 0


def test_a_kafka_that_takes_nothing_frees_the_slot_whoever_is_killed_meanwhile(shop, kafka):
    shop.run = "second"
    shop.start(LAST)
    shop.wait(lambda: shop.line(LAST).rows_read > 0)
    processes.freeze([kafka.pid])
    try:
        shop.wait(lambda: shop.tasks()[LAST][0] == "deferred", 120)
        assert (shop.line(LAST).state, shop.line(LAST).waits_for) == ("waiting", "kafka")
        held = "SELECT count(*) FROM task_instance WHERE state IN ('queued', 'running')"
        assert shop.airflow.sql(held) == [(0,)], "a slot is held by waiting"
        assert real_airflow.kill(shop.airflow.members("triggerer"))
        shop.airflow.keep_up()
        time.sleep(5)
        assert shop.tasks()[LAST] == ("deferred", 1)
    finally:
        processes.wake([kafka.pid])
    shop.wait(lambda: shop.tasks()[LAST][0] in {"success", "failed"})
    assert shop.tasks()[LAST] == ("success", 1)
    assert shop.report(LAST)["read"] == LONG
    assert shop.line(LAST).figures.read == LONG
    found = shop.in_kafka(shop.line(LAST).team)
    assert len(found) == found.total() == (len(FLOOD) + 1) * LONG
    assert services.balance(shop.settings).unaccounted == 0
