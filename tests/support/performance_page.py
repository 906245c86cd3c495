"""Keeps the figures of benchmarks: ``docs/performance.jsonl``, and ``docs/performance.md`` made of it.

``make bench-processing | make record BENCH=bench-processing`` adds the last line of a full form's
output, with today's date and the commit, and prints each figure against the one before.
``python -m tests.support.performance_page`` writes the page alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "performance.jsonl"
SHOWN = {
    "bench-processing": (
        "processing_events_per_s", "vs_identity", "sandbox_cost", "identity_events_per_s",
        "in_worker_events_per_s", "loading_rows_per_s", "in_worker_cpu_us_per_event",
        "processing_cpu_us_per_event", "identity_cpu_us_per_event", "loading_cpu_us_per_row",
        "vs_identity_batch_form", "vs_udf", "vs_loop", "trace_overhead", "failing_10pct_vs_clean",
        "topics_100_vs_1", "idle_topic_cpu_ms_per_s", "group_restart_s", "others_share",
        "latency_p50_s", "latency_p99_s", "backlog_2000_vs_1", "peak_rss_mb",
    ),
    "bench-producer": (
        "throughput_ratio_100b", "throughput_ratio_1kb", "throughput_ratio_10kb",
        "batch_ratio_1kb", "values_ratio_1kb", "added_cpu_us_1kb", "batch_added_cpu_us_1kb", "append_p50_us_1kb",
        "append_p99_us_1kb", "wal_bytes_per_message_1kb", "wal_open_s_per_gib",
    ),
    "bench-shapes": (
        "worst_ratio", "names_200_vs_1", "failing_1pct_vs_clean", "doubles_vs_ints",
        "deletes_vs_upserts", "simplest_us",
    ),
    "bench-parking": (
        "failing_vs_clean", "puts_per_task_batch", "list_p95_ms", "discard_500k_s",
        "replay_vs_live", "peak_rss_mb",
    ),
    "bench-replay-latency": (
        "live_p95_ms_alone", "live_p95_ms_with_replay", "ratio", "replay_per_s",
    ),
    "bench-tracker": (
        "recorder_overhead_cpu", "bytes_per_trace", "files_per_s", "range_p99_ms", "lookup_p95_s",
        "lookup_objects_share", "audit_ms", "watch_ms", "balance_ms", "processing_commit_ms",
    ),
    "bench-destinations": (
        "postgres_vs_bare", "postgres_cpu_vs_bare", "duckdb_vs_bare", "duckdb_cpu_vs_bare",
        "delta_vs_bare", "delta_cpu_vs_bare", "peak_rss_mb", "merge_10m_vs_1m",
    ),
    "bench-clusters": (
        "recovery_s", "recovery_median_s", "reversals", "moves_per_hour", "others_p95_lag_ratio",
        "others_first_p95_s", "calm_p95_s", "one_group_p95_lag_ratio", "one_group_first_p95_s",
        "move_pause_p95_s", "unmanaged_p95_lag_ratio", "grouped_p95_lag_ratio",
        "single_p95_lag_ratio",
    ),
    "bench-ingestion": (
        "sql_vs_bare", "files_vs_bare", "dlt_vs_bare", "cdc_vs_bare", "sql_cpu_vs_bare",
        "files_cpu_vs_bare", "dlt_cpu_vs_bare", "cdc_cpu_vs_bare", "collector_events_per_s",
        "collector_p99_ms", "collector_p50_ms", "collector_cpu_us_per_event",
        "enhancer_io_speedup", "enhancer_cpu_ratio", "sim_recovery_s", "sim_reversals",
        "sim_vs_fixed", "sim_vs_threshold", "sim_vs_fixed_calm", "sim_vs_threshold_calm",
        "peak_rss_mb",
    ),
    "bench-cli": (
        "help_cpu_s",
        "check_cpu_s",
        "parked_list_cpu_s",
        "balance_cpu_s",
        "trail_cpu_s",
        "python_cpu_s",
        "airflow_help_cpu_s",
    ),
    "bench-airflow": (
        "shard_build_cpu_s", "shard_build_cold_cpu_s", "shard_serialise_cpu_s", "task_parse_ms",
        "empty_shard_parse_ms",
        "idle_core_share",
        "idle_total_core_share",
        "upkeep_run_cpu_s",
    ),
}  # fmt: skip
HEAD = """\
# Performance

<!-- Written by `python -m tests.support.performance_page` from performance.jsonl; do not edit. -->

What each benchmark gave, by date and commit; in brackets the change since the row before. The full
forms, on 2 cores and 24 GiB. The machines are shared and differ: compare ratios (`vs_…`) and CPU
seconds first, events per second last. A row is added by
`make bench-processing | make record BENCH=bench-processing`. A change of more than a tenth is
explained in its note, or mended.
"""


def rows() -> list[dict[str, Any]]:
    """Return all that is kept, oldest first."""
    return [json.loads(line) for line in FIGURES.read_text(encoding="utf-8").splitlines()]


def page() -> str:
    """Return the whole page."""
    kept = rows()
    parts = [HEAD]
    for name, shown in SHOWN.items():
        own = [row for row in kept if row["benchmark"] == name]
        if own:
            parts += [f"## `make {name}`\n", _table(own, shown)]
    return "\n".join(parts)


def _table(own: list[dict[str, Any]], shown: tuple[str, ...]) -> str:
    known = [name for name in shown if any(name in row["figures"] for row in own)]
    lines = [
        f"| date | commit | {' | '.join(known)} | note |",
        f"|---|---|{'---|' * len(known)}---|",
    ]
    before: dict[str, float] = {}
    for row in own:
        cells = [_cell(row["figures"].get(name), before.get(name)) for name in known]
        lines.append(f"| {row['date']} | {row['commit']} | {' | '.join(cells)} | {_text(row)} |")
        before |= row["figures"]
    return "\n".join(lines) + "\n"


def _text(row: dict[str, Any]) -> str:
    """The note as one cell of a table."""
    return " ".join(row.get("note", "").split()).replace("|", "\\|")


def _cell(value: float | None, before: float | None) -> str:
    if value is None:
        return ""
    words = f"{value:,}"
    return words if not before else f"{words} ({value / before - 1:+.0%})"


def record(name: str, output: str, note: str) -> None:
    """Add the last line of a benchmark's output."""
    figures = json.loads(output.strip().splitlines()[-1])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    row = {
        "benchmark": name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit,
        "note": note,
        "figures": figures,
    }
    with FIGURES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Write the page; with ``BENCH`` and perhaps ``NOTE`` in the environment, record a run first."""
    if name := os.environ.get("BENCH"):
        if name not in SHOWN:
            raise SystemExit(f"BENCH={name!r} is none of {', '.join(SHOWN)}")
        text = sys.stdin.read()
        sys.stdout.write(text)
        record(name, text, os.environ.get("NOTE", ""))
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
