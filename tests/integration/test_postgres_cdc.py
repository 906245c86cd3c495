"""The connector ``postgres_cdc`` against a PostgreSQL of its own."""

import random
import threading
import time
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import namedtuple_row
from pydantic import SecretStr
from sqlalchemy import text
from tests.servers import wait_for
from tests.support import cdc

from waybill.errors import InputError, RetryError
from waybill.pipelines import Column, EventDeclaration, TableSpec
from waybill.reconciliation import checks
from waybill.reconciliation.checks import slots
from waybill.services import reconciliation
from waybill.settings import Settings, SourceSettings, TrackerSettings
from waybill.storage import open_tracker

pytestmark = pytest.mark.serves
SEED = 20261126


@pytest.fixture(scope="module")
def server():
    with cdc.source_server() as server:
        yield server


@pytest.fixture
def dsn(server):
    server.start()
    name = f"shop_{time.monotonic_ns()}"
    dsn = server.create_database(name)
    yield dsn
    server.start()
    with cdc.connected(server.dsn("postgres")) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def shop(dsn):
    with cdc.connected(dsn) as shop:
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, big text)")
        shop.execute("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
        yield shop


@pytest.fixture
def source(dsn):
    source = cdc.connector(dsn)
    yield source
    source.close()


def slot(shop, name="waybill_test"):
    cursor = shop.cursor(row_factory=namedtuple_row)
    query = "SELECT * FROM pg_replication_slots WHERE slot_name = %s"
    return cursor.execute(query, [name]).fetchone()


def confirmed(shop):
    query = (
        "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::int8 FROM pg_replication_slots"
        " WHERE slot_name = 'waybill_test'"
    )
    return shop.execute(query).fetchone()[0]


def left(shop):
    """Wait until the server has seen that a reader is gone."""
    wait_for(lambda: not slot(shop).active)


def fill(shop, first, last):
    shop.execute(
        "INSERT INTO orders SELECT g, 'name ' || g FROM generate_series(%s::int, %s) g",
        [first, last],
    )


def rows_of(shop):
    found = shop.execute("SELECT id, name, big FROM orders").fetchall()
    return {("order", row[0]): dict(zip(("id", "name", "big"), row, strict=True)) for row in found}


def event(name="order", key=("id",), **more):
    table = TableSpec(
        schema_name="s",
        name="t",
        columns=tuple(Column(name=field, type="string") for field in key),
        key=key,
    )
    return EventDeclaration(name=name, key=key, table=table, **more)


# What is read


def test_a_preview_and_a_discovery_change_nothing_at_the_source(dsn, shop):
    shop.execute("CREATE TABLE lines (id int, line int, sum int, PRIMARY KEY (id, line))")
    shop.execute("ALTER TABLE lines ADD COLUMN twice int GENERATED ALWAYS AS (sum * 2) STORED")
    shop.execute("INSERT INTO lines VALUES (1, 1, 5)")
    fill(shop, 1, 1500)
    source = cdc.connector(dsn, tables={"order": "orders", "line": "public.lines"})
    pages = list(source.preview())
    assert [len(page.rows) for page in pages] == [1000, 1]
    assert pages[0].rows[0].data == {"id": 1, "name": "name 1", "big": None}
    assert pages[1].rows[0].data == {"id": 1, "line": 1, "sum": 5}
    found = {one.event: (one.name, one.key) for one in source.discover()}
    assert found == {
        "order": ("public.orders", ("id",)),
        "line": ("public.lines", ("id", "line")),
    }
    assert all(one.versions_itself for one in source.discover())
    lines = source.only("public.lines")
    assert {row.event for page in lines.preview() for row in page.rows} == {"line"}
    lines.close()
    source.close()
    assert slot(shop) is None
    assert shop.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


def test_a_preview_sees_what_the_publication_has(dsn, shop):
    fill(shop, 1, 4)
    source = cdc.connector(dsn, publication="few")
    with pytest.raises(InputError, match="there is no publication 'few'"):
        list(source.preview())
    shop.execute("CREATE PUBLICATION few FOR TABLE orders (id, name) WHERE (id > 2)")
    (page,) = source.preview()
    assert [row.data for row in page.rows] == [
        {"id": 3, "name": "name 3"},
        {"id": 4, "name": "name 4"},
    ]
    source.close()


def test_rows_come_first_then_changes_each_with_a_rising_version(shop, source):
    fill(shop, 1, 2500)
    pages, cursor = cdc.read(source)
    assert [len(page.rows) for page in pages] == [0, 1000, 1000, 500]
    shop.execute("UPDATE orders SET name = 'new' WHERE id = 7")
    shop.execute("UPDATE orders SET id = 9001 WHERE id = 8")
    shop.execute("DELETE FROM orders WHERE id = 9")
    pages, cursor = cdc.read(source, cursor)
    found = cdc.records(pages)
    assert [(one.op, one.data["id"]) for one in found] == [
        ("upsert", 7),
        ("delete", 8),
        ("upsert", 9001),
        ("delete", 9),
    ]
    assert found[0].data == {"id": 7, "name": "new", "big": None}
    assert found[1].data == {"id": 8}
    versions = [one.version for one in found]
    assert versions == sorted(versions)
    pages, _ = cdc.read(source, cursor)
    assert cdc.records(pages) == []


TYPES = {
    "b": ("bool", "true", True),
    "i": ("int8", "9223372036854775807", 2**63 - 1),
    "f": ("float8", "0.1", 0.1),
    "nan": ("float8", "'NaN'", "NaN"),
    "n": ("numeric(30,5)", "12345678901234567890.12345", "12345678901234567890.12345"),
    "t": ("text", "'a\tb\n\"ü'", 'a\tb\n"ü'),
    "ts": ("timestamp", "'2026-01-02 03:04:05.6'", "2026-01-02T03:04:05.6Z"),
    "tz": ("timestamptz", "'2026-01-02 03:04:05+02'", "2026-01-02T01:04:05Z"),
    "inf": ("timestamptz", "'infinity'", "infinity"),
    "bc": ("timestamp", "'0044-03-15 00:00:00 BC'", "0044-03-15 00:00:00 BC"),
    "d": ("date", "'2026-01-02'", "2026-01-02"),
    "by": ("bytea", "'\\x00ff'", "AP8="),
    "u": ("uuid", "'11111111-2222-3333-4444-555555555555'", "11111111-2222-3333-4444-555555555555"),
    "j": ("jsonb", "'{\"a\": [1, 2.50, null]}'", {"a": [1, 2.5, None]}),
    "ai": ("int4[]", "'{{1,2},{3,NULL}}'", [[1, 2], [3, None]]),
    "at": ("text[]", "array['x,y', '\"', NULL, 'NULL']", ["x,y", '"', None, "NULL"]),
    "e": ("mood", "'glad'", "glad"),
    "ae": ("mood[]", "'{glad,sad}'", ["glad", "sad"]),
    "dom": ("positive", "7", 7),
    "iv": ("interval", "'1 day 2 hours'", "P1DT2H"),
    "z": ("int", "NULL", None),
}


def test_a_value_has_one_form_whether_it_comes_from_the_table_or_from_the_log(dsn, shop):
    shop.execute("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    shop.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items())
    values = ", ".join(literal for _, literal, _ in TYPES.values())
    shop.execute(f"CREATE TABLE typed (id int PRIMARY KEY, {columns})")
    shop.execute(f"INSERT INTO typed VALUES (1, {values})")
    shop.execute(f"ALTER DATABASE {shop.info.dbname} SET timezone = 'Asia/Tokyo'")
    shop.execute(f"ALTER DATABASE {shop.info.dbname} SET datestyle = 'SQL, DMY'")
    source = cdc.connector(dsn, tables={"order": "typed"})
    first, cursor = cdc.read(source)
    shop.execute(f"INSERT INTO typed VALUES (2, {values})")
    second, _ = cdc.read(source, cursor)
    source.close()
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    assert cdc.records(first)[0].data == {"id": 1} | expected
    assert cdc.records(second)[0].data == {"id": 2} | expected


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_large_value_that_an_update_did_not_touch_is_there(shop, source, identity):
    shop.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}")
    large = "".join(random.Random(SEED).choices("abcdefgh", k=9000))
    shop.execute("INSERT INTO orders VALUES (1, 'a', %s), (2, 'b', %s)", [large, large])
    _, cursor = cdc.read(source)
    shop.execute("UPDATE orders SET name = 'c' WHERE id = 1")
    shop.execute("UPDATE orders SET name = 'd' WHERE id = 2")
    shop.execute("UPDATE orders SET id = 3 WHERE id = 2")
    pages, _ = cdc.read(source, cursor)
    merged = cdc.Merged()
    merged.take(cdc.records(pages))
    assert merged.rows == rows_of(shop)
    assert merged.rows["order", 1]["big"] == large
    updates = [one for one in cdc.records(pages) if one.data["id"] == 2 and one.op == "upsert"]
    assert len(updates) == (1 if identity == "FULL" else 0), "its row has moved to another key"


def test_under_identity_full_a_delete_says_the_whole_key_that_is_declared(dsn, shop):
    shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    fill(shop, 1, 1)
    source = cdc.connector(dsn, events={"order": event(key=("id", "name"))})
    _, cursor = cdc.read(source)
    shop.execute("DELETE FROM orders")
    pages, _ = cdc.read(source, cursor)
    source.close()
    assert cdc.records(pages)[0].data == {"id": 1, "name": "name 1", "big": None}


def test_columns_come_and_go_within_the_log(shop, source):
    _, cursor = cdc.read(source)
    fill(shop, 1, 1)
    shop.execute("ALTER TABLE orders ADD COLUMN paid bool DEFAULT false")
    fill(shop, 2, 2)
    shop.execute("ALTER TABLE orders DROP COLUMN name")
    shop.execute("ALTER TABLE orders ALTER paid TYPE text")
    shop.execute("INSERT INTO orders (id, paid) VALUES (3, 'yes')")
    pages, _ = cdc.read(source, cursor)
    assert [one.data for one in cdc.records(pages)] == [
        {"id": 1, "name": "name 1", "big": None},
        {"id": 2, "name": "name 2", "big": None, "paid": False},
        {"id": 3, "big": None, "paid": "yes"},
    ]


def test_a_truncation_is_parked_and_the_log_goes_on(shop, source):
    fill(shop, 1, 3)
    _, cursor = cdc.read(source)
    shop.execute("TRUNCATE orders")
    fill(shop, 4, 4)
    pages, _ = cdc.read(source, cursor)
    (bad,) = [one for page in pages for one in page.bad]
    assert bad.code == "source_truncated"
    assert "public.orders, log position" in bad.place
    assert [one.data["id"] for one in cdc.records(pages)] == [4]


def test_tables_that_are_not_declared_are_passed_over_and_do_not_hold_the_log_back(shop, source):
    _, cursor = cdc.read(source)
    shop.execute("CREATE TABLE other (id int PRIMARY KEY, filler text)")
    shop.execute("INSERT INTO other SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g")
    before = confirmed(shop)
    pages, cursor = cdc.read(source, cursor)
    assert cdc.records(pages) == []
    source.close()
    wait_for(lambda: confirmed(shop) > before + 2_000_000)
    assert confirmed(shop) == cursor["lsn"]


def test_a_partitioned_table_is_one_table(dsn, shop):
    shop.execute(
        "CREATE TABLE days (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)"
    )
    for year in (2025, 2026):
        shop.execute(
            f"CREATE TABLE days_{year} PARTITION OF days"
            f" FOR VALUES FROM ('{year}-01-01') TO ('{year + 1}-01-01')"
        )
    shop.execute("INSERT INTO days VALUES (1, '2025-02-03'), (2, '2026-02-03')")
    source = cdc.connector(dsn, tables={"order": "days"})
    first, cursor = cdc.read(source)
    shop.execute("UPDATE days SET day = '2026-05-05' WHERE id = 1")
    second, _ = cdc.read(source, cursor)
    source.close()
    assert len(cdc.records(first)) == 2
    assert [(one.op, one.data["day"]) for one in cdc.records(second)] == [
        ("delete", "2025-02-03"),
        ("upsert", "2026-05-05"),
    ]


def test_a_table_that_is_declared_later_is_read_from_its_beginning(dsn, shop, source):
    fill(shop, 1, 2)
    _, cursor = cdc.read(source)
    source.close()
    shop.execute("CREATE TABLE lines (id int PRIMARY KEY, name text)")
    shop.execute("INSERT INTO lines VALUES (1, 'a')")
    both = cdc.connector(dsn, tables={"order": "public.orders", "line": "public.lines"})
    pages, cursor = cdc.read(both, cursor)
    assert [(one.event, one.data["id"]) for one in cdc.records(pages)] == [("line", 1)]
    shop.execute("INSERT INTO lines VALUES (2, 'b')")
    fill(shop, 3, 3)
    pages, _ = cdc.read(both, cursor)
    both.close()
    assert [(one.event, one.data["id"]) for one in cdc.records(pages)] == [
        ("line", 2),
        ("order", 3),
    ]


def test_a_table_that_was_made_again_is_read_again(shop, source):
    fill(shop, 1, 2)
    _, cursor = cdc.read(source)
    shop.execute("DROP TABLE orders")
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, big text)")
    fill(shop, 5, 5)
    pages, _ = cdc.read(source, cursor)
    assert [one.data["id"] for one in cdc.records(pages)] == [5]


