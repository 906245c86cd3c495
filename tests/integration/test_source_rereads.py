"""A source that is read again: from its beginning, from a value, and put back."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import text
from tests.support import children, orders

from waybill import services
from waybill.errors import InputError
from waybill.events import decode
from waybill.ingestion import IngestRequest
from waybill.ledger import ask_reread
from waybill.pipelines import DeployAllowances
from waybill.services import AskedRun, ingest_progress
from waybill.services.ingestion import run_ingest
from waybill.storage import open_log, open_tracker

pytestmark = pytest.mark.serves
ROWS = 60
DECLARATION = """
id: test-orders
name: orders
team: {team}
owner: shop@example.com
source:
  connector: sql
  event: order
  page_rows: 10
  options: {{file: shop.db, table: orders, cursor: changed}}
events:
  order:
    key: [number]
    version: changed
    table: orders
    columns: {{number: int64, changed: int64}}
destination: {{name: warehouse, schema: shop}}
"""


KILLED = """
import os, signal
from waybill.ingestion import IngestRequest, run
from waybill.services import AskedRun
from waybill.services.ingestion import run_ingest
begin, commit, left = run.begin_position, run.commit_intake, None
def begun(*given):
    global left
    left = {commits}
    return begin(*given)
def killed(*given):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left = left and left - 1
    return commit(*given)
run.begin_position, run.commit_intake = begun, killed
{asked}
run_ingest(settings, "orders", asked=asked)
"""


KILLED_AT_THE_RESET = """
import os, signal
from waybill.ingestion import IngestRequest, run
from waybill.services import AskedRun
from waybill.services.ingestion import run_ingest
begin = run.begin_position
def killed(*given):
    {does}
    os.kill(os.getpid(), signal.SIGKILL)
