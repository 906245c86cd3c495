"""Ingestion: pages of a source into the write-ahead log and Kafka, each exactly once.

Invariants
  I1  A page is whole in the write-ahead log, with its mark, before the tracker hears of it; a crash
      between the two is finished from the mark by the next run.
  I2  A run that finds the beginning of an unfinished page in the log appends only the rest of it.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.ingestion.page_traces import PageTraces as PageTraces
    from waybill.ingestion.refused_messages import Undeliverable as Undeliverable
    from waybill.ingestion.request import IngestRequest as IngestRequest
    from waybill.ingestion.run import Intake as Intake
    from waybill.ingestion.run import ingest as ingest
    from waybill.ingestion.run_progress import RunProgress as RunProgress
    from waybill.ingestion.run_report import IngestReport as IngestReport
    from waybill.ingestion.source_rows import IntakeRows as IntakeRows
    from waybill.ingestion.takeover import SourceClaim as SourceClaim
    from waybill.ingestion.takeover import registered as registered
    from waybill.ingestion.takeover import settle as settle
    from waybill.ingestion.takeover import taken_us as taken_us
    from waybill.ingestion.turns import KafkaWaitError as KafkaWaitError
    from waybill.ingestion.turns import RunSoFar as RunSoFar
    from waybill.ingestion.turns import Turn as Turn
    from waybill.ingestion.turns import TurnEndedError as TurnEndedError
    from waybill.ingestion.turns import WaitLimit as WaitLimit

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "page_traces": ["PageTraces"],
        "refused_messages": ["Undeliverable"],
        "request": ["IngestRequest"],
        "run": ["Intake", "ingest"],
        "run_progress": ["RunProgress"],
        "run_report": ["IngestReport"],
        "source_rows": ["IntakeRows"],
        "takeover": ["SourceClaim", "registered", "settle", "taken_us"],
        "turns": ["KafkaWaitError", "RunSoFar", "Turn", "TurnEndedError", "WaitLimit"],
    },
)
