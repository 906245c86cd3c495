"""Claim checks: a payload too large for its message is an object that the message names.

A key is of one intake of one event (its id and intake version), or of one replay (its id and the
payload's SHA-256, so that a run that resumes writes the same object again). Nobody else puts it:
retention may delete it once it is old, whatever is read or replayed again meanwhile.
"""

from __future__ import annotations

import time

from waybill.back_off import BackOff
from waybill.errors import InputError, ParkError, RetryError
from waybill.events import Event, payload_key
from waybill.storage.objects import ObjectStore

LARGEST_MESSAGE_BYTES = 1024 * 1024
"""Of a payload that still travels inside its message."""
_STORE_AWAY_LIMIT_S = 600.0
_ATTEMPTS = 5
_FIRST_WAIT_S = 0.5
_BUDGET_S = 60.0
_LONGEST_WAIT_S = 5.0


def check_in(objects: ObjectStore, event: Event, content: bytes, *, name: str) -> None:
    """Store a payload if it is too large to travel, and let the event name it.

    Args:
        objects: the store.
        event: whose it is.
        content: its payload's bytes.
        name: of the object, below its pipeline; no other intake or replay may give the same one.

    Raises:
        RetryError: the store stayed away for ten minutes.
    """
    if len(content) > LARGEST_MESSAGE_BYTES:
        event.data_ref = payload_key(event.pipeline_id, name)
        objects.put_waiting(event.data_ref, content, limit_s=_STORE_AWAY_LIMIT_S)


class PayloadReader:
    """Reads the payloads that messages name, for one task; waits, within bounds.

    Where one object is not given (403, ``InvalidObjectState``, 5xx) while the store answers, its
    event is to park. Where the store does not answer, no event is to blame: whether it does is
    asked by storing and reading another object.

    Args:
        objects: the store.
        attempts: reads of one object while the store answers, the first included.
        first_wait_s: wait before the second read, doubled before each later one.
        budget_s: for all these waits together; once it is spent, the first error counts.
        away_limit_s: how long a store that does not answer is waited for.
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        attempts: int = _ATTEMPTS,
        first_wait_s: float = _FIRST_WAIT_S,
        budget_s: float = _BUDGET_S,
        away_limit_s: float = _STORE_AWAY_LIMIT_S,
    ) -> None:
        self._objects = objects
        self._attempts = attempts
        self._back_off = BackOff(first_wait_s, _LONGEST_WAIT_S)
        self._left_s = budget_s
        self._away_limit_s = away_limit_s

    def __call__(self, key: str) -> bytes:
        """Return the bytes of a payload.

        Raises:
            ObjectMissingError: there is no such object.
            ParkError: ``data_ref_unreadable``; the store answers, and does not give it.
            RetryError: the store stayed away.
            InputError: the store refuses everything.
        """
        attempt = failures = 1
        away_until = time.monotonic() + self._away_limit_s
        while True:
            try:
                return self._objects.get(key)
            except (RetryError, InputError) as error:
                wait_s = self._back_off.wait_s(failures)
                if self._objects.answers():
                    self._refuse_at_last(key, error, attempt, wait_s)
                    attempt += 1
                elif isinstance(error, InputError) or time.monotonic() >= away_until:
                    raise
            time.sleep(wait_s)
            failures += 1

    def _refuse_at_last(self, key: str, error: Exception, attempt: int, wait_s: float) -> None:
        """Take a wait from the budget; park the event where there is none left."""
        if attempt >= self._attempts or wait_s > self._left_s:
            message = f"{error} (attempts: {attempt}; the store gives other objects)"
            raise ParkError("data_ref_unreadable", message, where=key) from error
        self._left_s -= wait_s


def payloads_at_once(objects: ObjectStore) -> PayloadReader:
    """Return a reader for trials: it waits for nothing."""
    return PayloadReader(objects, attempts=1, away_limit_s=0.0)
