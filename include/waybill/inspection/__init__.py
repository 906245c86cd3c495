"""Parked events and pipelines as users see them, personal fields masked; what users decide."""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.inspection.messages import NewestEvents as NewestEvents
    from waybill.inspection.pipelines import MOST_PIPELINES as MOST_PIPELINES
    from waybill.inspection.pipelines import PipelineFilter as PipelineFilter
    from waybill.inspection.pipelines import PipelineLine as PipelineLine
    from waybill.inspection.pipelines import PipelinePage as PipelinePage
    from waybill.inspection.pipelines import PipelineState as PipelineState
    from waybill.inspection.pipelines import pipeline_page as pipeline_page
    from waybill.inspection.service import ParkedEventsService as ParkedEventsService
    from waybill.inspection.service import ShownEvent as ShownEvent
    from waybill.inspection.status import ReplayStanding as ReplayStanding
    from waybill.inspection.status import Standing as Standing

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "messages": ["NewestEvents"],
        "pipelines": [
            "MOST_PIPELINES",
            "PipelineFilter",
            "PipelineLine",
            "PipelinePage",
            "PipelineState",
            "pipeline_page",
        ],
        "service": ["ParkedEventsService", "ShownEvent"],
        "status": ["ReplayStanding", "Standing"],
    },
)
