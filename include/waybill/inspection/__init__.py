"""Parked events as users see them, personal fields masked, and what users decide about them."""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.inspection.service import ParkedEventsService as ParkedEventsService
    from waybill.inspection.service import ShownEvent as ShownEvent
    from waybill.inspection.status import ReplayStanding as ReplayStanding
    from waybill.inspection.status import Standing as Standing

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {"service": ["ParkedEventsService", "ShownEvent"], "status": ["ReplayStanding", "Standing"]},
)
