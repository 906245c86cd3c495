"""Which task of a batch reads what.

In the order of topics, so that few are cut: each task and topic write an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from waybill.storage import PartitionRange

Share: TypeAlias = Sequence[PartitionRange]
"""What one task reads."""


def shares_of(ranges: Mapping[str, Mapping[int, tuple[int, int]]], most_tasks: int) -> list[Share]:
    """Divide ranges among so many tasks at most, about the same number of events each.

    Args:
        ranges: {topic: {partition: (first offset, after the last)}}, none of them empty.
        most_tasks: 1 or more.
    """
    wanted = [
        PartitionRange(topic, number, *span)
        for topic, own in sorted(ranges.items())
        for number, span in sorted(own.items())
    ]
    tasks = min(most_tasks, len(wanted))
    total = sum(one.end - one.start for one in wanted)
    shares: list[list[PartitionRange]] = [[] for _ in range(tasks)]
    before = 0
    for one in wanted:
        middle = before + (one.end - one.start) / 2
        shares[min(tasks - 1, int(middle * tasks / total))].append(one)
        before += one.end - one.start
    return [share for share in shares if share]
