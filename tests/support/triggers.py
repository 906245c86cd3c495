"""Triggers of Airflow, run as the triggerer does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor


async def fired(trigger):
    """Run a trigger as the triggerer does: made anew from what it says of itself."""
    from airflow.sdk.module_loading import import_string

    where, arguments = trigger.serialize()
    async for event in import_string(where)(**arguments).run():
        return event.payload
    return None


def completed(coroutine):
    """Run a coroutine to its end, in a thread: in this one a browser's loop may run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
