"""Writes docs/settings.md from ``Settings``: ``python -m tests.support.settings_page``.

Names, types, defaults and bounds come from the models; what a setting does comes from its docstring in
``waybill.settings``, and from ``WORDS`` where it has none. One without words is an error.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from waybill.settings import BUILT_IN_KINDS, DestinationSettings, Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

TITLES = {
    "kafka": "Kafka",
    "s3": "Object store (S3)",
    "tracker": "Tracker (PostgreSQL)",
    "sources": "Files of sources",
    "egress": "Egress",
    "wal": "Write-ahead log of the producer",
    "spark": "Spark applications",
    "sandbox": "User code",
    "traces": "Traces",
    "parking": "Parked files",
    "retention": "How long things are kept",
    "notices": "Being told",
    "audit": "The auditor",
    "airflow": "Airflow",
    "capacity": "Capacity that follows the work",
    "access": "Access to parked events in Airflow",
    "collector": "HTTP collector",
    "stack": "Embedded stack",
}

WORDS = {
    "pipelines_dir": "Folder with a folder for each declared pipeline.",
    "dags_dir": "Airflow's DAG folder; `spark_jobs/` lies beside it.",
    "kafka.bootstrap_servers": "Brokers, `host:port`, with commas between.",
    "kafka.topic_partitions": "Partitions of a topic when Waybill creates it.",
    "kafka.replication_factor": "Copies of each partition when Waybill creates a topic; 3 in production.",
    "s3.endpoint_url": "Address of the S3 server; empty: AWS. `waybill up` sets it.",
    "s3.bucket": "Bucket for staged, parked, payload and trace objects.",
    "s3.region": "Region of the bucket.",
    "s3.access_key": "Key of the S3 user; empty: the usual AWS credential chain.",
    "s3.secret_key": "Secret of that key.",
    "tracker.dsn": "PostgreSQL database of the books, `postgresql://…`. `waybill up` sets it.",
    "tracker.pool_size": "Connections that one process keeps open.",
    "wal.dir": "Folder of the write-ahead logs, on a local disk; one folder a log inside.",
    "wal.segment_bytes": (
        "Size that a segment is allocated to; in the logs of ingestion and of replays at most 16 MiB."
    ),
    "wal.durability": "What an accepted message survives. `process`: the death of the process. "
    "`group`: also a power cut, but for the last `group_commit_ms`. `each`: also a power cut, each message.",
    "wal.group_commit_ms": "With durability `group`: time between two syncs to disk.",
    "wal.checkpoint_interval_ms": "Time between two checkpoints; after each, settled segments are used again.",
    "wal.retry_interval_ms": "Wait before a message that Kafka did not take is sent again.",
    "wal.max_in_flight": "Most messages that wait for Kafka's acknowledgement; above it, producing waits.",
    "wal.disk_threshold_bytes": "Most that one log may take; at least twice `segment_bytes`.",
    "wal.disk_floor_bytes": "Free disk that a log leaves untouched.",
    "wal.when_full": "At the threshold or the floor: `wait` for room, or `raise` an error.",
    "spark.master": "Spark master. `local[2,4]`: two cores here, four tries a task.",
    "spark.driver_memory": "Heap of the driver's Java. Loading has none on a master `local`.",
    "spark.jars_dir": "Folder with the Kafka connector of Spark; `waybill up` fills it.",
    "spark.trigger_ms": "Time between two micro-batches when there is little to do; queries of an application of "
    "processing add up to a ninth, each another part of it, so that they do not begin together. Loading is told of "
    "commits, and looks so often for what it was not told of.",
    "spark.event_timeout_s": "Longest that a transformation may take for one event; then the event is "
    "parked as `transformation_timeout`.",
    "spark.work_dir": "Folder for checkpoints (made anew at each start) and Spark's scratch files.",
    "traces.spool_dir": "Folder of trace files that are not shipped yet, on a local disk.",
    "traces.buckets": "Parts that an hour's traces are cut into by event id, for a store that has no traces "
    "yet; empty: 128. Never changes once traces are in the store: another number is an error then.",
    "traces.roll_bytes": "Finished local files of this many bytes are shipped at once.",
    "traces.disk_threshold_bytes": "Most that the spool may hold; above it, writers wait, then fail.",
    "traces.enabled": "`false`: no traces are written, `waybill trail` finds none.",
    "traces.backend": "What answers `waybill trail`: DuckDB over the objects, or Athena.",
    "traces.athena_database": "With backend `athena`: its database.",
    "traces.athena_workgroup": "With backend `athena`: its workgroup.",
    "notices.smtp_port": "Port of the mail server.",
    "capacity.variable": "With store `airflow`: the Variable's name.",
    "capacity.consul_url": "With store `consul`: address of its agent, on port 8500 by default.",
    "capacity.consul_key": "With store `consul`: the key's path.",
    "capacity.consul_token": "With store `consul`: an ACL token that may read the key.",
    "airflow.url": "Address of Airflow's API server. `waybill up` sets it.",
    "airflow.user": "User that the command line signs in as.",
    "airflow.password": "Password of that user.",
    "stack.kafka_port": "Kafka.",
    "stack.kafka_controller_port": "Kafka's controller.",
    "stack.kafka_heap_mb": "Heap of Kafka's Java.",
    "stack.s3_port": "S3 server; like all its ports, it also opens the port 10,000 above.",
    "stack.s3_master_port": "SeaweedFS master; it answers nobody but the S3 server.",
    "stack.s3_volume_port": "SeaweedFS volume server; it answers nobody but the S3 server.",
    "stack.s3_filer_port": "SeaweedFS filer; it answers nobody but the S3 server.",
    "stack.airflow_port": "Airflow's UI and API.",
    "destination.kind": "Kind of warehouse: "
    + ", ".join(f"`{one}`" for one in BUILT_IN_KINDS)
    + "; or one that an installed package brings.",
    "destination.dsn": "How to reach it: `postgresql://user:password@host:5432/database`.",
}

UNITS = (
    ("_per_s", "a second"),
    ("_bytes", "bytes"),
    ("_ms", "milliseconds"),
    ("_mb", "MiB"),
    ("_port", "port"),
    ("_days", "days"),
    ("_s", "seconds"),
    ("_dir", "path"),
    ("partitions", "count"),
    ("replication_factor", "count"),
    ("pool_size", "count"),
    ("max_in_flight", "messages"),
    ("max_events_per_batch", "events"),
    ("buckets", "count"),
    ("home", "path"),
    ("wal.dir", "path"),
)

HEAD = """\
# Settings

