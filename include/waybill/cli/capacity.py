"""``waybill capacity show|decisions|simulate|enhance``: nodes, waits, decisions, simulations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.capacity import SimulationRequest
from waybill.cli.options import AsJson, takes
from waybill.cli.output import counted, plain, print_folded, print_json, print_line, show_log
from waybill.cli.tables import Column, Table, clock, print_facts, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from waybill.capacity import CapacityStatus, Follower

app = typer.Typer(
    no_args_is_help=True,
    help="Capacity that follows the work: nodes, waits, decisions; a node's enhancer.",
)
_GROUPS = 10


@app.command()
def show(*, as_json: AsJson = False) -> None:
    """Show nodes, how long tasks wait, the thresholds in force, and what was decided last."""
    from waybill.services import capacity_status
    from waybill.settings import Settings

    found = capacity_status(Settings())
    if as_json:
        print_json(found.to_json())
        return
    _show_nodes(found)
    _show_waits(found.waits)
    _show_thresholds(found.thresholds)
    for kind, one in found.last.items():
        print_folded([f"{kind}, {clock(one['at'])} UTC: {_words(one)}"])


@app.command()
def decisions(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """List what changed the number of nodes, the newest first, with the reasons."""
    from waybill.services import capacity_status
    from waybill.settings import Settings

    found = capacity_status(Settings(), decisions=limit)
    if as_json:
        print_json(found.to_json()["decisions"])
        return
    for one in found.decisions:
        print_folded([f"{clock(one['at'])} UTC  {one['kind']}: {_words(one)}"])
    if not found.decisions:
        print_line("nothing was decided yet that changes the number of nodes")


@app.command()
@takes(SimulationRequest, argument="workload")
def simulate(
    request: SimulationRequest,
    out: Annotated[
        Path | None, typer.Option(help="Draw into this file as well: *.svg, or *.png (Pillow).")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Try the policy on a simulated clock and workload, and draw what becomes of it."""
    from waybill import capacity

    limits = _thresholds(request.thresholds)
    if out is not None:
        _require_writable(out)
    work = capacity.Workload(request.workload, hours=request.hours, seed=request.seed)
    first = capacity.nodes_for(work, limits)
    scalers: dict[str, capacity.Scaler] = {
        "none": capacity.PolicyScaler(limits),
        "fixed": capacity.FixedScaler(first),
        "threshold": capacity.ThresholdScaler(limits),
    }
    run = capacity.simulate(
        work,
        scalers[request.rival],
        first_nodes=first,
        objective_s=limits.wait_objective_s,
    )
    if out is not None:
        judged = "the policy" if request.rival == "none" else request.rival
        title = f"{request.workload}, {judged}, seed {request.seed}"
        is_png = out.suffix.lower() == ".png"
        drawn = capacity.png_plot(run, title) if is_png else capacity.svg_plot(run, title).encode()
        _write(out, drawn)
    if as_json:
        print_json(run.to_json())
        return
    for line in capacity.terminal_plot(run):
        print_line(line)
    recovery = "" if run.recovery_s is None else f"; recovered after {run.recovery_s:.0f} s"
    print_folded(
        [
            f"{run.tasks:,} tasks, p95 wait {run.p95_s:.0f} s, {run.node_hours:.1f} node hours, "
            f"{run.late_s / 3600:.1f} h of waits over {limits.wait_objective_s:g} s, "
            f"{counted(run.reversals, 'reversal')}{recovery}"
        ]
    )


@app.command()
def enhance(*, as_json: AsJson = False) -> None:
    """Look after the workers of this node until it is stopped: add where there is room."""
    import logging
    import signal
    import threading

    from waybill.services import run_enhancer
    from waybill.settings import Settings
    from waybill.waiting import nobody_waiting

    show_log("%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stopped = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stopped.set())
    with nobody_waiting():
        run_enhancer(Settings(), is_stopped=stopped.is_set)
    if as_json:
        print_json({"stopped": True})


def _thresholds(text: str) -> Any:
    import json

    from waybill.capacity import Thresholds
    from waybill.errors import InputError

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--thresholds is no JSON: {error}") from error
    return Thresholds.read({"max_nodes": 60, "most_added": 16} if value == {} else value)


def _require_writable(path: Path) -> None:
    """Refuse a file that cannot be drawn into, before minutes are simulated for it."""
    from importlib.util import find_spec

    from waybill.errors import InputError

    name = plain(str(path))
    if path.suffix.lower() not in {".png", ".svg"}:
        raise InputError(f"--out {name}: its name must end with .png or .svg")
    if path.suffix.lower() == ".png" and find_spec("PIL") is None:
        raise InputError(
            "a PNG is drawn by Pillow, and it is not installed: pip install 'waybill[plots]', or "
            "give --out a name that ends with .svg"
        )
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"--out {name} is there already, and is no file")
        if not path.parent.is_dir():
            raise InputError(f"--out {name}: there is no folder {plain(str(path.parent))}")
    except (OSError, ValueError) as error:
        raise InputError(f"--out {name} is no path that can be written: {error}") from error


