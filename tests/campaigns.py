"""``make campaigns``: all that ``make test`` leaves out, in a standard size, within 75 minutes on two cores.

The tests marked ``campaign`` run first, with the machine to themselves. Then two lanes side by side: one
that computes, and one that waits most of its time (Airflow's retries, jobs of each minute). Last, by itself,
the campaign that holds how long something takes. Each part is the ``make`` target of its name with
the sizes below; by itself that target has its own, larger ones. Each has servers, ports and
folders of its own.

A part that fails, or is not over in time, keeps no other from running; what it says is in
``.waybill/campaigns/<part>.log``. At the end there is a table: each part, how it ended, its seconds, its line of
JSON; and a line of JSON of all. Ends with 1 where a part failed.

``CAMPAIGNS=<names>`` does some parts; ``SEED=<n>`` is the seed of all; the name of a size in capitals gives
all parts that have it another one; ``LANES=1`` runs all one after the other, ``QUICK=1`` takes each part's short form.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from tests import servers
from tests.servers import CHECKOUT

LOGS = CHECKOUT / ".waybill" / "campaigns"
_GRACE_S = 180.0
"""From SIGTERM to SIGKILL: servers are ended, the largest of them in a minute."""
_TAIL = 30
"""Lines of a part's output that are shown where it failed."""
_OWN = ("CAMPAIGNS", "LANES", "SEED", "QUICK", "ARGS", "PARTS", "ONLY")
"""Variables that a part does not inherit."""
_OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKEFILES")


@dataclass(frozen=True, slots=True)
class Part:
    """A target of the Makefile.

    Args:
        name: of the target.
        seed: the variable that has its seed; empty: it has none.
        sizes: variables of its standard size.
        limit_s: after so long it is ended.
    """

    name: str
    seed: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    limit_s: float = 2_700.0


Lane: TypeAlias = tuple[Part, ...]
"""One after the other."""

STAGES: tuple[tuple[Lane, ...], ...] = (
    # 25 minutes, on a machine that is not at a third of its speed
    ((Part("campaign-tests", limit_s=5_400.0),),),
    (
        (
            Part("faults-parking", "PARKING_SEED", {"KILLS": 12, "PLAYS": 200}),
            Part("faults-producer", "PRODUCER_SEED", {"KILLS": 60}),
            Part("faults-tracker", "TRACKER_SEED", {"EVENTS": 200_000}),
            Part("faults-destinations", "DESTINATIONS_SEED", {"KILLS": 6}),
            Part("campaign-search", "SEED", {"PRODUCER_MODEL_EXAMPLES": 1_000}),
            Part("oldest-airflow"),
            Part("faults-rollback", "ROLLBACK_SEED", {"EVENTS": 20_000, "JOBS_S": 15}),
            Part("faults-standalone", "STANDALONE_SEED", {"ROUNDS": 2}),
        ),
        (
            Part("faults-airflow", "AIRFLOW_SEED", {"REPLAYS": 40, "KILLS": 2}),
            Part("faults-ingestion", "INGESTION_SEED", {"KILLS": 8}),
        ),
    ),
    (
        (
            Part(
                "faults-processing",
                "PROCESSING_SEED",
                {
                    "MOVES": 12,
                    "GROWTHS": 4,
                    "KILLS": 16,
                    "LOADER_KILLS": 12,
                    "EXECUTOR_KILLS": 4,
                    "CODE_KILLS": 3,
                    "FREEZES": 6,
                    "COORDINATOR_KILLS": 12,
                    "POISON": 80,
                },
            ),
        ),
    ),
)
"""Stages one after the other; the lanes of one side by side."""
PARTS = tuple(part for stage in STAGES for lane in stage for part in lane)


@dataclass(slots=True)
class Result:
    """How a part ended."""

    part: str
    code: int | None
    """None: it was not over in time, or not begun."""
    seconds: float = 0.0
    said: str = ""
    """Why there is no code."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Its last line of JSON."""

    @property
    def is_good(self) -> bool:
        """Tell whether it ended with 0."""
        return self.code == 0


