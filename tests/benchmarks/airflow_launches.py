"""How many replay runs a second a campaign launches, against the bare REST API of the same Airflow.

API server, scheduler, DAG processor and triggerer run; the DAG ``replay`` is paused, so that no run
takes the cores. By turns a campaign launches so many runs, from inside of its task, and a client
posts as many to the REST API, one after the other on one connection. Both are timed by what
Airflow writes down: when the first and the last of the runs were queued.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

RUNS, QUICK_RUNS = 200, 60
ROUNDS, QUICK_ROUNDS = 5, 2
CAMPAIGNS = "replay_parked_partitions"
WORDS = {
    "launches": "runs launched by a campaign, and posted, each time",
    "launches_per_s": "runs a second that a campaign launches",
    "bare_launches_per_s": "runs a second posted to the REST API",
    "launch_vs_bare": "of the bare API's",
}
_QUEUED = """
SELECT count(*), extract(epoch FROM max(queued_at) - min(queued_at))::float
FROM dag_run WHERE dag_id = 'replay' AND state = 'queued'
"""
_END = "UPDATE dag_run SET state = 'success', end_date = now() WHERE dag_id = 'replay' RETURNING id"


def run(home: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures; starts and stops servers and an Airflow of its own."""
    from sqlalchemy import text
    from tests import servers
    from tests.benchmarks.airflow_campaigns import PARK
    from tests.support.airflow_metadata import AirflowMetadata
    from tests.support.real_airflow import started

    from waybill.settings import Settings, TrackerSettings
    from waybill.storage import open_tracker

    runs, rounds = (QUICK_RUNS, QUICK_ROUNDS) if quick else (RUNS, ROUNDS)
    (home / "airflow-original").mkdir(mode=0o755)
    with (
        servers.started(servers.start_postgres, home) as postgres,
        servers.started(servers.start_s3, home) as s3,  # task logs go there
    ):
        metadata = AirflowMetadata(postgres, home / "airflow-original")
        settings = Settings(
            _env_file=None,
            home=home,
            tracker=TrackerSettings(dsn=postgres.database("launches")),
            s3=s3.bucket("launches"),
        )
        with open_tracker(settings.tracker) as tracker:
            tracker.migrate()
            with tracker.transaction() as connection:
                connection.execute(text(PARK), {"number": runs * rounds})
        with started(settings, metadata) as airflow, airflow.client() as client:
            client.patch("/dags/replay", json={"is_paused": True}).raise_for_status()
            campaign, bare = [], []
            for number in range(rounds):
                campaign.append(_launched(airflow, f"round-{number}", runs))
                bare.append(_posted(airflow, client, number, runs))
    figures = {
        "launches_per_s": statistics.median(campaign),
        "bare_launches_per_s": statistics.median(bare),
    }
    ratio = figures["launches_per_s"] / figures["bare_launches_per_s"]
    rounded = {name: round(value, 1) for name, value in figures.items()}
    return {"launches": runs, **rounded, "launch_vs_bare": round(ratio, 2)}


def _launched(airflow: Any, run_id: str, runs: int) -> float:
    from tests.servers import wait_for

    airflow.trigger(CAMPAIGNS, run_id, limit=runs, max_unfinished=min(runs, 256))
    wait_for(lambda: airflow.sql(_QUEUED)[0][0] == runs, 180)
    rate = _rate(airflow, runs)
    wait_for(lambda: airflow.run_state(CAMPAIGNS, run_id) == "success", 180)
    return rate


def _posted(airflow: Any, client: Any, number: int, runs: int) -> float:
    group = {"pipeline": "p", "event_name": "e", "stage": "mapping", "error_type": "null_value"}
    for one in range(runs):
        body = {"dag_run_id": f"bare-{number}-{one}", "logical_date": None, "conf": group}
        client.post("/dags/replay/dagRuns", json=body).raise_for_status()
    return _rate(airflow, runs)


def _rate(airflow: Any, runs: int) -> float:
    """Return how many of the runs that are queued came a second, and end them."""
    [(count, seconds)] = airflow.sql(_QUEUED)
    assert count == runs, f"{count} runs are queued, not {runs}"
    airflow.sql(_END)
    return float((runs - 1) / seconds)
