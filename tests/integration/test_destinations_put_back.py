"""A destination that was put back to an older point is compared, and loaded again."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import text
from tests.support.destined import held
from tests.support.loads import opened_loads, some
from tests.support.warehouses import MAKERS, kinds_of
from tests.unit.destinations.orders import Order, clean_database

from waybill.access import Decision
from waybill.loading import rewinds
from waybill.loading.loader import Loader
from waybill.parking import Parking

pytestmark = pytest.mark.serves


class Copies:
    """A warehouse's data, copied and put back as an operator would."""

    def __init__(self, warehouse, folder: Path, dsn: str) -> None:
        self._kind, self._folder = warehouse.kind, folder
        self._name = conninfo_to_dict(dsn)["dbname"] if warehouse.kind == "postgres" else ""
        self._server = make_conninfo(dsn, dbname="postgres")

    def take(self) -> None:
        if self._name:
            self._copy(self._name, "older_copy")
        else:
            shutil.copytree(self._folder, self._folder.with_name("older_copy"))

    def put_back(self) -> None:
        if self._name:
            self._copy("older_copy", self._name)
        else:
            shutil.rmtree(self._folder)
            shutil.copytree(self._folder.with_name("older_copy"), self._folder)

    def _copy(self, source: str, target: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            for name in (source, target):
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 120000) FROM pg_stat_activity WHERE datname = %s",
                    [name],
                )
            names = {"source": sql.Identifier(source), "target": sql.Identifier(target)}
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {target}").format(**names))
            connection.execute(
                sql.SQL("CREATE DATABASE {target} TEMPLATE {source}").format(**names)
            )


@pytest.fixture(params=kinds_of(MAKERS))
def warehouse(request, tmp_path):
    """An empty warehouse of each kind, in a folder of its own."""
    (tmp_path / "warehouse").mkdir()
    made = MAKERS[request.param](request, tmp_path / "warehouse")
    yield made
    made.close()


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        opened.sql(
            "INSERT INTO pipelines (id, name, team) VALUES ('shop-orders', 'orders', 'shop')"
        )
        opened.sql(
            "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, "
            "deployed_by) VALUES ('shop-orders', 1, 'v', "
            "CAST('{\"destination\": \"warehouse\"}' AS jsonb), 'ann')"
        )
        yield opened


@pytest.fixture
def copies(warehouse, loads, tmp_path):
    return Copies(warehouse, tmp_path / "warehouse", loads.dsn)


def load_all(loads, loader: Loader, until: int) -> None:
    loads.deliver(_patience(loads, loader), until)


def _patience(loads, loader):
    from waybill.loading.backoff import Patience

    time = loads.time
    return Patience(loader, park_after_s=None, wait=time.wait, clock=time.clock)


def audited(loads) -> list[str]:
    return [action for _, action in loads.audited()]


def test_what_an_older_copy_lacks_is_loaded_again_at_the_next_load(loads, warehouse, copies):
    """The copy comes back between two loads of a loader that goes on."""
    loader = loads.loader(opening=warehouse.open)
    load_all(loads, loader, loads.stage([*some(1, 4), Order(50, 1, 1)]))
    copies.take()
    load_all(loads, loader, loads.stage([Order(2, 2, 20, "newer"), *some(5, 2)]))
    load_all(loads, loader, loads.stage([Order(50, 5, 30, op="delete")]))
    before, counts = held(warehouse), loads.counts()
    assert set(before) == {1, 2, 3, 4, 5, 6}
    copies.put_back()
    assert set(held(warehouse)) == {1, 2, 3, 4, 50}
    load_all(loads, loader, loads.stage([Order(7, 1, 40), Order(50, 3, 41, "older")]))
    after = held(warehouse)
    assert after.pop(7)
    assert after == before, "rows and tombstones are back, and nothing older"
    assert loads.counts() == counts | {
        "in_first": counts["in_first"] + 2,
        "passed": counts["passed"] + 1,
        "superseded": counts.get("superseded", 0) + 1,
    }, "a reload counts nothing"
    assert audited(loads) == ["destination_put_back", "destination_loaded_again"]
    assert loads.sql("SELECT count(*) FROM notices WHERE kind = 'destination'") == [(2,)]


