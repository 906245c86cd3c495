"""The lossless producer: a write-ahead log in front of librdkafka; no death loses a message.

    with LosslessProducer(settings, {"bootstrap.servers": "..."}, name="orders") as producer:
        producer.produce("events.team.orders", value, key)

Guarantees
  P1  A message whose ``produce`` returned is in Kafka, or was taken by ``on_undeliverable``, or is
      settled by the next opening; whichever process dies, whenever. ``durability`` says whether a
      power cut counts too: ``process`` no, ``group`` all but the last ``group_commit_ms``,
      ``each`` yes.
  P2  It is there once, as far as the topic's tail can be read: a record in doubt is looked for
      before it is sent again (``tail`` says what window is left).
  P3  Old before new: recovery ends before the first new message is taken.
  P4  A mark and the records before it are one unit (``mark``).
  P5  One live process a directory; a fork does not take part.

How the parts fit, in the order a message walks
  wal/        append-only segments: the record is here first
  sending     hands it to librdkafka, stamped with (WAL id, segment, lsn)
  delivery    counts reports by epoch: the low watermark
  redo        failures: again, alone, or to the caller
  keeper      the background thread; checkpoints, after which segments are given free
  tail        reads topics for stamps
  recovery    what an opening does with the log of a dead process

Locks, outermost first: append gate > checkpoint > poll > redo > count. Callbacks of librdkafka run
inside ``poll`` and take only the last two.
"""

from waybill.producer.lock import ProducerBusyError
from waybill.producer.lossless import LosslessProducer
from waybill.producer.model import ProducerStats, Recovery, Undelivered
from waybill.producer.wal import WalFullError, WalRecord

__all__ = [
    "LosslessProducer",
    "ProducerBusyError",
    "ProducerStats",
    "Recovery",
    "Undelivered",
    "WalFullError",
    "WalRecord",
]
