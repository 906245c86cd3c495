"""Tables as assets: their names, what a DAG file says of them, and that no load is missed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.triggers.shared_stream import SharedStreamManager
from hypothesis import given
from hypothesis import strategies as st
from tests.dags.conftest import ROOT, load_dags

from waybill.errors import RetryError
from waybill.ledger import TableLoad, TableName
from waybill_airflow.assets import sanitize_uri, table_asset, table_uri, to_openlineage
from waybill_airflow.triggers import tables
from waybill_airflow.triggers.tables import STATE, TableTrigger

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
ORDERS = TableName("shop", "orders", "orders")


# Names -------------------------------------------------------------------------------------------


@given(st.tuples(NAMES, NAMES, NAMES))
def test_whatever_names_have_in_them_the_uri_is_theirs_alone_and_stays_as_it_is(names):
    uri = table_uri(*names)
    assert uri.isascii()
    assert Asset(uri=uri).uri == uri
    assert sanitize_uri(urlsplit(uri)) == urlsplit(uri)
    team, path = uri.removeprefix("waybill://").split("/", 1)
    assert [team, *path.split("/")] == [table_uri(n, "p", "t")[10:-4] for n in names]


@pytest.mark.parametrize(
    "names", [("a/b", "c", "d"), ("..", ".", "a"), ("a@b:c", "?x=1", "#y"), ("é", "\0", "{{ 1 }}")]
)
def test_names_with_marks_of_a_uri_are_no_marks(names):
    assert Asset(uri=table_uri(*names)).uri.count("/") == 4
    assert len({table_uri(*names), table_uri(*reversed(names)), table_uri("a", "b", "c/d")}) == 3


def test_a_uri_written_by_hand_is_the_same_asset_and_one_of_another_shape_is_refused():
    assert Asset(uri="WAYBILL://shop/my orders/lines/").uri == table_uri(
        "shop", "my orders", "lines"
    )
    for wrong in (
        "waybill://shop",
        "waybill://shop/a",
        "waybill://shop/a/b/c",
        "waybill:///a/b",
        "waybill://a/b/%ff",
    ):
        with pytest.raises(ValueError, match="no asset of Waybill"):
            Asset(uri=wrong)
    for wrong in ("", None, "\ud800"):
        with pytest.raises(ValueError, match="is no name"):
            table_asset("shop", "orders", wrong)


def test_a_table_is_a_dataset_of_openlineage(monkeypatch):
    """The client is not installed here: the provider's stand-in gives nothing."""
    from airflow.providers.common.compat.openlineage import facet

    monkeypatch.setattr(facet, "Dataset", lambda namespace, name: (namespace, name))
    assert to_openlineage(table_asset("shop", "a/b", "c"), None) == ("waybill://shop", "a%2Fb/c")


def test_the_example_is_a_dag_with_its_watcher():
    from airflow.serialization.encoders import encode_asset_like

    bag = load_dags(ROOT / "docs" / "examples" / "count_new_orders.py")
    assert not bag.import_errors
    condition = encode_asset_like(bag.dags["count_new_orders"].timetable.asset_condition)
    [asset] = condition.get("objects", [condition])
    assert asset["uri"] == "waybill://shop/orders/orders"
    [watcher] = asset["watchers"]
    assert watcher["trigger"]["classpath"] == "waybill_airflow.triggers.tables.TableTrigger"
    assert TableTrigger(**watcher["trigger"]["kwargs"]).serialize()[1] == ORDERS._asdict()


def test_the_example_started_by_hand_before_the_first_load_says_that_there_is_nothing():
    from airflow.sdk.exceptions import AirflowSkipException

    bag = load_dags(ROOT / "docs" / "examples" / "count_new_orders.py")
    count = bag.dags["count_new_orders"].get_task("count").python_callable
    table = table_asset("shop", "orders", "orders")

    def run(events):
        return count(triggering_asset_events={table: []}, inlet_events={table: events})

    with pytest.raises(AirflowSkipException, match="waybill://shop/orders/orders has no event yet"):
        run([])
    event = SimpleNamespace(extra={"payload": {"rows": 3, "position": 9}})
    assert run([event]) == {"rows": 0, "position": 9}


def test_a_trigger_outside_of_a_shared_stream_says_so_instead_of_watching_nothing():
    async def alone():
        async for _ in TableTrigger(*ORDERS).run():
            pass

    with pytest.raises(RuntimeError, match="needs shared streams"):
        asyncio.run(alone())


# The trigger, in Airflow's own shared streams --------------------------------------------------------


class World:
    """The tracker's loads and Airflow's database: what outlives a triggerer."""

    def __init__(self) -> None:
        self.loads: list[int] = []
        """Rows of each commit; its number is its place, from 1."""
        self.events: list[Mapping] = []
        self.state: dict[str, object] = {}
        """Of each asset, by its table."""
        self.away = self.refuses = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.reads = 0

    def read(self, positions):
        """As ``TableLoads.read`` does: tests/integration/test_table_loads.py."""
        self.reads += 1
        if self.away:
            raise RetryError("tracker: away")
        last, found = len(self.loads), {}
        for table, after in positions.items():
            if after != last or after is None:
                rows = sum(self.loads[after or 0 :])
                found[table] = TableLoad(after, last, rows, "v1")
        return found


