"""Error messages as somebody may see them: of partitions, of their causes, of holds.

They quote values of events that are not at hand, so where an event may hold something personal they
are hidden whole, or, for who may see it, the look is written to the audit log: once a request and
team.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from waybill.operations.access import Access
from waybill.operations.personal import ANY_EVENT, Personal, personal_of
from waybill.parking import FingerprintGroup, Partition
from waybill.parking.holds import Hold
from waybill.parking.masking import MASK
from waybill.parking.moves import write_audit
from waybill.storage import TrackerStore

_MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Explained:
    """A partition with all that is said of its errors, as somebody may see it."""

    partition: Partition
    groups: list[FingerprintGroup]
    hold: Hold | None


class Messages:
    """Shows messages to one person, and notes what was shown that is personal."""

    def __init__(self, tracker: TrackerStore, access: Access, pipeline_ids: Sequence[str]) -> None:
        self._tracker = tracker
        self._access = access
        self._personal: Personal = personal_of(tracker, pipeline_ids)
        self._seen: dict[str, tuple[set[str], set[int]]] = defaultdict(lambda: (set(), set()))
        """Team to pipelines, and partitions, whose messages were shown."""

    def partition(self, partition: Partition) -> Partition:
        """Return a partition with its last message as this person may see it."""
        if not partition.last_message or not self._personal.are_in(partition):
            return partition
        if self._may_see(partition):
            return partition
        return replace(partition, last_message=MASK)

    def groups(
        self, partition: Partition, groups: list[FingerprintGroup]
    ) -> list[FingerprintGroup]:
        """Return a partition's causes with their messages as this person may see them."""
        if not groups or not self._personal.are_in(partition) or self._may_see(partition):
            return groups
        return [replace(group, message=MASK) for group in groups]

    def hold(self, hold: Hold, team: str) -> Hold:
        """Return a hold; any event name of the pipeline may be the one that its message quotes."""
        if _MESSAGE not in hold.cause or not self._personal.are_there(hold.pipeline_id, ANY_EVENT):
            return hold
        if self._access.may("personal", team):
            self._seen[team][0].add(hold.pipeline_id)
            return hold
        return replace(hold, cause=hold.cause | {_MESSAGE: MASK})

    def _may_see(self, partition: Partition) -> bool:
        if not self._access.may("personal", partition.team):
            return False
        pipelines, partitions = self._seen[partition.team]
        pipelines.add(partition.pipeline_id)
        partitions.add(partition.id)
        return True

    def write_down(self) -> None:
        """Write to the audit log what was shown; nothing if nothing was."""
        if not self._seen:
            return
        with self._tracker.transaction() as connection:
            for team, (pipelines, partitions) in sorted(self._seen.items()):
                write_audit(
                    connection,
                    who=self._access.user,
                    action="see_personal_messages",
                    target="error messages",
                    team=team,
                    pipeline_ids=sorted(pipelines),
                    partitions=sorted(partitions),
                )