<!-- Written by `python -m tests.support.settings_page`; do not edit. -->

Every setting is a variable `WAYBILL_…`; two underscores stand between levels. The first source that has a value
wins:

1. variables of the process;
2. the file `stack.env` in the state folder (`WAYBILL_HOME`), which `waybill up` writes: the addresses and keys of
   the embedded stack, and whatever else was set when it was called;
3. the default below.

In Airflow's tasks, triggers and pages its [connection](airflow.md#the-connection) goes before all three.

A misspelt name, a value of the wrong type or below its minimum stops the command, names the variable, and changes
nothing. Settings are read once a process. Relative paths start at the working folder; `waybill up` writes them
to `stack.env` in full, and puts what begins with `.waybill` below `WAYBILL_HOME`.
"""

DESTINATIONS = """\
`<NAME>` is the destination's name, as pipelines give it (`destination: {name: …}`). From variables it arrives in small
letters; a name with others is set in JSON: `WAYBILL_DESTINATIONS={"My-House": {"kind": "postgres", "dsn": "…"}}`.
`waybill up` sets the destination `warehouse`.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, "## General\n", _table(_rows(Settings, "", ""))]
    for name, title in TITLES.items():
        section = type(getattr(Settings(_env_file=None), name))
        about = inspect.cleandoc(section.__doc__ or "")
        parts += [f"## {title}\n", f"{about}\n"]
        parts.append(_table(_rows(section, f"{name}.", f"{name.upper()}__")))
    parts += ["## Destinations\n", DESTINATIONS]
    parts.append(_table(_rows(DestinationSettings, "destination.", "DESTINATIONS__<NAME>__")))
    return "\n".join(parts)


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| variable | default | unit | allowed | what it does |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], path: str, prefix: str) -> Iterator[tuple[str, ...]]:
    written = docstrings(model)
    for name, field in model.model_fields.items():
        if name in TITLES or name == "destinations":
            continue
        words = WORDS.get(path + name) or written.get(name)
        if not words:
            raise SystemExit(f"setting {path + name} has no words: give it a docstring")
        yield (
            f"`WAYBILL_{prefix}{name.upper()}`",
            _default(field),
            _unit(path + name),
            _allowed(field),
            words.replace("|", "\\|"),
        )


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return {field: the string that stands below it in the source}."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for before, node in zip(tree.body, tree.body[1:], strict=False):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            found[before.target.id] = " ".join(inspect.cleandoc(node.value.value).split())
    return found


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "none: required"
    value = field.default
    if value is None or value in ("", ()):
        return "empty"
    if isinstance(value, tuple):
        said = json.dumps(
            [one.model_dump() if isinstance(one, BaseModel) else one for one in value]
        )
        return f"`{said}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return f"`{value}` ({_human(value)})"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _human(count: int) -> str:
    for name, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= size and count % size == 0:
            return f"{count // size} {name}"
    return str(count)


def _unit(path: str) -> str:
    return next((unit for end, unit in UNITS if path.endswith(end)), "")


def _allowed(field: FieldInfo) -> str:
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" if choice else "empty" for choice in get_args(kind))
    if kind is SecretStr or SecretStr in get_args(kind):
        return "secret"
    if kind is bool:
        return "`true` or `false`"
    words = []
    for bound in field.metadata:
        for attribute, sign in (("ge", "at least"), ("gt", "above"), ("le", "at most")):
            limit = getattr(bound, attribute, None)
            if limit is not None:
                words.append(f"{sign} {_limit(limit)}")
    return ", ".join(words)


def _limit(value: float) -> str:
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return _human(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
