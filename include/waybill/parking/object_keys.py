"""Keys of objects: by each, what kind of object it is and what it holds.

An object is stored before the row that names it is committed. Where its key says what it holds,
one that a killed process left is known to be garbage once the books stand beyond that: see
``refreshing``. Anybody who may write to the bucket chooses keys: what only looks like a key of
these kinds is of none.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from datetime import UTC, datetime
from uuid import uuid4

_REFUSED = re.compile(r"parked/refused/([0-9a-f]{32})/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")
_UNLOADED = re.compile(r"parked/unloaded/((?:[0-9a-f]{2})*)/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")
_CUT = re.compile(r"parked/cut/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")
_STAGED_AGAIN = re.compile(r"staged/(?:[^/]+/)*again-([0-9a-f]{64})-[0-9a-f]{32}\.wbs")
_REWRITTEN = re.compile(r"parked/rewritten/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")
_LARGEST = 2**63 - 1
"""Of a BIGINT: what is larger numbers nothing in the tracker."""


def new_key() -> str:
    """Return a fresh key: ``parked/YYYY/MM/DD/<uuid7>.jsonl.zst``; they sort by time."""
    now_ns = time.time_ns()
    moment = datetime.fromtimestamp(now_ns / 1e9, UTC)
    bits = (now_ns // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    bits = bits & ~(0xF << 76) | 0x7 << 76
    bits = bits & ~(0x3 << 62) | 0x2 << 62
    return f"parked/{moment:%Y/%m/%d}/{uuid.UUID(int=bits)}.jsonl.zst"


def new_refused_key(wal_id: str, lsn: int) -> str:
    """Return a fresh key: ``parked/refused/<wal id>/<lsn>/<uuid4>.jsonl.zst``."""
    return f"parked/refused/{wal_id}/{lsn}/{uuid4().hex}.jsonl.zst"


def refused_message(key: str) -> tuple[str, int] | None:
    """Return (WAL id, lsn) of the message that an object holds; None: it is another kind."""
    found = _REFUSED.fullmatch(key)
    number = None if found is None else _number(found[2])
    return None if found is None or number is None else (found[1], number)


def new_unloaded_key(destination: str, commit_number: int) -> str:
    """Return a fresh key: ``parked/unloaded/<destination, in hex>/<commit>/<uuid4>.jsonl.zst``."""
    return f"parked/unloaded/{destination.encode().hex()}/{commit_number}/{uuid4().hex}.jsonl.zst"


def unloaded_commit(key: str) -> tuple[str, int] | None:
    """Return (destination, commit number) of an object; None: it is another kind."""
    found = _UNLOADED.fullmatch(key)
    number = None if found is None else _number(found[2])
    if found is None or number is None:
        return None
    try:
        destination = bytes.fromhex(found[1]).decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in destination else (destination, number)


def new_cut_key(segment_id: int) -> str:
    """Return a fresh key: ``parked/cut/<segment id>/<uuid4>.jsonl.zst``."""
    return f"parked/cut/{segment_id}/{uuid4().hex}.jsonl.zst"


def cut_segment(key: str) -> int | None:
    """Return the id of the segment whose parts an object holds; None: it is another kind."""
    found = _CUT.fullmatch(key)
    return None if found is None else _number(found[1])


def new_rewritten_key(segment_id: int) -> str:
    """Return a fresh key: ``parked/rewritten/<segment id>/<uuid4>.jsonl.zst``."""
    return f"parked/rewritten/{segment_id}/{uuid4().hex}.jsonl.zst"


def first_moved(key: str) -> int | None:
    """Return the id of the first segment that an object took over; None: it is another kind."""
    found = _REWRITTEN.fullmatch(key)
    return None if found is None else _number(found[1])


def new_staged_again_key(lost_key: str) -> str:
    """Return a fresh key beside a lost staged object: ``…/again-<its digest>-<uuid4>.wbs``."""
    folder = lost_key.rpartition("/")[0]
    return f"{folder}/again-{staged_digest(lost_key)}-{uuid4().hex}.wbs"


def staged_digest(key: str) -> str:
    """Return by what the key of an object that was made again names the one that was lost."""
    return hashlib.sha256(key.encode()).hexdigest()


def lost_digest(key: str) -> str | None:
    """Return the digest of the lost object's key; None: it was not made again of one."""
    found = _STAGED_AGAIN.fullmatch(key)
    return None if found is None else found[1]


def _number(digits: str) -> int | None:
    """Return what a key has as a number; None: the tracker has no such number."""
    number = int(digits)
    return number if number <= _LARGEST else None
