"""Fair shares of the slots of ingestion among teams, in Airflow: ``waybill.capacity.share_slots``.

What decides who gets a slot of a pool in Airflow is the priority of those that wait, then the date
of their runs; so the first tasks of teams below their share get a higher priority. Who is to give a
slot back reads that in the row of its run, and does so at its next page.

Who dies when: both are said anew each round, from how things are. Without rounds Airflow's own
order holds, and a run that was asked leaves once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from waybill.capacity import SlotTask, share_slots
from waybill.ledger import SlotUser, ask_leave, last_turns, read_slot_users
from waybill_airflow.airflow_internals import pooled_tasks, set_weight

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from waybill.storage import TrackerStore
    from waybill_airflow.airflow_internals import PooledTask

_PREFIX = "ingest_"
_WEIGHT, _FIRST_WEIGHT = 1, 2
_CANNOT_S = float("inf")
"""Of a task that does not run yet: it has its slot, and hears nothing."""


class SharedSlots(NamedTuple):
    """What a round said."""

    waiting: int
    """Runs that wait for a slot,"""
    first: int
    """those of them that go before all others,"""
    leaving: int
    """and runs that were asked to give theirs back."""


def share_ingest_slots(tracker: TrackerStore, pools: Collection[str]) -> SharedSlots:
    """Say which runs of the family ``ingest`` go first, and which are to leave; in the API server.

    Tasks of other DAGs keep the slots that they have, and get no part in it.

    Cost: five statements, and one where a priority changes.
    """
    slots, tasks = pooled_tasks(pools)
    names = {task.dag_id: task.dag_id.removeprefix(_PREFIX) for task in tasks}
    users = read_slot_users(tracker, set(names.values())) if tasks else {}
    had_s = last_turns(tracker)
    own = {dag_id: users[name] for dag_id, name in names.items() if name in users}
    by_pool: dict[str, list[PooledTask]] = defaultdict(list)
    for task in tasks:
        by_pool[task.pool].append(task)
    first: set[str] = set()
    leave: set[str] = set()
    for pool, found in by_pool.items():
        others = sum(task.dag_id not in own and not task.waits for task in found)
        room = slots.get(pool, 0) - others
        shares = share_slots(_slot_tasks(found, own), room, time.time(), had_s)
        first.update(shares.first)
        running = {task.dag_id for task in found if task.state == "running"}
        leave.update(own[dag_id].pipeline_id for dag_id in running.intersection(shares.leave))
    ask_leave(tracker, leave)
    mine = [task for task in tasks if task.waits and task.dag_id in own]
    chosen = {task.id for task in mine if task.dag_id in first}
    set_weight([t.id for t in mine if t.id in chosen and t.weight == _WEIGHT], _FIRST_WEIGHT)
    set_weight([t.id for t in mine if t.id not in chosen and t.weight == _FIRST_WEIGHT], _WEIGHT)
    return SharedSlots(len(mine), len(chosen), len(leave))


def _slot_tasks(tasks: Sequence[PooledTask], own: Mapping[str, SlotUser]) -> list[SlotTask]:
    """Return one task a DAG: a source is read by one at a time, so a second one waits for that."""
    found: dict[str, SlotTask] = {}
    for task in sorted(tasks, key=lambda task: (task.waits, task.since_s)):
        user = own.get(task.dag_id)
        if user is not None and task.dag_id not in found:
            asked_s = _CANNOT_S if task.state == "queued" else user.asked_s
            found[task.dag_id] = SlotTask(task.dag_id, user.team, task.since_s, task.waits, asked_s)
    return list(found.values())


__all__ = ["SharedSlots", "share_ingest_slots"]
