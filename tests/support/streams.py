"""Running the two Spark applications as their supervisor in Airflow does, and waiting for rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from tests.support import children, orders

from waybill import services
from waybill.errors import ParkError
from waybill.events import decode
from waybill.reconciliation import BalanceReport
from waybill.services import applications
from waybill.settings import Settings
from waybill.storage import open_log


def with_orders(stack_settings: Settings, folder: Path, *, rows: int, **spark: object) -> Settings:
    """Return settings with the orders pipeline written, deployed and the tracker's tables made."""
    orders.write_orders(folder / "pipelines", rows=rows)
    settings = stack_settings.model_copy(
        update={
            "pipelines_dir": folder / "pipelines",
            "spark": stack_settings.spark.model_copy(update=spark),
        }
    )
    services.migrate(settings)
    services.run_deploy(settings, folder / "pipelines" / "orders", who="test")
    return settings


@contextmanager
def stopped_at_end(settings: Settings) -> Iterator[None]:
    """Stop both applications at the end of the block."""
    try:
        yield
    finally:
        for kind in applications.KINDS:
            applications.stop_application(settings, kind, "default")


def keep_running(settings: Settings) -> None:
    """Start what is not there."""
    for kind in applications.KINDS:
        services.start_application(settings, kind, "default")


def rest_of(settings: Settings, *, rows: int, limit_s: float = 900.0) -> BalanceReport:
    """Wait until all rows are taken in and nothing is in flight; return the books."""

    def at_rest() -> bool:
        keep_running(settings)
        report = services.balance(settings)
        return report.ingested == rows and not report.in_flight and not report.unaccounted

    children.wait_until(at_rest, limit_s=limit_s, what="all events at rest, none unaccounted for")
    return services.balance(settings)


def warehouse_numbers(settings: Settings) -> list[int]:
    """Return the order numbers in the warehouse."""
    dsn = settings.destinations["warehouse"].dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT number FROM shop.orders").fetchall()
    return [row[0] for row in rows]


def assert_once_each(settings: Settings, numbers: Iterable[int], *, duplicates: int = 0) -> None:
    """These orders are in the warehouse, no others, and nothing came a second time.

    The table has a primary key, which hides what came twice: the destination counts it, and in the
    log each id stands once. Where a source was read again, ``duplicates`` says how many passed.
    """
    report = services.balance(settings)
    assert (report.duplicate, report.superseded) == (duplicates, 0)
    assert sorted(warehouse_numbers(settings)) == sorted(numbers)
    if not duplicates:
        assert {ident: n for ident, n in Counter(sent_ids(settings)).items() if n > 1} == {}


def sent_ids(settings: Settings) -> Iterator[str]:
    """Yield the ids of the events in the orders' topic that are no replays."""
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    for value in log.read(topic.name, log.watermarks(topic)):
        try:
            event = decode(value)
        except ParkError:
            continue
        if not event.attempt:
            yield event.id


def logged(settings: Settings) -> int:
    """Return how many messages the orders' topic holds."""
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    return sum(end - begin for begin, end in log.watermarks(topic).values())
