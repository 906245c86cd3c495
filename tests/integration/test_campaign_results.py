"""Campaigns by the command: what a dry run of all groups says, and what became of the events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from sqlalchemy import text
from tests.integration import test_replay_outcome
from tests.support import orders
from tests.support.books_beside_a_log import Books
from tests.support.parked_orders import order, parked
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.errors import RetryError
from waybill.replay import (
    BatchRequest,
    CampaignRequest,
    ReplayRequest,
    advance_campaign,
    freeze_campaign,
)
from waybill.services import airflow_client

pytestmark = pytest.mark.serves
books = test_replay_outcome.books


class Airflow:
    """Stands for Airflow: a campaign's runs are carried out at once, here, and then processed."""

    books: Books
    again: int
    """Events that park again at the mapping."""
    is_loaded: bool
    confs: list[dict[str, Any]]

    def __init__(self, _settings: Any = None, _tell: Any = None) -> None:
        self.states: dict[str, str] = {}

    def __enter__(self) -> Airflow:
        return self

    def __exit__(self, *_: object) -> None: ...

    def is_paused(self, _dag_id: str) -> bool:
        return False

    def run_state(self, _dag_id: str, _run_id: str) -> str:
        return "success"

    def trigger(self, _dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
        request, tracker = CampaignRequest.of(conf), self.books.tracker
        found = freeze_campaign(tracker, request, "test-orders", who="ann", run_id=run_id)
        advance_campaign(tracker, found.id, self)
        advance_campaign(tracker, found.id, self)
        if not request.dry_run:
            events = sorted(self.books.sent(), key=lambda event: event.id)
            self.books.process(events[: self.again])
        if self.is_loaded:
            self.books.load()

    def start(self, run_id: str, conf: Mapping[str, Any]) -> None:
        """As the DAG `replay` does."""
        self.confs.append(given := dict(conf))
        batch = {name: given.pop(name, None) for name in BatchRequest.model_fields}
        asked = {"who": "ann", "run_id": run_id}
        if batch["batch"] is None:
            services.run_replay(self.books.settings, ReplayRequest.of(given), **asked)
        else:
            services.run_replay_batch(self.books.settings, BatchRequest.of(batch), **asked)
        self.states[run_id] = "success"

    def state(self, run_id: str) -> str | None:
        return self.states.get(run_id)


@pytest.fixture
def run(books: Books, monkeypatch: pytest.MonkeyPatch) -> Any:
    values = {"books": books, "again": 0, "is_loaded": True, "confs": []}
    for name, value in values.items():
        monkeypatch.setattr(Airflow, name, value, raising=False)
    monkeypatch.setattr(airflow_client, "AirflowClient", Airflow)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("WAYBILL_HOME", str(books.settings.home))
    for name, value in books.settings.to_env().items():
        monkeypatch.setenv(name, value)
    return lambda *words: CliRunner().invoke(app, ["campaigns", *words])


def said(done: Any) -> str:
    lines = [line for line in done.stdout.splitlines() if "http://" not in line]
    assert max(map(len, lines), default=0) <= 80, done.stdout
    return " ".join(done.stdout.split())


def park_at_mapping(books: Books) -> None:
    events = [order(number, books.team) for number in range(50, 53)]
    books.park([parked(one, "mapping", "not_null_violation") for one in events], number=2)


def test_a_dry_run_tells_each_group_what_would_park_again_and_why_and_the_sum(
    run: Any, books: Books
) -> None:
    park_at_mapping(books)
    done = run("start", "orders", "--dry-run")
    assert done.exit_code == 2, done.output
    told = said(done)
    assert "over order transformation/null_value: 0 of 10 would pass" in told
    assert "9 would fail: transformation/null_value" in told
    assert "over order mapping/not_null_violation: 3 of 3 would pass" in told
    assert "in all: 3 of 13 events in 2 groups would pass, 9 would park again" in told
    assert "1 would be filtered on purpose" in told
    assert "nothing was written" in told
    assert services.replay_campaigns(books.settings, limit=9) == []
    report = json.loads(run("start", "orders", "--dry-run", "--json", "--sample", "5").stdout)
    assert [one["report"]["tried"] for one in report["groups"]] == [5, 3]
    assert report["sum"]["events"] == 13


def test_a_dry_run_in_json_holds_no_group_that_was_tried(
    run: Any, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    park_at_mapping(books)
    tried = services.dry_run_campaign

    def away_after_one(*given: Any, **more: Any) -> Iterator[Any]:
        yield next(iter(tried(*given, **more)))
        raise RetryError("the tracker does not answer")

    monkeypatch.setattr(services, "dry_run_campaign", away_after_one)
    done = run("start", "orders", "--dry-run", "--json")
    assert done.exit_code == 4, done.output
    [group] = json.loads(done.stdout + "]}")["groups"]
    assert group["report"]["pipeline"] == "orders"
    refused = run("show", "1", "--limit", "1001")
    assert (refused.exit_code, "equal to 1000" in refused.stderr) == (1, True)


def test_a_dry_run_of_all_groups_with_a_folder_says_what_it_would_mend(
    run: Any, books: Books, tmp_path: Any
) -> None:
    park_at_mapping(books)
    folder = orders.write_orders(books.settings.pipelines_dir, rows=1, fixed=True)
    done = run("start", "orders", "--dry-run", "--proposed", str(folder))
    assert done.exit_code == 0, done.output
    assert "in all: 12 of 13 events in 2 groups would pass, 0 would park again" in said(done)
    assert "tried with" not in done.stderr
    for words, error in (
        (("orders", "--proposed", str(folder)), "--proposed needs --dry-run"),
        (("orders", "--sample", "3"), "--sample needs --dry-run"),
        (("--all-pipelines", "--dry-run", "--proposed", str(folder)), "name that pipeline"),
        (("orders", "--dry-run", "--proposed", str(tmp_path / "none")), "none"),
    ):
        refused = run("start", *words)
        assert refused.exit_code in {1, 3}
        assert error in " ".join(refused.stderr.split())


def test_a_campaign_whose_events_parked_again_says_so_and_ends_with_2(
    run: Any, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Airflow, "again", 2)
    done = run("start", "orders", "--yes", "--wait", "60")
    assert done.exit_code == 2, done.output
    told = said(done)
    assert "campaign 1: done; events parked again" in told
    assert "10 events sent back: 0 delivered, 2 parked again" in told
    assert "parked again: 2 at mapping; see `waybill parked list orders`" in told
    assert "groups: failed, parked again" in told
    assert "2 of 10 events parked again: 2 at mapping" in told
    listed = json.loads(run("list", "--json").stdout)
    assert listed[0]["result"]["parked_again"] == {"mapping": 2}
    assert "parked again" in said(run("list"))
    shown = json.loads(run("show", "1", "--json").stdout)
    assert [one["outcome"] for one in shown["listed"]] == ["parked_again"]
    parked_now = CliRunner().invoke(app, ["parked", "list", "orders", "--all"])
    assert "2 events parked in 2 groups" in said(parked_now)
    assert "Events of these groups were replayed 10 times before" in said(parked_now)
    assert run("show", "1").exit_code == 0
    assert run("show", "1", "--wait", "5").exit_code == 2
    for key in [entry.key for entry in books.objects.list("parked/")]:
        books.objects.delete([key])
    shown = run("show", "1", "--groups", "parked_again")
    assert shown.exit_code == 0, "the books say it, whatever became of the parked objects"
    assert "2 of 10 events parked again: 2 at mapping" in said(shown)


def test_a_campaign_all_of_whose_events_passed_ends_with_0_once_that_is_known(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Airflow, "is_loaded", False)
    done = run("start", "orders", "--yes", "--wait", "1")
    assert done.exit_code == 2, done.output
    assert "not all is known yet" in done.stdout
    Airflow.books.load()
    done = run("show", "1", "--wait", "60", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["known"] is True
    assert "no group of it is parked again" in said(run("show", "1", "--groups", "parked_again"))


@pytest.mark.parametrize("groups_per_run", [1, 5])
def test_a_dry_run_by_the_dag_leaves_its_result_in_the_campaign(
    run: Any, books: Books, groups_per_run: int
) -> None:
    """Started in Airflow: with the params of the DAG."""
    park_at_mapping(books)
    conf = {"pipeline": "orders", "dry_run": True, "groups_per_run": groups_per_run}
    Airflow().trigger("replay_parked_partitions", "manual__1", conf)
    told = said(run("show", "1"))
    assert "dry run: 3 of 13 events would pass, 9 would park again, 1 would be filtered" in told
    assert "9 of 10 events would park again" in told
    listed = json.loads(run("show", "1", "--json").stdout)["listed"]
    assert [one["outcome"] for one in listed] == ["would_park_again"]
    assert run("show", "1", "--wait", "5").exit_code == 2


@pytest.mark.parametrize("groups_per_run", ["1", "5"])
def test_what_parked_at_mapping_enters_at_the_transformation_where_that_is_asked(
    run: Any, books: Books, groups_per_run: str
) -> None:
    park_at_mapping(books)
    words = ("start", "orders", "--yes", "--enter", "transformation")
    refused = run(*words, "-s", "mapping")
    assert refused.exit_code == 1
    assert "keeps no sources" in refused.stderr
    assert "is not a stage to enter at" in run("start", "orders", "--enter", "x").stderr
    home = books.settings.pipelines_dir / "orders"
    declared = (home / "pipeline.yaml").read_text()
    (home / "pipeline.yaml").write_text(f"{declared}keep_source: true\n")
    services.run_deploy(books.settings, home, who="test")
    tried = run("start", "orders", "--dry-run", "--enter", "transformation")
    assert tried.exit_code == 2
    assert "cannot be tried" in said(tried), "they parked before sources were kept"
    hopeless = run(*words, "-s", "mapping")
    assert hopeless.exit_code == 1
    refusal = " ".join(hopeless.stderr.split())
    assert "no group can be replayed so; nothing was begun" in refusal
    assert "3 of 3 parked events carry no source" in refusal
    assert "`waybill parked replay --parked-since`" in refusal, "an option that exists"
    assert services.replay_campaigns(books.settings, limit=9) == []
    assert Airflow.confs == []
    more = ("-s", "transformation", "--groups-per-run", groups_per_run)
    assert run(*words, *more).exit_code == 0
    assert [conf["enter"] for conf in Airflow.confs] == [None]


def test_groups_that_cannot_enter_are_named_and_do_not_stop_the_others(
    run: Any, books: Books
) -> None:
    park_at_mapping(books)  # of a pipeline that keeps no sources
    of_no_pipeline = text(
        "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, parked, "
        "replaying, replayed, first_event_at, last_event_at) SELECT 'gone', 'e' || n, 'mapping', "
        "'null_value', 5, 0, 0, now(), now() FROM generate_series(1, 150) AS n"
    )
    with books.tracker.transaction() as connection:
        connection.execute(of_no_pipeline)
    words = ("start", "--all-pipelines", "--yes", "--enter", "transformation")
    refused = run(*words, "-s", "mapping")
    assert refused.exit_code == 1
    refusal = " ".join(refused.stderr.split())
    assert "no group can be replayed so; nothing was begun" in refusal
    assert "pipeline 'orders' keeps no sources" in refusal
    assert "no pipeline with id 'gone' is deployed" in refusal
    assert "and 141 groups more" in refusal, "all 151 were looked at, and ten are named"
    assert Airflow.confs == []
    done = run(*words, "--limit", "2", "--max-unfinished", "200")
    told = " ".join(done.stderr.split())
    assert "will fail: orders/order/mapping/not_null_violation: pipeline 'orders' keeps no" in told
    assert "'gone'" not in told, "they are over the limit"
    assert [conf["stage"] for conf in Airflow.confs][:1] == ["transformation"], "it began"


def test_a_dry_run_with_a_limit_tries_the_groups_that_the_campaign_takes(
    run: Any, books: Books
) -> None:
    """With batches what Kafka refused is numbered last, as it has a producer of its own."""
    refused = [parked(order(60, books.team), "ingestion", "delivery_refused")]
    books.park(refused, number=2)
    books.park([parked(order(61, books.team), "mapping", "not_null_violation")], number=3)
    words = ("start", "orders", "--limit", "2", "--groups-per-run", "5")
    tried = json.loads(run(*words, "--dry-run", "--json").stdout)["groups"]
    assert run(*words, "--yes").exit_code == 0
    taken = json.loads(run("show", "1", "--groups", "ended", "--json").stdout)["listed"]
    assert sorted(one["stage"] for one in tried) == sorted(one["stage"] for one in taken)
    assert sorted(one["stage"] for one in tried) == ["mapping", "transformation"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_that_failed_before_it_was_written_down_says_why(
    run: Any, books: Books, is_killed: bool
) -> None:
    park_at_mapping(books)
    request, tracker = CampaignRequest(), books.tracker
    found = freeze_campaign(tracker, request, "test-orders", who="ann", run_id="c1")
    other = freeze_campaign(
        tracker, CampaignRequest(dry_run=True), "test-orders", who="ann", run_id="c2"
    )

    class Runs:
        states: ClassVar[dict[str, str]] = {}

        def start(self, run_id: str, _conf: Mapping[str, Any]) -> None:
            if run_id in self.states:
                return
            self.states[run_id] = "failed"
            assert services.note_failed_replay(books.settings, run_id, "Kafka refused it")
            if is_killed and len(self.states) == 2:
                raise KeyboardInterrupt

        def state(self, run_id: str) -> str | None:
            return self.states.get(run_id)

    def killed(*_: Any) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        if is_killed:
            patch.setattr("waybill.replay.campaigns._write_launched", killed)
            with pytest.raises(KeyboardInterrupt):
                advance_campaign(tracker, found.id, Runs())
    advance_campaign(tracker, found.id, Runs())
    advance_campaign(tracker, found.id, Runs())
    assert said(run("show", str(found.id))).count("failed: Kafka refused it") == 2
    listed = json.loads(run("show", str(other.id), "--groups", "waiting", "--json").stdout)
    assert {one["report"] for one in listed["listed"]} == {None}, "nothing of the same groups"


def test_a_group_whose_run_failed_says_why_or_where_to_look(run: Any, books: Books) -> None:
    park_at_mapping(books)
    request, tracker = CampaignRequest(), books.tracker
    found = freeze_campaign(tracker, request, "test-orders", who="ann", run_id="c1")

    class Runs:
        states: ClassVar[dict[str, str]] = {}

        def start(self, run_id: str, _conf: Mapping[str, Any]) -> None:
            self.states[run_id] = "running"

        def state(self, run_id: str) -> str | None:
            return self.states.get(run_id)

    advance_campaign(tracker, found.id, Runs())
    first, second = Runs.states
    for reason in ("the first try", "Kafka refused it\x1b[2J"):
        assert services.note_failed_replay(books.settings, first, reason)
        launched = said(run("show", str(found.id), "--groups", "launched"))
        assert "its last try failed: " in launched
    assert not services.note_failed_replay(books.settings, "manual__1", "no campaign's")
    Runs.states.update({first: "failed", second: "failed"})
    advance_campaign(tracker, found.id, Runs())
    shown = run("show", str(found.id))
    assert "failed: Kafka refused it" in said(shown)
    assert "the first try" not in said(shown)
    assert "its run left no reason" in said(shown)
    assert "\x1b" not in shown.stdout
    again = freeze_campaign(tracker, request, "test-orders", who="ann", run_id="c2")
    Runs.states.clear()
    advance_campaign(tracker, again.id, Runs())
    services.note_failed_replay(books.settings, next(iter(Runs.states)), "a try that failed")
    Runs.states.update(dict.fromkeys(Runs.states, "success"))
    advance_campaign(tracker, again.id, Runs())
    listed = json.loads(run("show", str(again.id), "--groups", "ended", "--json").stdout)["listed"]
    assert [one["report"] for one in listed] == [None, None], "the next try succeeded"


def test_changes_of_the_folder_that_are_not_deployed_are_said_before_it_begins(
    run: Any, books: Books
) -> None:
    [active] = services.deploy_history(books.settings, "orders")
    with (books.settings.pipelines_dir / "orders" / "transformation.py").open("a") as code:
        code.write("# a change\n")
    changed = "the folder has changes that are not deployed: waybill pipelines deploy orders"
    for words, done in (
        (("orders", "--dry-run"), f"tried with version {active.version} (number 1)"),
        (("orders", "--yes"), f"replayed with version {active.version} (number 1)"),
    ):
        stderr = " ".join(run("start", *words).stderr.split())
        assert done in stderr
        assert changed in stderr
    books.park([parked(order(number, books.team)) for number in range(20, 30)], number=3)
    stderr = " ".join(run("start", "--all-pipelines", "--yes").stderr.split())
    assert (changed in stderr, "replayed with" in stderr) == (True, True)
