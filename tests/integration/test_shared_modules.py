"""Shared modules of deployed pipelines: an edit deploys nothing, a rollback brings back what was."""

from __future__ import annotations

import json
import shutil

import psycopg
import pytest
from tests.integration import parking_lot
from tests.support import evolving, orders, parked_orders, streams
from tests.support.user_code import sandbox
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.deployment import active_heads, deploy
from waybill.parking.holds import record_storm
from waybill.replay.probing import probe_held
from waybill.settings import Settings, TraceSettings, TrackerSettings
from waybill.storage import open_objects, open_tracker

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
TIMES = "def times(amount):\n    return amount * {}\n"
CODE = """
from shared.money import times


def transform(event):
    event.data["doubled"] = times(event.data["amount"])
    return event
"""


def share(root, factor, text=TIMES):
    """Write the module that pipelines share."""
    (root / "shared").mkdir(exist_ok=True)
    (root / "shared" / "money.py").write_text(text.format(factor))


def write(root, name="orders", code=CODE):
    """Write a pipeline of this name, made of the orders pipeline."""
    home = orders.write_orders(root, rows=1, code=code)
    if name == "orders":
        return home
    other = root / name
    home.rename(other)
    text = (other / "pipeline.yaml").read_text().replace("test-orders", f"test-{name}")
    text = text.replace("name: orders", f"name: {name}").replace("table: orders", f"table: {name}")
    (other / "pipeline.yaml").write_text(text)
    return other


class TestByTheCommandLine:
    """With a tracker alone."""

    @pytest.fixture
    def dsn(self, postgres):
        return postgres.tracker()

    @pytest.fixture
    def root(self, dsn, tmp_path, monkeypatch):
        """Two pipelines that import a shared module and one that does not, deployed."""
        root = tmp_path / "pipelines"
        for name, value in {
            "WAYBILL_HOME": str(tmp_path / "state"),
            "WAYBILL_TRACKER__DSN": dsn,
            "WAYBILL_PIPELINES_DIR": str(root),
            "WAYBILL_AIRFLOW__URL": "http://127.0.0.1:1",
            "COLUMNS": "80",
        }.items():
            monkeypatch.setenv(name, value)
        write(root, "refunds")
        write(root, "visits", orders.FIXED)
        write(root)
        share(root, 2)
        for name in ("orders", "refunds", "visits"):
            self.run("deploy", name)
        return root

    def run(self, *words, code=0):
        done = CliRunner().invoke(app, ["pipelines", *map(str, words)])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    def as_json(self, *words, code=0):
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def states(self):
        return {one["name"]: one["state"] for one in self.as_json("list")}

    def test_an_edit_changes_each_pipeline_that_imports_it_and_a_deploy_names_the_others(
        self, root, dsn
    ):
        assert self.states() == {"orders": "same", "refunds": "same", "visits": "same"}
        share(root, 3)
        assert self.states() == {"orders": "changed", "refunds": "changed", "visits": "same"}
        lines = self.as_json("diff", "orders", code=2)["diff"].splitlines()
        [file] = [one for one in lines if one.startswith("---")]
        assert file.startswith("--- shared/money.py, active, number 1"), "and no other differs"
        assert {"-    return amount * 2", "+    return amount * 3"} < set(lines)
        said = " ".join(self.run("deploy", "orders").stdout.split())
        assert "refunds imports shared modules of it, and runs with other texts of these" in said
        assert self.states() == {"orders": "same", "refunds": "changed", "visits": "same"}
        assert self.as_json("deploy", "orders")["touched"] == ["refunds"], "until it is deployed"
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "INSERT INTO undeployments (pipeline_id, asked_by, why, drop_tables)"
                " VALUES ('test-refunds', 'ann', 'gone', false)"
            )
        assert self.as_json("deploy", "orders")["touched"] == [], "its source is not read"
        self.run("deploy", "refunds")
        assert self.as_json("deploy", "orders")["touched"] == []

    def test_another_folder_of_pipelines_has_shared_modules_of_its_own(self, root, tmp_path):
        others = tmp_path / "others"
        others.mkdir()
        write(others, "third")
        share(others, 5)
        assert self.as_json("deploy", others / "third")["touched"] == []
        share(root, 3)
        assert self.as_json("deploy", "orders")["touched"] == ["refunds"]

    def test_a_rollback_brings_the_shared_modules_of_then_back(self, root, dsn):
        share(root, 3)
        self.run("deploy", "orders")
        self.run("rollback", "orders", "--why", "wrong sums")
        assert self.states()["orders"] == "older"
        with psycopg.connect(dsn) as connection:
            stored = connection.execute(
                "SELECT number, declaration->'shared_code' FROM pipeline_versions"
                " WHERE pipeline_id = 'test-orders' ORDER BY number"
            ).fetchall()
            plain = connection.execute(
                "SELECT declaration ? 'shared_code' FROM pipeline_versions"
                " WHERE pipeline_id = 'test-visits'"
            ).fetchall()
        assert stored == [
            (number, {"shared/money.py": TIMES.format(factor)})
            for number, factor in ((1, 2), (2, 3), (3, 2))
        ]
        assert plain == [(False,)]
        shutil.rmtree(root / "shared")
        self.run("rollback", "orders", "2")
        assert self.as_json("diff", "orders", "1", "3")["same"]
        with open_tracker(TrackerSettings(dsn=dsn)) as tracker:
            assert set(active_heads(tracker)) == {"test-orders", "test-refunds", "test-visits"}


