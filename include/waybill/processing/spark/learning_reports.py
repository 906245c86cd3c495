"""What tasks learned from events of a topic, as they tell the driver: names and types, no values.

How much one task tells is bounded, whatever names events bring. What is left out is met again when
the batch runs again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from waybill.mappings import LearnedField, LearnedFields

LARGEST_REPORT_BYTES = 256 * 1024
"""Of what one task tells of one topic, as JSON; each event name has an equal part, one field at
least."""
_MOST_NAMES = 100
"""Event names of which one task tells of one topic."""
EventName = tuple[str, str]
"""(pipeline id, event name)."""


def report_of(
    learned: Iterable[tuple[str, str, LearnedFields]], *, most_bytes: int = LARGEST_REPORT_BYTES
) -> tuple[list[Any], bool]:
    """Return what plans learned as JSON, and whether something was left out.

    Of each event name: [pipeline id, event name, fields].
    """
    found = list(learned)
    told = found[:_MOST_NAMES]
    part_bytes = most_bytes // max(1, len(told))
    report, left_out = list[Any](), len(told) < len(found)
    for ident, name, fields in told:
        kept = tuple(_within(fields, part_bytes))
        left_out |= len(kept) < len(fields.fields)
        report.append([ident, name, LearnedFields(fields.reading, kept).to_json()])
    return report, left_out


def _within(fields: LearnedFields, most_bytes: int) -> Iterator[LearnedField]:
    """Yield the first field, and those behind it that fit as well."""
    size_bytes = 0
    for number, field in enumerate(fields.fields):
        size_bytes += len(orjson.dumps(list(field)))
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


def is_cut(descriptor: Mapping[str, Any]) -> bool:
    """Tell whether a task learned more than its report says."""
    return bool(descriptor.get("learned_more"))
