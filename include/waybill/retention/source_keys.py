"""Keys of a table's rows that no comparison will ask for any more.

``deletes: compare`` keeps the keys that a table had below ``source-keys/<folder>/<digest>/``, and
each comparison deletes what it has no more use for. What no deployed pipeline compares with is
nobody's: of a pipeline that is gone, or has another name; of another table or key than the one that
is declared now; of one whose ``deletes`` was taken out. It stays for a while, as a declaration that
comes back finds the rows that went in between.

Invariants
  I1  The store is listed before anybody is asked who uses what: a pipeline that is deployed while
      this runs is seen, or its keys are younger than what goes.
  I2  Where nobody can tell, all of a folder is kept: with known keys deletes would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text

from waybill.errors import WaybillError
from waybill.ingestion.connectors import KEYS_PREFIX
from waybill.storage import Deletion, ObjectStore, TrackerStore

_BEFORE = text("SELECT clock_timestamp() - make_interval(secs => :kept_s)")


@dataclass(slots=True)
class SourceKeysReport:
    """What was deleted."""

    deleted: int = 0
    """Objects."""
    bytes: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    """Folders of which nobody can tell who uses them, and why."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def trim_source_keys(
    tracker: TrackerStore,
    objects: ObjectStore,
    in_use: Callable[[str], Collection[str]],
    *,
    kept_s: float,
) -> SourceKeysReport:
    """Delete keys that no deployed pipeline compares with; safe to kill, and to run twice at once.

    Args:
        tracker: whose clock counts.
        objects: the store.
        in_use: returns the prefixes below a pipeline's folder, as the store has its name, that are
            compared with; raises a WaybillError where it cannot tell.
        kept_s: age that all objects of a comparison have at least when they go.

    Raises:
        NotDeletedError: the store did not delete some; all others are gone.
        RetryError: the tracker or the store does not answer.

    Cost: a listing of all such objects, and another one of those that go.
    """
    report, deletion = SourceKeysReport(), Deletion(objects)
    with tracker.transaction() as connection:
        before = connection.execute(_BEFORE, {"kept_s": kept_s}).scalar_one()
    newest: dict[str, datetime] = {}
    for item in objects.list(KEYS_PREFIX):
        group = "/".join(item.key.split("/")[:3]) + "/"
        newest[group] = max(item.modified, newest.get(group, item.modified))
    old = sorted(group for group, modified in newest.items() if modified < before)
    used: dict[str, Collection[str]] = {}
    for group in old:
        folder = group.split("/")[1]
        if folder not in used and folder not in report.kept:
            try:
                used[folder] = in_use(folder)
            except WaybillError as error:
                report.kept[folder] = str(error)
        if folder not in report.kept and group not in used[folder]:
            # taken whole: a listing goes on by key, and these are being deleted
            sizes = {one.key: one.size for one in objects.list(group) if one.modified < before}
            gone = deletion.delete(list(sizes))
            report.deleted += len(gone)
            report.bytes += sum(sizes[key] for key in gone)
    deletion.end()
    return report
