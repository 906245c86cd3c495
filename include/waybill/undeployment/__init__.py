"""Undeploying a pipeline: its source is not read any more, what is on its way arrives.

The steps, each of which is found done when the command is run again:

  1  a row of ``undeployments``: from its commit on no run of ingestion begins to read
  2  the run that goes on is asked to stop; what dead runs left in a log is brought to Kafka
  3  the books are looked at until nothing of the pipeline is on its way
  4  where its tables are dropped: ``dropping_at`` is set, from then on no deploy gets between, none
     of another pipeline onto these tables either, and no replay; then they are dropped in one
     transaction of the destination. A drop that fails is noted, and tried again by who goes on
  5  one transaction of the tracker: ``done_at``, the audit log, and, where tables may be gone, that
     the source is read from its beginning once the pipeline is deployed again

One goes on at a time: each step is taken under an advisory lock of the pipeline, 4 for as long as
the tables are being dropped. Who had the lock before may have ended it all, and a deploy may have
come since: so a step is refused unless the undeployment is the one that it began with.

Whoever is killed before 4 leaves a pipeline that drains, which a deploy takes back; after it one
whose tables may be gone, and which is finished by the same command. The pipeline's versions, books,
parked events and mappings stay; its topic is read on, so that nothing that comes late is lost.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.undeployment.request import UndeployRequest as UndeployRequest
    from waybill.undeployment.steps import Drained as Drained
    from waybill.undeployment.steps import DropRefusedError as DropRefusedError
    from waybill.undeployment.steps import OnTheWay as OnTheWay
    from waybill.undeployment.steps import begin_drop as begin_drop
    from waybill.undeployment.steps import drop_tables as drop_tables
    from waybill.undeployment.steps import finish as finish
    from waybill.undeployment.steps import on_the_way as on_the_way
    from waybill.undeployment.steps import refuse_drop as refuse_drop
    from waybill.undeployment.steps import refuse_hindered as refuse_hindered
    from waybill.undeployment.steps import refuse_pushed as refuse_pushed
    from waybill.undeployment.steps import tables_of as tables_of

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "request": ["UndeployRequest"],
        "steps": [
            "Drained",
            "DropRefusedError",
            "OnTheWay",
            "begin_drop",
            "drop_tables",
            "finish",
            "on_the_way",
            "refuse_drop",
            "refuse_hindered",
            "refuse_pushed",
            "tables_of",
        ],
    },
)
