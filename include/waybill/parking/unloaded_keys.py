"""Keys of objects with commits that were parked whole: they name the destination and the commit.

So an object that a killed loader left, and no row names, is known for garbage once the destination
stands at that commit or beyond: whatever acknowledged it named another object, or none.
"""

from __future__ import annotations

import re
from uuid import uuid4

_KEY = re.compile(r"parked/unloaded/([0-9a-f]*)/([0-9]{1,19})/[0-9a-f]{32}\.jsonl\.zst")


def new_unloaded_key(destination: str, commit_number: int) -> str:
    """Return a fresh key: ``parked/unloaded/<destination, in hex>/<commit>/<uuid4>.jsonl.zst``."""
    return f"parked/unloaded/{destination.encode().hex()}/{commit_number}/{uuid4().hex}.jsonl.zst"


def unloaded_commit(key: str) -> tuple[str, int] | None:
    """Return (destination, commit number) of an object; None: it is another kind."""
    found = _KEY.fullmatch(key)
    return None if found is None else (bytes.fromhex(found[1]).decode(), int(found[2]))