def test_a_row_filter_and_a_column_list_of_the_publication_hold_for_the_rows_as_well(dsn, shop):
    fill(shop, 1, 4)
    shop.execute("CREATE PUBLICATION few FOR TABLE orders (id, name) WHERE (id > 2)")
    source = cdc.connector(dsn, publication="few")
    first, cursor = cdc.read(source)
    fill(shop, 5, 5)
    second, _ = cdc.read(source, cursor)
    source.close()
    assert [one.data["id"] for one in cdc.records(first)] == [3, 4]
    assert cdc.records(second)[0].data == {"id": 5, "name": "name 5"}


# Nothing lost


def test_a_transaction_that_is_larger_than_a_page_is_read_in_parts(dsn, shop):
    source = cdc.connector(dsn, page_rows=100)
    _, cursor = cdc.read(source)
    with shop.transaction():
        fill(shop, 1, 1050)
        shop.execute("UPDATE orders SET name = 'last' WHERE id = 1050")
    found = []
    for _ in range(30):  # each run is given up after one page
        pages = source.read(cursor)
        page = next((page for page in pages if page is not None), None)
        pages.close()
        if page is None or not page.rows:
            break
        assert len(page.rows) <= 100
        found += page.rows
        cursor = page.cursor
    source.close()
    assert [one.data["id"] for one in found] == [*range(1, 1051), 1050]
    assert found[-1].data["name"] == "last"
    assert len({(one.data["id"], one.version) for one in found}) == 1051


