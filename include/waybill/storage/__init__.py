"""Where things are kept: the object store (S3), the log (Kafka), the tracker's SQL.

Invariants
  I1  An object's key is written once; the same key always holds the same bytes.
  I2  Errors are sorted: what may pass later is RetryError, what the user set wrong is InputError.
"""

from waybill.storage.log import KafkaLog, TopicInfo, open_log
from waybill.storage.objects import (
    ObjectInfo,
    ObjectMissingError,
    ObjectShorterError,
    ObjectStore,
    open_objects,
)
from waybill.storage.tracker import TrackerStore, open_tracker

__all__ = [
    "KafkaLog",
    "ObjectInfo",
    "ObjectMissingError",
    "ObjectShorterError",
    "ObjectStore",
    "TopicInfo",
    "TrackerStore",
    "open_log",
    "open_objects",
    "open_tracker",
]
