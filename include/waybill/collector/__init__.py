"""The HTTP collector: events that their source sends, into the write-ahead log and Kafka.

Invariants
  I1  A request gets 202 or 207 only when the disk has all its accepted events (``ack: kafka``: when
      Kafka has them, or they are parked). One sync of the disk answers all requests that wait.
  I2  What the log holds is counted, and sent: whatever process dies, whenever. The next opening of
      the log recovers what it holds before it takes anything new.
  I3  A record that cannot be an event is answered, with its place and its reason, and not kept: its
      sender has it. The others of its request are taken.
  I4  Nobody learns whether a pipeline exists without its secret; no payload and no secret is in a
      log or an answer.
  I5  A request costs bounded memory and time, whatever it holds: body, what that inflates to,
      records, head, time to send.

How the parts fit, in the order a request takes
  application     the ASGI application: routes, limits, answers
  authentication  bearer tokens and signatures
  body            compression and formats: JSON, lines, CloudEvents
  records         from a record to an event, or why it is none
  intake          one pipeline's write-ahead log in this process: appends, syncs, pages, commits
  workers         processes: which logs are whose; those of workers that are gone
  protocol        limits of the connection
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.collector.application import Collector as Collector
    from waybill.collector.intake import Stores as Stores
    from waybill.collector.protocol import LimitedProtocol as LimitedProtocol

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "application": ["Collector"],
        "intake": ["Stores"],
        "protocol": ["LimitedProtocol"],
    },
)