def test_the_slot_is_confirmed_by_confirm_alone(shop, source):
    _, cursor = cdc.read(source)
    fill(shop, 1, 10)
    before = confirmed(shop)
    pages = [page for page in source.read(cursor) if page is not None]
    time.sleep(0.5)
    assert confirmed(shop) == before
    again = [page for page in source.read(cursor) if page is not None]
    assert cdc.records(again) == cdc.records(pages), "the same position gives the same page"
    source.confirm(again[-1].cursor)
    wait_for(lambda: confirmed(shop) == again[-1].cursor["lsn"])


def test_a_transaction_that_was_open_when_the_slot_was_made_is_waited_for(dsn, shop, source):
    fill(shop, 1, 1)
    found = {}

    def run():
        found["pages"], found["cursor"] = cdc.read(source)

    with psycopg.connect(dsn) as writer:
        writer.execute("UPDATE orders SET name = 'open' WHERE id = 1")
        writer.execute("INSERT INTO orders VALUES (2, 'open')")
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(2)
        assert thread.is_alive(), "what the open transaction wrote would be in neither"
        writer.commit()
    thread.join(240)
    assert not thread.is_alive()
    merged = cdc.Merged()
    merged.take(cdc.records(found["pages"]))
    assert merged.rows == rows_of(shop)


