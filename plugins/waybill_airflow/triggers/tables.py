"""Events of assets: rows were loaded into a table.

One poll of the tracker serves all tables of a triggerer (a *shared stream* of Airflow), and how far
a table was told is kept in Airflow's own store of an asset's state.

Invariants
  I1  A position is stored as told once Airflow has stored the event, never before: killed at any
      time, the next triggerer tells what the last one may not have told.
  I2  An event says where it begins, and begins where the last one of its trigger ended.
  I3  Without new rows there is no event; but for one that I1 repeats, and one where the tracker was
      restored to an older point.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamProducer

from waybill_airflow.triggers.shared_rows import SharedRows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Mapping, Sequence

    from airflow.triggers.shared_stream import AdvanceItem
    from sqlalchemy import Connection

    from waybill.ledger import TableLoad, TableLoads, TableName

_LOG = logging.getLogger(__name__)
POLL_S = 3.0
"""Between two looks at the tracker."""
STATE = "waybill_loaded"
"""Key of how far a table was told, in the state of its asset: ``{"position": commit number}``."""


@dataclass(eq=False)
class _Watched:
    """A table that a trigger of this process watches."""

    state: Any
    """Airflow's accessor of the asset's state."""
    position: int | None
    """How far the table was looked at; ``None``: never."""
    told: int | None
    """How far it was told, as the state has it."""
    to_store: int | None
    """The same, as it is to have it."""
    is_unknown: bool = False
    """That its pipeline is not deployed was said."""


@dataclass(eq=False)
class _News:
    """What one trigger has to tell."""

    watched: _Watched
    load: TableLoad
    taken: bool = False
    """Airflow has it, in memory."""


_WATCHED: dict[TableName, _Watched] = {}


def _read_rows(connection: Connection) -> Mapping[TableName, tuple[_Watched, TableLoad]]:
    watched = _WATCHED.copy()
    loads = _loads().read(connection, {table: one.position for table, one in watched.items()})
    return {table: (watched[table], load) for table, load in loads.items()}


@cache
def _loads() -> TableLoads:
    from waybill.ledger import TableLoads

    return TableLoads()


ROWS = SharedRows(_read_rows)


class TableTrigger(BaseEventTrigger):
    """Fire each time that rows were loaded into a table. The event is a ``TableLoad`` as a dict.

    Its first look ever tells all that was loaded before; then it goes on from what was told, in
    whichever triggerer it runs. While the tracker does not answer it waits.

    :param team: which owns the pipeline.
    :param pipeline: its name.
    :param table: the destination's name of it.
    """

    def __init__(self, team: str, pipeline: str, table: str) -> None:
        super().__init__()
        self.team, self.pipeline, self.table = team, pipeline, table

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return where this class is, and its arguments."""
        names = ("team", "pipeline", "table")
        where = "waybill_airflow.triggers.tables.TableTrigger"
        return where, {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        """Return the same for all tables."""
        return ("waybill", "tables")

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return what polls for all tables."""
        return TableLoadStream()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Refuse, which Airflow never asks for: alone it would not learn what is stored."""
        raise RuntimeError(f"{self.pipeline}.{self.table}: a TableTrigger needs shared streams")
        yield TriggerEvent(None)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Mapping[TableName, _News]]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield what is new in this table."""
        from waybill.ledger import TableName

        table, state = TableName(self.team, self.pipeline, self.table), self.asset_state_store
        if state is None:
            raise RuntimeError(f"Airflow names no asset to watch for {table}")
        told = _position(await state.aget(STATE))
        watched = _WATCHED[table] = _Watched(state, told, told, told)
        try:
            async for one_look in shared_stream:
                news = one_look.get(table)
                if news is None or news.watched is not watched:
                    continue  # nothing, or of a trigger before this one
                told = _position(await state.aget(STATE))
                if told not in {watched.told, watched.to_store}:
                    # Another triggerer tells of the table, too: go on from what it has told.
                    watched.position = watched.told = watched.to_store = told
                    continue
                yield TriggerEvent(news.load.to_json())
                # Reached once Airflow has it; a trigger that is cancelled above has told nothing.
                news.taken = True
        finally:
            if _WATCHED.get(table) is watched:
                del _WATCHED[table]


class TableLoadStream(SharedStreamProducer):
    """The poll of all tables of a triggerer, and what is stored of their events."""

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield {table: news} whenever there are any."""
        while True:
            for watched in list(_WATCHED.values()):
                await _store(watched)
            if news := await self._look():
                yield news, news
            await asyncio.sleep(POLL_S)

    async def _look(self) -> dict[TableName, _News]:
        from pydantic import ValidationError

        from waybill.errors import WaybillError

        if not _WATCHED:
            return {}
        try:
            rows = await ROWS.read(0.0) or {}
        except (WaybillError, ValidationError) as error:
            _LOG.error("tables are not watched: %s", error)
            return {}
        _name_unknown()
        news = {}
        for table, (watched, load) in rows.items():
            if watched.position == load.after:
                watched.position = load.position
                if load.is_news:
                    news[table] = _News(watched, load)
        return news

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Store what was told: Airflow has stored these events."""
        for item in batch:
            if item.outcome.failed:
                continue  # of one of its tables; which one is not said
            for news in item.broker_payload.values():
                if news.taken:
                    news.watched.to_store = news.load.position
                    await _store(news.watched)


def _name_unknown() -> None:
    for table in _loads().unknown:
        watched = _WATCHED.get(table)
        if watched is not None and not watched.is_unknown:
            watched.is_unknown = True
            _LOG.warning("no pipeline %r of team %r is deployed: %r waits", *table[1::-1], table)


async def _store(watched: _Watched) -> None:
    """Store how far a table was told, unless it is; what fails is tried again at the next look."""
    position = watched.to_store
    if position == watched.told:
        return
    try:
        await watched.state.aset(STATE, {"position": position})
    except AirflowRuntimeError as error:
        _LOG.warning("what was told of a table is not stored yet: %s", error)
        return
    watched.told = position


def _position(state: Any) -> int | None:
    """Return how far a table was told; what somebody else wrote there is nothing."""
    position = state.get("position") if isinstance(state, dict) else None
    return position if isinstance(position, int) else None


__all__ = ["POLL_S", "ROWS", "STATE", "TableLoadStream", "TableTrigger"]