run.begin_position = killed
run_ingest(settings, "orders", asked=AskedRun(IngestRequest.of({asked}), "{run_id}", "ops"))
"""


class Shop:
    """A pipeline from an SQLite table of ``ROWS`` rows, whose cursor is 100 more than the number."""

    def __init__(self, settings):
        self.settings = settings
        self.log = open_log(settings.kafka)
        self.topic = orders.topic_of(settings.pipelines_dir)
        self.home = settings.pipelines_dir / "orders"

    def run(self, run_id, user="ops", **asked):
        request = IngestRequest.of(asked)
        return run_ingest(self.settings, "orders", asked=AskedRun(request, run_id, user))

    def add(self, count):
        with sqlite3.connect(self.home / "shop.db") as database:
            new = [(number, 100 + number) for number in range(ROWS, ROWS + count)]
            database.executemany("INSERT INTO orders VALUES (?, ?)", new)

    def run_and_kill(self, asked="asked = None", *, commits=0):
        """Run in a process that dies before the commit of a page of its own, behind so many."""
        child = children.start(self.settings, KILLED.format(asked=asked, commits=commits))
        output, _ = child.communicate(timeout=600)
        assert child.returncode == -9, output.decode()

    def kill_at_the_reset(self, run_id, *, does, **asked):
        """Run in a process that dies where the cursor is moved: ``does`` is pass, or begin."""
        code = KILLED_AT_THE_RESET.format(does=does, run_id=run_id, asked=asked)
        child = children.start(self.settings, code)
        output, _ = child.communicate(timeout=600)
        assert child.returncode == -9, output.decode()

    def sql(self, query):
        with open_tracker(self.settings.tracker) as tracker, tracker.transaction() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def cursor(self):
        return self.sql("SELECT cursor FROM connector_positions")[0][0]

    def sent(self):
        """Return (number, event id) of all that is in Kafka."""
        info = self.log.describe(self.topic)
        marks = self.log.watermarks(info)
        events = [decode(m.value()) for m in self.log.read_messages(self.topic, marks)]
        return sorted((event.data["number"], event.id) for event in events)


@pytest.fixture
def shop(stack_settings, tmp_path):
    home = tmp_path / "pipelines" / "orders"
    home.mkdir(parents=True)
    declaration = DECLARATION.format(team=orders.team_of(home.parent))
    (home / "pipeline.yaml").write_text(declaration)
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    with sqlite3.connect(home / "shop.db") as database:
        database.execute(
            "CREATE TABLE orders (number INTEGER PRIMARY KEY, changed INTEGER NOT NULL)"
        )
        rows = [(number, 100 + number) for number in range(ROWS)]
        database.executemany("INSERT INTO orders VALUES (?, ?)", rows)
    settings = stack_settings.model_copy(update={"pipelines_dir": home.parent})
    services.migrate(settings)
    services.run_deploy(settings, home, who="test")
    return Shop(settings)


@pytest.mark.timeout(2400)
def test_what_is_read_again_has_the_same_ids_and_the_cursor_is_audited_kept_and_put_back(shop):
    assert shop.run("run-1").read == ROWS
    first, stood = shop.sent(), shop.cursor()

    again = {"from": "150", "why": "ten rows were wrong", "who": "kim"}
    assert shop.run("run-2", **again).read == 10
    assert shop.sent() == sorted(first + first[-10:])
    assert shop.cursor() == stood

    assert shop.run("run-2", **again).read == 0, "a try of the same run moved the cursor again"
    assert shop.run("run-3").read == 0

    assert shop.run("run-4", full=True, why="a new column").read == ROWS
    assert shop.sent() == sorted(first * 2 + first[-10:])

    moved = shop.sql(
        "SELECT request, who, old_cursor, new_cursor FROM cursor_resets ORDER BY number"
    )
    of = {"file": "shop.db", "table": "orders"}
    at = {"by": ["changed", "number"], "from": ["int", "150"], "of": of}
    assert moved == [("run-2", "kim", stood, at), ("run-4", "ops", stood, None)]
    audited = shop.sql(
        "SELECT who, target, detail->>'why', detail->>'value', detail->'before' FROM audit_log"
        " WHERE action = 'reset_cursor' ORDER BY id"
    )
    assert audited == [
        ("kim", "test-orders", "ten rows were wrong", "150", stood),
        ("ops", "test-orders", "a new column", None, stood),
    ]

    assert shop.run("run-5", **{"from": "100", "why": "by mistake"}).read == ROWS
    assert shop.run("run-6", put_back=True, why="it was a mistake").read == 0
    assert shop.cursor() == stood
    pipeline = services.deployed_pipeline(shop.settings, "orders")
    assert ingest_progress(shop.settings, pipeline).unsettled == 0


@pytest.mark.timeout(2400)
def test_a_run_that_begins_elsewhere_leaves_the_reading_that_was_asked_for_before_to_the_next(shop):
    shop.run("run-1")
    with open_tracker(shop.settings.tracker) as tracker, tracker.transaction() as connection:
        assert ask_reread(connection, "test-orders")
    assert shop.run("run-2", **{"from": "150", "why": "x"}).read == 10
    assert shop.run("run-3").read == ROWS
    assert shop.run("run-4").read == 0


@pytest.mark.timeout(2400)
def test_what_lies_between_two_values_is_read_again_and_the_cursor_stays_where_it_is(shop):
    with pytest.raises(InputError, match="to: nothing of table 'orders' was read yet"):
        shop.run("run-0", **{"from": "110", "to": "124", "why": "x"})
    shop.run("run-1")
    first, stood = shop.sent(), shop.cursor()
    with pytest.raises(InputError, match="to: '110' is less than from, '124'"):
        shop.run("run-2", **{"from": "124", "to": "110", "why": "x"})

    asked = {"from": "110", "to": "124", "why": "fifteen rows were wrong", "who": "kim"}
    assert shop.run("run-3", **asked).read == 15
    assert shop.sent() == sorted(first + first[10:25])
    assert shop.cursor() == stood
    assert shop.run("run-3", **asked).read == 0, "a try of the same run read the range again"
    assert shop.run("run-4").read == 0

    audited = shop.sql(
        "SELECT who, detail->>'why', detail->>'value', detail->>'last_value', detail->'before',"
        " detail->'after' FROM audit_log WHERE action = 'reset_cursor'"
    )
    after = {**stood, "rereads": [{"from": ["int", "110"], "to": ["int", "124"]}]}
    assert audited == [("kim", "fifteen rows were wrong", "110", "124", stood, after)]
    pipeline = services.deployed_pipeline(shop.settings, "orders")
    assert ingest_progress(shop.settings, pipeline).rows == ROWS + 15


@pytest.mark.campaign
@pytest.mark.timeout(2400)
def test_a_range_that_is_read_again_by_runs_that_are_killed_is_sent_once_more_and_no_row_else(shop):
    """Killed with pages in the log that are not committed; then amid the range."""
    shop.run("run-1")
    first = shop.sent()
    shop.add(30)
    shop.run_and_kill()
    asked = "IngestRequest.of({'from': '110', 'to': '139', 'why': 'x'})"
    shop.run_and_kill(f"asked = AskedRun({asked}, 'run-3', 'ops')", commits=2)
    assert shop.cursor().get("rereads"), "it was not killed amid the range"
    shop.run("run-4")
    new = [one for one in shop.sent() if one[0] >= ROWS]
    assert [number for number, _ in new] == list(range(ROWS, ROWS + 30))
    assert shop.sent() == sorted(first + first[10:40] + new)
    assert "rereads" not in shop.cursor()
    assert shop.run("run-5").read == 0


@pytest.mark.timeout(2400)
def test_what_cannot_be_done_is_said_and_changes_nothing(shop):
    with pytest.raises(InputError, match="no reset of this source's cursor"):
        shop.run("run-1", put_back=True, why="x")
    shop.run("run-2")
    stood = shop.cursor()
    for value in ("yesterday", "1.5", "1; DROP TABLE orders", "{{ 1/0 }}"):
        with pytest.raises(InputError, match="from: expected a whole number"):
            shop.run("run-3", **{"from": value, "why": "x"})
    assert shop.cursor() == stood
    assert shop.sql("SELECT count(*) FROM cursor_resets") == [(0,)]

    folder = shop.home
    orders.write_orders(folder.parent, rows=5)
    services.run_deploy(shop.settings, folder, who="test", allows=DeployAllowances(version_ok=True))
    with pytest.raises(InputError, match="from: the cursor of connector 'csv' is its source's own"):
        shop.run("run-4", **{"from": "3", "why": "x"})
    with pytest.raises(InputError, match="to: connector 'csv' cannot end at a value"):
        shop.run("run-5", **{"from": "3", "to": "4", "why": "x"})


@pytest.mark.timeout(2400)
def test_a_run_that_is_killed_after_it_moved_the_cursor_goes_on_from_there_when_it_is_tried_again(
    shop,
):
    shop.run("run-1")
    first = shop.sent()
    shop.kill_at_the_reset("run-2", does="begin(*given)", full=True, why="x")
    assert shop.cursor() is None
    assert shop.sent() == first

    assert shop.run("run-2", full=True, why="x").read == ROWS
    assert shop.sent() == sorted(first * 2)
    assert shop.sql("SELECT count(*) FROM cursor_resets") == [(1,)]


@pytest.mark.timeout(2400)
def test_a_run_from_a_value_that_died_after_its_first_page_reads_what_is_left_when_it_is_tried_again(
    shop,
):
    shop.run("run-1")
    first, stood = shop.sent(), shop.cursor()
    asked = {"from": "120", "why": "x"}
    shop.run_and_kill(f"asked = AskedRun(IngestRequest.of({asked}), 'run-2', 'ops')", commits=1)
    assert shop.cursor()["at"] == [["int", "129"], ["int", "29"]]
    shop.run("run-2", **asked)
    assert shop.sent() == sorted(first + first[20:])
    assert shop.cursor() == stood

    with sqlite3.connect(shop.home / "shop.db") as database:
        database.execute("DELETE FROM orders")
    assert shop.run("run-2", **asked).read == 0, "it was done, and needs no row of that value"


@pytest.mark.campaign
@pytest.mark.timeout(2400)
def test_a_range_that_is_not_read_to_its_end_stays_when_the_source_is_read_again_from_a_value(shop):
    shop.run("run-1")
    first, stood = shop.sent(), shop.cursor()
    asked = {"from": "110", "to": "139", "why": "x"}
    shop.kill_at_the_reset("run-2", does="begin(*given)", **asked)
    left = shop.cursor()["rereads"]
    assert len(left) == 1
    shop.kill_at_the_reset("run-3", does="begin(*given)", **{"from": "155", "why": "y"})
    begun = {"by": stood["by"], "from": ["int", "155"], "of": stood["of"]}
    assert shop.cursor() == {**begun, "rereads": left}
    shop.run("run-3", **{"from": "155", "why": "y"})
    assert shop.sent() == sorted(first + first[10:40] + first[55:])
    assert shop.cursor() == stood


@pytest.mark.campaign
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("does", ["pass", "begin(*given)"], ids=["before", "after"])
def test_a_cursor_is_put_back_once_whenever_the_run_that_does_it_is_killed(shop, does):
    shop.run("run-1")
    first, stood = shop.sent(), shop.cursor()
    shop.kill_at_the_reset("run-2", does="begin(*given)", full=True, why="by mistake")
    assert shop.cursor() is None

    shop.kill_at_the_reset("run-3", does=does, put_back=True, why="a mistake")
    assert shop.cursor() == (None if does == "pass" else stood)
    assert shop.run("run-3", put_back=True, why="a mistake").read == 0
    assert shop.cursor() == stood
    assert shop.sql("SELECT request FROM cursor_resets ORDER BY number") == [("run-2",), ("run-3",)]
    assert shop.run("run-4").read == 0
    assert shop.sent() == first


def declare(shop, **options):
    """Deploy the pipeline with other options of its source; return the report."""
    file = shop.home / "pipeline.yaml"
    shown = ", ".join(f"{name}: {value}" for name, value in options.items())
    lines = [
        f"  options: {{{shown}}}" if "options:" in line else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")
    return services.run_deploy(shop.settings, shop.home, who="test")


def test_a_deploy_that_names_another_table_reads_none_of_it_from_the_old_place(shop):
    shop.run("run-1")
    first = shop.sent()
    with sqlite3.connect(shop.home / "shop.db") as database:
        database.execute("CREATE TABLE archive (number INTEGER PRIMARY KEY, changed INTEGER)")
        rows = [(900 + n, 10 + n) for n in range(5)] + [(999, 500)]
        database.executemany("INSERT INTO archive VALUES (?, ?)", rows)
    said = declare(shop, file="shop.db", table="archive", cursor="changed").warnings
    assert any("ingest orders --full" in one and "'archive'" in one for one in said), said
    with pytest.raises(InputError, match=r"table 'orders'.*table 'archive'.*orders --full"):
        shop.run("run-2")
    assert shop.sent() == first
    assert shop.run("run-3", full=True, why="the archive").read == 6
    assert shop.run("run-4").read == 0
    declare(shop, file="shop.db", table="orders", cursor="changed")
    with pytest.raises(InputError, match="table 'archive'"):
        shop.run("run-5")
    assert shop.run("run-6", **{"from": "159", "why": "read before"}).read == 1


def test_a_deploy_before_anything_was_read_says_nothing_of_another_table(shop):
    assert not declare(shop, file="shop.db", table="archive", cursor="changed").warnings