def test_what_began_before_the_floor_and_ends_after_it_is_in_the_rows(dsn, shop, source):
    """A second table is begun while a transaction writes to it that had begun before."""
    shop.execute("CREATE TABLE lines (id int PRIMARY KEY, name text)")
    shop.execute("INSERT INTO lines VALUES (1, 'old')")
    _, cursor = cdc.read(source)
    source.close()
    both = cdc.connector(dsn, tables={"order": "orders", "line": "lines"})
    with psycopg.connect(dsn) as writer:
        writer.execute("UPDATE lines SET name = 'new' WHERE id = 1")
        pages = both.read(cursor)
        begun = next(pages)
        assert next(pages) is None, "it waits"
        writer.commit()
    found = [page for page in pages if page is not None]
    both.close()
    merged = cdc.Merged()
    merged.take(cdc.records([begun, *found]))
    assert merged.rows["line", 1]["name"] == "new"


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_rows_that_change_while_they_are_read_end_as_they_are(dsn, shop, seed):
    """Readers die at random points and go on from the last committed page; writers never rest."""
    chance = random.Random(seed)
    fill(shop, 1, 600)
    stop = threading.Event()

    def write(seed):
        own = random.Random(seed)
        with psycopg.connect(dsn) as writer:
            while not stop.is_set():
                for _ in range(own.randint(1, 20)):
                    cdc.change_orders(writer, own, highest=700)
                if own.random() < 0.1:
                    writer.rollback()
                else:
                    writer.commit()

    writers = [threading.Thread(target=write, args=[seed + n]) for n in range(2)]
    for thread in writers:
        thread.start()
    merged, cursor, deaths = cdc.Merged(), None, 0
    try:
        for _ in range(25):
            source = cdc.connector(dsn, page_rows=chance.choice([7, 50, 200]), run_s=5.0)
            left = chance.randint(1, 40)
            for page in source.read(cursor):
                if page is None:
                    continue
                merged.take(page.rows)  # in Kafka, whether or not it is committed
                left -= 1
                if not left:
                    deaths += 1
                    break
                cursor = page.cursor
                if chance.random() < 0.5:
                    source.confirm(cursor)
            source.close()
    finally:
        stop.set()
        for thread in writers:
            thread.join()
    source = cdc.connector(dsn)
    pages, _ = cdc.read(source, cursor)
    source.close()
    merged.take(cdc.records(pages))
    assert deaths > 5
    assert merged.rows == rows_of(shop)


