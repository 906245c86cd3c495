"""Virtual clusters to look at: teams with loads, hours of measurements, decisions."""

from __future__ import annotations

import json

from tests.integration.parking_lot import ParkingLot
from tests.support import emptied

_MINUTES = 400


class ClusteredTeams:
    """Writes what the coordinator would have measured and decided, under names of its own."""

    def __init__(self, lot: ParkingLot) -> None:
        self.lot = lot

    def cluster(self, name: str, *, cores: int | None = 4, served: bool = True) -> None:
        """Make a cluster, or set one; its application is at work for an hour, or is not."""
        self.lot.sql(
            "INSERT INTO virtual_clusters (name, cores) VALUES (:name, :cores) "
            "ON CONFLICT (name) DO UPDATE SET cores = excluded.cores",
            name=name, cores=cores,
        )  # fmt: skip
        self.lot.sql(
            "INSERT INTO applications (cluster, kind, epoch, at_work, started_at, heartbeat_at) "
            "VALUES (:name, 'processing', 1, true, now() - interval '1 hour', "
            "now() + make_interval(hours => :served)) "
            "ON CONFLICT (cluster, kind) DO UPDATE SET heartbeat_at = excluded.heartbeat_at",
            name=name, served=1 if served else -1,
        )  # fmt: skip

    def team(self, team: str, *, cores: float, lag_s: float, hot: list[dict] | None = None) -> None:
        """Deploy a pipeline of a team, and write a day of looks at it."""
        pipeline_id = f"pl-{team}"
        self.lot.sql(
            "INSERT INTO pipelines (id, name, team) VALUES (:id, :id, :team)",
            id=pipeline_id, team=team,
        )  # fmt: skip
        self.lot.sql(
            "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by)"
            " VALUES (:id, 1, 'v1', '{\"destination\": \"warehouse\"}', 'test')",
            id=pipeline_id,
        )
        self.lot.sql(
            "INSERT INTO team_loads (team, at, consumers, written, read, lag_s, batches,"
            " batch_events, core_s, hot_partitions) SELECT :team, now() - make_interval(mins => n),"
            " 1, (:minutes - n) * 60000, (:minutes - n) * 60000 - 1234, :lag * (1 + sin(n / 9.0)),"
            " 60, 60000, :core_s, CAST(:hot AS jsonb) FROM generate_series(0, :minutes) AS n",
            team=team, minutes=_MINUTES, lag=lag_s, core_s=cores * 60, hot=json.dumps(hot or []),
        )  # fmt: skip

    def reports(self, name: str, serving: dict, end: dict | None = None) -> None:
        """Have the application of a cluster say what it serves, and why it ended before."""
        self.lot.sql(
            "UPDATE applications SET report = CAST(:report AS jsonb) WHERE cluster = :name",
            name=name, report=json.dumps({"serving": serving | {"epoch": 1}, "end": end}),
        )  # fmt: skip

    def measured(
        self, name: str, *, lag_s: float, cores: float, limit: int | None = 4, hot: str = "[]"
    ) -> None:
        """Write what a cluster needed over the last hours, with a gap; hot for half an hour.

        Ten minutes ahead as well: however slow the tests are, the last step is measured.
        """
        self.lot.sql(
            "INSERT INTO cluster_loads (cluster, at, teams, cores, needed_cores, demand_cores,"
            " lag_s, arrival_per_s, processed_per_s, hot) SELECT :name, now() - make_interval(mins => n), 2, :limit,"
            " ceil(:demand * 1.4), :demand * (1 + 0.3 * sin(n / 30.0)),"
            " :lag * (1 + sin(n / 40.0)), 900 + 400 * sin(n / 25.0), 900 + 300 * sin((n + 6) / 25.0),"
            " CASE WHEN n BETWEEN 90 AND 120 THEN CAST(:hot AS jsonb) ELSE '[]' END FROM generate_series(-10, :minutes) AS n"
            " WHERE n NOT BETWEEN 200 AND 230",
            name=name, limit=limit, demand=cores, lag=lag_s, minutes=_MINUTES, hot=hot,
        )  # fmt: skip

    def decided(self, placements: dict[str, str], moves: list[dict], *, by: str, ago: int) -> None:
        """Write the next version of the assignment, so many minutes ago."""
        at = {
            team: {"cluster": cluster, "since_s": 1.7e9, "kind": "load", "reason": f"of {team}"}
            for team, cluster in placements.items()
        }
        self.lot.sql(
            "INSERT INTO cluster_assignments (version, placements, moves, made_by, made_at) "
            "SELECT coalesce(max(version), 0) + 1, CAST(:at AS jsonb), CAST(:moves AS jsonb), :by, "
            "now() - make_interval(mins => :ago) FROM cluster_assignments",
            at=json.dumps(at), moves=json.dumps(moves), by=by, ago=ago,
        )  # fmt: skip

    def grew(self, team: str, *, ago: int) -> None:
        """Write down that a topic of a team got more partitions, so many minutes ago."""
        topic = f"events.{team}.warehouse"
        self.lot.sql(
            "INSERT INTO topic_generations (topic, generation, name, partitions) "
            "VALUES (:topic, 2, :name, 4)",
            topic=topic, name=topic.replace("events.", "events-g2.", 1),
        )  # fmt: skip
        detail = {"team": team, "why": "it is full", "before": {"partitions": 2}}
        self.lot.sql(
            "INSERT INTO audit_log (at, who, action, target, detail) VALUES (now() - "
            "make_interval(mins => :ago), 'coordinator', 'grow_topic', :target, "
            "CAST(:detail AS jsonb))",
            target=f"topic {topic}", ago=ago,
            detail=json.dumps(detail | {"after": {"partitions": 4}}),
        )  # fmt: skip

    def others(self) -> int:
        """Return how many teams other tests left: they are in ``default``, without a load."""
        [[number]] = self.lot.sql(
            "SELECT count(DISTINCT team) FROM pipelines JOIN pipeline_versions ON pipeline_id = id "
            "WHERE team NOT LIKE 'cl-%'"
        )
        return int(number)

    def forget(self) -> None:
        """Leave the one cluster that there was, and nothing measured."""
        for table in ("cluster_pins", "cluster_assignments", "cluster_loads", "team_loads"):
            self.lot.sql(f"TRUNCATE {table}")
        self.lot.sql("DELETE FROM topic_generations WHERE topic LIKE 'events.cl-%'")
        self.lot.sql(emptied.without_triggers("DELETE FROM audit_log WHERE action = 'grow_topic'"))
        self.lot.sql("DELETE FROM pipeline_versions WHERE pipeline_id LIKE 'pl-cl-%'")
        self.lot.sql("DELETE FROM pipelines WHERE id LIKE 'pl-cl-%'")
        self.lot.sql("DELETE FROM virtual_clusters WHERE name <> 'default'")
        self.lot.sql("UPDATE applications SET report = '{}'")
        self.lot.sql("UPDATE virtual_clusters SET cores = NULL")
