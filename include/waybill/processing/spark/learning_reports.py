"""What tasks learned from events of a topic, as they tell the driver: names and types, no values.

How much one task tells is bounded, whatever names events bring. What is left out is met again when
the batch runs again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from waybill.mappings import LearnedFields

LARGEST_REPORT_BYTES = 256 * 1024
"""Of what one task tells of one topic, about; each event name has an equal part, one field at
least."""
EventName = tuple[str, str]
"""(pipeline id, event name)."""


def report_of(
    learned: Iterable[tuple[str, str, LearnedFields]], *, most_bytes: int = LARGEST_REPORT_BYTES
) -> list[Any]:
    """Return what plans learned as JSON: [pipeline id, event name, fields] of each."""
    found = list(learned)
    part_bytes = most_bytes // max(1, len(found))
    return [
        [ident, name, LearnedFields(fields.reading, tuple(_within(fields, part_bytes))).to_json()]
        for ident, name, fields in found
    ]


def _within(fields: LearnedFields, most_bytes: int) -> Iterator[Any]:
    """Yield the first field, and those behind it that fit as well."""
    size_bytes = 0
    for number, field in enumerate(fields.fields):
        size_bytes += field.size_bytes
        if number and size_bytes > most_bytes:
            return
        yield field


def reports_by_name(
    descriptors: Iterable[Mapping[str, Any]],
) -> dict[EventName, list[LearnedFields]]:
    """Return what the tasks of a topic's batch learned, by event name in their order."""
    found = defaultdict[EventName, list[LearnedFields]](list)
    for descriptor in descriptors:
        for ident, name, fields in learned_of(descriptor):
            found[ident, name].append(LearnedFields.from_json(fields))
    return dict(sorted(found.items()))


def learned_of(descriptor: Mapping[str, Any]) -> Sequence[Any]:
    """Return a task's report; empty: it learned nothing, and what it wrote counts."""
    report: Sequence[Any] = descriptor.get("learned", ())
    return report
