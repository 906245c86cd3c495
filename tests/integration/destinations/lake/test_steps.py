"""A loader that dies between any two commits of a load leaves what a repeat makes right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.destined import Park, never_park
from tests.support.lake_warehouses import delta_bucket, delta_folder, iceberg_bucket, iceberg_folder
from tests.support.warehouses import kinds_of
from tests.unit.destinations.orders import SPEC, Order, rows_of, spec_of, totals

from waybill.destinations import Commit, CountLook
from waybill.destinations.per_table import books, tombstones
from waybill.destinations.per_table.books import MOST_BYTES
from waybill.errors import RetryError
from waybill.pipelines import ChildTable, Column, TableSpec

pytestmark = pytest.mark.serves

LINES = ChildTable(name="lines", source="lines", columns=(Column(name="sku", type="string"),))
PARENT = TableSpec(
    schema_name="shop", name="parents", columns=SPEC.columns, key=("id",), children=(LINES,)
)
OTHER = spec_of("zebras")
FOLDERS = {"delta": delta_folder, "iceberg": iceberg_folder}
BUCKETS = {"delta": delta_bucket, "iceberg": iceberg_bucket}


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of the destination catches it."""


@pytest.fixture(params=kinds_of(FOLDERS))
def lake(request, tmp_path):
    made = FOLDERS[request.param](request, tmp_path)
    yield made
    made.close()


def parents(orders):
    items = [None if o.op == "delete" else [{"sku": f"{o.what}-{i}"} for i in range(o.source)]
             for o in orders]  # fmt: skip
    return rows_of(orders, PARENT, **{LINES.arrow_name: items})


def first():
    orders = [Order(i, 2, i, "old") for i in range(6)]
    return [Commit(1, (parents(orders), rows_of(orders, OTHER)))]


def then():
    """Three commits: changes, deletes of rows and of none, and what is too old; in two tables."""
    made = [
        [Order(0, 3, 10, "new"), Order(1, 3, 11, None, op="delete")],
        [Order(9, 5, 12, None, op="delete"), Order(2, 1, 13, "late"), Order(7, 1, 14, "more")],
        [Order(9, 4, 15, "too late"), Order(1, 2, 16, "gone"), Order(0, 4, 17, "newest")],
    ]
    return [Commit(n, (parents(o), rows_of(o, OTHER))) for n, o in enumerate(made, start=2)]


def seen(lake):
    """Return all that its users see."""
    names = ("id", "what", "_waybill_id")
    found = [
        sorted(tuple(row[n] for n in names) for row in lake.rows(spec)) for spec in (PARENT, OTHER)
    ]
    lines = sorted((r["id"], r["_waybill_item"], r["sku"]) for r in lake.rows(PARENT, "lines"))
    return *found, lines, [lake.tombstones(spec) for spec in (PARENT, OTHER)]


def dying(at):
    """Return a hook that dies at the step with this number, and the steps that came."""
    steps = []

    def hook(step):
        steps.append(step)
        if len(steps) == at:
            raise Killed

    return hook, steps


def load_all(lake, batches):
    destination = lake.open()
    return [o for batch in batches for o in destination.load(batch, never_park)]


def as_it_must_be(lake, tmp_path):
    """Load the same undisturbed, in another folder."""
    undisturbed = FOLDERS[lake.kind](None, tmp_path / "undisturbed")
    outcomes = load_all(undisturbed, [first(), then()])
    found = seen(undisturbed)
    undisturbed.close()
    return found, totals(outcomes)


STEPS = ["tombstones", "child", "table", "tombstones", "table"]


@pytest.mark.parametrize(
    ("lake", "batching"),
    [
        pytest.param("delta", (3,), marks=pytest.mark.campaign),
        ("delta", (1, 2)),
        pytest.param("iceberg", (3,), marks=pytest.mark.campaign),
        pytest.param("iceberg", (1, 2), marks=pytest.mark.campaign),
    ],
    indirect=["lake"],
)
def test_a_loader_that_dies_before_any_commit_is_repeated_in_any_batching(lake, tmp_path, batching):
    wanted, sums = as_it_must_be(lake, tmp_path)
    for at in range(1, len(STEPS) + 1):
        one = FOLDERS[lake.kind](None, tmp_path / f"dies-at-{at}")
        known = load_all(one, [first()])
        destination = one.open()
        destination.hook, steps = dying(at)
        with pytest.raises(Killed):
            destination.load(then(), never_park)
        assert steps == STEPS[:at]
        left, batches = then(), []
        for size in batching:
            batches.append(left[:size])
            left = left[size:]
        outcomes = known + load_all(one, batches)
        assert seen(one) == wanted, f"died at {at}"
        if len(batching) == 1:  # what loses to what in a batch depends on the batch
            assert totals(outcomes) == sums, f"died at {at}"
        assert totals(known + load_all(one, [then()])) == totals(outcomes)
        one.close()


