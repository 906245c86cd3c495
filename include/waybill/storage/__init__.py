"""Where things are kept: the object store (S3), the log (Kafka), the tracker's SQL.

Invariants
  I1  An object's key is written once; the same key always holds the same bytes.
  I2  Errors are sorted: what may pass later is RetryError, what the user set wrong is InputError.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.storage.advisory_locks import AdvisoryLock as AdvisoryLock
    from waybill.storage.bucket_owner import BucketOwner as BucketOwner
    from waybill.storage.bucket_owner import check_owner as check_owner
    from waybill.storage.bucket_owner import claim as claim
    from waybill.storage.bucket_owner import deployment_id as deployment_id
    from waybill.storage.bucket_owner import deployment_of as deployment_of
    from waybill.storage.bucket_owner import open_objects_of as open_objects_of
    from waybill.storage.bucket_owner import open_owned_objects as open_owned_objects
    from waybill.storage.bucket_owner import read_owner as read_owner
    from waybill.storage.bucket_owner import refuse_foreign_bucket as refuse_foreign_bucket
    from waybill.storage.kafka_acls import KafkaAcl as KafkaAcl
    from waybill.storage.kafka_acls import KafkaAcls as KafkaAcls
    from waybill.storage.kafka_security import java_config as java_config
    from waybill.storage.kafka_security import librdkafka_config as librdkafka_config
    from waybill.storage.kafka_security import with_files_read as with_files_read
    from waybill.storage.log import ConfigFault as ConfigFault
    from waybill.storage.log import KafkaLog as KafkaLog
    from waybill.storage.log import LogEnd as LogEnd
    from waybill.storage.log import LogRecord as LogRecord
    from waybill.storage.log import LogState as LogState
    from waybill.storage.log import RecordReader as RecordReader
    from waybill.storage.log import TopicInfo as TopicInfo
    from waybill.storage.log import TopicSpan as TopicSpan
    from waybill.storage.log import config_faults as config_faults
    from waybill.storage.log import digest_of as digest_of
    from waybill.storage.log import open_log as open_log
    from waybill.storage.log import safe_config as safe_config
    from waybill.storage.objects import Deletion as Deletion
    from waybill.storage.objects import ObjectInfo as ObjectInfo
    from waybill.storage.objects import ObjectMissingError as ObjectMissingError
    from waybill.storage.objects import ObjectShorterError as ObjectShorterError
    from waybill.storage.objects import ObjectStore as ObjectStore
    from waybill.storage.objects import open_objects as open_objects
    from waybill.storage.payloads import LARGEST_MESSAGE_BYTES as LARGEST_MESSAGE_BYTES
    from waybill.storage.payloads import PayloadReader as PayloadReader
    from waybill.storage.payloads import check_in as check_in
    from waybill.storage.payloads import payloads_at_once as payloads_at_once
    from waybill.storage.range_reader import PartitionRange as PartitionRange
    from waybill.storage.range_reader import RangeReader as RangeReader
    from waybill.storage.range_reader import Records as Records
    from waybill.storage.range_reader import Unread as Unread
    from waybill.storage.tracker import NOTIFYING_ERRORS as NOTIFYING_ERRORS
    from waybill.storage.tracker import Notifications as Notifications
    from waybill.storage.tracker import NotifiedVersions as NotifiedVersions
    from waybill.storage.tracker import TrackerStore as TrackerStore
    from waybill.storage.tracker import open_tracker as open_tracker

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "advisory_locks": ["AdvisoryLock"],
        "bucket_owner": [
            "BucketOwner",
            "check_owner",
            "claim",
            "deployment_id",
            "deployment_of",
            "open_objects_of",
            "open_owned_objects",
            "read_owner",
            "refuse_foreign_bucket",
        ],
        "kafka_acls": ["KafkaAcl", "KafkaAcls"],
        "kafka_security": ["java_config", "librdkafka_config", "with_files_read"],
        "log": [
            "ConfigFault",
            "KafkaLog",
            "LogEnd",
            "LogRecord",
            "LogState",
            "RecordReader",
            "TopicInfo",
            "TopicSpan",
            "config_faults",
            "digest_of",
            "open_log",
            "safe_config",
        ],
        "objects": [
            "Deletion",
            "ObjectInfo",
            "ObjectMissingError",
            "ObjectShorterError",
            "ObjectStore",
            "open_objects",
        ],
        "payloads": ["LARGEST_MESSAGE_BYTES", "PayloadReader", "check_in", "payloads_at_once"],
        "range_reader": ["PartitionRange", "RangeReader", "Records", "Unread"],
        "tracker": [
            "NOTIFYING_ERRORS",
            "Notifications",
            "NotifiedVersions",
            "TrackerStore",
            "open_tracker",
        ],
    },
)
