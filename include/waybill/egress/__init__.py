"""Outgoing connections to addresses that users write: only to where the settings let them.

Who declares a pipeline chooses where its source is read from, and the answer is shown to him: an
address inside of the platform's own network, such as the machine's metadata service, must not be
among them (server-side request forgery, SSRF).

Invariants
  I1  The address that is judged is the one that is connected to: a name is resolved once, and the
      connection is made to what it gave. A name that answers differently the next time is judged
      again at the next connection, as is each redirect.
  I2  An address is judged as a number, whatever way it was written in: decimal, octal, or IPv4
      inside of IPv6.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.egress.guard import EgressGuard as EgressGuard
    from waybill.egress.guard import ForbiddenAddressError as ForbiddenAddressError
    from waybill.egress.process import guard_process as guard_process
    from waybill.egress.sessions import GuardedAdapter as GuardedAdapter
    from waybill.egress.sessions import GuardedPoolManager as GuardedPoolManager
    from waybill.egress.sessions import guarded_session as guarded_session

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "guard": ["EgressGuard", "ForbiddenAddressError"],
        "process": ["guard_process"],
        "sessions": ["GuardedAdapter", "GuardedPoolManager", "guarded_session"],
    },
)
