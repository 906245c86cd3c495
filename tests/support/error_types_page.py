"""Writes docs/error-types.md from the catalogue: ``python -m tests.support.error_types_page``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from waybill.events import CATALOGUE, STAGES, ErrorType
from waybill.events.catalogue import NOT_RAISED

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "error-types.md"
LIBRARY = ROOT / "include" / "waybill"

HEAD = """\
# Error types

<!-- Written by `python -m tests.support.error_types_page`; do not edit. -->

Each parked event has one of these codes; with pipeline, event name and stage it names the parked partition. A
transformation may use any of them in a `ParkError`; those marked *your code* are there for that. A *transient* error
of a transformation is met again before its event parks: `transient_attempts` runs in all, with back-off, for at most
`transient_budget_s` seconds a task and topic (see [settings](settings.md)); the message says how many attempts there were. What
a destination refuses for a while (a deadlock, a lock, no connection) parks nothing: the load waits and is repeated.
`waybill parked show` says the same for what is parked now.
"""
ABOUT = {
    "ingestion": "The record never became an event, so it cannot be replayed from here: correct the source, let the "
    "connector read it again, discard what is parked. `delivery_…` is another matter: whole events that Kafka refused "
    "for good. A replay sends them again, and they enter at the transformation. A replay from a later stage that Kafka "
    "refuses parks its events again at that stage, under the same codes.",
    "transformation": "Found while the event was read, or by the transformation. A replay enters at the transformation.",
    "mapping": "The payload does not fit the declared columns. A replay enters at the mapping.",
    "destination": "The warehouse refused the row. A replay enters at the destination, with the row as it was mapped.",
    "any": "Not bound to a stage.",
}
NAMING_ONLY = ("catalogue.py", "scaffold.py")


def page() -> str:
    """Return the whole page."""
    used = codes_in_use()
    parts = [HEAD]
    for stage in (*STAGES, "any"):
        rows = [entry for entry in CATALOGUE.values() if entry.stage == stage]
        parts += [f"## {stage.capitalize()}\n", f"{ABOUT[stage]}\n", _table(rows, used)]
    return "\n".join(parts)


def codes_in_use() -> set[str]:
    """Return the codes that the library names, but in the catalogue and in what it writes for users."""
    files = (file for file in LIBRARY.rglob("*.py") if file.name not in NAMING_ONLY)
    texts = [file.read_text(encoding="utf-8") for file in files]
    return {code for code in CATALOGUE if any(f'"{code}"' in text for text in texts)}


def _table(rows: Iterable[ErrorType], used: set[str]) -> str:
    lines = [
        "| code | what happened | transient | what to do | parked by |",
        "|---|---|---|---|---|",
    ]
    for entry in rows:
        who = "Waybill" if entry.code in used else NOT_RAISED.get(entry.code)
        if who is None:
            raise SystemExit(
                f"error type {entry.code} is raised nowhere in include/waybill: raise it, or say in "
                "NOT_RAISED of events/catalogue.py who does"
            )
        again = "yes" if entry.transient else ""
        lines.append(f"| `{entry.code}` | {entry.title} | {again} | {entry.advice} | {who} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