def test_what_an_older_copy_lacks_is_loaded_again_when_nothing_comes(loads, warehouse, copies):
    loader = loads.loader(opening=warehouse.open)
    load_all(loads, loader, loads.stage(some(1, 2)))
    copies.take()
    load_all(loads, loader, loads.stage(some(3, 2)))
    copies.put_back()
    for _ in range(2):  # an open connection may break first
        _patience(loads, loader).compare()
    assert set(held(warehouse)) == {1, 2, 3, 4}
    assert loads.counts() == {"in_first": 4, "passed": 4}
    _patience(loads, loader).compare()
    assert audited(loads) == ["destination_put_back", "destination_loaded_again"]


def test_what_is_older_than_the_kept_objects_is_an_alarm_until_it_is_settled(
    loads, warehouse, copies
):
    from waybill.loading.rewinds import open_rewinds, settle_rewinds

    loader = loads.loader(opening=warehouse.open)
    load_all(loads, loader, loads.stage(some(1, 2)))
    copies.take()
    load_all(loads, loader, loads.stage(some(3, 2)))
    loads.sql("UPDATE staged_objects SET loaded_at = loaded_at - interval '8 days'")
    assert Parking(loads.tracker, loads.objects).refresh(grace_s=0).staged_deleted == 2
    load_all(loads, loader, loads.stage(some(5, 2)))
    copies.put_back()
    load_all(loads, loader, loads.stage(some(7, 2)))
    assert set(held(warehouse)) == {1, 2, 5, 6, 7, 8}
    with loads.tracker.transaction() as connection:
        [found] = open_rewinds(connection)["warehouse"]
    assert (found.lost, found.lost_rows, found.commits) == (((2, 2),), 2, ((3, 3),))
    assert "waybill destination settle" in found.words
    loader = loads.loader(opening=warehouse.open)  # another process: it is told once
    load_all(loads, loader, loads.stage(some(9, 1)))
    assert loads.sql("SELECT count(*) FROM destination_rewinds") == [(1,)]
    settle_rewinds(loads.tracker, "warehouse", Decision("ann", "read again from the source"))
    with loads.tracker.transaction() as connection:
        assert open_rewinds(connection) == {}
    assert ("ann", "settle_destination") in loads.audited()


def test_an_empty_warehouse_is_loaded_again_whole(loads, warehouse, copies):
    copies.take()
    loader = loads.loader(opening=warehouse.open)
    for n in range(1, 6):
        load_all(loads, loader, loads.stage(some(n, 1)))
    copies.put_back()
    load_all(loads, loads.loader(opening=warehouse.open), loads.stage(some(6, 1)))
    assert set(held(warehouse)) == {1, 2, 3, 4, 5, 6}
    assert loads.counts() == {"in_first": 6, "passed": 6}


class Killed(BaseException):
    """Stands for a SIGKILL: nothing in between catches it."""


@pytest.mark.parametrize("warehouse", ["postgres", "duckdb"], indirect=True)
@pytest.mark.parametrize("moment", ["before the tracker", "after the tracker"])
def test_a_loader_that_is_killed_while_it_loads_again_is_followed_by_one_that_ends_it(
    loads, warehouse, copies, monkeypatch, moment
):
    """Rows that were delivered, and are refused now, park once; the books stay in balance.

    Loading again is the same code for each kind; what an engine refuses is tried on two.
    """
    loader = loads.loader(opening=warehouse.open)
    load_all(loads, loader, loads.stage(some(1, 2)))
    copies.take()
    load_all(loads, loader, loads.stage([Order(3, 1, 3, "good"), Order(4, 1, 4, "bad")]))
    copies.put_back()
    refuse_bad(warehouse, loads)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(
            rewinds, "note_done" if moment == "before the tracker" else "end_rewind", killed
        )
        load_all(loads, loader, loads.stage(some(5, 1)))
    load_all(loads, loads.loader(opening=warehouse.open), loads.position + 1)
    assert set(held(warehouse)) == {1, 2, 3, 5}
    assert sum(loads.parked().values()) == 1
    assert loads.counts() == {"in_first": 5, "passed": 4, "parked": 1}
    keys = loads.sql("SELECT key FROM parked_objects")
    assert len(keys) == 1


