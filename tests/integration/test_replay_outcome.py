"""``waybill parked replay``: what it refuses before a run is made, and what it tells after one."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from sqlalchemy import text
from tests.support import orders
from tests.support.books_beside_a_log import Books
from tests.support.parked_orders import order, parked
from tests.support.replays import dry_run_request, run_replay
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.errors import InputError
from waybill.events import decode, encode
from waybill.replay import ReplayRequest
from waybill.replay.outcome import became
from waybill.services import airflow_client

pytestmark = pytest.mark.serves
NAMES = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "transformation",
    "error_type": "null_value",
}
WORDS = ("orders", "-e", "order", "-s", "transformation", "-t", "null_value")


@pytest.fixture
def books(stack_settings: Any, tmp_path: Any) -> Any:
    orders.write_orders(tmp_path / "pipelines", rows=1)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    books = Books(settings, orders.team_of(settings.pipelines_dir))
    books.park([parked(order(n, books.team)) for n in range(10)])
    yield books
    books.tracker.close()


def replayed(books: Books) -> Any:
    partition = services.replayable(books.settings, ReplayRequest(**NAMES))
    run_replay(books.settings, **NAMES, who="ann", run_id="r1")
    return partition


def test_what_is_in_the_log_is_in_flight_until_processing_has_read_it(books: Books) -> None:
    partition = replayed(books)
    outcome = services.replay_outcome(books.settings, partition, "r1", wait_s=0.2)
    assert (outcome.sent, outcome.passed, outcome.in_flight) == (10, 0, 10)
    assert outcome.waits_for == "processing"


def test_what_is_parked_again_is_counted_by_its_error_type(books: Books) -> None:
    partition = replayed(books)
    sent = sorted(books.sent(), key=lambda event: event.id)
    child = decode(encode(sent[1]))
    child.id += "/0"
    books.process([sent[0], child])
    outcome = services.replay_outcome(books.settings, partition, "r1", wait_s=0)
    assert (outcome.passed, outcome.in_flight, outcome.waits_for) == (8, 0, "loading")
    assert outcome.parked_again == {"mapping/not_null_violation": 2}
    assert outcome.loaded == {}, "no row of them came to the destination"
    assert became(books.tracker, partition.id, "r1") == {"parked": 2}
    books.load()
    assert services.replay_outcome(books.settings, partition, "r1", wait_s=9).waits_for == ""


def test_rows_that_the_destination_refused_are_told_by_their_ids(books: Books) -> None:
    partition = replayed(books)
    first = order(3, books.team)
    first.attempt = 1
    of_another_replay = order(77, books.team)
    of_another_replay.attempt = 1
    books.process([])
    refused = [
        parked(event, stage="destination", code="unique_violation")
        for event in (first, of_another_replay, order(4, books.team))
    ]
    books.park(refused, number=2)
    books.load()
    outcome = services.replay_outcome(books.settings, partition, "r1", wait_s=0)
    assert outcome.parked_again == {"destination/unique_violation": 1}
    assert (outcome.passed, outcome.waits_for) == (9, "")


def test_a_pipeline_is_met_by_its_id_where_that_is_the_name_of_another(books: Books) -> None:
    with books.tracker.transaction() as connection:
        for statement in (OTHER, OTHER_VERSION):
            connection.execute(text(statement))
    tried = services.run_dry_run(books.settings, dry_run_request(*NAMES.values()))
    assert tried.pipeline == "orders"
    partition = replayed(books)
    outcome = services.replay_outcome(books.settings, partition, "r1", wait_s=0.2)
    assert (outcome.sent, outcome.in_flight) == (10, 10)


OTHER = "INSERT INTO pipelines (id, name, team) VALUES ('other', 'test-orders', 'other')"
OTHER_VERSION = """
INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by)
SELECT 'other', 1, version, declaration || '{"id": "other", "name": "test-orders", "team": "other"}',
  'ann' FROM pipeline_versions
