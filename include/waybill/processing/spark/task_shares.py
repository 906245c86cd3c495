"""Which task of a batch reads what.

In the order of topics, so that few are cut: each task and topic write an object. A topic alone has
as many objects as tasks however it is cut: where it has fewer tasks than partitions, partitions are
cut as well, so that no task takes twice as long as the others while cores are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from waybill.storage import PartitionRange

Share: TypeAlias = Sequence[PartitionRange]
"""What one task reads."""


def shares_of(ranges: Mapping[str, Mapping[int, tuple[int, int]]], most_tasks: int) -> list[Share]:
    """Divide ranges among so many tasks at most, about the same number of events each.

    Of one topic with more partitions than tasks the same number, and partitions are cut for it.

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
    if len(ranges) == 1 and tasks < len(wanted):
        return _equal_shares(wanted, tasks, total)
    for one in wanted:
        middle = before + (one.end - one.start) / 2
        shares[min(tasks - 1, int(middle * tasks / total))].append(one)
        before += one.end - one.start
    return [share for share in shares if share]


def _equal_shares(wanted: Sequence[PartitionRange], tasks: int, total: int) -> list[Share]:
    """Cut ranges into so many shares of as many events, a share's parts in log order."""
    shares: list[list[PartitionRange]] = [[] for _ in range(tasks)]
    before = 0
    for one in wanted:
        after = before + one.end - one.start
        for number, share in enumerate(shares):
            first = max(before, total * number // tasks)
            end = min(after, total * (number + 1) // tasks)
            if first < end:
                shift = one.start - before
                share.append(one._replace(start=first + shift, end=end + shift))
        before = after
    return [share for share in shares if share]
