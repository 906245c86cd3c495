"""A message that goes back: three attributes change, all other bytes stay as they came.

The quick way for what is as `encode` writes it: the same bytes as `decode`, a changed event and
`encode` give. It must never send what `decode` would refuse, nor change how it reads; whatever it
does not know, it leaves to them.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import msgspec

from waybill.events.catalogue import ENTRY_STAGES
from waybill.events.envelope import LARGEST_NAME_BYTES
from waybill.events.exact import exact_float

_SHORT = LARGEST_NAME_BYTES // 4
_Source = Annotated[str, msgspec.Meta(max_length=_SHORT)]
_Natural32 = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_is_version = re.compile(r"(0|-?[1-9a-f][0-9a-f]{0,13})/(0|[1-9a-f][0-9a-f]{0,14})").fullmatch


class _Message(
    msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A message as `encode` writes it, in the order in which it does."""

    specversion: str
    id: str
    source: _Source
    type: _Source
    time: str
    subject: str
    version: str
    intakeminute: _Natural32
    stage: str
    attempt: _Natural32
    replayid: str | None = None
    data: msgspec.Raw


GoingBack: TypeAlias = tuple[str, bytes, bytes, int]
"""Event id, ordering key, message, intake minute."""

_read = msgspec.json.Decoder(_Message).decode
_read_data = msgspec.json.Decoder(float_hook=exact_float).decode
_write = msgspec.json.Encoder().encode


def going_back(
    value: bytes, *, attempt: int, replay_id: str, stage: str | None
) -> GoingBack | None:
    """Return what goes back; None: ``decode`` and ``encode`` must see to it.

    Args:
        value: the message as it came.
        attempt: the new attempt.
        replay_id: of the replay that sends it.
        stage: where it enters; None: where it said.

    Cost: about 2 µs for 400 bytes.
    """
    if b"\\" in value and b"\\u" in value:  # only an escape can bring what text must not hold
        return None
    try:
        message = _read(value)
        _read_data(message.data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if (
        message.specversion != "1.0"
        or "/" not in message.source
        or message.stage not in ENTRY_STAGES
        or _is_version(message.version) is None
        or _write(message) != value  # a name that comes twice, spaces, another order
    ):
        return None
    message.attempt = attempt
    message.replayid = replay_id
    if stage is not None:
        message.stage = stage
    return message.id, message.subject.encode(), _write(message), message.intakeminute
