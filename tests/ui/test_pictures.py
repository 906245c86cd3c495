"""The pictures of the documentation, over a shop's books: ``SHOTS_OF_PAGES=docs/images``, then this file.

They are PNGs of 256 colours: some 50 KB each. Without that variable there is nothing to do here.
"""

from __future__ import annotations

import json
import os
import random
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.support import told_traces as told
from tests.ui.balanced_books import Books
from tests.ui.opened_page import OpenedPage, hash_of
from tests.ui.test_balance import OpenedBalance
from tests.ui.test_overview import OpenedOverview, deploy
from tests.ui.trails_page import TrailsPage
from tests.unit.tracing.samples import ids

from waybill.ledger import RunFigures, begin_run, end_run
from waybill.reconciliation import BreachKey

SHOTS = os.environ.get("SHOTS_OF_PAGES")
pytestmark = pytest.mark.skipif(not SHOTS, reason="SHOTS_OF_PAGES names no folder")
TEAMS = {
    "airports": "geo", "clicks": "web", "invoices": "finance", "orders": "shop",
    "payments": "finance", "returns": "shop", "shipments": "shop",
}  # fmt: skip
ONE, REPLAYED = ids(2, "pictures")
WAYS = ("'amount' is None", "'currency' is None", "'amount' is None")


@pytest.fixture(scope="module")
def shop(web, tmp_path_factory):
    """Seven pipelines: two that flow, one held, one failed, one late, one that sends by itself, one idle."""
    lot, books, spool = web.lot, Books(web.lot), tmp_path_factory.mktemp("spool")
    r = random.Random("shop")
    for name, team in TEAMS.items():
        deploy(lot, f"pic-{name}", name, team)
        mean = r.randint(60, 900)
        if name != "returns":
            books.minutes(f"pic-{name}", name, list(range(2, 400)), mean=mean)
        for ago in range(2, 64):
            given = {"p": f"pic-{name}", "minute": books.now - ago}
            number = 0 if name in ("payments", "returns") else max(0, int(r.gauss(mean, mean / 4)))
            lot.sql(
                "INSERT INTO delivered_minutes (pipeline_id, minute, delivered) "
                "VALUES (:p, :minute, :number)",
                number=number, **given,
            )  # fmt: skip
        lot.sql(
            "INSERT INTO topic_looks (topic, written, read, lag_s) VALUES (:topic, 9, 4, :lag) "
            "ON CONFLICT DO NOTHING",
            topic=f"events.{team}.warehouse", lag=r.choice((0.4, 1.8, 2.6)),
        )  # fmt: skip
    for name, state in (
        ("airports", "success"), ("clicks", "success"), ("invoices", "failed"),
        ("payments", "success"), ("shipments", "success"),
    ):  # fmt: skip
        run = begin_run(lot.tracker, f"pic-{name}", node="node-1")
        end_run(lot.tracker, f"pic-{name}", run, RunFigures(), state=state, error="away")
    begin_run(lot.tracker, "pic-orders", node="node-1")
    lot.sql(
        "UPDATE pipeline_versions SET declaration = declaration || "
        '\'{"source": {"connector": "http"}}\' WHERE pipeline_id = \'pic-returns\''
    )
    lot.sql(
        "INSERT INTO pipeline_holds (pipeline_id, cause, held_by) VALUES ('pic-payments', :c, 'w')",
        c=json.dumps({"kind": "storm"}),
    )
    lot.park([_parked(n, "payments", "pipeline_held") for n in range(412)])
    key = lot.park([_parked(n, "orders", "null_value", WAYS[n % 3]) for n in range(17)], 2)
    lot.park([_parked(n, "shipments", "type_mismatch", "'9 kg' is no number") for n in range(3)], 3)
    lot.sql(
        "UPDATE parked_partitions SET last_parked_at = now() - interval '12 minutes', "
        "first_parked_at = now() - interval '3 hours' WHERE pipeline_id LIKE 'pic-%'"
    )
    lost = BreachKey("pic-shipments", "on_the_way", "shipments", "mapping", books.now - 40)
    books.breach(lost, "2 of 431 events did not come to mapping", gap=2, missing=ids(2, "lost"))
    books.judge("pic-shipments", "shipments", 40, "mapping", "breach", gap=2, why="2 were lost")
    books.on_the_way("pic-clicks", "click", [1])
    books.audited()
    [[partition]] = lot.sql("SELECT id FROM parked_partitions WHERE pipeline_id = 'pic-orders'")
    own = {"pipeline_id": "pic-orders", "event_name": "orders"}
    replay = lot.parking.begin_replay(partition, who="anna", run_id="manual__1")
    told.way(lot, spool, [ONE], parked_key=key, **own)
    sent = {"replay_id": str(replay.id), "topic": "events.shop.warehouse"}
    told.write(spool, [ONE], "replay", "replayed", 3_600, host="airflow-1", **sent, **own)
    told.write(spool, [ONE], "mapping", "passed", 3_601.2, attempt=1, **own)
    done = {"object_key": "warehouse", "replay_id": str(replay.id)}
    told.write(spool, [ONE], "destination", "delivered", 3_604, **done, **own)
    told.ship(spool, lot.settings["s3"])
    lot.parking.cancel_replay(replay.id, who="anna")
    return partition


def _parked(number, name, code, message="'amount' is None"):
    data = {"order": 4711 + number, "amount": None, "currency": "EUR", "country": "NO"}
    head = {"specversion": "1.0", "id": ids(1, f"{name}{number}")[0], "source": "shop/orders"}
    return make_event(
        number % 20, name, code, "mapping" if code == "type_mismatch" else "transformation",
        pipeline_id=f"pic-{name}", message=message, where="amount",
        value=json.dumps({**head, "data": data}).encode(),
    )  # fmt: skip


def picture(one, name):
    one.page.mouse.move(0, 0)
    whole = Image.open(BytesIO(one.page.screenshot()))
    whole.convert("RGB").quantize(256).save(Path(SHOTS) / f"{name}.png", optimize=True)


def test_pictures_of_the_overview(shop, open_as):
    one = open_as(OpenedOverview, in_airflow=True)
    expect(one.line("payments")).to_contain_text("held")
    one.resize(1280, 800)
    picture(one, "overview")
    narrow = open_as(OpenedOverview, hash_of(words="shop"), dark=True)
    expect(narrow.line("orders")).to_contain_text("running")
    narrow.look_over("overview-of-a-shop")
    narrow.page.emulate_media(color_scheme="dark")
    narrow.resize(390 + 72, 860)
    picture(narrow, "overview-narrow")


def test_pictures_of_parked_events(shop, open_as):
    one = open_as(OpenedPage, in_airflow=True)
    expect(one.frame.locator("tr[data-id] .sparkline").first).to_be_visible()
    one.resize(1280, 800)
    picture(one, "parked-events")
    group = open_as(OpenedPage, hash_of(id=shop), in_airflow=True)
    expect(group.frame.locator(".event-card")).to_be_visible()
    group.resize(1280, 1100)
    picture(group, "parked-group")


def test_picture_of_a_trail(shop, open_as):
    one = open_as(TrailsPage, f"#id={ONE}", in_airflow=True)
    expect(one.trail(ONE)).to_be_visible()
    one.resize(1280, 900)
    picture(one, "trail")


def test_picture_of_the_balance(shop, open_as):
    one = open_as(OpenedBalance, in_airflow=True)
    expect(one.row("shipments").locator("td.breach")).to_have_count(1)
    one.resize(1280, 800)
    picture(one, "balance")
