"""User code in forked children: an interpreter that ends costs one event."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.unit.processing.made import chained, chunk, event, faults, pipeline, results, rows, total

from waybill.errors import ParkError
from waybill.events import encode
from waybill.processing import Chain, Clock, Plan
from waybill.processing.isolation import compile_isolated, run_isolated
from waybill.processing.transformation import NoWatch, compile_transformation

HEAD = "import os, signal, time\n"
CRASHES = {
    "os._exit": "os._exit(0)",
    "sigkill": "os.kill(os.getpid(), signal.SIGKILL)",
    "exec": "os.execv('/bin/true', ['true'])",
}


@pytest.fixture
def watchdog() -> Iterator[Clock]:
    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    watch = Clock(timeout_s=0.4)
    watch.arm()
    yield watch
    watch.disarm()
    signal.signal(signal.SIGALRM, before)  # the test runner's own clock
    signal.setitimer(signal.ITIMER_REAL, *timer)


def children() -> set[int]:
    """Return this process's children, zombies too."""
    return {process.pid for process in psutil.Process().children()}


def codes(transform_body: str, count: int, watch: object | None = None) -> list[str | None]:
    code = f"{HEAD}def transform(event):\n    n = event.data['id']\n    {transform_body}\n    return event\n"
    events = [event(n) for n in range(count)]
    found = results(
        run_isolated(
            compile_transformation(code, "shop"),
            events,
            range(count),
            NoWatch() if watch is None else watch,  # type: ignore[arg-type]
        )
    )
    assert [index for index, _, _ in found] == list(range(count))
    for index, children, fault in found:
        if fault is None:
            assert children == [events[index]]
    return [fault.code if fault else None for _, _, fault in found]


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("at", [(0,), (4,), (9,), (0, 1, 9), tuple(range(10))], ids=str)
def test_a_crash_parks_its_event_and_no_other(crash: str, at: tuple[int, ...]) -> None:
    found = codes(f"if n in {at}: {crash}", 10)
    assert found == ["interpreter_crashed" if n in at else None for n in range(10)]


def test_how_the_interpreter_ended_is_told() -> None:
    transform = compile_transformation(f"{HEAD}def transform(event): os._exit(7)", "shop")
    ((_, _, fault),) = results(run_isolated(transform, [event(1)], [0], NoWatch()))
    assert fault is not None
    assert "exit status 7" in fault.message
    transform = compile_transformation(f"{HEAD}def transform(event): {CRASHES['sigkill']}", "shop")
    ((_, _, fault),) = results(run_isolated(transform, [event(1)], [0], NoWatch()))
    assert fault is not None
    assert "signal 9" in fault.message


def test_results_are_what_they_are_without_isolation() -> None:
    code = (
        "def transform(event):\n"
        "    n = event.data['id']\n"
        "    if n == 0: return None\n"
        "    if n == 1: return [event.child(0, {'a': 2**70}), event.child(1, None)]\n"
        "    if n == 2: return event.data['absent']\n"
        "    return event\n"
    )
    from waybill.processing.transformation import run

    transform = compile_transformation(code, "shop")
    plain = results(run(transform, [event(n) for n in range(4)], range(4), NoWatch()))
    isolated = results(run_isolated(transform, [event(n) for n in range(4)], range(4), NoWatch()))
    assert isolated == plain
    assert isolated[2][2] is not None
    assert isolated[2][2].stack_hash


@pytest.mark.parametrize(
    "value", ["(x for x in [])", "open('/dev/null')", "lambda: 1", "type('Own', (), {})()"]
)
def test_a_result_that_cannot_leave_its_process_is_named(value: str) -> None:
    assert codes(f"if n == 1: event.data = {value}", 3) == [None, "result_invalid", None]


def test_a_result_that_cannot_be_rebuilt_is_named() -> None:
    """``dict(**5)``: written without complaint, refused when it is read."""
    refuses = "type('R', (), {'__reduce_ex__': lambda self, _: (dict, (5,))})()"
    assert codes(f"if n == 1: event.data = {refuses}", 3) == [None, "result_invalid", None]


def test_a_crash_after_a_large_result_loses_nothing_of_it() -> None:
    body = "if n == 0: event.data['x'] = 'x' * 5_000_000\n    if n == 1: os._exit(1)"
    code = f"{HEAD}def transform(event):\n    n = event.data['id']\n    {body}\n    return event\n"
    transform = compile_transformation(code, "shop")
    found = results(run_isolated(transform, [event(n) for n in range(3)], range(3), NoWatch()))
    assert found[0][1] is not None
    assert len(found[0][1][0].data["x"]) == 5_000_000
    assert [fault and fault.code for _, _, fault in found] == [None, "interpreter_crashed", None]