def test_tasks_run_what_was_deployed_with_a_version_and_not_what_the_folder_has(
    postgres, s3, tmp_path
):
    root = tmp_path / "pipelines"
    settings = Settings(
        _env_file=None,
        home=tmp_path,
        pipelines_dir=root,
        s3=s3.bucket("waybill"),
        tracker=TrackerSettings(dsn=postgres.tracker()),
        traces=TraceSettings(spool_dir=tmp_path / "traces"),
    )
    services.migrate(settings)
    code = CODE.replace('event.data["doubled"]', 'event.data["amount"]')
    home = evolving.write_evolving(root, code=code)

    def amounts(plan=None):
        told = evolving.run_task(settings, [evolving.order(1, amount=7)], plan)
        return [row["amount"] for row in evolving.staged_rows(evolving.staged(settings, told))]

    share(root, 10)
    services.run_deploy(settings, home, who="ann")
    before = evolving.plan_of(settings)
    assert amounts() == [70]
    share(root, 100)
    assert amounts() == [70], "it is edited, and not deployed"
    services.run_deploy(settings, home, who="ann")
    assert amounts() == [700]
    assert amounts(before) == [70], "a batch that was sent before, and runs again"
    services.run_rollback(settings, "evolving", None, Decision("ann", "wrong sums"))
    shutil.rmtree(root / "shared")
    assert amounts() == [70]
    assert list(open_objects(settings.s3).list("parked/")) == []


def test_held_events_go_on_with_the_modules_of_the_version_that_is_active_then(lot, tmp_path):
    text = "def times(amount):\n    return amount{} if amount else 0\n"
    share(tmp_path, "['gone']", text.replace(" if amount else 0", ""))
    cause = {"version": "v1", "stage": "transformation", "error_type": "type_error", "place": "",
             "message": "no number", "failed": 60, "events": 100}  # fmt: skip
    home = orders.write_orders(tmp_path, rows=1, code=CODE, fixed=True)
    first = deploy(lot.tracker, home, who="t").version
    with lot.tracker.transaction() as connection:
        assert record_storm(connection, "test-orders", cause | {"version": first})
    held = [parked_orders.order(number, "team", "n") for number in range(10)]
    lot.park([parked_orders.parked(one, code="pipeline_held") for one in held], 1)

    def probe():
        return probe_held(
            lot.tracker, lot.parking, pass_rate=0.9, code=sandbox(), fetch=lot.objects.get
        ).probes

    def age():
        lot.sql("UPDATE pipeline_holds SET held_at = held_at - interval '1 day',"
                " probed_at = probed_at - interval '1 day'")  # fmt: skip

    age()
    [found] = probe()
    assert (found.version, found.would_pass, found.released) == (first, 0, False)
    share(tmp_path, " * 2", text)
    age()
    [found] = probe()
    assert (found.version, found.would_pass) == (first, 0), "it is edited, and not deployed"
    second = deploy(lot.tracker, home, who="t").version
    [found] = probe()
    assert (found.version, found.would_pass, found.released) == (second, 10, True)


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(2400)
def test_a_running_stream_takes_shared_modules_with_their_versions(stack_settings, tmp_path):
    settings = streams.with_orders(stack_settings, tmp_path, rows=1)
    root = settings.pipelines_dir
    home = write(root)
    dsn = settings.destinations["warehouse"].dsn.get_secret_value()
    expected, first = {}, 0

    def goes_on(factor):
        """Take 40 more orders in, which run with this factor."""
        nonlocal first
        numbers = range(first, first + 40)
        lines = ["number,amount,note", *(f"{number},{number},n" for number in numbers)]
        (home / "orders.csv").write_text("\n".join(lines) + "\n")
        first += 40
        services.run_ingest(settings, "orders")
        streams.rest_of(settings, rows=first)
        expected.update({number: number * factor for number in numbers})
        with psycopg.connect(dsn) as connection:
            found = dict(connection.execute("SELECT number, doubled FROM shop.orders").fetchall())
        assert found == expected

    with streams.stopped_at_end(settings):
        share(root, 2)
        services.run_deploy(settings, home, who="ann")
        goes_on(2)
        share(root, 3)
        goes_on(2)
        services.run_deploy(settings, home, who="ann")
        goes_on(3)
        services.run_rollback(settings, "orders", None, Decision("ann", "wrong sums"))
        goes_on(2)
