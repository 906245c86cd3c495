"""Keys of objects with one message that Kafka refused: they name its log and its lsn.

So an object that a killed process left, and no row names, is known for garbage once the message is
parked in another.
"""

from __future__ import annotations

import re
from uuid import uuid4

_KEY = re.compile(r"parked/refused/([0-9a-f]{32})/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")


def new_refused_key(wal_id: str, lsn: int) -> str:
    """Return a fresh key: ``parked/refused/<wal id>/<lsn>/<uuid4>.jsonl.zst``."""
    return f"parked/refused/{wal_id}/{lsn}/{uuid4().hex}.jsonl.zst"


def refused_message(key: str) -> tuple[str, int] | None:
    """Return (WAL id, lsn) of the message that an object holds; None: it is another kind."""
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], int(found[2]))