@pytest.mark.parametrize("loop", ["while True: pass", "while True: time.sleep(9)"])
def test_an_endless_loop_in_a_child_is_a_timeout(loop: str, watchdog: Clock) -> None:
    assert codes(f"if n == 1:\n        {loop}", 3, watchdog) == [
        None,
        "transformation_timeout",
        None,
    ]
    assert watchdog.marker.value == -1


def test_code_that_swallows_the_timeout_in_c_ends_its_child_only(watchdog: Clock) -> None:
    found = codes("if n == 1: any(iter(int, 1))", 3, watchdog)
    assert found == [None, "interpreter_crashed", None]


def test_the_parents_own_clock_does_not_strike_for_a_childs_event(watchdog: Clock) -> None:
    """The marker is shared: a dead child's mark must not time out what the parent does next."""
    assert codes("if n == 2: os._exit(1)", 3, watchdog)[2] == "interpreter_crashed"
    until = time.monotonic() + 1.0
    while time.monotonic() < until:  # user code's timeout is 0.4 s
        sum(range(1000))
    assert watchdog.marker.value == -1


def test_the_parent_waits_for_each_child() -> None:
    before = children()
    codes("if n in (1, 2): os._exit(1)", 4)
    assert children() <= before


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_code_that_dies_while_it_is_loaded_is_invalid(crash: str) -> None:
    with pytest.raises(ParkError, match="loading the transformation") as caught:
        compile_isolated(f"{HEAD}{crash}\ndef transform(event): return event", "shop", NoWatch())
    assert caught.value.code == "code_invalid"


def test_code_that_loads_is_loaded_and_what_cannot_be_says_why() -> None:
    transform = compile_isolated("def transform(event): return event", "shop", NoWatch())
    assert transform(event(1)) == event(1)
    with pytest.raises(ParkError, match="ZeroDivisionError"):
        compile_isolated("1/0", "shop", NoWatch())


def test_an_isolated_chain_parks_what_crashes_and_stages_the_rest() -> None:
    code = (
        f"{HEAD}def transform(event):\n    if event.data['n'] == 2: os._exit(1)\n    return event\n"
    )
    result = chained(pipeline(code), [event(n) for n in (1, 2, 3)], isolated=True)
    assert faults(result) == [(1, "transformation", "interpreter_crashed")]
    assert [row["n"] for row in rows(result)] == [1, 3]
    assert total(result, "transformation") == {"in_first": 3, "passed": 2, "out": 2, "parked": 1}


def test_an_isolated_chain_survives_code_that_dies_while_it_is_loaded() -> None:
    healthy = pipeline(ident="p2")
    result = chained(
        [pipeline(f"{HEAD}os._exit(0)"), healthy],
        [event(1), event(2, pipeline_id="p2"), event(3)],
        isolated=True,
    )
    assert faults(result) == [
        (0, "transformation", "code_invalid"),
        (2, "transformation", "code_invalid"),
    ]
    assert [row["n"] for row in rows(result)] == [2]


def test_a_child_that_somebody_else_killed_parks_nothing(tmp_path: Path) -> None:
    """The OOM killer, or a person: the second child of the event is not killed."""
    mark = tmp_path / "killed"
    crash = f"if n in (2, 5) and not os.path.exists('{mark}' + str(n)):\n"
    crash += f"        open('{mark}' + str(n), 'w'); os.kill(os.getpid(), signal.SIGKILL)"
    assert codes(crash, 8) == [None] * 8
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["killed2", "killed5"]


def test_code_whose_loading_somebody_else_killed_is_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    crash = f"if not os.path.exists('{mark}'):\n"
    crash += f"    open('{mark}', 'w'); os.kill(os.getpid(), signal.SIGKILL)\n"
    code = f"{HEAD}{crash}def transform(event): return event"
    assert compile_isolated(code, "shop", NoWatch())(event(1)) == event(1)
    assert mark.exists()


def test_only_the_pipelines_that_are_named_are_isolated() -> None:
    code = "import os\ndef transform(event):\n    event.data = {'id': 1, 'n': os.getpid()}\n    return event\n"
    plans = {ident: Plan(pipeline(code, ident=ident)) for ident in ("p1", "p2")}
    chain = Chain(plans, isolated=["p2"])
    chain.process(chunk([encode(event(n, pipeline_id=f"p{n}")) for n in (1, 2)]))
    mine, childs = (row["n"] for row in rows(chain.result))
    assert mine == os.getpid() != childs


def test_code_that_never_loads_is_invalid(watchdog: Clock) -> None:
    for isolated in (False, True):
        broken = pipeline("while True: pass")
        result = chained(broken, [event(1)], watch=watchdog, isolated=isolated)
        assert faults(result) == [(0, "transformation", "code_invalid")], isolated
