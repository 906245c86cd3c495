"""``waybill destination add``, ``set`` and ``remove``, over a real tracker and warehouse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import text
from tests.support.books import open_books
from tests.support.clustered import deploy_teams
from typer.testing import CliRunner

from waybill.access import read_audit
from waybill.cli import app
from waybill.settings import DestinationSettings, Settings, TrackerSettings
from waybill.stack import environment
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves

SECRET = "hunter2-of-nobody"
NOBODY = f"postgresql://loader:{SECRET}@127.0.0.1:1/dwh"
Run = Callable[..., Result]


@pytest.fixture
def tracker(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TrackerStore]:
    """A stack's folder, with processing at work in cluster default, and a warehouse."""
    with open_books(postgres, "destination_settings") as books:
        deploy_teams(books, tmp_path, "red", "green")
        own = Settings(
            _env_file=None,
            home=tmp_path / "home",
            tracker=TrackerSettings(dsn=books.dsn),
            destinations={"warehouse": DestinationSettings(dsn=books.dsn)},
        )
        (own.home / "run").mkdir(parents=True)
        environment.write(own)
        environment.keep_started(own)
        for name in [one for one in os.environ if one.startswith("WAYBILL_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("WAYBILL_HOME", str(own.home))
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.chdir(tmp_path)
        yield books


@pytest.fixture
def run(tracker: TrackerStore) -> Run:
    def call(*words: str, code: int = 0, given: str = "") -> Result:
        done = CliRunner().invoke(app, ["destination", *words], input=given)
        assert done.exit_code == code, (done.output, done.exception)
        assert SECRET not in done.output
        return done

    return call


def kept() -> dict[str, DestinationSettings]:
    return dict(Settings().destinations)


def asked_to_restart(tracker: TrackerStore) -> set[str]:
    with tracker.transaction() as connection:
        query = text("SELECT cluster FROM applications WHERE restart_epoch = epoch")
        return {row[0] for row in connection.execute(query)}


def test_one_command_adds_a_destination_and_the_applications_start_anew(
    tracker: TrackerStore, run: Run, tmp_path: Path
) -> None:
    done = run("add", "lake", "--kind", "duckdb", "--dsn", "lake.duckdb", "--why", "for a trial")
    words = " ".join(done.output.split())
    assert "ok load and merge rows" in words
    assert "lake: added;" in words
    assert "processing of cluster default start anew with that, within a minute" in words
    assert max(map(len, done.output.splitlines())) <= 80
    assert asked_to_restart(tracker) == {"default"}
    lake = kept()["lake"]
    assert (lake.kind, lake.dsn.get_secret_value()) == ("duckdb", str(tmp_path / "lake.duckdb"))
    assert set(kept()) == {"warehouse", "lake"}
    home = Settings().home
    assert (home / "stack.env").stat().st_mode & 0o777 == 0o600
    assert environment.not_applied(Settings()) == []
    entries = {one["action"]: one for one in read_audit(tracker, None, limit=99)}
    assert entries["add_destination"]["target"] == "destination lake"
    assert "for a trial" in json.dumps(entries["add_destination"], default=str)


def test_an_add_that_was_cut_off_is_made_whole_by_the_same_command(
    tracker: TrackerStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = ("lake", "--kind", "duckdb", "--dsn", "lake.duckdb")
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr("waybill.clusters.restart_cluster", die)
        CliRunner().invoke(app, ["destination", "add", *lake])
    assert "lake" in kept()
    assert asked_to_restart(tracker) == set()
    run("add", *lake)
    assert "default" in asked_to_restart(tracker)
    words = run("add", "lake", "--kind", "duckdb", "--dsn", "other.duckdb", code=1).output
    assert "there is a destination 'lake', of kind duckdb and with other settings" in words
    assert "`waybill destination set` changes it" in words


def test_one_that_cannot_be_loaded_is_not_added_unless_that_is_asked_for(
    tracker: TrackerStore, run: Run
) -> None:
    words = run("add", "dwh", "--dsn", NOBODY, code=2).output
    assert "cannot be loaded as it is; nothing was changed" in words
    assert set(kept()) == {"warehouse"}
    assert asked_to_restart(tracker) == set()
    done = run("add", "dwh", "--no-check", "--json", given=f"{NOBODY}\n")
    assert json.loads(done.stdout)["restarted"]["default"] == ["processing"]
    assert kept()["dwh"].dsn.get_secret_value() == NOBODY


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a b", "--dsn", NOBODY), "a destination's name is text of 1 to 63 letters"),
        (("dwh", "--kind", "postgress", "--dsn", NOBODY), "there is no such kind of destination"),
        (("dwh", "--dsn", NOBODY, "--set", "max_rowz=1"), "did you mean 'max_rows'?"),
        (("dwh", "--dsn", NOBODY, "--set", f"max_rows={SECRET}"), "max_rows: Input should be"),
        (("dwh", "--dsn", NOBODY, "--set", "max_rows"), "write --set <name>=<value>"),
        (
            ("dwh", "--no-check", "--dsn", f"{NOBODY}?a=${{B}}"),
            "its value holds `${` or a new line",
        ),
        (
            ("dwh", "--dsn", NOBODY, "--set", f"postgres://u:{SECRET}@h?x=1"),
            "--set: no such setting",
        ),
        (("dwh", "--kind", "duckdb", "--dsn", NOBODY), "for duckdb the path of a file"),
        (("dwh",), "give --dsn, or the address on standard input"),
    ],
)
def test_wrong_input_is_named_without_what_may_be_secret_and_nothing_is_noted(
    tracker: TrackerStore, run: Run, words: tuple[str, ...], said: str
) -> None:
    assert said in " ".join(run("add", *words, code=1).output.split())
    actions = {one["action"] for one in read_audit(tracker, None, limit=99)}
    assert "add_destination" not in actions
    assert set(kept()) == {"warehouse"}


def test_a_variable_that_would_win_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_DESTINATIONS__LAKE__DSN", "elsewhere.duckdb")
    words = run("add", "lake", "--kind", "duckdb", "--dsn", "lake.duckdb", code=1).output
    assert "WAYBILL_DESTINATIONS__LAKE__DSN is set here and wins over what is kept" in " ".join(
        words.split()
    )
    monkeypatch.delenv("WAYBILL_DESTINATIONS__LAKE__DSN")
    monkeypatch.setenv("WAYBILL_DESTINATIONS", '{"lake": {"kind": "duckdb", "dsn": "x"}}')
    assert (
        "WAYBILL_DESTINATIONS is set here"
        in run("add", "lake", "--kind", "duckdb", "--dsn", "lake.duckdb", code=1).output
    )


def test_settings_are_changed_one_by_one(tracker: TrackerStore, run: Run) -> None:
    run("set", "warehouse", "--set", "min_rows=10", "--set", "max_wait_s=60")
    warehouse = kept()["warehouse"]
    assert (warehouse.min_rows, warehouse.max_wait_s) == (10, 60.0)
    assert warehouse.dsn.get_secret_value() == tracker.dsn.get_secret_value()
    run("set", "warehouse", "--set", "park_after_s=30")
    run("set", "warehouse", "--set", "park_after_s=null")
    assert kept()["warehouse"] == warehouse
    words = run("set", "warehouse", "--dsn", "postgresql://u@h/x", code=1).output
    assert "is the embedded stack's own" in words
    assert (
        "did you mean 'warehouse'?" in run("set", "warehose", "--set", "max_rows=1", code=3).output
    )
    run("add", "lake", "--kind", "iceberg", "--dsn", "ice", "--option", "catalog=a", "--no-check")
    run("set", "lake", "--option", "name=b", "--option", "catalog=", "--no-check")
    assert "--kind needs --dsn" in run("set", "lake", "--kind", "duckdb", code=1).output
    options = {k: v.get_secret_value() for k, v in kept()["lake"].options.items()}
    assert options == {"name": "b"}


def test_one_that_pipelines_name_or_commits_wait_for_is_not_removed(
    tracker: TrackerStore, run: Run
) -> None:
    run("add", "lake", "--kind", "duckdb", "--dsn", "lake.duckdb")
    assert "lake: removed;" in run("remove", "lake", "--why", "a trial").output
    assert set(kept()) == {"warehouse"}
    assert "did you mean 'warehouse'" in run("remove", "warehous", "--why", "x", code=3).output
    assert "the embedded stack's own" in run("remove", "warehouse", "--why", "x", code=1).output
    run("add", "dwh", "--dsn", NOBODY, "--no-check")
    with tracker.transaction() as connection:
        connection.execute(
            text("INSERT INTO commit_sequences (destination, last) VALUES ('dwh', 3)")
        )
    assert "3 commits wait to be loaded" in run("remove", "dwh", "--why", "x", code=1).output
    assert "dwh" in kept()


def test_a_pipelines_destination_is_removed_once_it_is_undeployed(
    tracker: TrackerStore, run: Run
) -> None:
    run("add", "lake", "--kind", "duckdb", "--dsn", "lake.duckdb")
    of_red = "SELECT id FROM pipelines WHERE name = 'red'"
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "UPDATE pipeline_versions SET declaration ="
                " jsonb_set(declaration, '{destination}', '\"lake\"')"
                f" WHERE pipeline_id = ({of_red})"
            )
        )
    words = run("remove", "lake", "--why", "x", code=1).output
    assert "deployed pipelines name it: red;" in words
    assert "lake" in kept()
    undeploying = "INSERT INTO undeployments (pipeline_id, asked_by, why, drop_tables)"
    with tracker.transaction() as connection:
        connection.execute(
            text(f"{undeploying} SELECT id, 'ann', 'x', true FROM ({of_red}) AS red")
        )
    assert "name it: red" in run("remove", "lake", "--why", "x", code=1).output
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE undeployments SET done_at = now()"))
    run("remove", "lake", "--why", "x")
    assert "lake" not in kept()


def test_without_a_stack_the_variables_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "none"))
    words = " ".join(run("add", "lake", "--kind", "duckdb", "--dsn", "x", code=3).output.split())
    assert "no embedded stack was started in" in words
    assert "WAYBILL_DESTINATIONS__LAKE__DSN" in words
