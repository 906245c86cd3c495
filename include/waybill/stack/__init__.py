"""The embedded stack: PostgreSQL, Kafka, S3 and Airflow, the real ones, on loopback.

Invariants
S1  What runs is registered (`processes`): `up` completes, `down` ends exactly that, also after any
    process here, ours too, was killed at any point.
S2  Everything lies under one folder, ``Settings.home`` (`state_folder`); every port is loopback's.
S3  A service counts as up when it was asked and answered as ours: Kafka with its cluster id, S3 by
    refusing strangers and keeping an object, PostgreSQL by its socket, Airflow by its heartbeats.
S4  A service that does not come up says so with the last lines of its own log.
S5  Secrets are drawn once and lie in files of mode 0600.
S6  What dies between `up` and `down` is started again (`supervisor`).

`embedded.Stack` is the whole; a service alone is `postgres.Postgres`, `kafka.Kafka`,
`seaweed.SeaweedFS` (tests use them so). To add
a long-living process of our own, see `service`.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.stack.doctor import Check as Check
    from waybill.stack.doctor import examine as examine
    from waybill.stack.embedded import ServiceStatus as ServiceStatus
    from waybill.stack.embedded import Stack as Stack
    from waybill.stack.environment import OWN_DESTINATION as OWN_DESTINATION
    from waybill.stack.environment import changed_destinations as changed_destinations
    from waybill.stack.environment import kept_destinations as kept_destinations
    from waybill.stack.environment import refuse_unkeepable as refuse_unkeepable
    from waybill.stack.environment import resolve_paths as resolve_paths
    from waybill.stack.java import find_java as find_java
    from waybill.stack.nodes import LoopbackNodes as LoopbackNodes
    from waybill.stack.nodes import NodeCommands as NodeCommands
    from waybill.stack.ports import free_port as free_port
    from waybill.stack.postgres import Postgres as Postgres
    from waybill.stack.processes import Launch as Launch
    from waybill.stack.processes import ProcessRecord as ProcessRecord
    from waybill.stack.processes import read_record as read_record
    from waybill.stack.processes import read_registry as read_registry
    from waybill.stack.processes import register as register

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "doctor": ["Check", "examine"],
        "embedded": ["ServiceStatus", "Stack"],
        "environment": [
            "OWN_DESTINATION",
            "changed_destinations",
            "kept_destinations",
            "refuse_unkeepable",
            "resolve_paths",
        ],
        "java": ["find_java"],
        "nodes": ["LoopbackNodes", "NodeCommands"],
        "ports": ["free_port"],
        "postgres": ["Postgres"],
        "processes": ["Launch", "ProcessRecord", "read_record", "read_registry", "register"],
    },
)
