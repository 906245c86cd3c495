"""``make bench-destinations``: loads into DuckDB, PostgreSQL and Delta against the same by hand.

(a) Upsert of 1,000,000 rows x 15 columns, of which 20 % meet a row of the table (1,000,000 rows at the
    first): Waybill's load against the engine's own bulk load and MERGE, in turns, medians; the most
    memory that the loading process took. The table grows with each turn, on both sides alike.
(b) What a merge costs as the table grows: 100,000 rows, 20 % of them met, at 1 and at 10 million rows
    of the same tables, before and after (a).

``QUICK=1``: 50,000 and 5,000 rows, tables of 50,000 to 300,000. ``ARGS="duckdb delta"``: these only.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.destinations_data import base_ids, upsert_ids, write
from tests.benchmarks.destinations_sides import serve
from tests.benchmarks.home import opened_home

KINDS = ("postgres", "duckdb", "delta")
SIDES = ("waybill", "bare")
SHARE_MET = 0.2
SEED = 20_261_122


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    rows: int = 1_000_000
    turns: int = 3
    small: int = 100_000
    low: int = 1_000_000
    high: int = 10_000_000


QUICK = Sizes(50_000, 3, 5_000, 50_000, 300_000)


class Worker:
    """One side's process."""

    def __init__(
        self, kind: str, side: str, place: str, table: str, server: int | None, stack: ExitStack
    ) -> None:
        context = get_context("spawn")
        self._here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, kind, side, place, table))
        process.start()
        there.close()
        stack.callback(process.kill)
        self._server = server

    def load(self, file: Path) -> dict[str, float]:
        """Load a file's rows; return seconds, CPU seconds, MB."""
        before = self._server_cpu()
        found = self._ask("load", file=str(file))
        return {**found, "cpu_s": found["cpu_s"] + self._server_cpu() - before}

    def rows(self) -> int:
        return int(self._ask("rows")["rows"])

    def _ask(self, what: str, **more: Any) -> dict[str, Any]:
        self._here.send({"what": what, **more})
        try:
            return dict(self._here.recv())
        except EOFError:
            raise SystemExit(f"a side ended while it was asked to {what}") from None

    def _server_cpu(self) -> float:
        """Return the CPU seconds of the server's processes that live; other kinds have none."""
        if self._server is None:
            return 0.0
        root = psutil.Process(self._server)
        times = [p.cpu_times() for p in (root, *root.children(recursive=True))]
        return sum(t.user + t.system for t in times)


def main() -> None:
    sizes = QUICK if os.environ.pop("QUICK", "") == "1" else Sizes()
    kinds = tuple(sys.argv[1:]) or KINDS
    report: dict[str, Any] = {
        "seed": SEED,
        "rows": sizes.rows,
        "columns": 15,
        "existing_share": SHARE_MET,
    }
    rows: list[list[str]] = []
    with opened_home() as (home, _):
        from tests import servers

        server = servers.start_postgres(home / "postgres")
        for kind in kinds:
            measure(kind, place_of(kind, home, server), _pid(kind, server), sizes, report, rows)
    report["peak_rss_mb"] = max(int(report[f"{kind}_peak_rss_mb"]) for kind in kinds)
    report["merge_10m_vs_1m"] = report.get("postgres_merge_10m_vs_1m")
    show(rows, sizes)
    sys.stdout.write(json.dumps(report) + "\n")


def place_of(kind: str, home: Path, server: Any) -> dict[str, str]:
    """Return where each side has its table (DuckDB's file is one process's), and the rows' file."""
    if kind == "postgres":
        dsn = server.database("bench")
        places = dict.fromkeys(SIDES, dsn)
    elif kind == "duckdb":
        places = {side: str(home / f"{side}.duckdb") for side in SIDES}
    else:
        places = {side: str(home / "delta") for side in SIDES}
    return {**places, "file": str(home / "rows.arrow")}


def _pid(kind: str, server: Any) -> int | None:
    return int(server.pid) if kind == "postgres" else None


