"""An order that is too large for its topic, among others that are not; and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.servers import wait_for
from tests.support import orders
from tests.support.books import batch, nothing_parked

from waybill import services
from waybill.deployment import active_pipeline
from waybill.events import Event, decode
from waybill.ledger import acquire_lease, commit_batch, topic_positions
from waybill.processing import Chain, Chunk, Plan
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

ROWS, PAGE_ROWS = 40, 10
BIG = 27
"""The order's number."""
LIMIT_BYTES = 20_000
NOTE = "x" * 60_000


def with_a_big_order(
    stack_settings: Settings, folder: Path, *, page_rows: int = PAGE_ROWS
) -> Settings:
    """Return settings with the orders deployed, one of them larger than the topic's limit."""
    home = orders.write_orders(folder / "pipelines", rows=ROWS, page_rows=page_rows, fixed=True)
    source = home / "orders.csv"
    source.write_text(source.read_text().replace(f"note {BIG}\n", f"{NOTE}\n"))
    settings = stack_settings.model_copy(update={"pipelines_dir": folder / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, home, who="test")
    open_log(settings.kafka).ensure_topic(topic_of(settings))
    limit(settings, LIMIT_BYTES)
    return settings


def topic_of(settings: Settings) -> str:
    """Return the topic of the orders."""
    return orders.topic_of(settings.pipelines_dir)


def limit(settings: Settings, most_bytes: int) -> None:
    """Set the largest batch that the topic takes; the broker goes by it when this returns."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry(
        "max.message.bytes",
        str(most_bytes),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic_of(settings), incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(300)

    def is_known() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic_of(settings))
        found = admin.describe_configs([asked])[asked].result(300)
        return bool(found["max.message.bytes"].value == str(most_bytes))

    wait_for(is_known)  # the controller had it first


def delivered(settings: Settings) -> list[Event]:
    """Return all events of the topic."""
    log = open_log(settings.kafka)
    topic = log.describe(topic_of(settings))
    return [decode(value) for value in log.read(topic.name, log.watermarks(topic))]


def numbers(events: list[Event]) -> list[int]:
    """Return the orders' numbers, sorted."""
    return sorted(event.data["number"] for event in events)


def process(settings: Settings) -> None:
    """Run the stages over what the ledger does not have, and commit it, as processing does."""
    log = open_log(settings.kafka)
    topic = log.describe(topic_of(settings))
    own: dict[str, Any] = {
        "cluster_id": topic.cluster_id,
        "topic_id": topic.topic_id,
        "topic": topic.name,
    }
    with open_tracker(settings.tracker) as tracker:
        known = topic_positions(tracker, **own)
        ends = {number: high for number, (_, high) in log.watermarks(topic).items()}
        values = list(log.read(topic.name, {n: (known.get(n, 0), ends[n]) for n in ends}))
        chain = Chain({"test-orders": Plan(active_pipeline(tracker, "orders"))})
        chain.process(Chunk(values, [0] * len(values), range(len(values)), [0] * len(values)))
        assert chain.result.failures == []
        epoch = acquire_lease(tracker, "processing/events.t.w", holder="test")
        moved = [(n, known.get(n, 0), ends[n]) for n in ends]
        counts = list(chain.result.counts.by_pipeline())
        done = batch(epoch, *moved, counts=counts, destination="warehouse", **own)
        commit_batch(tracker, done, nothing_parked)
