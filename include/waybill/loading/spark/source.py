"""A Spark data source whose offsets are commit numbers and whose rows are staged objects' names.

Python sources have no admission control in Spark 4.0: ``latestOffset`` itself decides what a batch
takes, and whether it is time for one (``load_sizes``).

The reader asks the tracker beside the driver, whose settings it has. What an executor reads is in
its partition already: it asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from waybill.ledger import (
    commit_age_s,
    last_commit_number,
    load_position,
    staged_after,
    staged_sums,
)
from waybill.loading import MOST_COMMITS, LoadSizes, is_due, last_of_load
from waybill.settings import Settings
from waybill.storage import open_tracker

SCHEMA = (
    "commit_number bigint, key string, rows bigint, bytes bigint, row_bytes bigint, batch string"
)
"""As the fields of ``StagedReference``."""


Row: TypeAlias = tuple[int, str, int, int, int, str]
"""Of a staged object, by ``SCHEMA``."""


@dataclass
class StagedObjects(InputPartition):
    """The staged objects of a range of commits."""

    rows: list[Row]


class StagedSource(DataSource):
    """``spark.readStream.format("waybill_staged").option("destination", …)``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "waybill_staged"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> StagedReader:  # noqa: ARG002 - Spark's names
        """Return the reader."""
        return StagedReader(self.options["destination"])


class StagedReader(DataSourceStreamReader):
    """Runs in a Python process of its own beside the driver; keeps no state that matters."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._sizes = LoadSizes()
        self._tracker: Any = None
        self._latest: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """Start where the tracker says the destination stands."""
        return {"commit": load_position(self._open(), self._destination)}

    def latestOffset(self) -> dict[str, int]:
        """Return the newest commit of the next load; where it stands, while none is due."""
        tracker = self._open()
        if self._latest is None:
            self._latest = load_position(tracker, self._destination)
        last = last_commit_number(tracker, self._destination)
        if last > self._latest:
            self._latest = self._next(self._latest, last)
        return {"commit": self._latest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one partition with the staged objects of a range: names are few."""
        found = staged_after(
            self._open(), self._destination, after=start["commit"], until=end["commit"]
        )
        return [StagedObjects(list(map(astuple, found)))]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """Yield the staged objects of a partition; on an executor."""
        assert isinstance(partition, StagedObjects)  # noqa: S101 - narrows a type
        return iter(partition.rows)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the load itself moved the tracker's position."""

    def _next(self, after: int, last: int) -> int:
        found = staged_sums(self._tracker, self._destination, after=after, most=MOST_COMMITS)
        waiting = [item for item in found if item.commit_number <= last]

        def age_s() -> float:
            return commit_age_s(self._tracker, self._destination, after + 1)

        if is_due(self._sizes, waiting, age_s):
            return last_of_load(self._sizes, waiting, after=after, last=last)
        return after

    def _open(self) -> Any:
        if self._tracker is None:
            settings = Settings()
            self._sizes = LoadSizes.of(settings.destinations.get(self._destination))
            self._tracker = open_tracker(settings.tracker)
        return self._tracker

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tracker": None}