class State:
    def __init__(self, world: World, table: str) -> None:
        self.world, self.table = world, table

    async def aget(self, key):
        assert key == STATE
        await asyncio.sleep(0)
        return self.world.state.get(self.table)

    async def aset(self, key, value):
        from airflow.sdk.execution_time.comms import ErrorResponse

        await asyncio.sleep(0)
        if self.world.refuses:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        self.world.state[self.table] = value


class Triggerer:
    """What Airflow's does with event triggers, a step at a time."""

    def __init__(self, world: World, *triggers: TableTrigger) -> None:
        self.world, self.streams = world, SharedStreamManager()
        self.queue: list = []
        self.persisted: list[int] = []
        self.logs = asyncio.Event()
        """Not set: Airflow is still writing its log line of an event."""
        self.logs.set()
        self.tasks = [self.start(number, trigger) for number, trigger in enumerate(triggers)]

    def start(self, number, trigger):
        trigger.asset_state_store = State(self.world, trigger.table)
        return asyncio.get_running_loop().create_task(self._run(number, trigger))

    async def _run(self, number, trigger):
        key = trigger.shared_stream_key()
        stream = self.streams.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(stream):
                await asyncio.sleep(0)
                await self.logs.wait()
                seq = self.streams.bind_pending_event(trigger_id=number, key=key)
                self.queue.append((seq, event.payload))
        finally:
            await self.streams.unsubscribe(number, key)

    def persist(self):
        while self.queue:
            seq, payload = self.queue.pop(0)
            self.world.events.append(payload)
            self.persisted.append(seq)

    def confirm(self):
        self.streams.confirm_persisted(self.persisted)
        self.persisted.clear()

    async def settle(self, steps=60):
        for _ in range(steps):
            await asyncio.sleep(0)

    async def kill(self):
        """SIGKILL: nothing of it goes on, and nothing in its memory is left."""
        mine = asyncio.current_task()
        doomed = [task for task in asyncio.all_tasks() if task is not mine]
        self.world.away = self.world.refuses = True
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        self.world.away = self.world.refuses = False
        tables._WATCHED.clear()


@pytest.fixture
def world(monkeypatch):
    made = World()

    class Rows:
        async def read(self, _max_age_s):
            await asyncio.sleep(0)
            watched = tables._WATCHED.copy()
            found = made.read({table: one.position for table, one in watched.items()})
            await made.answers.wait()
            return {table: (watched[table], load) for table, load in found.items()}

    monkeypatch.setattr(tables, "ROWS", Rows())
    monkeypatch.setattr(tables, "POLL_S", 0)
    return made


async def whole_round(triggerer):
    await triggerer.settle()
    triggerer.persist()
    await triggerer.settle()
    triggerer.confirm()
    await triggerer.settle()


def spans(world):
    return [(event["after"], event["position"], event["rows"]) for event in world.events]


def test_each_load_is_told_once_with_its_rows_and_one_poll_serves_all_tables(world):
    async def live():
        world.loads = [5, 0]
        names = [ORDERS, ORDERS._replace(table="lines")]
        triggerer = Triggerer(world, *[TableTrigger(*name) for name in names])
        await whole_round(triggerer)
        assert spans(world) == [(None, 2, 5)] * 2
        world.events.clear()
        reads = world.reads
        await triggerer.settle(300)
        polls = world.reads - reads
        assert polls <= 300 / 2, "each table polls by itself"
        world.loads += [0, 0]
        await whole_round(triggerer)
        assert world.events == [], "an event without rows"
        world.loads += [7]
        await whole_round(triggerer)
        assert spans(world) == [(4, 5, 7)] * 2
        assert world.state == {name: {"position": 5} for name in ("orders", "lines")}
        await triggerer.kill()

    asyncio.run(live())


def test_what_airflow_has_not_stored_is_told_again_and_what_it_has_is_not(world):
    async def live():
        world.loads = [5]
        first = Triggerer(world, TableTrigger(*ORDERS))
        await first.settle()
        assert first.queue
        await first.kill()  # in memory only
        second = Triggerer(world, TableTrigger(*ORDERS))
        await whole_round(second)
        assert spans(world) == [(None, 1, 5)]
        await second.kill()
        third = Triggerer(world, TableTrigger(*ORDERS))
        await whole_round(third)
        assert spans(world) == [(None, 1, 5)], "a run without new rows"
        world.loads += [1]
        await third.settle()
        third.persist()
        await third.kill()  # stored, and not known to be
        fourth = Triggerer(world, TableTrigger(*ORDERS))
        await whole_round(fourth)
        assert spans(world)[1:] == [(1, 2, 1)] * 2, "the one event that may come twice"
        await fourth.kill()

    asyncio.run(live())


