"""Where things are kept: the object store (S3), the log (Kafka), the tracker's SQL.

Invariants
  I1  An object's key is written once; the same key always holds the same bytes.
  I2  Errors are sorted: what may pass later is RetryError, what the user set wrong is InputError.
"""

from waybill.storage.advisory_locks import AdvisoryLock
from waybill.storage.bucket_owner import open_owned_objects, refuse_foreign_bucket
from waybill.storage.log import (
    ConfigFault,
    KafkaLog,
    LogEnd,
    LogRecord,
    TopicInfo,
    config_faults,
    digest_of,
    open_log,
    safe_config,
)
from waybill.storage.objects import (
    ObjectInfo,
    ObjectMissingError,
    ObjectShorterError,
    ObjectStore,
    open_objects,
)
from waybill.storage.tracker import TrackerStore, open_tracker

__all__ = [
    "AdvisoryLock",
    "ConfigFault",
    "KafkaLog",
    "LogEnd",
    "LogRecord",
    "ObjectInfo",
    "ObjectMissingError",
    "ObjectShorterError",
    "ObjectStore",
    "TopicInfo",
    "TrackerStore",
    "config_faults",
    "digest_of",
    "open_log",
    "open_objects",
    "open_owned_objects",
    "open_tracker",
    "refuse_foreign_bucket",
    "safe_config",
]