def _write(path: Path, drawn: bytes) -> None:
    from waybill.errors import InputError

    try:
        path.write_bytes(drawn)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--out {plain(str(path))} is not written: {why}") from error


def _show_nodes(found: CapacityStatus) -> None:
    behind, known = found.behind, len(found.followers)
    words = f"version {found.version} is announced; acknowledged by "
    words += f"{known - len(behind)} of {known} applications"
    if behind:
        words += f"; not by {', '.join(map(_behind, behind))}"
    print_table(_node_table(found), [words] if found.nodes else [])


def _node_table(found: CapacityStatus) -> Table:
    rows = []
    for node in found.nodes:
        report = node.report if node.is_heard else None
        state = node.state if node.is_heard else f"{node.state}, not heard of"
        seen = (
            (report.workers, report.running, f"{report.cpu:.0%}", f"{report.io_wait:.0%}",
             f"{report.memory:.0%}")
            if report
            else (None,) * 5
        )  # fmt: skip
        rows.append((node.name, node.kind, state, node.units, *seen))
    return Table(
        (
            Column("node"),
            Column("kind"),
            Column("state", "words", least=8),
            Column("units", "number"),
            Column("workers", "number"),
            Column("running", "number"),
            Column("CPU", "number", spare=1),
            Column("I/O wait", "number", spare=2),
            Column("memory", "number", spare=3),
        ),
        rows,
        "no node has declared its capacity: `waybill capacity enhance` does, on a node",
    )


def _behind(one: Follower) -> str:
    late = f", late: {one.waits_s:,.0f} s" if one.is_late else ""
    return f"{one.name} (version {one.version}{late})"


def _show_thresholds(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Show thresholds, those of several kinds of nodes that are the same once."""
    kinds: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for kind, thresholds in found.items():
        own = tuple((name, f"{value:g}") for name, value in thresholds.items() if name != "source")
        kinds.setdefault((thresholds["source"], own), []).append(kind)
    for (source, own), same in kinds.items():
        print_line("")
        print_facts(own, f"{' and '.join(same)} thresholds, of {source}")


def _show_waits(waits: Mapping[str, Any] | None) -> None:
    if waits is None:
        print_folded(
            ["how long tasks wait is not known: see `waybill upkeep list`, measure_delays"]
        )
        return
    print_folded(
        [
            f"{waits['waiting'] + waits['unseen']:,} tasks wait and {waits['busy']:,} run; waits: "
            f"p50 {waits['p50_s']:.0f} s, p95 {waits['p95_s']:.0f} s, oldest "
            f"{waits['oldest_s']:.0f} s"
        ]
    )
    if waits["groups"]:
        print_table(_wait_table(waits["groups"]))


def _wait_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    times = ("p50_s", "p95_s", "oldest_s")
    return Table(
        (
            Column("team"),
            Column("connector"),
            Column("queue"),
            *(Column(head, "number") for head in ("waiting", "p50 s", "p95 s", "oldest s")),
        ),
        [
            (
                one["team"] or None,
                one["connector"],
                one["queue"],
                one["waiting"],
                *(round(one[name]) for name in times),
            )
            for one in groups[:_GROUPS]
        ],
        "no task waits",
    )


def _words(one: Mapping[str, Any]) -> str:
    reasons = "; ".join(map(plain, one["reasons"]))
    if one["action"] == "hold":
        return f"{one['before']} nodes stay: {reasons}"
    return f"{one['before']} -> {one['after']} nodes: {reasons}"
