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

How the parts fit, in the order a message walks
  lossless       what callers open: ``produce``, marks, what is parked, forks, ``flush`` and
                 ``close``; ``batch`` checks many
  wal/           append-only segments: the record is here first (``frame``, ``segment``,
                 ``log``; ``free`` and ``space`` for room, ``syncing`` and ``poison`` for the disk's
                 word, ``disk`` and ``memory_disk`` below them)
  sending        hands it to librdkafka, stamped with (WAL id, segment, lsn); ``client`` has the
                 configuration, the stamp and the errors, sorted
  delivery       counts reports by epoch: the low watermark
  callbacks      the caller's ``on_delivery``, called outside of librdkafka
  retry_queue    failures: again, alone, or to the caller; with the room where they wait
  retry_log      small logs for records set aside: ``retry/`` and ``parked/``
  maintenance    the background thread; checkpoints (``checkpoint``), after which segments are free

How it begins and ends
  components     opens a directory and puts the producer together; ``files``: what lies there
  environment    what lies outside: disk, lock (one live process a directory), Kafka, threads.
                 Tests bring theirs
  forks          which directory a fork uses
  recovery       what an opening does with the log of a dead process
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
    from waybill.producer.environment import ProducerBusyError as ProducerBusyError
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
        "environment": ["ProducerBusyError"],
        "lossless": ["LosslessProducer"],
        "model": ["FoundLog", "ProducerStats", "Recovery", "Undelivered"],
        "tail": ["SETTLE_S"],
        "wal": ["WalFullError", "WalRecord"],
    },
)
