"""SIGKILL while a source runs as a process of its own: no row is lost, and what comes twice is known."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from tests.faults.test_connector_kills import ingest_with_kills

from waybill import services
from waybill.events import decode
from waybill.pipelines import load_pipeline, topic_of
from waybill.settings import Settings, SourceSettings
from waybill.storage import open_log

pytestmark = [pytest.mark.serves, pytest.mark.campaign]
ROWS = 3_000
KILLS = 5
INGEST = """
from waybill.services import run_ingest
print(run_ingest(settings, "orders"))
"""
TAP = Path(__file__).parents[1] / "support" / "small_tap.py"
SOURCE = f"""
import dlt

def rows(start):
    for at in range(start, {ROWS}, 50):
        yield [{{"id": number, "seq": number}} for number in range(at, min(at + 50, {ROWS}))]

@dlt.source
def shop(order="asc"):
    @dlt.resource(primary_key="id")
    def orders(seq=dlt.sources.incremental("seq", row_order=order or None)):
        yield from rows(seq.start_value or 0)

    @dlt.resource
    def notes():
        yield [{{"id": 1, "text": "a"}}, {{"id": 2, "text": "b"}}]
    return notes, orders
"""
DECLARATION = """
id: shop-orders
name: orders
team: {team}
owner: shop@example.com
source: {source}
events:
  orders: {{key: [id], table: orders, policy: ignore, columns: {{id: int64}}}}
  notes: {{key: [id], table: notes, policy: ignore, columns: {{id: int64}}}}
destination: {{name: warehouse, schema: shop}}
"""
DLT = {"connector": "dlt", "event": "orders", "page_rows": 100}
SOURCES = {
    "dlt in order": {**DLT, "options": {"resource": "shop:shop"}},
    "dlt without order": {
        **DLT,
        "options": {"resource": "shop:shop", "arguments": {"order": ""}},
    },
    "singer": {
        "connector": "singer",
        "event": "orders",
        "page_rows": 100,
        "options": {
            "tap": "small",
            "config": {"rows": ROWS},
            "streams": ["orders"],
        },
    },
}


@pytest.fixture(params=list(SOURCES))
def settings(request, stack_settings, tmp_path) -> Settings:
    folder = tmp_path / "pipelines" / "orders"
    folder.mkdir(parents=True)
    (folder / "shop.py").write_text(SOURCE)
    (folder / "small_tap.py").write_text(TAP.read_text())
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    source = json.dumps(SOURCES[request.param])
    (folder / "pipeline.yaml").write_text(
        DECLARATION.format(source=source, team=f"shop-{uuid4().hex[:12]}")
    )
    taps = {"small": (sys.executable, str(folder / "small_tap.py"))}
    settings = stack_settings.model_copy(
        update={"pipelines_dir": tmp_path / "pipelines", "sources": SourceSettings(taps=taps)}
    )
    services.migrate(settings)
    services.run_deploy(settings, folder, who="test")
    return settings


def ids_in_kafka(settings: Settings) -> Counter[tuple[str, str]]:
    log = open_log(settings.kafka)
    pipeline = load_pipeline(settings.pipelines_dir / "orders")
    topic = log.describe(topic_of(pipeline))
    events = map(decode, log.read(topic.name, log.watermarks(topic)))
    return Counter((event.name, event.key) for event in events)


def test_a_source_whose_reader_is_killed_loses_no_row(settings, request):
    ingest_with_kills(settings, INGEST, KILLS)
    found = ids_in_kafka(settings)
    print(f"{found.total() - len(found)} doubles")
    with_notes = "dlt" in request.node.name
    expected = {("orders", f"[{number}]") for number in range(ROWS)}
    if "singer" in request.node.name:
        expected = {("orders", f"[{number + 1}]") for number in range(ROWS)}
    if with_notes:
        expected |= {("notes", "[1]"), ("notes", "[2]")}
    assert {(name, _plain(key)) for name, key in found} == expected
    report = services.balance(settings)
    assert report.unaccounted == 0
    assert report.ingested == found.total()
    if "without order" not in request.node.name:
        orders = [count for (name, _), count in found.items() if name == "orders"]
        assert set(orders) == {1}, "the same state gave the same pages"


def _plain(key: str) -> str:
    return key if key.startswith("[") else f"[{key}]"