class Campaigns:
    """Runs parts; ``end`` ends those that run, and lets none begin.

    Args:
        logs: the folder of their output.
        limit_s: takes the place of each part's own limit.
        grace_s: from SIGTERM to SIGKILL.
    """

    def __init__(
        self, logs: Path, *, limit_s: float | None = None, grace_s: float = _GRACE_S
    ) -> None:
        self._logs = logs
        self._limit_s = limit_s
        self._grace_s = grace_s
        self._ending = threading.Event()
        self.results: dict[str, Result] = {}
        """By part, in the order in which they ended."""

    def run(self, stages: Sequence[Sequence[Lane]]) -> None:
        """Run all stages."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for stage in stages:
            with ThreadPoolExecutor(max(1, len(stage))) as pool:
                for done in [pool.submit(self._run_lane, lane) for lane in stage]:
                    done.result()

    def end(self) -> None:
        """End what runs; nothing more begins."""
        self._ending.set()

    def command(self, part: Part) -> Sequence[str]:
        """Return what runs a part."""
        return ("make", "--no-print-directory", part.name)

    def _run_lane(self, lane: Lane) -> None:
        for part in lane:
            if self._ending.is_set():
                self.results[part.name] = Result(part.name, None, said="not begun")
            else:
                self.results[part.name] = result = self._run_part(part)
                self._tell(result)

    def _run_part(self, part: Part) -> Result:
        print(f"{_clock()} {part.name} {_words(sizes_of(part, os.environ))}".rstrip(), flush=True)
        log, began = self._log(part.name), time.monotonic()
        with log.open("wb") as output:
            try:
                child = subprocess.Popen(
                    self.command(part), cwd=CHECKOUT, env=environment(part, os.environ),
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return Result(part.name, None, said=str(error))
            code, said = self._wait(child, self._limit_s or part.limit_s)
        if said:
            servers.sweep()  # those of a part that did not come to end them
        seconds = round(time.monotonic() - began, 1)
        return Result(part.name, code, seconds, said, figures_in(log))

    def _wait(self, child: subprocess.Popen[bytes], limit_s: float) -> tuple[int | None, str]:
        """Wait for a part; end it once its time is over, with all that is in its session's group."""
        until_s, said = time.monotonic() + limit_s, ""
        while child.poll() is None:
            if not said and (self._ending.is_set() or time.monotonic() > until_s):
                said = "ended" if self._ending.is_set() else f"not over after {limit_s:.0f} s"
                _signal(child, signal.SIGTERM)
                until_s = time.monotonic() + self._grace_s
            elif said and time.monotonic() > until_s:
                _signal(child, signal.SIGKILL)
            time.sleep(0.1)
        _signal(child, signal.SIGKILL)  # what it left behind in its group
        return (None, said) if said else (child.returncode, "")

    def _tell(self, result: Result) -> None:
        print(f"{_clock()} {result.part}: {_end(result)}, {result.seconds:.0f} s", flush=True)
        if not result.is_good:
            lines = self._log(result.part).read_text("utf-8", "replace").splitlines()[-_TAIL:]
            print(*(f"  | {line}" for line in lines), sep="\n", flush=True)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _words(sizes: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def _end(result: Result) -> str:
    return result.said or ("passed" if result.is_good else f"failed with {result.code}")


def sizes_of(part: Part, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a part: its sizes, those given in their place, its seed."""
    is_quick = given.get("QUICK") == "1"
    sizes = {"QUICK": "1"} if is_quick else {}
    for name, standard in part.sizes.items():
        if name in given or not is_quick:
            sizes[name] = given.get(name, str(standard))
    seed = given.get(part.seed, given.get("SEED", "")) if part.seed else ""
    return {**sizes, **({part.seed: seed} if seed else {})}


def environment(part: Part, given: Mapping[str, str]) -> dict[str, str]:
    """Return a part's environment: it sees no size or seed of another, and nothing of our make."""
    others = {name for one in PARTS for name in (*one.sizes, one.seed)}
    kept = {name: value for name, value in given.items() if name not in {*others, *_OWN, *_OF_MAKE}}
    return {**kept, **sizes_of(part, given)}


def figures_in(log: Path) -> dict[str, Any]:
    """Return the last line of JSON in a part's output; empty: there is none."""
    for line in reversed(log.read_text("utf-8", "replace").splitlines()):
        if line.startswith("{"):
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
    return {}


def chosen(names: Sequence[str], *, lanes: bool) -> list[list[Lane]]:
    """Return the stages with the parts of these names only; without lanes, one after the other."""
    stages: list[list[Lane]] = []
    for stage in STAGES:
        kept = [tuple(part for part in lane if part.name in names) for lane in stage]
        found = [lane for lane in kept if lane]
        stages += [found] if lanes and found else [[lane] for lane in found]
    return stages


def report_of(results: Mapping[str, Result], seconds: float) -> dict[str, Any]:
    """Return the figures of all."""
    return {
        "parts": len(results),
        "failed": [one.part for one in results.values() if not one.is_good],
        "seconds": round(seconds, 1),
        "seconds_of": {one.part: one.seconds for one in results.values()},
    }


def summary(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield a line a part: how it ended, its seconds, its figures."""
    yield f"{'part':<22}{'exit':>6}{'seconds':>9}  figures"
    for one in results.values():
        code = "-" if one.code is None else str(one.code)
        figures = json.dumps(one.figures) if one.figures else "(no line of JSON)"
        yield f"{one.part:<22}{code:>6}{one.seconds:>9.0f}  {one.said and one.said + '; '}{figures}"


def main() -> int:
    """Run the parts that are asked for, and sum up."""
    names = [name for name in os.environ.get("CAMPAIGNS", "").split(",") if name]
    known = [part.name for part in PARTS]
    if unknown := sorted(set(names) - set(known)):
        print(f"CAMPAIGNS: no part {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    campaigns, began = Campaigns(LOGS), time.monotonic()

    def ended(_number: int, _frame: FrameType | None) -> None:
        campaigns.end()

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    campaigns.run(chosen(names or known, lanes=os.environ.get("LANES") != "1"))
    servers.sweep()
    print(*summary(campaigns.results), sep="\n")
    report = report_of(campaigns.results, time.monotonic() - began)
    print(json.dumps(report), flush=True)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
