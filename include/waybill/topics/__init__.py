"""Topics: configuration, generations, and stops of those whose log is not what the ledger knows."""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.topics.configuration import TopicLine as TopicLine
    from waybill.topics.configuration import ask_rereads as ask_rereads
    from waybill.topics.configuration import configure as configure
    from waybill.topics.configuration import faults_of as faults_of
    from waybill.topics.configuration import topic_lines as topic_lines
    from waybill.topics.generations import Draining as Draining
    from waybill.topics.generations import Growth as Growth
    from waybill.topics.generations import delete_ended as delete_ended
    from waybill.topics.generations import generation_ends as generation_ends
    from waybill.topics.generations import grow as grow
    from waybill.topics.generations import late_records as late_records
    from waybill.topics.generations import open_topic as open_topic
    from waybill.topics.generations import open_writing_topic as open_writing_topic
    from waybill.topics.generations import plan_growth as plan_growth
    from waybill.topics.generations import unknown_names as unknown_names
    from waybill.topics.generations import waits_for as waits_for
    from waybill.topics.request import MOST_PARTITIONS as MOST_PARTITIONS
    from waybill.topics.request import GrowRequest as GrowRequest
    from waybill.topics.request import SettleRequest as SettleRequest
    from waybill.topics.stops import ALL_PARTITIONS as ALL_PARTITIONS
    from waybill.topics.stops import LogFault as LogFault
    from waybill.topics.stops import Settlement as Settlement
    from waybill.topics.stops import TopicStop as TopicStop
    from waybill.topics.stops import apply_settlement as apply_settlement
    from waybill.topics.stops import examine as examine
    from waybill.topics.stops import plan_settlement as plan_settlement
    from waybill.topics.stops import read_stops as read_stops
    from waybill.topics.stops import record_stops as record_stops
    from waybill.topics.stops import settled_holes as settled_holes
    from waybill.topics.stops import stop_error as stop_error
    from waybill.topics.stops import stops_in as stops_in

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "configuration": ["TopicLine", "ask_rereads", "configure", "faults_of", "topic_lines"],
        "generations": [
            "Draining",
            "Growth",
            "delete_ended",
            "generation_ends",
            "grow",
            "late_records",
            "open_topic",
            "open_writing_topic",
            "plan_growth",
            "unknown_names",
            "waits_for",
        ],
        "request": ["GrowRequest", "MOST_PARTITIONS", "SettleRequest"],
        "stops": [
            "ALL_PARTITIONS",
            "LogFault",
            "Settlement",
            "TopicStop",
            "apply_settlement",
            "examine",
            "plan_settlement",
            "read_stops",
            "record_stops",
            "settled_holes",
            "stop_error",
            "stops_in",
        ],
    },
)
