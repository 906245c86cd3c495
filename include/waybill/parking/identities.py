"""Who a parked event is, in 8 bytes: by it, copies are found.

An identity is BLAKE2b with 64 bits over event id, NUL, version, where the version is source and
intake version as on the wire (``%x/%x``). Eight zero bytes stand for an event that has no id, and a
digest of zeros is not one. Two events of one partition share an identity by chance once in 10^19
pairs, and only those of one partition and time span are ever compared.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

ID_BYTES = 8
NO_ID = bytes(ID_BYTES)
ANY_REPLAY = "*"
"""Instead of a replay's id: the event came with one, which is not known."""
_SOME_ID = NO_ID[:-1] + b"\1"

Origins = tuple[tuple[int, str, int], ...]
"""Runs of lines, in order: (intake minute, replay id or empty, number of lines)."""


class Identity(NamedTuple):
    """One event's identity, and what tells how a copy of it is counted."""

    digest: bytes
    minute: int
    """Intake minute."""
    replay_id: str
    """Of the replay that it came with; empty: none."""


def identify(
    event_id: str,
    *,
    source_version: int,
    intake_version: int,
    minute: int,
    replay_id: str | None = None,
) -> Identity | None:
    """Return an event's identity; None where it has no id. Cost: about 1 µs."""
    if not event_id:
        return None
    version = f"{source_version:x}/{intake_version:x}"
    text = f"{event_id}\0{version}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=ID_BYTES).digest()
    return Identity(_SOME_ID if digest == NO_ID else digest, minute, replay_id or "")


def pack_ids(identities: Sequence[Identity | None]) -> tuple[str, Origins]:
    """Return identities as base64 text, in order, and their origins; both empty if all are None."""
    if not any(identities):
        return "", ()
    digests = b"".join([NO_ID if one is None else one.digest for one in identities])
    runs: list[list[int | str]] = []
    before: tuple[int, str] | None = None
    for one in identities:
        origin = (0, "") if one is None else (one.minute, one.replay_id)
        if origin != before:
            runs.append([*origin, 0])
            before = origin
        runs[-1][2] += 1  # type: ignore[operator]
    return base64.b64encode(digests).decode(), tuple(tuple(run) for run in runs)  # type: ignore[misc]


def split_ids(ids: bytes, copies: Collection[int] = ()) -> list[bytes]:
    """Return identities one by one, without those of lines that are copies."""
    each = [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
    return [digest for line, digest in enumerate(each) if line not in copies] if copies else each


def unpack_ids(text: str) -> bytes:
    """Return the identities of ``pack_ids``, 8 bytes an event."""
    return base64.b64decode(text)
