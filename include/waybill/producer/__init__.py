"""The lossless producer: a write-ahead log in front of librdkafka; no death loses a message.

    with LosslessProducer(settings, {"bootstrap.servers": "..."}, name="orders") as producer:
        producer.produce("events.team.orders", value, key)

Guarantees
  P1  A message whose ``produce`` returned is in Kafka, or was taken by ``on_undeliverable`` (else
      it is parked beside the log), or is settled by the next opening; whichever process dies,
      whenever. ``durability`` says whether a power cut counts too: ``process`` no, ``group`` all
      but the last ``group_commit_ms``, ``each`` yes.
  P2  It is there once, as far as the topic's tail can be read: a record in doubt is looked for
      before it is sent again (``tail`` says what window is left).
  P3  Old before new: recovery ends before the first new message is taken. Records in the retry log
      do not hold it up; they hold up their keys.
  P4  A mark and the records before it are one unit (``mark``).
  P5  One live process a directory; a fork opens a directory of its own.

How the parts fit, in the order a message takes
  lossless       what callers open: ``produce``, marks, parked messages, ``flush`` and ``close``
  batches        what ``produce_batch`` and ``produce_values`` are given, checked
  wal/           append-only segments; the record is written here first (``frame``, ``segment``,
                 ``log``; ``frame_runs`` reads a segment fast; ``syncer`` for what the disk has;
                 ``disk`` and ``memory_disk`` below them)
  sender         hands it to librdkafka, stamped with (WAL id, segment, lsn); ``client`` has the
                 configuration, the stamp, and the kinds of errors
  delivery       counts delivery reports by epoch, which gives the low watermark, and calls the
                 caller's ``on_delivery``
  retry_queue    failures: sent again, sent alone, or given to the caller
  retry_log      small logs for records set aside: ``retry/`` and ``parked/``
  maintenance    the background thread; writes checkpoints (``checkpoint``), which free segments

How it begins and ends
  components     opens a directory, puts the parts together, closes them
  forks          one live process a directory; which directory a fork uses
  recovery       opens the files of a directory, and settles what a dead process left there
  tail           reads topics for stamps
  model          what callers are handed: statistics, what was recovered, what cannot be delivered
  metrics        the statistics for Prometheus; not imported here

Locks, outermost first: append gate > checkpoint > poll > retry_queue > count. Callbacks of
librdkafka run inside ``poll`` and take only the last two.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.producer.client import HEADER as HEADER
    from waybill.producer.client import read_stamp as read_stamp
    from waybill.producer.forks import ProducerBusyError as ProducerBusyError
    from waybill.producer.lossless import LosslessProducer as LosslessProducer
    from waybill.producer.model import FoundLog as FoundLog
    from waybill.producer.model import ProducerStats as ProducerStats
    from waybill.producer.model import Recovery as Recovery
    from waybill.producer.model import Undelivered as Undelivered
    from waybill.producer.tail import SETTLE_S as SETTLE_S
    from waybill.producer.wal import WalFullError as WalFullError
    from waybill.producer.wal import WalRecord as WalRecord

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "client": ["HEADER", "read_stamp"],
        "forks": ["ProducerBusyError"],
        "lossless": ["LosslessProducer"],
        "model": ["FoundLog", "ProducerStats", "Recovery", "Undelivered"],
        "tail": ["SETTLE_S"],
        "wal": ["WalFullError", "WalRecord"],
    },
)
