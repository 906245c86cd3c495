"""Recovery: what was lost with a parked object is made again from its records in Kafka."""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.recovery.lost_ids import LostIds as LostIds
    from waybill.recovery.lost_ids import parked_ids as parked_ids
    from waybill.recovery.lost_ids import staged_ids as staged_ids
    from waybill.recovery.parked_objects import WHO as WHO
    from waybill.recovery.parked_objects import LostParked as LostParked
    from waybill.recovery.parked_objects import ParkedRecovery as ParkedRecovery
    from waybill.recovery.parked_objects import lost_parked as lost_parked
    from waybill.recovery.parked_objects import recover_parked as recover_parked
    from waybill.recovery.past_stages import failures_at as failures_at
    from waybill.recovery.past_stages import stages_at as stages_at

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "lost_ids": ["LostIds", "parked_ids", "staged_ids"],
        "parked_objects": ["LostParked", "ParkedRecovery", "WHO", "lost_parked", "recover_parked"],
        "past_stages": ["failures_at", "stages_at"],
    },
)