"""


def test_a_run_that_replayed_nothing_is_named(books: Books) -> None:
    partition = services.replayable(books.settings, ReplayRequest(**NAMES))
    with pytest.raises(InputError, match="'r9' has replayed nothing"):
        services.replay_outcome(books.settings, partition, "r9", wait_s=0)


class Airflow:
    """Stands for Airflow: a triggered run is done at once, here, and then processed."""

    runs: ClassVar[list[str]] = []
    books: Any = None

    def __init__(self, _settings: Any, _tell: Any) -> None: ...

    def __enter__(self) -> Airflow:
        return self

    def __exit__(self, *_: object) -> None: ...

    def is_paused(self, _dag_id: str) -> bool:
        return False

    def trigger(self, _dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
        self.runs.append(run_id)
        names = {name: conf[name] for name in NAMES}
        run_replay(self.books.settings, **names, who="ann", run_id=run_id)
        self.books.process(self.books.sent()[:1])

    def follow(self, _dag_id: str, _run_id: str, *, limit_s: float, told: Any) -> str:
        return "success"


@pytest.fixture
def run(books: Books, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Airflow, "books", books)
    monkeypatch.setattr(Airflow, "runs", [])
    monkeypatch.setattr(airflow_client, "AirflowClient", Airflow)
    monkeypatch.setenv("WAYBILL_HOME", str(books.settings.home))
    for name, value in books.settings.to_env().items():
        monkeypatch.setenv(name, value)
    return lambda *words: CliRunner().invoke(app, ["parked", "replay", *words])


def test_the_command_tells_what_became_of_the_events(run: Any) -> None:
    done = run(*WORDS, "--wait", "0")
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("replayed with version ")
    assert "10 of 10 events sent back: 9 passed so far, 1 parked again so far, 0 in flight" in (
        done.stdout
    )
    assert "1 parked again: mapping/not_null_violation" in done.stdout
    assert "still in flight: not all that passed is loaded" in done.stdout
    assert f"/dags/replay/runs/{Airflow.runs[0]}" in done.stdout


def test_machines_are_told_too(run: Any, books: Books) -> None:
    told = json.loads(run(*WORDS, "--wait", "0", "--json").stdout)
    assert told["state"] == "success"
    assert told["number"] == 1
    assert told["outcome"]["parked_again"] == {"mapping/not_null_violation": 1}
    assert told["outcome"]["passed"] == 9


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({0: "ordres"}, "did you mean 'orders'?"),
        ({2: "ordre"}, "did you mean 'order'?"),
        ({4: "transformaton"}, "did you mean 'transformation'?"),
        ({6: "nul_value"}, "did you mean 'null_value'?"),
        ({4: "ingestion"}, "never were events: correct the source"),
        ({4: "mapping"}, "there are: 'transformation'"),
    ],
)
def test_a_wrong_name_makes_no_run(
    run: Any, changes: dict[int, str], said: str, more: tuple[str, ...]
) -> None:
    words = [changes.get(place, word) for place, word in enumerate(WORDS)]
    done = run(*words, *more)
    assert done.exit_code == (1 if "never were events" in said else 3)
    assert said in done.stderr
    assert Airflow.runs == []


def test_a_window_without_parked_events_makes_no_run(run: Any) -> None:
    done = run(*WORDS, "--since", "2027-01-01")
    assert done.exit_code == 1
    assert "is parked in this window; its 10 parked events are from" in done.stderr
    assert Airflow.runs == []


def test_a_partition_that_was_dealt_with_makes_no_run(run: Any) -> None:
    assert run(*WORDS, "--wait", "0").exit_code == 2
    again = run(*WORDS)
    assert again.exit_code == 1
    assert "0 events replaying, 10 replayed, 0 discarded" in again.stderr
    assert len(Airflow.runs) == 1


def test_a_dry_run_with_another_pipelines_folder_is_refused(run: Any, tmp_path: Any) -> None:
    other = orders.write_orders(tmp_path / "elsewhere", rows=1) / "pipeline.yaml"
    other.write_text(other.read_text().replace("test-orders", "other-orders"))
    done = run(*WORDS, "--dry-run", "--proposed", str(other.parent))
    assert done.exit_code == 1
    assert "id 'other-orders'), not 'orders' (id 'test-orders')" in " ".join(done.output.split())


def test_names_that_are_left_out_are_those_of_the_only_group(run: Any) -> None:
    done = run("orders", "--wait", "0")
    assert done.stderr.splitlines()[:3] == [
        "event name: order, the only one",
        "stage: transformation, the only one",
        "error type: null_value, the only one",
    ]
    assert len(Airflow.runs) == 1


@pytest.mark.parametrize(
    ("refused", "is_loaded", "wait", "code"),
    [
        (0, True, "9", 0),
        (1, True, "9", 2),
        (0, False, "0.1", 2),  # not known, though it was waited for
        (0, False, "0", 0),  # nobody waits
    ],
)
def test_the_exit_code_is_0_only_where_all_passed(
    run: Any, books: Books, monkeypatch: pytest.MonkeyPatch, refused: int, is_loaded: bool,
    wait: str, code: int,
) -> None:  # fmt: skip
    def trigger(_self: Any, _dag_id: str, run_id: str, _conf: Any) -> None:
        run_replay(books.settings, **NAMES, who="ann", run_id=run_id)
        books.process(sorted(books.sent(), key=lambda event: event.id)[:refused])
        if is_loaded:
            books.load()

    monkeypatch.setattr(Airflow, "trigger", trigger)
    done = run(*WORDS, "--wait", wait)
    assert f"{10 - refused} passed" in done.stdout
    assert done.exit_code == code, done.output


@pytest.mark.parametrize(
    ("parked_children", "code", "said"),
    [
        ((), 0, "10 passed, 0 parked again, 0 in flight rows at the destination: 12 delivered"),
        (
            (1, 2),
            2,
            "9 passed, 1 parked again, 0 in flight rows at the destination: 10 delivered "
            "1 parked again: mapping/not_null_violation",
        ),
    ],
)
def test_an_event_that_was_split_counts_once_and_its_rows_each(
    run: Any, books: Books, monkeypatch: pytest.MonkeyPatch,
    parked_children: tuple[int, ...], code: int, said: str,
) -> None:  # fmt: skip
    def trigger(_self: Any, _dag_id: str, run_id: str, _conf: Any) -> None:
        done = run_replay(books.settings, **NAMES, who="ann", run_id=run_id)
        split = min(books.sent(), key=lambda event: event.id)
        children = [decode(encode(split)) for _ in parked_children]
        for number, child in zip(parked_children, children, strict=True):
            child.id += f"/{number}"
        books.process(children)
        books.load({done.replay_id: {"delivered": 12 - len(children)}})

    monkeypatch.setattr(Airflow, "trigger", trigger)
    done = run(*WORDS, "--wait", "9")
    assert f"10 of 10 events sent back: {said} " in " ".join(done.stdout.split())
    assert done.exit_code == code, done.output


@pytest.mark.parametrize("wait", ["0", "9"])
def test_a_run_that_had_nothing_left_to_send_ends_with_2(
    run: Any, books: Books, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    def trigger(_self: Any, _dag_id: str, run_id: str, _conf: Any) -> None:
        for one in ("another", run_id):
            run_replay(books.settings, **NAMES, who="ann", run_id=one)

    monkeypatch.setattr(Airflow, "trigger", trigger)
    done = run(*WORDS, "--wait", wait)
    assert "nothing left to send: another run has taken or sent these events" in " ".join(
        done.stdout.split()
    )
    assert done.exit_code == 2, done.output


def test_a_deploy_while_the_run_is_followed_is_said(
    run: Any, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = books.settings.pipelines_dir / "orders"
    trigger = Airflow.trigger

    def deploy(self: Any, *given: Any) -> None:
        trigger(self, *given)
        with (home / "transformation.py").open("a") as code:
            code.write("# a change\n")
        services.run_deploy(books.settings, home, who="test")

    assert json.loads(run(*WORDS, "--wait", "0", "--json").stdout)["deployed_meanwhile"] is None
    books.park([parked(order(n, books.team)) for n in range(20, 30)], number=3)
    monkeypatch.setattr(Airflow, "trigger", deploy)
    done = run(*WORDS, "--wait", "0", "--json")
    new, old = services.deploy_history(books.settings, "orders")
    told = json.loads(done.stdout)
    assert (told["version"], told["number"]) == (old.version, 1)
    assert told["deployed_meanwhile"] == {"version": new.version, "number": 2}
    said = f"deployed meanwhile: some events were processed by version {new.version} (number 2)"
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("command", ["replay", "dry-run"])
def test_the_version_is_said_and_changes_of_the_folder_that_are_not_deployed(
    run: Any, books: Books, command: str
) -> None:
    def stderr() -> str:
        words = [command, *WORDS, *(["--wait", "0"] if command == "replay" else [])]
        return " ".join(CliRunner().invoke(app, ["parked", *words]).stderr.split())

    [active] = services.deploy_history(books.settings, "orders")
    done = "replayed" if command == "replay" else "tried"
    said = stderr()
    assert f"{done} with version {active.version} (number 1)" in said
    assert "not deployed" not in said
    books.park([parked(order(n, books.team)) for n in range(20, 30)], number=3)
    folder = books.settings.pipelines_dir / "orders"
    with (folder / "transformation.py").open("a") as code:
        code.write("# a change\n")
    deploy = "waybill pipelines deploy orders"
    assert f"the folder has changes that are not deployed: {deploy}" in stderr()
    books.park([parked(order(n, books.team)) for n in range(30, 40)], number=4)
    (folder / "pipeline.yaml").write_text("id: test-orders\nname: orders\n")
    assert "the folder has mistakes, see: waybill pipelines check orders" in stderr()


def test_a_proposed_version_is_not_taken_for_the_active_one(run: Any, books: Books) -> None:
    folder = books.settings.pipelines_dir / "orders"
    done = CliRunner().invoke(app, ["parked", "dry-run", *WORDS, "--proposed", str(folder)])
    assert done.exit_code == 0, done.output
    assert "tried with" not in done.output