def measure(
    kind: str,
    places: dict[str, str],
    server: int | None,
    sizes: Sizes,
    report: dict[str, Any],
    rows: list[list[str]],
) -> None:
    """Run (b) at its small size, (a), and (b) at its large size, on one table a side."""
    with ExitStack() as stack:
        pair = opened(kind, places, server, stack)
        pair.fill(sizes.low, sizes.rows)
        low = pair.upsert(sizes.small, sizes.turns)
        runs = pair.upsert(sizes.rows, sizes.turns)
        pair.fill(sizes.high, sizes.low)
        high = pair.upsert(sizes.small, sizes.turns)
    tell_speed(kind, runs, sizes, report, rows)
    for side, prefix in (("waybill", ""), ("bare", "bare_")):
        small, large = median(low[side], "s"), median(high[side], "s")
        report[f"{kind}_{prefix}merge_10m_vs_1m"] = round(large / small, 3)
        words = f"{small:.3f} to {large:.3f}"
        rows.append([f"{kind}, grown", side, f"{sizes.small / large:,.0f}", words, "", ""])


def tell_speed(
    kind: str,
    runs: dict[str, list[dict[str, float]]],
    sizes: Sizes,
    report: dict[str, Any],
    rows: list[list[str]],
) -> None:
    """Report (a) of one kind."""
    speed = {side: sizes.rows / median(runs[side], "s") for side in SIDES}
    report[f"{kind}_rows_per_s"] = round(speed["waybill"])
    report[f"{kind}_bare_rows_per_s"] = round(speed["bare"])
    report[f"{kind}_vs_bare"] = round(speed["waybill"] / speed["bare"], 3)
    report[f"{kind}_cpu_vs_bare"] = round(
        median(runs["bare"], "cpu_s") / median(runs["waybill"], "cpu_s"), 3
    )
    report[f"{kind}_peak_rss_mb"] = max(run["peak_rss_mb"] for run in runs["waybill"])
    for side in SIDES:
        rows.append(
            [kind, side, f"{speed[side]:,.0f}", f"{median(runs[side], 's'):.2f}",
             f"{median(runs[side], 'cpu_s'):.2f}", f"{max(r['peak_rss_mb'] for r in runs[side]):,.0f}"]
        )  # fmt: skip


def opened(kind: str, places: dict[str, str], server: int | None, stack: ExitStack) -> Pair:
    """Start both sides' processes; the stack ends them."""
    workers = {
        side: Worker(kind, side, places[side], f"{side}_items", server, stack) for side in SIDES
    }
    return Pair(workers, Path(places["file"]))


class Pair:
    """Both sides of a kind, given the same rows in turns; who begins changes."""

    def __init__(self, workers: dict[str, Worker], file: Path) -> None:
        self._workers = workers
        self._file = file
        self._turn = 0
        self._filled = 0
        """Rows with keys from 0 on: those that are met."""
        self._rows = 0

    def fill(self, rows: int, step: int) -> None:
        """Fill the tables up to so many rows."""
        while self._rows < rows:
            ids = base_ids(self._filled, min(step, rows - self._rows))
            self._load(ids)
            self._filled += len(ids)
            self._rows += len(ids)

    def upsert(self, rows: int, turns: int) -> dict[str, list[dict[str, float]]]:
        """Load rows of which a share is met; return what each turn took each side."""
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(turns):
            self._rows += rows - int(rows * SHARE_MET)
            ids = upsert_ids(self._turn, rows, filled=self._filled, share=SHARE_MET, seed=SEED)
            for side, figures in self._load(ids).items():
                found[side].append(figures)
        if len({worker.rows() for worker in self._workers.values()}) != 1:
            raise SystemExit("the two tables differ")
        return found

    def _load(self, ids: Any) -> dict[str, dict[str, float]]:
        self._turn += 1
        write(self._file, ids, turn=self._turn, seed=SEED)
        order = SIDES if self._turn % 2 else SIDES[::-1]
        found = {side: self._workers[side].load(self._file) for side in order}
        self._file.unlink()
        return found


def median(runs: list[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def show(rows: list[list[str]], sizes: Sizes) -> None:
    """Print the figures for people."""
    from rich.console import Console
    from rich.table import Table

    title = f"{sizes.rows:,} rows x 15 columns, {SHARE_MET:.0%} met; grown: {sizes.small:,} rows"
    table = Table("destination", "side", "rows/s", "seconds", "CPU s", "MB", title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
