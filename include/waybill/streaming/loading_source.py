"""A Spark data source whose offsets are commit numbers and whose rows are staged objects' names.

Python sources have no admission control in Spark 4.0: ``latestOffset`` itself caps what a batch
takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from waybill.ledger import last_commit_number, load_position, staged_after
from waybill.settings import Settings
from waybill.storage import open_tracker

SCHEMA = "commit_number bigint, key string, rows bigint, bytes bigint"


@dataclass
class CommitRange(InputPartition):
    """Commits after ``after``, up to ``until``."""

    after: int
    until: int


class StagedSource(DataSource):
    """``spark.readStream.format("waybill_staged").option("destination", …)``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "waybill_staged"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> StagedReader:  # noqa: ARG002, N802 - Spark's names
        """Return the reader."""
        return StagedReader(self.options["destination"])


class StagedReader(DataSourceStreamReader):
    """Runs in a Python process of its own beside the driver; keeps no state that matters."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._settings: Settings | None = None
        self._tracker: Any = None
        self._latest: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Start where the tracker says the destination stands."""
        return {"commit": load_position(self._open(), self._destination)}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the newest commit of the next batch, capped by rows and bytes."""
        tracker = self._open()
        if self._latest is None:
            self._latest = load_position(tracker, self._destination)
        last = last_commit_number(tracker, self._destination)
        if last > self._latest:
            self._latest = self._capped(self._latest, last)
        return {"commit": self._latest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one partition: names are few."""
        return [CommitRange(start["commit"], end["commit"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str, int, int]]:
        """Yield the staged objects of a range of commits."""
        assert isinstance(partition, CommitRange)  # noqa: S101 - narrows a type
        for item in staged_after(
            self._open(), self._destination, after=partition.after, until=partition.until
        ):
            yield item.commit_number, item.key, item.rows, item.bytes

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the load itself moved the tracker's position."""

    def _capped(self, after: int, last: int) -> int:
        assert self._settings is not None  # noqa: S101 - set by _open
        rows = size = 0
        taken = after
        for item in staged_after(self._open(), self._destination, after=after, until=last):
            rows, size = rows + item.rows, size + item.bytes
            over = (
                rows > self._settings.spark.max_load_rows
                or size > self._settings.spark.max_load_bytes
            )
            if over and item.commit_number > after + 1 and item.commit_number > taken:
                return max(taken, item.commit_number - 1)
            taken = item.commit_number
        return last

    def _open(self) -> Any:  # noqa: ANN401 - made lazily: the reader is pickled before
        if self._tracker is None:
            self._settings = Settings()
            self._tracker = open_tracker(self._settings.tracker)
        return self._tracker

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tracker": None, "_settings": None}
