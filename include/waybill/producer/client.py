"""librdkafka's settings as the guarantee needs them, its errors sorted, the stamp's bytes."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

from waybill.errors import InputError
from waybill.settings import WalSettings

HEADER = "waybill-wal"
_STAMP = struct.Struct("<16sIQ")
_PREFIX = struct.Struct("<16sI")
_LOG = logging.getLogger("waybill.producer.kafka")
"""What librdkafka says, each kind of line once in a while."""
_LOG_AGAIN_S = 30.0

SOCKET_LIMITS: dict[str, object] = {
    "socket.timeout.ms": 60_000,
    "socket.connection.setup.timeout.ms": 30_000,
    "socket.keepalive.enable": True,
}
"""A broker that does not answer is left after these, and asked again."""
_FORCED: dict[str, object] = {"acks": "all", "enable.idempotence": True}
_SAME = {"request.required.acks": "acks"}
_REFUSED = ("transactional.id", "delivery.report.only.error", "on_delivery", "dr_cb", "dr_msg_cb")
_PRODUCER_ONLY = (
    "acks", "batch.", "compression.", "delivery.", "dr_", "enable.gapless.", "enable.idempotence",
    "linger.", "max.in.flight", "message.timeout", "on_delivery", "partitioner", "queue.buffering.",
    "request.", "retries", "retry.", "sticky.", "transaction",
)  # fmt: skip
CALLBACKS = frozenset(("error_cb", "stats_cb", "throttle_cb"))
"""Of the caller; what they raise must not come out of some call of ``poll``."""


class _RateLimit(logging.Filter):
    """Lets a kind of line (librdkafka's facility and client) through once in 30 s.

    Else a broker that is away fills the log with ten lines a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether the line is new enough."""
        kind = record.getMessage().partition("]")[0]
        now = time.monotonic()
        if now - self._logged_at.get(kind, -_LOG_AGAIN_S) < _LOG_AGAIN_S:
            return False
        self._logged_at[kind] = now
        return True


_LOG.addFilter(_RateLimit())


class FailureKind(Enum):
    """What a failed delivery means for its record."""

    PERMANENT = "Kafka will never take this record"
    TOO_LARGE = "the record, or only the batch it travelled in, is too large"
    UNCERTAIN = "it may be in the topic, or may go through later"
    FATAL = "this client cannot go on"
    PURGED = "this client is being closed"


MOST_HOPEFUL_FIRST = (
    FailureKind.FATAL,
    FailureKind.PURGED,
    FailureKind.UNCERTAIN,
    FailureKind.TOO_LARGE,
    FailureKind.PERMANENT,
)
"""Where it is not known which of some records failed how, the first of these counts for all."""

_SORTED: dict[str, FailureKind] = {
    "MSG_SIZE_TOO_LARGE": FailureKind.TOO_LARGE,
    "RECORD_LIST_TOO_LARGE": FailureKind.TOO_LARGE,
    "_FATAL": FailureKind.FATAL,
    "_PURGE_QUEUE": FailureKind.PURGED,
    "_PURGE_INFLIGHT": FailureKind.PURGED,
    "_DESTROY": FailureKind.PURGED,
} | dict.fromkeys(
    (
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "UNKNOWN_TOPIC_OR_PART",
        "UNKNOWN_TOPIC_ID",
        "TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "INVALID_RECORD",
        "INVALID_MSG",
        "INVALID_MSG_SIZE",
        "INVALID_TIMESTAMP",
        "POLICY_VIOLATION",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_INVALID_ARG",
    ),
    FailureKind.PERMANENT,
)


def sort_failure(error: Any) -> FailureKind:
    """Return what a ``KafkaError`` of a delivery means."""
    if error.fatal():
        return FailureKind.FATAL
    return _SORTED.get(error.name(), FailureKind.UNCERTAIN)


stamp_prefix = _PREFIX.pack
"""(WAL id, segment id) -> the stamp's bytes before the lsn."""
pack_stamp = struct.Struct(f"<{_PREFIX.size}sQ").pack
"""(prefix, lsn) -> the stamp."""


def read_stamp(value: object) -> tuple[bytes, int, int] | None:
    """Return (WAL id, segment id, lsn) of a header's value, None when it is none of ours."""
    if not isinstance(value, bytes) or len(value) != _STAMP.size:
        return None
    wal_id, segment_id, lsn = _STAMP.unpack(value)
    return wal_id, segment_id, lsn


def producer_config(kafka: Mapping[str, object], settings: WalSettings) -> dict[str, object]:
    """Return the producer's configuration: the caller's, ours where the caller has none.

    Raises:
        InputError: a setting that would break the guarantee, or no bootstrap servers.
    """
    given = {_SAME.get(name, name): value for name, value in kafka.items()}
    if not given.get("bootstrap.servers"):
        raise InputError("the producer needs bootstrap.servers (WAYBILL_KAFKA__BOOTSTRAP_SERVERS)")
    for name in _REFUSED:
        if name in given:
            raise InputError(f"Kafka setting {name!r} cannot be used with the lossless producer")
    for name, value in _FORCED.items():
        if not _agrees(given.get(name, value), value):
            raise InputError(f"Kafka setting {name!r} is {given[name]!r}; it must be {value!r}")
    return {
        "message.max.bytes": 2 * 1024**2,  # a smaller limit of the topic is met by ``retry_queue``
        "message.timeout.ms": 0,  # wait for ever: the broker comes back, the log has it anyway
        **SOCKET_LIMITS,
        "queue.buffering.max.messages": settings.max_in_flight,
        "queue.buffering.max.kbytes": 256 * 1024,
        "logger": _LOG,
        **given,
        **_FORCED,
    }


def _agrees(given: object, ours: object) -> bool:
    synonyms = {"-1": "all"}
    text = str(given).lower()
    return synonyms.get(text, text) == str(ours).lower()


def consumer_config(kafka: Mapping[str, object], wal_id: bytes) -> dict[str, object]:
    """Return a reader's configuration with the caller's addresses and credentials."""
    shared = {
        name: value
        for name, value in kafka.items()
        if name not in CALLBACKS | {"logger"} and not name.startswith(_PRODUCER_ONLY)
    }
    return {
        **SOCKET_LIMITS,
        **shared,
        "group.id": f"waybill-recovery-{wal_id.hex()}",  # required, never joined
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
        "logger": _LOG,
    }
