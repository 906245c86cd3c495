"""Part (c) of ``make bench-parking``: a replay into Kafka against ingestion from a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support import orders
from tests.support.parked_orders import order, parked
from tests.support.replays import run_replay

_OBJECT_EVENTS = 20_000
NAMES = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "transformation",
    "error_type": "null_value",
}


def replay_against_ingestion(settings: Any, folder: Path, events: int) -> dict[str, float]:
    """Ingest rows of a file, then replay as many parked events of the same pipeline."""
    from waybill import services

    orders.write_orders(folder, rows=events, page_rows=10_000)
    settings = settings.model_copy(update={"pipelines_dir": folder})
    services.migrate(settings)
    services.run_deploy(settings, folder / "orders", who="bench")
    began = time.monotonic()
    services.run_ingest(settings, "orders")
    live_s = time.monotonic() - began
    park(settings, events)
    began = time.monotonic()
    report = run_replay(settings, **NAMES, who="bench", run_id="bench", governed=False)
    replay_s = time.monotonic() - began
    sent = report.to_json()["sent"]
    if sent != events:
        raise SystemExit(f"{events} events are parked, {sent} were sent")
    return {
        "replay_vs_live": live_s / replay_s,
        "replay_per_s": events / replay_s,
        "live_per_s": events / live_s,
    }


def park(settings: Any, events: int) -> None:
    """Park events of one partition, as so many batches would."""
    from waybill.parking import Packer, Parking, new_key
    from waybill.storage import open_objects, open_tracker

    team, objects = orders.team_of(settings.pipelines_dir), open_objects(settings.s3)
    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, objects)
        for number, start in enumerate(range(0, events, _OBJECT_EVENTS), 1):
            packer, key = Packer(), new_key()
            for one in range(start, min(start + _OBJECT_EVENTS, events)):
                packer.add(parked(order(one, team)))
            packed = packer.finish()
            objects.put(key, packed.body)
            with tracker.transaction() as connection:
                parking.record(
                    connection,
                    key=key,
                    size=len(packed.body),
                    segments=packed.segments,
                    scope="warehouse",
                    commit_number=number,
                )
