"""Notices: the owners of pipelines are told what happened to their events.

A notice is a row, written in the transaction that does what it tells of. Sending is another run:
it puts the notices of an owner together into one message, and sends it by each sink.

Invariants
  I1  What is told happened, and what happened is told: a notice is committed with its cause.
  I2  A notice is never lost: it stays unsent until every sink has taken the message that tells it.
  I3  A message has one id from when it is put together until it came: a double is known by it.
  I4  One owner gets at most one message a run and sink, however many notices wait.
  I5  A sink that fails for one owner, or at all, holds up neither other owners nor other sinks.
  I6  Names and messages from users are text: no header, mark-up or mention is made of them.

How a message goes (``outbox``): it is put together and committed with its id and the notices in it;
sent; and, in one more transaction, its notices are marked and it is deleted. A SIGKILL before the
first commit leaves notices, one after it a message that the next run sends, one after sending a
message that the next run sends again, under the same id.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.notices.outbox import SentNotice as SentNotice
    from waybill.notices.outbox import WaitingNotice as WaitingNotice
    from waybill.notices.outbox import sent_notices as sent_notices
    from waybill.notices.outbox import waiting_notices as waiting_notices
    from waybill.notices.rendering import Message as Message
    from waybill.notices.rendering import NamedCounts as NamedCounts
    from waybill.notices.rendering import one_line as one_line
    from waybill.notices.sending import SendReport as SendReport
    from waybill.notices.sending import send_notices as send_notices
    from waybill.notices.sending import send_test as send_test
    from waybill.notices.sinks import Sink as Sink
    from waybill.notices.sinks import SinkAwayError as SinkAwayError
    from waybill.notices.sinks import SinkError as SinkError
    from waybill.notices.sinks import open_sinks as open_sinks
    from waybill.notices.writing import KINDS as KINDS
    from waybill.notices.writing import Kind as Kind
    from waybill.notices.writing import write_first as write_first
    from waybill.notices.writing import write_notice as write_notice

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "outbox": ["SentNotice", "WaitingNotice", "sent_notices", "waiting_notices"],
        "rendering": ["Message", "NamedCounts", "one_line"],
        "sending": ["SendReport", "send_notices", "send_test"],
        "sinks": ["Sink", "SinkAwayError", "SinkError", "open_sinks"],
        "writing": ["KINDS", "Kind", "write_first", "write_notice"],
    },
)