@pytest.mark.parametrize("warehouse", ["postgres", "delta"], indirect=True)
@pytest.mark.parametrize("how", ["gone", "expired"])
def test_what_could_not_be_loaded_again_is_told_though_the_loader_is_killed_before_its_end(
    loads, warehouse, copies, monkeypatch, how
):
    """The destination's books have the number of the commit by then: only the rewind can tell.

    Loading again is the same code for each kind; books of all and books per table are tried.
    """
    loader = loads.loader(opening=warehouse.open)
    load_all(loads, loader, loads.stage(some(1, 2)))
    copies.take()
    load_all(loads, loader, loads.stage(some(3, 1)))
    load_all(loads, loader, loads.stage(some(4, 1)))
    copies.put_back()
    [[key]] = loads.sql("SELECT key FROM staged_objects WHERE commit_number = 2")

    found_missing = rewinds.open_rewind
    expire = text("UPDATE staged_objects SET state = 'deleted' WHERE key = :key")

    def lose(*given):
        rewind = found_missing(*given)
        loads.objects.delete([key])
        if how == "expired":
            given[0].execute(expire, {"key": key})
        return rewind

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(rewinds, "open_rewind", lose)
        patch.setattr(rewinds, "end_rewind", killed)
        load_all(loads, loader, loads.stage(some(5, 1)))
    load_all(loads, loads.loader(opening=warehouse.open), loads.position + 1)
    assert set(held(warehouse)) == {1, 2, 4, 5}
    with loads.tracker.transaction() as connection:
        [found] = rewinds.open_rewinds(connection)["warehouse"]
    assert found.lost == ((2, 2),)
    assert "waybill destination settle" in found.words


@pytest.mark.parametrize("warehouse", ["postgres", "delta"], indirect=True)
def test_what_is_to_be_loaded_again_is_kept_while_the_destination_is_away(
    loads, warehouse, copies, monkeypatch
):
    """The copy is 5 days old; the destination goes away once it was compared, for 3 days."""
    loader = loads.loader(opening=warehouse.open)
    load_all(loads, loader, loads.stage(some(1, 2)))
    copies.take()
    load_all(loads, loader, loads.stage(some(3, 2)))
    copies.put_back()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("waybill.loading.reload.Reload._load_part", killed)
        load_all(loads, loader, loads.stage(some(5, 1)))
    loads.sql("UPDATE staged_objects SET loaded_at = loaded_at - interval '8 days'")
    parking = Parking(loads.tracker, loads.objects)
    assert parking.refresh(grace_s=0).staged_deleted == 1, "the copy has the first commit"
    load_all(loads, loads.loader(opening=warehouse.open), loads.position + 1)
    assert set(held(warehouse)) == {1, 2, 3, 4, 5}
    with loads.tracker.transaction() as connection:
        assert rewinds.open_rewinds(connection) == {}
    assert parking.refresh(grace_s=0).staged_deleted == 1, "it was loaded again"


def killed(*_given, **_more):
    raise Killed


def refuse_bad(warehouse, loads):
    if warehouse.kind == "postgres":
        loads.ask("ALTER TABLE shop.orders ADD CHECK (what <> 'bad')")
    else:
        warehouse.ask(
            "BEGIN; CREATE TABLE shop.kept AS FROM shop.orders; DROP TABLE shop.orders; "
            "CREATE TABLE shop.orders (id BIGINT NOT NULL, what VARCHAR CHECK (what <> 'bad'), "
            "price DECIMAL(10,2), _waybill_id VARCHAR, _waybill_source_version BIGINT, "
            "_waybill_intake_version BIGINT, _waybill_loaded_at TIMESTAMPTZ); "
            "INSERT INTO shop.orders BY NAME FROM shop.kept; DROP TABLE shop.kept; COMMIT; SELECT 1",
            write=True,
        )