def test_a_server_that_restarts_ends_the_run_and_loses_nothing(
    server, dsn, shop, source, monkeypatch
):
    fill(shop, 1, 50)
    _, cursor = cdc.read(source)
    source.close()
    fill(shop, 51, 80)
    long = cdc.connector(dsn, idle_s=300.0, run_s=300.0, page_rows=10)
    errors = []

    def run():
        try:
            list(long.read(cursor))
        except RetryError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: slot(shop).active_pid)
    time.sleep(1)
    monkeypatch.setattr(server, "stop_grace_s", 480.0)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 240, "a reader that confirms nothing holds no server up"
    thread.join(240)
    assert errors, "the run ends, to be tried again"
    with pytest.raises(RetryError):
        list(long.read(cursor))
    server.start()
    pages, _ = cdc.read(source, cursor)
    assert [one.data["id"] for one in cdc.records(pages)] == [*range(51, 81)]


# What is refused


@pytest.mark.campaign
def test_a_server_whose_log_is_not_logical_says_so(server, dsn, shop, source):
    configuration = server.cluster / "waybill.conf"
    with cdc.connected(server.dsn("postgres")) as admin:
        admin.execute("ALTER SYSTEM SET wal_level = 'replica'")
    shop.close()
    server.stop()
    server.start()
    assert configuration.exists()
    try:
        with pytest.raises(InputError, match="wal_level is replica; set wal_level = logical"):
            cdc.read(source)
    finally:
        with cdc.connected(server.dsn("postgres")) as admin:
            admin.execute("ALTER SYSTEM RESET wal_level")
        source.close()
        server.stop()
        server.start()


def refused(dsn, match, *, cursor=None, **given):
    with pytest.raises(InputError, match=match) as caught:
        source = cdc.connector(dsn, **given)
        try:
            cdc.read(source, cursor)
        finally:
            source.close()
    return str(caught.value)


