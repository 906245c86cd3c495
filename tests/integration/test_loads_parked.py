"""What waits for a destination is parked, by order or by settings; exactly, and once."""

from __future__ import annotations

import pytest
from tests.support.destined import never_park
from tests.support.lake_warehouses import delta_folder, iceberg_folder
from tests.support.loads import opened_loads, some
from tests.support.lost_commits import answer_lost, commits_changed
from tests.support.warehouses import kinds_of
from tests.unit.destinations.orders import Order, clean_database, rows_of, spec_of

from waybill.access import Decision
from waybill.destinations import Commit
from waybill.errors import InputError, RetryError
from waybill.events import decode
from waybill.ledger import read_totals
from waybill.ledger.balance import read_parked
from waybill.loading import backoff as room
from waybill.loading.backoff import StoppedError
from waybill.loading.states import all_waiting, ask_to_park, take_back
from waybill.parking import read_segment
from waybill.pipelines import Column
from waybill.reconciliation.segment_sums import sum_gaps
from waybill.tracing import Recorder, trace_spool
from waybill.tracing.parquet import read_whole
from waybill.tracing.trace import to_traces

pytestmark = pytest.mark.serves
BY_HAND = Decision("ann", "moved to another house")


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


def order_to_park(loads):
    return ask_to_park(loads.tracker, "warehouse", BY_HAND)


def wait_for(loads, last):
    """Let a loader try once, and stop."""
    loads.gate.shut()
    loads.time.stopped = True
    with pytest.raises(StoppedError):
        loads.deliver(loads.patience(), last)
    loads.time.stopped = False


def events(loads):
    """Return all parked events, in the order that a replay takes."""
    rows = loads.sql(
        "SELECT object_key, position, length, sha256 FROM segments ORDER BY commit_number, id"
    )
    return [
        event
        for key, at, length, sha256 in rows
        for event in read_segment(loads.objects.get(key)[at : at + length], sha256=sha256)
    ]


def test_by_order_what_waits_is_parked_exactly(loads):
    loads.stage(some(1, 5))
    last = loads.stage([Order(3, 2, 100), Order(9, 1, 101, op="delete")])
    loads.gate.shut()
    loads.time.then = [(5, lambda: order_to_park(loads))]
    loads.deliver(loads.patience(), last)
    assert loads.time.now_s < 10, "an order is not waited for"
    assert loads.position == last
    assert loads.counts() == {"in_first": 7, "parked": 7}
    assert loads.parked() == {"destination_unreachable": 7}
    [state] = all_waiting(loads.tracker).values()
    assert state.parked_from == 1
    assert loads.audited() == [("ann", "park_destination"), ("loading", "park_loads")]
    assert loads.sql("SELECT DISTINCT state FROM staged_objects") == [("loaded",)]


def test_what_is_parked_can_enter_at_the_destination_again(loads):
    deleted = Order(9, 1, 101, op="delete", replayed=True, replay_id="11111111-aaaa")
    last = loads.stage([Order(3, 2, 100, "a thing"), deleted])
    wait_for(loads, last)
    order_to_park(loads)
    loads.deliver(loads.patience(), last)
    first, second = (decode(parked.value) for parked in events(loads))
    assert (first.id, first.key, first.stage, first.op) == (
        "3/2/100",
        "[3]",
        "destination",
        "upsert",
    )
    assert first.data == {"id": 3, "what": "a thing", "price": None}
    assert (first.source_version, first.intake_version, first.attempt) == (2, 100, 0)
    assert (second.op, second.attempt, second.replay_id) == ("delete", 1, "11111111-aaaa")


def test_settings_park_what_waited_too_long(loads):
    last = loads.stage(some(1, 3))
    loads.gate.shut()
    loads.time.then = [(40, lambda: loads.age_wait(600))]
    loads.deliver(loads.patience(park_after_s=600), last)
    assert 40 <= loads.time.now_s < 80
    assert loads.parked() == {"destination_unreachable": 3}
    assert loads.audited() == [("loading", "park_loads")]


def test_what_comes_is_parked_until_the_destination_takes_a_load(loads):
    wait_for(loads, loads.stage(some(1, 1)))
    patience = loads.patience(park_after_s=0.0001)
    loads.deliver(patience, loads.stage(some(2, 1)))
    loads.deliver(patience, loads.stage(some(3, 1)))
    assert (loads.position, loads.parked()) == (3, {"destination_unreachable": 3})
    loads.gate.open()
    loads.time.now_s += 10
    loads.deliver(patience, loads.stage(some(4, 1)))
    assert loads.ids() == [4]
    assert all_waiting(loads.tracker) == {}
    assert loads.audited()[-1] == ("loading", "end_parking_loads")
    loads.gate.shut()
    last = loads.stage(some(5, 1))
    loads.time.then = [(loads.time.now_s + 2, loads.gate.open)]
    loads.deliver(loads.patience(park_after_s=3600), last)
    assert loads.ids() == [4, 5], "the next time it is waited for again"