@pytest.mark.parametrize(
    "later", [[], [Order(1, 3, 15, "newer")]], ids=["alone", "after an upsert"]
)
def test_a_delete_whose_loader_died_and_whose_commit_was_parked_is_applied_by_its_replay(
    lake, later
):
    load_all(lake, [first()])
    gone = Order(1, 4, 11, None, op="delete")
    destination = lake.open()
    destination.hook, _ = dying(2)  # the tombstone is there, the table's commit is not
    with pytest.raises(Killed):
        destination.load([Commit(2, (rows_of([gone], OTHER),))], never_park)
    load_all(lake, [[Commit(3, (rows_of([Order(2, 3, 12, "new"), *later], OTHER),))]])
    assert {row["id"]: row["what"] for row in lake.rows(OTHER)}[1] == (
        later or [Order(1, 2, 1, "old")]
    )[0].what
    (found,) = lake.open().load([Commit(4, (rows_of([gone], OTHER),))], never_park)
    assert found.rows["outcome"].to_pylist() == ["delivered"]
    assert 1 not in {row["id"] for row in lake.rows(OTHER)}
    (again,) = lake.open().load([Commit(5, (rows_of([gone], OTHER),))], never_park)
    assert again.rows["outcome"].to_pylist() == ["duplicate"]


def test_each_table_parks_by_itself_what_it_refuses(lake):
    strict = [
        spec_of(name, Column(name="id", type="int64"), Column(name="what", type="string", nullable=False))
        for name in ("one", "two")
    ]  # fmt: skip
    orders = [Order(1, 1, 1, None), Order(2, 1, 2, "good")]
    values = [None, "good"]
    commits = [Commit(1, tuple(rows_of(orders, spec, what=values) for spec in strict))]
    destination, park = lake.open(), Park()
    destination.hook, _ = dying(2)
    with pytest.raises(Killed):
        destination.load(commits, park)
    (found,) = lake.open().load(commits, park)
    assert [[row.table for row in rows] for rows in park.calls] == [
        ["shop.one"], ["shop.two"], ["shop.two"]
    ]  # fmt: skip
    assert found.parked == ({"key": "parked-1"}, {"key": "parked-3"}), "no commit names the second"
    assert totals([found])["parked"] == 2
    (again,) = lake.open().load(commits, park)
    assert again.parked == found.parked


def test_a_loader_that_was_overtaken_while_it_judged_judges_again(lake):
    load_all(lake, [first()])
    slow, fast = lake.open("slow"), lake.open("fast")

    def overtake(step):
        if step == "table":
            slow.hook = lambda _step: None
            newer = [Order(0, 8, 80, "theirs"), Order(5, 9, 90, "theirs")]
            fast.load([Commit(1, (rows_of(newer, OTHER),))], never_park)

    slow.hook = overtake
    ours = [Order(0, 7, 70, "ours"), Order(3, 7, 71, "ours")]
    commits = [Commit(1, (rows_of(ours, OTHER),))]
    with pytest.raises(RetryError, match="another loader"):
        slow.load(commits, never_park)
    (found,) = slow.load(commits, never_park)
    assert found.rows["outcome"].to_pylist() == ["superseded", "delivered"]
    rows = {row["id"]: row["what"] for row in lake.rows(OTHER)}
    assert rows == {0: "theirs", 1: "old", 2: "old", 3: "ours", 4: "old", 5: "theirs"}


