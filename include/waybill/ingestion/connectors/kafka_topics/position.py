"""How far topics are read: the connector's cursor.

A round reads each partition up to where it ended when the round began. These ends are part of the
cursor, and committed before a page of the round is read: so a page that is read again is the same,
whatever came meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from waybill.errors import InputError


class Unread(NamedTuple):
    """What is left of a partition in this round."""

    topic: str
    partition: int
    offset: int
    end: int


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicPosition(_Part):
    """How far one topic is read."""

    id: str
    """Kafka's own, which a topic that is made again does not have."""
    offsets: dict[int, int] = {}
    """By partition: the next one to be read."""
    ends: dict[int, int] = {}
    """By partition: this round ends before it."""


class Round(_Part):
    """How far a round of topics is read."""

    topics: dict[str, TopicPosition] = {}

    def unread(self) -> Iterator[Unread]:
        """Yield what is left of this round, in order."""
        for name, topic in sorted(self.topics.items()):
            for partition, end in sorted(topic.ends.items()):
                offset = topic.offsets.get(partition, 0)
                if offset < end:
                    yield Unread(name, partition, offset, end)

    def moved(self, topic: str, partition: int, offset: int) -> Self:
        """Return the position behind some messages of a partition."""
        known = self.topics[topic]
        moved = known.model_copy(update={"offsets": {**known.offsets, partition: offset}})
        return self.model_copy(update={"topics": {**self.topics, topic: moved}})

    def cursor(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "topics": {
                name: {
                    "id": one.id,
                    "offsets": {str(number): offset for number, offset in one.offsets.items()},
                    "ends": {str(number): end for number, end in one.ends.items()},
                }
                for name, one in self.topics.items()
            }
        }


class Position(Round):
    """How far all topics are read."""

    rereads: tuple[Round, ...] = ()
    """Rounds of messages that are to be read again first."""

    @classmethod
    def of(cls, cursor: Mapping[str, Any] | None) -> Self:
        """Return the position that a cursor says.

        Raises:
            InputError: it is no cursor of this connector.
        """
        try:
            return cls.model_validate(dict(cursor or {}))
        except ValidationError as error:
            raise InputError(
                f"cursor {str(dict(cursor or {}))[:200]} is not one of connector kafka; read the"
                " source again from its beginning: `waybill pipelines reread`"
            ) from error

    def cursor(self) -> dict[str, Any]:
        """Return it as JSON."""
        again = [one.cursor() for one in self.rereads]
        return super().cursor() | ({"rereads": again} if again else {})

    def rereading(self, *first: Round) -> Self:
        """Return it with another first round of what is read again, or without it."""
        return self.model_copy(update={"rereads": (*first, *self.rereads[1:])})