def test_what_is_missing_is_said_with_what_to_do(dsn, shop):
    refused(dsn, "no table 'public.nothing'", tables={"order": "nothing"})
    shop.execute("CREATE VIEW seen AS SELECT 1 AS id")
    refused(dsn, "is a view", tables={"order": "seen"})
    shop.execute("CREATE TABLE bare (id int)")
    refused(dsn, "ALTER TABLE public.bare REPLICA IDENTITY FULL", tables={"order": "bare"})
    assert slot(shop) is None
    assert shop.execute("SELECT count(*) FROM pg_publication").fetchone()[0] == 0, (
        "published without an identity, the application's own updates would fail"
    )
    shop.execute("ALTER TABLE bare REPLICA IDENTITY FULL")
    refused(dsn, "cannot be read page by page", tables={"order": "bare"})
    refused(
        dsn, "a delete of table public.orders says only id", events={"order": event(key=("name",))}
    )
    refused(dsn, "leave the field out", events={"order": event(version="name")})
    refused(dsn, "is not under `events`", events={"line": event("line")})
    refused(dsn, "there is no publication 'mine'; run: CREATE PUBLICATION", publication="mine")


def test_a_user_without_rights_is_told_which(server, dsn, shop):
    shop.execute("DROP ROLE IF EXISTS guest")
    shop.execute("CREATE ROLE guest LOGIN")
    guest = dsn.replace("postgres@", "guest@")
    try:
        said = refused(guest, "GRANT SELECT ON")
        assert '"public"."orders" TO "guest"' in said
        shop.execute("GRANT SELECT ON orders TO guest")
        refused(guest, "have the tables' owner run: CREATE PUBLICATION")
        shop.execute("CREATE PUBLICATION waybill_test FOR TABLE orders")
        refused(guest, "making replication slot 'waybill_test'.*grant the right")
        shop.execute("SELECT pg_create_logical_replication_slot('waybill_test', 'pgoutput')")
        refused(guest, "REPLICATION")
        shop.execute("ALTER ROLE guest REPLICATION")
        source = cdc.connector(guest)
        cdc.read(source)
        source.close()
        assert slot(shop) is not None
    finally:
        shop.execute("DROP OWNED BY guest")
        shop.execute("DROP ROLE guest")


def test_a_slot_that_is_gone_or_was_read_by_somebody_else_is_not_passed_over(dsn, shop, source):
    fill(shop, 1, 2)
    _, cursor = cdc.read(source)
    source.close()
    fill(shop, 3, 4)
    left(shop)
    shop.execute("SELECT pg_replication_slot_advance('waybill_test', pg_current_wal_lsn())")
    refused(dsn, "was read by somebody else", cursor=cursor)
    shop.execute("SELECT pg_drop_replication_slot('waybill_test')")
    refused(dsn, "slot 'waybill_test' is gone.*waybill pipelines reread", cursor=cursor)
    again = cdc.connector(dsn)
    pages, cursor = cdc.read(again)  # as after `waybill pipelines reread`
    again.close()
    assert [one.data["id"] for one in cdc.records(pages)] == [1, 2, 3, 4]
    versions = {one.version for one in cdc.records(pages)}
    assert len(versions) == 1
    left(shop)
    other = {**cursor, "system": "1"}
    refused(dsn, "another server", cursor=other)
    refused(dsn, "was put back to an older state", cursor={**cursor, "lsn": 2**60})
    refused(dsn, "is not one of connector postgres_cdc", cursor={"row": 1})


