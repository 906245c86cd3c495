"""What a Spark task does of a load: a table of a plan, carried out beside the rows' destination.

Runs on Python workers under ``mapInArrow``. In: one row, the place of a table in the plan. Out:
that place, and what came of it as text: a report, or the error that the driver raises again. A task
that dies, or runs twice, is what a load is that dies: the destination's books tell the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from waybill.destinations import Destination, open_destination
from waybill.loading.delivery import DeliveryParts, deliver
from waybill.loading.failures import NotTakenError, failure_to_json
from waybill.loading.plans import LoadPlan
from waybill.processing.spark import ExecutorSettings, give_memory_back
from waybill.storage import ObjectStore, open_objects_of
from waybill.tracing import Recorder

REPORT_SCHEMA = "place bigint, report string, failure string"


@dataclass
class LoadWorker:
    """What one worker process keeps between the loads of a destination."""

    pid: int
    settings: ExecutorSettings
    objects: ObjectStore
    recorder: Recorder | None
    _opened: Destination | None = field(default=None)

    @classmethod
    def of(cls, settings: ExecutorSettings) -> LoadWorker:
        """Return this process's; one for other settings is closed.

        Raises:
            SettingsMismatchError: the settings are not for this worker.
        """
        known = _WORKERS[0] if _WORKERS else None
        if known is not None and known.pid == os.getpid():
            if known.settings.fingerprint == settings.fingerprint:
                return known
            known.close()
        settings.refuse_mismatch(os.environ)
        folder, most_bytes = settings.spool
        objects = open_objects_of(settings.s3, settings.deployment)
        recorder = Recorder(folder, disk_threshold_bytes=most_bytes) if settings.traced else None
        _WORKERS[:] = [cls(os.getpid(), settings, objects, recorder)]
        return _WORKERS[0]

    def destination(self) -> Destination:
        """Return the destination, opened."""
        if self._opened is None:
            name, settings = self.settings.loaded
            self._opened = open_destination(name, settings, self.settings.s3)
        return self._opened

    def reaches(self) -> bool:
        """Tell whether the destination answers here."""
        with suppress(Exception):  # the load has failed already
            self.destination().check()
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close the destination; it is opened again when it is needed."""
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(Exception):  # it is thrown away
                opened.close()


_WORKERS: list[LoadWorker] = []


class LoadTask:
    """The callable that Spark runs in each task.

    Args:
        plan: what is to be done.
        settings: for the plan's destination.
    """

    def __init__(self, plan: LoadPlan, settings: ExecutorSettings) -> None:
        self._plan = plan
        self._settings = settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Carry out the tables that this task got; yield what came of each."""
        for batch in batches:
            for place in batch.column(0).to_pylist():
                report, failure = self._carry_out(place)
                columns = {"place": [place], "report": [report], "failure": [failure]}
                yield pa.RecordBatch.from_pydict(columns)
        give_memory_back()

    def _carry_out(self, place: int) -> tuple[str, str]:
        """Return a report, or a failure; the other one is empty."""
        worker = None
        try:
            worker = LoadWorker.of(self._settings)
            parts = DeliveryParts(worker.objects, worker.destination, worker.recorder)
            return deliver(self._plan, self._plan.tables[place], parts).to_json(), ""
        except Exception as error:  # noqa: BLE001 - a value for the driver, which raises it
            if worker is not None:
                worker.close()
                if isinstance(error, NotTakenError):
                    error.unreached = error.may_be_unreached(worker.reaches)
            return "", failure_to_json(error)