def test_what_a_trigger_that_is_cancelled_has_not_told_the_next_one_tells(world):
    """A DAG was paused and unpaused, while Airflow logged the event, and the tracker answered."""

    async def live():
        world.loads = [5]
        other = TableTrigger(*ORDERS._replace(table="lines"))  # for which the poll goes on
        triggerer = Triggerer(world, TableTrigger(*ORDERS), other)
        await whole_round(triggerer)
        world.events.clear()
        triggerer.logs.clear()
        world.loads += [3]
        await triggerer.settle()
        world.answers.clear()
        world.loads += [4]
        await triggerer.settle()
        triggerer.tasks[0].cancel()
        await triggerer.settle()
        triggerer.logs.set()
        triggerer.start(2, TableTrigger(*ORDERS))
        await triggerer.settle()
        world.answers.set()
        await whole_round(triggerer)
        assert sorted(spans(world)) == [(1, 2, 3), (1, 3, 7), (2, 3, 4)], "commit 2 is not told"
        await triggerer.kill()

    asyncio.run(live())


def test_a_trigger_that_is_cancelled_alone_stores_nothing_that_it_has_not_told(world):
    async def live():
        world.loads = [5]
        triggerer = Triggerer(world, TableTrigger(*ORDERS))
        triggerer.logs.clear()
        await triggerer.settle()
        triggerer.tasks[0].cancel()
        await triggerer.settle()
        assert (triggerer.queue, world.state) == ([], {})

    asyncio.run(live())


def test_a_tracker_that_is_away_is_waited_for_and_one_that_was_restored_is_told(world):
    async def live():
        world.loads = [5, 5, 5]
        triggerer = Triggerer(world, TableTrigger(*ORDERS))
        await whole_round(triggerer)
        world.away = True
        world.loads += [1]
        await triggerer.settle()
        assert not triggerer.queue
        world.away, world.refuses = False, True
        await whole_round(triggerer)
        assert spans(world)[1:] == [(3, 4, 1)]
        assert world.state == {"orders": {"position": 3}}
        world.refuses = False  # Airflow's database takes it again
        await triggerer.settle()
        assert world.state == {"orders": {"position": 4}}
        world.loads = world.loads[:2]
        await whole_round(triggerer)
        assert spans(world)[2:] == [(4, 2, 0)]
        world.loads += [9]
        await whole_round(triggerer)
        assert spans(world)[3:] == [(2, 3, 9)]
        await triggerer.kill()

    asyncio.run(live())


def test_a_pipeline_that_is_not_deployed_is_named_once(world, monkeypatch, caplog):
    monkeypatch.setattr(tables._loads(), "unknown", frozenset({ORDERS}))

    async def live():
        triggerer = Triggerer(world, TableTrigger(*ORDERS))
        await triggerer.settle(200)
        await triggerer.kill()

    asyncio.run(live())
    assert caplog.text.count("no pipeline 'orders' of team 'shop' is deployed") == 1


def test_two_triggerers_that_have_one_table_do_not_tell_it_twice_for_long(world):
    """One was frozen, so Airflow gave its trigger to another; then it goes on."""

    async def live():
        world.loads = [5]
        triggerer = Triggerer(world, TableTrigger(*ORDERS))
        await whole_round(triggerer)
        world.loads += [3]
        world.state = {"orders": {"position": 2}}  # the other one's
        await whole_round(triggerer)
        assert spans(world) == [(None, 1, 5)]
        world.loads += [4]
        await whole_round(triggerer)
        assert spans(world)[1:] == [(2, 3, 4)]
        await triggerer.kill()

    asyncio.run(live())


@pytest.mark.parametrize("seed", range(40))
def test_killed_at_any_step_no_load_is_left_untold_and_each_event_has_rows(world, seed):
    chance = random.Random(seed)

    async def live():
        told_twice, kills = 0, 0
        triggerer = Triggerer(world, TableTrigger(*ORDERS))
        for _ in range(60):
            match chance.randrange(7):
                case 0:
                    world.loads.append(chance.choice([0, 0, 1, 8]))
                case 1 | 2:
                    await triggerer.settle(chance.randrange(1, 9))
                case 3:
                    triggerer.persist()
                case 4:
                    triggerer.confirm()
                case 5:
                    world.refuses = chance.random() < 0.3
                case 6 if chance.random() < 0.4:
                    kills += 1
                    await triggerer.kill()
                    triggerer = Triggerer(world, TableTrigger(*ORDERS))
        world.refuses = False
        for _ in range(3):
            await whole_round(triggerer)
        seen: set[int] = set()
        for after, position, rows in spans(world):
            new = {n for n in range((after or 0) + 1, position + 1) if world.loads[n - 1]}
            assert rows == sum(world.loads[n - 1] for n in new) > 0
            told_twice += not new - seen
            seen |= new
        assert seen == {n for n, rows in enumerate(world.loads, 1) if rows}
        assert told_twice <= kills, "an event without new rows that no kill explains"
        await triggerer.kill()

    asyncio.run(live())