@pytest.mark.campaign
def test_a_slot_that_the_server_gave_up_is_said_to_be_lost(server, dsn, shop, source):
    fill(shop, 1, 2)
    _, cursor = cdc.read(source)
    source.close()
    shop.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    shop.execute("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            shop.execute("SELECT pg_logical_emit_message(false, 'x', 'y')")
            shop.execute("SELECT pg_switch_wal()")
        shop.execute("CHECKPOINT")
        wait_for(
            lambda: shop.execute(
                "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = 'waybill_test'"
            ).fetchone()[0]
        )
        refused(dsn, "is lost: it held back more log than max_slot_wal_keep_size", cursor=cursor)
        again = cdc.connector(dsn)
        pages, _ = cdc.read(again)
        again.close()
        assert len(cdc.records(pages)) == 2, "read again, it has a new slot"
    finally:
        shop.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        shop.execute("SELECT pg_reload_conf()")


def test_a_slot_is_for_one_reader(dsn, shop, source, monkeypatch):
    _, cursor = cdc.read(source)  # its connection stays open for what is still to be confirmed
    other = cdc.connector(dsn)
    with monkeypatch.context() as patched:
        patched.setattr("waybill.ingestion.connectors.postgres_cdc.connector._SLOT_BUSY_S", 1.0)
        with pytest.raises(RetryError, match="a slot is for one pipeline of one deployment"):
            cdc.read(other, cursor)
    source.close()
    cdc.read(other, cursor)
    other.close()


def test_a_table_that_was_renamed_stops_the_run_and_its_changes_wait(dsn, shop, source):
    fill(shop, 1, 1)
    _, cursor = cdc.read(source)
    shop.execute("ALTER TABLE orders RENAME TO purchases")
    shop.execute("INSERT INTO purchases VALUES (2)")
    refused(dsn, "no table 'public.orders'", cursor=cursor)
    renamed = cdc.connector(dsn, tables={"order": "purchases"})
    source.close()
    pages, _ = cdc.read(renamed, cursor)
    renamed.close()
    assert {one.data["id"] for one in cdc.records(pages)} == {1, 2}


def test_a_server_that_is_away_is_waited_for_and_a_wrong_login_is_not(server, dsn, shop):
    nobody = cdc.connector(dsn.replace("postgres@", "nobody@"))
    with pytest.raises(InputError, match="nobody"):
        cdc.read(nobody)
    away = cdc.connector("postgresql://postgres:hidden-word@/shop?host=/nowhere")
    with pytest.raises(RetryError) as caught:
        cdc.read(away)
    assert "hidden-word" not in str(caught.value)


# What the slot holds back


def test_the_owner_is_told_that_a_slot_holds_back_too_much_and_that_it_is_over(dsn, shop, postgres):
    source = cdc.connector(dsn, slot_limit_mb=1)
    _, cursor = cdc.read(source)
    source.close()
    settings = Settings().model_copy(
        update={
            "tracker": TrackerSettings(dsn=postgres.tracker()),
            "sources": SourceSettings(connections={"shop": SecretStr(dsn)}),
        }
    )
    head = SimpleNamespace(
        id="p", name="orders", team="t", destination="w", source=source._opening.source
    )
    held = reconciliation._held(settings, None)
    shop.execute("CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
    with open_tracker(settings.tracker) as tracker:
        (found,) = slots.look(head, held(head))
        assert "replication slot 'waybill_test' holds back" in found.words
        checks.tell(tracker, checks.WatchReport([found], []))
        for number in range(1, 6):  # the server moves a slot's beginning at its own checkpoints
            shop.execute("CHECKPOINT")
            fill(shop, number, number)
            again = cdc.connector(dsn)
            _, cursor = cdc.read(again, cursor)
            again.close()
        assert slots.look(head, held(head)) == []
        with tracker.transaction() as connection:
            kinds = connection.execute(text("SELECT kind FROM breaches WHERE state = 'open'"))
            assert kinds.scalars().all() == ["slot"]
        checks.tell(tracker, checks.WatchReport([], []))
        with tracker.transaction() as connection:
            ended = connection.execute(text("SELECT state FROM breaches")).scalars().all()
            assert ended == ["explained"]


def test_a_check_of_a_source_that_is_away_says_so_and_keeps_what_it_told(server, dsn, shop):
    source = cdc.connector(dsn)
    cdc.read(source)
    assert source.held().held_bytes >= 0
    source.close()
    left(shop)
    shop.execute("SELECT pg_drop_replication_slot('waybill_test')")
    gone = cdc.connector(dsn)
    assert gone.held() is None
    gone.close()
    away = cdc.connector("postgresql://postgres@/shop?host=/nowhere")
    with pytest.raises(RetryError):
        away.held()
