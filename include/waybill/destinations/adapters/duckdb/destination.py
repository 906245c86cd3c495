"""DuckDB as a destination: what unique and foreign keys refuse is found by trial.

DuckDB has no savepoints: a row that a key refuses costs the whole transaction. It is rolled back,
the shortest beginning of the batch that fails is sought by halving, each trial rolled back; its
last row is the one, and the load begins anew without it. Cost: log2(rows) merges a refused row.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from waybill.destinations.adapters.duckdb.engine import DuckEngine
from waybill.destinations.batch import RowFrame, TableBatch
from waybill.destinations.model import Finding
from waybill.destinations.transactional.destination import SqlDestination
from waybill.destinations.transactional.session import Refused, SqlError
from waybill.errors import InputError
from waybill.pipelines import TableSpec
from waybill.settings import DestinationSettings, S3Settings

_TRIAL = ".waybill-trial-"
"""How the folder of a dry run begins."""
_LEFT_S = 3600.0
"""A dry run takes a minute at most: an older folder is of one that was killed."""


class DuckDestination(SqlDestination):
    """One DuckDB file, as ``waybill.destinations.Destination`` says.

    Args:
        name: commit numbers are kept under it.
        path: the file.
        options: memory_limit, threads, temp_directory.

    Raises:
        InputError: an option that there is not, or a path that is none.
    """

    def __init__(self, name: str, path: str, options: Mapping[str, str]) -> None:
        engine = DuckEngine(name, path, options)
        super().__init__(name, engine)
        self._file = engine.session
        self._options = options

    def dry_run(self, specs: Sequence[TableSpec]) -> list[Finding]:
        """Try all that loads need, and undo it; where there is no file yet, in one beside it."""
        path = self._file.path
        if path.exists() or not path.parent.is_dir():
            return super().dry_run(specs)
        try:
            _sweep(path.parent)
            with TemporaryDirectory(prefix=_TRIAL, dir=path.parent) as folder:
                beside = DuckDestination(self.name, str(Path(folder, path.name)), self._options)
                return SqlDestination.dry_run(beside, specs)
        except OSError as error:
            raise InputError(
                f"destination {self.name!r}: {path.parent} takes no file: {error.strerror}; let "
                "this user write the folder, or correct the dsn"
            ) from error

    def refuse_unloaded(self, specs: Sequence[TableSpec]) -> None:
        """Refuse tables that no load wrote to; a file that is not there is not made."""
        if self._file.path.exists():
            super().refuse_unloaded(specs)

    def _merge_all(self, batches: Sequence[TableBatch]) -> list[Refused]:
        known: list[Refused] = [{} for _ in batches]
        passed = [0] * len(batches)
        while True:
            at = self._first_that_fails(batches, known)
            if at is None:
                return known
            index, error = at
            ordinal = self._culprit(batches[: index + 1], known, passed[index])
            known[index][ordinal] = error
            passed[index] = ordinal
            self._file.restart()

    def _first_that_fails(
        self,
        batches: Sequence[TableBatch],
        known: list[Refused],
    ) -> tuple[int, SqlError] | None:
        """Merge in order; return where a row refuses, or None, with all that is refused known."""
        refused = []
        for index, batch in enumerate(batches):
            try:
                refused.append(self._merge_one(index, batch, known[index]))
            except SqlError as error:
                if error.refused_code is None:
                    raise
                return index, error
        known[:] = refused
        return None

    def _culprit(
        self,
        batches: Sequence[TableBatch],
        known: Sequence[Refused],
        passed: int,
    ) -> int:
        """Return the last row of the shortest beginning of the last batch that fails."""
        low, high = passed, int(batches[-1].columns.num_rows)
        while high - low > 1:
            middle = (low + high) // 2
            self._file.restart()
            trial = [*batches[:-1], _beginning(batches[-1], middle)]
            cut = [*known[:-1], {n: e for n, e in known[-1].items() if n < middle}]
            if self._first_that_fails(trial, cut) is None:
                low = middle
            else:
                high = middle
        return high - 1


def _sweep(folder: Path) -> None:
    """Remove what dry runs left that were killed; what cannot be removed stays."""
    for left in folder.glob(f"{_TRIAL}*"):
        try:
            is_old = left.lstat().st_mtime < time.time() - _LEFT_S
        except OSError:  # gone since
            continue
        if is_old:
            shutil.rmtree(left, ignore_errors=True)  # of a link it removes nothing


def _beginning(batch: TableBatch, rows: int) -> TableBatch:
    frames = [
        RowFrame(frame.commit_number, frame.rows, frame.start, min(frame.end, rows))
        for frame in batch.frames
        if frame.start < rows
    ]
    return TableBatch(
        batch.spec, frames, batch.columns.slice(0, rows), batch.context.slice(0, rows)
    )


def open_duckdb(
    name: str, settings: DestinationSettings, _s3: S3Settings | None = None
) -> DuckDestination:
    """Open a file; it is looked at on first use."""
    options = {key: value.get_secret_value() for key, value in settings.options.items()}
    return DuckDestination(name, settings.dsn.get_secret_value(), options)