def test_an_order_that_is_taken_back_lets_what_comes_wait(loads):
    patience = loads.patience()
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.then = [(3, lambda: order_to_park(loads))]
    loads.deliver(patience, last)
    take_back(loads.tracker, "warehouse", BY_HAND)
    assert all_waiting(loads.tracker)["warehouse"].parked_from is None
    last = loads.stage(some(2, 1))
    loads.time.then = [(loads.time.now_s + 100, loads.gate.open)]
    loads.deliver(patience, last)
    assert (loads.ids(), loads.parked()) == ([2], {"destination_unreachable": 1})
    assert ("ann", "unpark_destination") in loads.audited()


def test_an_order_taken_back_before_it_took_effect_parks_nothing(loads):
    last = loads.stage(some(1, 1))
    wait_for(loads, last)
    order_to_park(loads)
    take_back(loads.tracker, "warehouse", BY_HAND)
    loads.time.then = [(loads.time.now_s + 60, loads.gate.open)]
    loads.deliver(loads.patience(), last)
    assert (loads.ids(), loads.parked()) == ([1], {})


def test_orders_that_say_nothing_are_refused(loads):
    with pytest.raises(InputError, match="takes its loads"):
        order_to_park(loads)
    with pytest.raises(InputError, match="nobody asked"):
        take_back(loads.tracker, "warehouse", BY_HAND)
    wait_for(loads, loads.stage(some(1, 1)))
    order_to_park(loads)
    with pytest.raises(InputError, match="ann already asked"):
        order_to_park(loads)
    with pytest.raises(InputError, match="why"):
        take_back(loads.tracker, "warehouse", Decision("ann"))


def test_parking_by_settings_cannot_be_taken_back_by_hand(loads):
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.deliver(loads.patience(park_after_s=0.0001), last)
    with pytest.raises(InputError, match="park_after_s"):
        take_back(loads.tracker, "warehouse", BY_HAND)


def test_a_load_that_the_destination_refuses_whole_is_parked_under_what_it_said(loads):
    loads.ask("CREATE SCHEMA shop")
    loads.ask("CREATE TABLE shop.orders (id int8 PRIMARY KEY, what int4)")
    last = loads.stage(some(1, 3))
    loads.deliver(loads.patience(park_after_s=0.0001), last)
    assert loads.parked() == {"destination_schema_conflict": 3}
    last = loads.stage(some(4, 1))
    loads.deliver(loads.patience(park_after_s=0.0001), last)
    assert loads.parked() == {"destination_schema_conflict": 4}, "it answers, and still refuses"


def test_a_wrong_login_is_parked_as_one(loads):
    loads.ask("DROP ROLE IF EXISTS nobody_here")
    loads.settings = loads.settings.model_copy(
        update={
            "dsn": loads.settings.dsn.__class__(
                "postgresql://nobody_here@127.0.0.1/x?port=" + str(loads.gate.port)
            )
        }
    )
    last = loads.stage(some(1, 1))
    loads.deliver(loads.patience(park_after_s=0.0001), last)
    assert loads.parked() == {"destination_unauthorized": 1}


def test_many_commits_are_parked_in_few_transactions_and_none_is_cut(loads, monkeypatch):
    monkeypatch.setattr(room, "_PARKED_ROWS", 10)
    for first in range(0, 40, 4):
        loads.stage(some(first, 4))
    last = loads.stage(some(100, 25))
    loads.stage([])
    wait_for(loads, last)
    order_to_park(loads)
    loads.deliver(loads.patience(), last + 1)
    assert loads.counts() == {"in_first": 65, "parked": 65}
    sizes = [
        row[0]
        for row in loads.sql(
            "SELECT sum(count)::int FROM segments GROUP BY object_key ORDER BY min(id)"
        )
    ]
    assert sizes == [8, 8, 8, 8, 8, 25]
    assert [decode(e.value).id for e in events(loads)] == [
        o.event_id for first in range(0, 40, 4) for o in some(first, 4)
    ] + [o.event_id for o in some(100, 25)]


def test_frames_that_no_load_could_join_are_parked(loads):
    """Keys that differ are refused by a load; parked they are all the same."""
    from tests.unit.destinations.orders import SPEC

    loads.stage(some(1, 2))
    last = loads.stage(some(3, 2), SPEC.model_copy(update={"key": ("id", "what")}))
    loads.deliver(loads.patience(park_after_s=0.0001), last)
    assert loads.parked() == {"destination_schema_conflict": 4}


def test_a_parked_row_has_the_trace_of_its_load(loads):
    """The later trace of the same row of the same commit counts: it says parked, and where."""

    class Recorder:
        def __init__(self):
            self.rows = []

        def write(self, batches):
            for one in batches:
                self.rows += one.to_pylist()

    recorder = Recorder()
    last = loads.stage([Order(1, 1, 1), Order(2, 1, 2), Order(1, 2, 3)])
    opening = loads.open_losing()
    loads.deliver(loads.patience(park_after_s=0.001, recorder=recorder, opening=opening), last)
    found = {}
    for row in recorder.rows:
        found.setdefault((row["event_id"], row["batch"], row["kafka_offset"]), []).append(row)
    assert len(found) == 3
    for rows in found.values():
        assert rows[0]["outcome"] in ("delivered", "superseded")
        assert rows[-1]["outcome"] == "parked"
        assert rows[-1]["error_type"] == "destination_unreachable"
        assert rows[-1]["object_key"].startswith("parked/")


