"""What people ask of the owner of the books, as files in the spool: bring this file back.

Only the owner writes the books, and it may run as another user's process, or not at all. So an ask
is a small file, written whole, that the owner reads at its next step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from waybill.tracing.files.names import new_name

_FOLDER = "asks"
_ENDING = ".ask"


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody's wish to have a failed file tried again."""

    path: Path
    file_id: str
    note: str
    """Who, and why."""


def ask_for_retry(spool_dir: Path, file_id: str, *, who: str, why: str) -> None:
    """Ask the owner of a spool's books to try a failed file again; on disk when this returns."""
    folder = spool_dir / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / new_name()
    with fresh.open("wb") as file:
        file.write(orjson.dumps({"file": file_id, "note": f"{who}: {why}"}))
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(fresh.with_suffix(_ENDING))


def asks(spool_dir: Path) -> Iterator[Ask]:
    """Yield what is asked, oldest first."""
    for path in sorted((spool_dir / _FOLDER).glob(f"*{_ENDING}")):
        wish = orjson.loads(path.read_bytes())
        yield Ask(path, str(wish["file"]), str(wish["note"]))
