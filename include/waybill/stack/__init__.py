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

from waybill.stack.processes import Record, read_registry, register

__all__ = ["Record", "read_registry", "register"]
