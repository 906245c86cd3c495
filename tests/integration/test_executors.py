"""Executors in processes of their own, on real servers: without the tracker, or of another deployment."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from tests.support import children, evolving, streams

from waybill import services
from waybill.access import Decision
from waybill.clusters import ClusterRequest
from waybill.mappings.versions import history
from waybill.services import applications
from waybill.storage import open_objects, open_tracker

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.timeout(2400), pytest.mark.campaign]
ROWS = 300
CODE = "from shared.notes import transform\n"
SHARED = """
def transform(event):
    if event.data["number"] >= 150:
        event.data["note"] = "new"
    return event
"""


@pytest.fixture
def settings(stack_settings, tmp_path):
    """An evolving pipeline, read by an application whose executors are processes of their own."""
    spark = {"master": "local-cluster[1,1,1024]", "max_events_per_batch": 100}
    made = streams.with_orders(stack_settings, tmp_path, rows=1, **spark)
    home = evolving.write_evolving(made.pipelines_dir, rows=ROWS, code=CODE)
    (made.pipelines_dir / "shared").mkdir()
    (made.pipelines_dir / "shared" / "notes.py").write_text(SHARED)
    services.run_deploy(made, home, who="ann")
    services.run_ingest(made, "evolving")
    with streams.stopped_at_end(made):
        yield made


def give_executors(settings, **environment: str) -> None:
    """Give the executors of the cluster an environment that differs from the driver's."""
    conf = [f"spark.executorEnv.{name}={value}" for name, value in environment.items()]
    request = ClusterRequest(name="default", spark_conf=conf)
    services.set_cluster(settings, request, Decision(who="ann"))


def staged_rows(settings) -> int:
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return connection.execute(
            text("SELECT coalesce(sum(rows), 0) FROM staged_objects")
        ).scalar()


def words(settings) -> str:
    return applications.application_last_words(settings, "processing", "default", lines=400)


def test_executors_whose_tracker_refuses_process_and_learn_all_the_same(settings):
    give_executors(
        settings,
        WAYBILL_TRACKER="{}",
        WAYBILL_TRACKER__DSN="postgresql://nobody@127.0.0.1:1/none",
        WAYBILL_DESTINATIONS="{}",
        WAYBILL_AIRFLOW="{}",
    )

    def all_processed() -> bool:
        services.start_application(settings, "processing", "default")
        return staged_rows(settings) == ROWS

    try:
        children.wait_until(all_processed, what="a commit of all events")
    finally:
        print(words(settings))
    assert services.balance(settings).parked == 0
    with open_tracker(settings.tracker) as tracker:
        versions = history(tracker, "test-evolving", "order")
    assert [one.reason for one in versions] == ["new column note", "deployed"]
    assert versions[0].author.startswith("processing/events.")


def test_executors_of_another_deployment_refuse_and_write_nothing(settings):
    give_executors(settings, WAYBILL_S3__BUCKET="theirs")

    def refused() -> bool:
        services.start_application(settings, "processing", "default")
        return "has WAYBILL_S3__BUCKET with another value than the driver" in words(settings)

    try:
        children.wait_until(refused, what="the executors refuse")
    finally:
        print(words(settings))
    assert (staged_rows(settings), services.balance(settings).parked) == (0, 0)
    assert list(open_objects(settings.s3).list("staged/")) == []
