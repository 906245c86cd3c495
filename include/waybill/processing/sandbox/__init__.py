"""User code in processes of its own, which hold nothing of the platform's.

A warm server, started with an empty environment, forks one process an owner (a team, or a pipeline
by setting). Each gives up, before it runs any user code, what ``confinement`` says; then it takes
batches of messages over a socket and answers with what its code made of them. The server and all
processes end with the process that uses them.

Invariants
  I1  No process of user code ever held a secret of the platform, nor can it reach one: it is not
      forked from a process that did, and its files, sockets and system calls are closed.
  I2  What a process answers decides payload, name and op of its own events, and nothing else:
      identity, versions and counts are those that the platform read from the log.
  I3  A process that dies, hangs, fills its disk or answers nonsense costs the event at fault, which
      is found and parked. Its neighbours are run again.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.processing.sandbox.confinement import Confinement as Confinement
    from waybill.processing.sandbox.confinement import Limits as Limits
    from waybill.processing.sandbox.confinement import close_files as close_files
    from waybill.processing.sandbox.confinement import end_with_parent as end_with_parent
    from waybill.processing.sandbox.pool import Sandbox as Sandbox
    from waybill.processing.sandbox.pool import sandbox_with as sandbox_with
    from waybill.processing.sandbox.pool import shared_sandbox as shared_sandbox

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "confinement": ["Confinement", "Limits", "close_files", "end_with_parent"],
        "pool": ["Sandbox", "sandbox_with", "shared_sandbox"],
    },
)