def test_the_answer_of_the_tracker_may_be_lost(loads):
    last = loads.stage(some(1, 3))
    wait_for(loads, last)
    order_to_park(loads)
    patience = loads.patience()
    real, left = patience._park, [1]

    def park(*given):
        if not left:
            return real(*given)
        left.pop()
        with commits_changed(loads.tracker, answer_lost):
            return real(*given)

    patience._park = park
    loads.deliver(patience, last)
    assert loads.counts() == {"in_first": 3, "parked": 3}
    assert loads.parked() == {"destination_unreachable": 3}
    assert all_waiting(loads.tracker)["warehouse"].parked_from == 1


def test_a_store_that_is_away_parks_nothing(loads, monkeypatch):
    last = loads.stage(some(1, 3))
    wait_for(loads, last)
    order_to_park(loads)
    real, left = loads.objects.put, [1]

    def put(key, body):
        if left:
            left.pop()
            raise RetryError("the store is away")
        real(key, body)

    monkeypatch.setattr(loads.objects, "put", put)
    loads.deliver(loads.patience(), last)
    assert loads.parked() == {"destination_unreachable": 3}


def strict(name):
    """Return a table that takes no order without words."""
    words = Column(name="what", type="string", nullable=False)
    return spec_of(name, Column(name="id", type="int64"), words)


class Lake:
    """A lake's tables as the loads' destination; a load dies before one of its commits, if told."""

    def __init__(self, loads, warehouse):
        self.loads, self.warehouse = loads, warehouse
        self.dies_at = 0

    def opening(self):
        destination, steps = self.warehouse.open(self.loads.name), []

        def hook(step):
            steps.append(step)
            if len(steps) == self.dies_at:
                self.dies_at = 0
                raise RetryError("the store is away")

        destination.hook = hook
        return destination

    def deliver(self, last, recorder=None):
        self.loads.deliver(self.loads.patience(opening=self.opening, recorder=recorder), last)

    def gaps(self):
        """Return what the audit finds of the counts beside the segments."""
        self.loads.counts()
        with self.loads.tracker.transaction() as connection:
            found = sum_gaps(read_totals(connection), read_parked(connection))
        return {key: gap for gaps in found.values() for key, (gap, _) in gaps.items() if gap}


@pytest.fixture(params=kinds_of({"delta": delta_folder, "iceberg": iceberg_folder}))
def lake(loads, request, tmp_path):
    maker = {"delta": delta_folder, "iceberg": iceberg_folder}[request.param]
    warehouse = maker(request, tmp_path)
    yield Lake(loads, warehouse)
    warehouse.close()


def test_a_load_that_dies_between_the_tables_of_a_lake_parks_each_refused_row_once(
    loads, lake, tmp_path
):
    tables = (strict("one"), [Order(1, 1, 1, None), Order(2, 1, 2)]), (
        strict("two"), [Order(3, 1, 3), Order(4, 1, 4, None), Order(5, 1, 5, None)]
    )  # fmt: skip
    last = loads.stage_tables(*tables)
    lake.dies_at = 2
    lake.deliver(last, Recorder(tmp_path / "spool"))
    assert lake.dies_at == 0, "it died"
    assert loads.counts() == {"in_first": 5, "passed": 2, "parked": 3}
    assert sorted(decode(parked.value).id for parked in events(loads)) == [
        "1/1/1",
        "4/1/4",
        "5/1/5",
    ]
    files = trace_spool(tmp_path / "spool").files()
    traced = {t.event_id: t for file in files for t in to_traces(read_whole(file.path))}
    places = {key: t.object_key for key, t in traced.items() if t.outcome == "parked"}
    of_one, of_two = places["1/1/1"], places["4/1/4"]
    assert places == {"1/1/1": of_one, "4/1/4": of_two, "5/1/5": of_two}
    found = loads.sql("SELECT object_key, count FROM segments")
    assert sorted(found) == sorted([(of_one, 1), (of_two, 2)]), "the trail finds them there"
    assert lake.gaps() == {}


def test_rows_that_are_not_refused_when_their_load_is_tried_again_are_not_parked(loads, lake):
    two = strict("two")
    last = loads.stage_tables(
        (strict("one"), [Order(1, 1, 1, None)]), (two, [Order(3, 1, 3), Order(4, 1, 4, None)])
    )
    lake.dies_at, loads.time.stopped = 2, True
    with pytest.raises(StoppedError):
        lake.deliver(last)
    loads.time.stopped = False
    newer = Commit(1, (rows_of([Order(4, 9, 9, "newer")], two),))
    lake.warehouse.open("another").load([newer], never_park)
    lake.deliver(last)
    assert loads.counts() == {"in_first": 3, "passed": 1, "superseded": 1, "parked": 1}
    assert [decode(parked.value).id for parked in events(loads)] == ["1/1/1"]
    assert lake.gaps() == {}
