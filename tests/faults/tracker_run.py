"""Two pipelines of one team through real Kafka, Spark, S3 and PostgreSQL: one left alone, one not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults import sabotage
from tests.support import children, orders

from waybill import services
from waybill.ledger import last_commit_number, load_position, topic_positions
from waybill.services import applications
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

CLEAN, SABOTAGED = "clean", "sabotaged"
_INGEST = """
from tests.faults import sabotage
from waybill.services import run_ingest
sabotage.in_ingestion()
print(run_ingest(settings, {name!r}))
"""
_CHECKOUT = Path(__file__).parents[2]
_FIRST_SOUND = 5
"""Of every 50 orders those before this one are parked or filtered."""


def prepare(settings: Settings, *, events: int) -> Settings:
    """Write and deploy both pipelines, so many orders each; returns the settings that know them."""
    folder = settings.home / "pipelines"
    known = settings.model_copy(
        update={
            "pipelines_dir": folder,
            "dags_dir": Path(__file__).parent / "sabotaged" / "dags",
            "spark": settings.spark.model_copy(
                update={"max_events_per_batch": max(20_000, events // 8), "trigger_ms": 200}
            ),
        }
    )
    services.migrate(known)
    for name in (CLEAN, SABOTAGED):
        home = _written(folder, name, events)
        services.run_deploy(known, home, who="campaign")
    log = open_log(known.kafka)
    for topic in (orders.topic_of(folder), sabotage.NOWHERE):
        log.ensure_topic(topic)
    return known


def _written(folder: Path, name: str, events: int) -> Path:
    home = orders.write_orders(folder, rows=events, page_rows=max(500, events // 20))
    declaration = (home / "pipeline.yaml").read_text()
    for old, new in (
        ("id: test-orders", f"id: {pipeline_id(name)}"),
        ("name: orders", f"name: {name}"),
        ("table: orders", f"table: {name}"),
    ):
        assert old in declaration
        declaration = declaration.replace(old, new, 1)
    (home / "pipeline.yaml").write_text(declaration)
    return home.rename(folder / name)


def pipeline_id(name: str) -> str:
    """Return the id of one of the two."""
    return f"audited-{name}"


def sound_orders(events: int) -> list[int]:
    """Return the numbers of the orders that reach the destination."""
    return [number for number in range(events) if number % 50 >= _FIRST_SOUND]


@contextmanager
def running(settings: Settings, plan: Path) -> Iterator[None]:
    """Run both Spark applications, following the plan, for as long as the block takes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sabotage.environment(plan, _CHECKOUT).items():
            patch.setenv(name, value)
        try:
            for kind in applications.KINDS:
                services.start_application(settings, kind, "default")
            yield
        finally:
            for kind in applications.KINDS:
                applications.stop_application(settings, kind, "default")


def through(settings: Settings, name: str, *, limit_s: float) -> None:
    """Ingest one of the pipelines and wait until all of it is where it goes."""
    children.run(settings, _INGEST.format(name=name), limit_s=limit_s)
    children.wait_until(lambda: _is_at_rest(settings), limit_s=limit_s, what="all loaded")


def _is_at_rest(settings: Settings) -> bool:
    """Tell whether all that is in Kafka is processed, and all that was staged is loaded."""
    for kind in applications.KINDS:
        if not applications.application_status(settings, kind, "default").running:
            raise AssertionError(
                applications.application_last_words(settings, kind, "default", lines=40)
            )
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    with open_tracker(settings.tracker) as tracker:
        stands = topic_positions(
            tracker, cluster_id=topic.cluster_id, topic_id=topic.topic_id, topic=topic.name
        )
        ends = {number: end for number, (_, end) in log.watermarks(topic).items()}
        if any(stands.get(number, 0) < end for number, end in ends.items()):
            return False
        return load_position(tracker, "warehouse") == last_commit_number(tracker, "warehouse")