def test_books_that_grew_leave_old_loads_out_and_their_commits_are_judged_again(lake):
    destination = lake.open()
    minutes = range(MOST_BYTES // 40)
    for number in (1, 2):
        orders = [Order(i, 1, number, minute=minute) for i, minute in enumerate(minutes)]
        (found,) = destination.load([Commit(number, (rows_of(orders, OTHER),))], never_park)
    assert totals([found])["duplicate"] == len(minutes)
    (newest,) = lake.open().load([Commit(2, (rows_of(orders, OTHER),))], never_park)
    assert (newest.rows, totals([newest])) == (None, totals([found]))
    before = lake.rows(OTHER)
    (other,) = lake.open().load([Commit(2, (rows_of([Order(1, 1, 1)], OTHER),))], never_park)
    assert totals([other])["in_first"] == 1, "another batch's number is judged, not taken for done"
    assert lake.rows(OTHER) == before
    orders = [Order(i, 1, 1, minute=minute) for i, minute in enumerate(minutes)]
    (again,) = lake.open().load([Commit(1, (rows_of(orders, OTHER),))], never_park)
    assert totals([again])["duplicate"] == len(minutes)
    assert lake.rows(OTHER) == before


def test_loads_that_a_loader_may_ask_for_stay_in_the_books_however_large(lake, monkeypatch):
    monkeypatch.setattr(books, "MOST_BYTES", 0)
    commits = [Commit(n, (rows_of([Order(n, 1, n)], OTHER),), f"b{n}") for n in range(5, 9)]
    for asked in (commits[:1], commits[:2], commits, commits[:2], commits):
        found = lake.open().load(asked, never_park)
        assert totals(found)["delivered"] == len(asked)
    assert [one.rows for one in found] == [None] * 4


def test_rows_are_counted_from_the_books_of_the_commits(lake):
    load_all(lake, [first(), then()])
    destination = lake.open()
    (found,) = destination.count_rows([CountLook(OTHER), CountLook(spec_of("none"))])
    assert (found.counted, found.expected, found.beside) == (6, 6, 0)
    lake.remove_behind(OTHER, 3)
    (found,) = destination.count_rows([CountLook(OTHER)])
    assert (found.counted, found.expected, found.beside) == (5, 6, 0)


def test_tombstones_are_cleaned_up_when_there_are_many(lake, monkeypatch):
    monkeypatch.setattr(tombstones.Tombstones.clean_up, "__kwdefaults__", {"most": 20})
    destination = lake.open()
    for number in range(1, 6):
        orders = [Order(i, number, number, None, op="delete") for i in range(10)]
        destination.load([Commit(number, (rows_of(orders, OTHER),))], never_park)
    back = [Order(i, 9, 9, "back") for i in range(4)]
    destination.load([Commit(6, (rows_of(back, OTHER),))], never_park)
    orders = [Order(i, 7, 7, None, op="delete") for i in range(10)]
    destination.load([Commit(7, (rows_of(orders, OTHER),))], never_park)
    kept = lake.read("waybill", tombstones.NAME)
    assert kept.num_rows < 30
    late = [Order(i, 6, 99, "late") for i in range(10)]
    (found,) = destination.load([Commit(8, (rows_of(late, OTHER),))], never_park)
    assert totals([found])["superseded"] == 10
    assert len(lake.rows(OTHER)) == 4


def test_a_clean_up_that_another_tables_load_overtakes_is_done_all_the_same(lake, monkeypatch):
    monkeypatch.setattr(tombstones.Tombstones.clean_up, "__kwdefaults__", {"most": 20})
    destination, neighbour = lake.open(), lake.open("neighbour")
    overtaken = []

    def replace(self, *given):
        if not overtaken:
            overtaken.append(1)
            gone = rows_of([Order(77, 1, 1, None, op="delete")], SPEC)
            neighbour.load([Commit(1, (gone,))], never_park)
        return real(self, *given)

    kind = type(destination._lake.table("waybill", tombstones.NAME))
    real = kind.replace
    monkeypatch.setattr(kind, "replace", replace)
    for number in range(1, 6):
        orders = [Order(i, number, number, None, op="delete") for i in range(10)]
        destination.load([Commit(number, (rows_of(orders, OTHER),))], never_park)
    assert overtaken
    kept = lake.read("waybill", tombstones.NAME)
    assert kept.num_rows == 31  # 30 became 10, 20 came since, and one of the neighbour
    assert lake.tombstones(SPEC) == {"[77]": ("77/1/1", 1, 1)}


@pytest.mark.parametrize("kind", list(BUCKETS))
def test_loads_of_two_tables_make_an_empty_lake_side_by_side(request, tmp_path, kind):
    lake = BUCKETS[kind](request, tmp_path)
    specs = [spec_of(name, schema="new") for name in ("one", "two", "three")]
    for number in range(1, 4):

        def load(spec, number=number):
            rows = rows_of([Order(number, 1, number), Order(9, 1, 9, op="delete")], spec)
            destination = lake.open()
            for _ in range(100):
                try:
                    return destination.load([Commit(number, (rows,))], never_park)
                except RetryError as error:
                    print(spec.name, error)
            raise AssertionError("it does not come to its end")

        with ThreadPoolExecutor(len(specs)) as pool:
            assert len(list(pool.map(load, specs))) == 3
    for spec in specs:
        assert sorted(row["id"] for row in lake.rows(spec)) == [1, 2, 3]
    lake.close()


@pytest.mark.parametrize("kind", list(BUCKETS))
def test_tables_may_be_in_a_bucket(request, tmp_path, kind):
    lake = BUCKETS[kind](request, tmp_path)
    first_ones = load_all(lake, [first()])
    outcomes = load_all(lake, [then()])
    assert totals(load_all(lake, [first(), then()])) == totals(first_ones + outcomes)
    assert {r["id"]: r["what"] for r in lake.rows(OTHER)} == {
        0: "newest", 2: "old", 3: "old", 4: "old", 5: "old", 7: "more"
    }  # fmt: skip
    findings = lake.open().examine("shop")
    assert [f.ok for f in findings] == [True] * 5, findings
    lake.close()
