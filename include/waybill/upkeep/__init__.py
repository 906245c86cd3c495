"""Upkeep: jobs that are due each minute, run by one warm process.

What a job is, its record and its lease (records); who runs what is due (shift). What the jobs do is
the services' business.

Invariants
  I1  A job is begun by whoever writes its lease: one statement, which takes effect only where
      nobody has it, or its holder gave no sign of life for ``LEASE_S``.
  I2  A lease is known by a token that is never given twice. Whoever lost it changes nothing of the
      record any more, learns that within ``BEAT_S``, and ends its process; a tracker that was
      restored to an older point has other tokens, or none.
  I3  Times are the tracker's. One that lies ahead, as the clock was set back or the tracker comes
      from another machine, counts as long ago: no job stops for ever.
  I4  Killed between lease, work and record: the lease ends, and the work is done again. So the work
      itself may be killed, repeated, and run beside itself for the moment in which a frozen process
      wakes up.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.upkeep.records import JOBS as JOBS
    from waybill.upkeep.records import LEASE_S as LEASE_S
    from waybill.upkeep.records import Job as Job
    from waybill.upkeep.records import JobRecord as JobRecord
    from waybill.upkeep.records import find_job as find_job
    from waybill.upkeep.records import pause_job as pause_job
    from waybill.upkeep.records import read_jobs as read_jobs
    from waybill.upkeep.records import resume_job as resume_job
    from waybill.upkeep.shift import Shift as Shift

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "records": [
            "JOBS",
            "LEASE_S",
            "Job",
            "JobRecord",
            "find_job",
            "pause_job",
            "read_jobs",
            "resume_job",
        ],
        "shift": ["Shift"],
    },
)
