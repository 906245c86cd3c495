"""User code over events: every way it can end, and no way that touches the neighbours."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.processing.made import Result, event, results

from waybill.errors import ParkError
from waybill.events import CATALOGUE, Event
from waybill.processing import Clock
from waybill.processing.transformation import NoWatch, compile_transformation, run


def outcomes(body: str, events: list[Event] | None = None, head: str = "") -> list[Result]:
    """Run a transform with this body over three events (or those given)."""
    code = f"{head}\ndef transform(event):\n" + "".join(f"    {x}\n" for x in body.splitlines())
    events = [event(n) for n in (1, 2, 3)] if events is None else events
    return results(run(compile_transformation(code, "shop"), events, NoWatch()))


def second(body: str, head: str = "") -> Any:
    """Return the fault of the second event; its neighbours must have passed."""
    when = f"if event.data['id'] == 2:\n{chr(10).join('    ' + x for x in body.splitlines())}\n"
    found = outcomes(when + "return event", head=head)
    assert [index for index, _, _ in found] == [0, 1, 2]
    assert [fault for _, _, fault in (found[0], found[2])] == [None, None]
    assert [c[0].id for _, c, _ in (found[0], found[2]) if c] == ["e1", "e3"]
    return found[1][2]


def test_none_and_an_empty_list_are_filtered() -> None:
    assert [(c, f) for _, c, f in outcomes("return None")] == [(None, None)] * 3
    assert [(c, f) for _, c, f in outcomes("return []")] == [(None, None)] * 3


def test_the_event_itself_changed_or_copied_keeps_its_id() -> None:
    ways = (
        "event.data['n'] = 9\nreturn event",
        "import copy\nevent = copy.deepcopy(event)\nevent.data['n'] = 9\nreturn event",
        "import msgspec\nreturn msgspec.structs.replace(event, data={'id': 1, 'n': 9})",
        "event.data = {'n': 9}\nreturn [event]",
    )
    for body in ways:
        children = outcomes(body)[0][1]
        assert children is not None
        assert [(c.id, c.data["n"]) for c in children] == [("e1", 9)], body


def test_children_of_a_list_are_parent_slash_index_with_the_parents_versions() -> None:
    body = "return [event.child(7, {'i': i}, name=f'n{i}') for i in range(3)] + [event]"
    for index, children, _ in outcomes(body):
        parent = event(index + 1)
        assert children is not None
        assert [c.id for c in children] == [f"{parent.id}/{i}" for i in range(4)]
        assert [c.name for c in children] == ["n0", "n1", "n2", "order"]
        assert {(c.source_version, c.intake_version, c.intake_minute) for c in children} == {
            (parent.source_version, parent.intake_version, parent.intake_minute)
        }


def test_one_object_twice_is_two_events() -> None:
    _, children, _ = outcomes("return [event, event]")[0]
    assert children is not None
    assert [c.id for c in children] == ["e1/0", "e1/1"]
    assert children[0] is not children[1]


def test_a_single_child_gets_the_id_that_a_replay_would_give_it() -> None:
    _, children, _ = outcomes("return event.child(5, {}, name='other')")[0]
    assert children is not None
    assert [(c.id, c.name) for c in children] == [("e1/0", "other")]


def test_a_transformation_may_delete() -> None:
    for body in (
        "event.op = 'delete'\nreturn event",
        "e = event.child(0, {})\ne.op = 'delete'\nreturn [e]",
    ):
        _, children, _ = outcomes(body)[0]
        assert children is not None
        assert children[0].op == "delete"


@pytest.mark.parametrize(
    "body",
    [
        "return 5",
        "return event.data",
        "return [event, None]",
        "return [event.data]",
        "return (e for e in [event])",
        "event.name = 5\nreturn event",
        "event.name = 'a\\0'\nreturn event",
        "event.name = '\\ud800'\nreturn event",
        "return event.child(0, {}, name='n' * 513)",
        "return [event, event.child(0, {}, name=7)]",
        "event.op = 'merge'\nreturn event",
        "event.op = []\nreturn [event, event]",
    ],
)
def test_a_wrong_result_is_named(body: str) -> None:
    fault = second(body)
    assert fault.code == "result_invalid"
    assert fault.message


@pytest.mark.parametrize(
    "name",
    "id pipeline_id team key source_version intake_version intake_minute time stage attempt "
    "replay_id data_ref".split(),
)
@pytest.mark.parametrize("value", ["'other'", "2**70", "[]", "object()"])
def test_what_an_event_is_cannot_be_changed(name: str, value: str) -> None:
    fault = second(f"event.{name} = {value}\nreturn event")
    assert fault.code == "result_invalid"
    assert name in fault.message


@pytest.mark.parametrize("end", ["return event", "return [event, event]", "raise ValueError('x')"])
def test_an_event_that_fails_is_what_it_was(end: str) -> None:
    events = [event(1)]
    change = "event.id = event.name = event.attempt = 'mine'\nevent.intake_minute = -1\n"
    outcomes(change + end, events)
    assert events == [event(1)]


def test_an_event_made_unusable_is_a_fault() -> None:
    assert second("del event.data\nreturn event").code == "attribute_error"
    assert second("del event.id\nreturn event").code == "attribute_error"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return event.data['absent']", "field_missing"),
        ("return event.data['n'] + None", "null_value"),
        ("return None.strip()", "null_value"),
        ("return event.data['n'] + 'x'", "type_error"),
        ("return int('x')", "value_error"),
        ("import decimal\nreturn decimal.Decimal('n/a')", "value_error"),
        ("import decimal\nraise decimal.InvalidOperation", "value_error"),
        (
            "import decimal\nraise decimal.InvalidOperation([decimal.ConversionSyntax])",
            "value_error",
        ),
        ("import decimal\nreturn decimal.Decimal(0) / 0", "division_by_zero"),
        ("import decimal\nreturn decimal.Decimal(1) / 0", "division_by_zero"),
        ("import decimal\nreturn decimal.Decimal('9e999999') * 10", "overflow"),
        ("import datetime\ndatetime.time(24)", "value_out_of_range"),
        ("return [][1]", "index_error"),
        ("return event.nothing", "attribute_error"),
        ("return 1 / 0", "division_by_zero"),
        ("return 2.0 ** 100000", "overflow"),
        ("return b'\\xff'.decode()", "unicode_error"),
        ("assert event is None", "assertion_failed"),
        ("def deeper(): deeper()\ndeeper()", "recursion_error"),
        ("return 'x' * 2**62", "memory_error"),
        ("import no_such_module", "import_error"),
        ("raise LookupError('x')", "lookup_failed"),
        ("open('/no/such/file')", "io_error"),
        ("raise RuntimeError('x')", "transformation_failed"),
        ("raise SystemExit(3)", "interpreter_crashed"),
        ("class Odd(BaseException): pass\nraise Odd", "transformation_failed"),
        (
            "from waybill.errors import ParkError\nraise ParkError('record_invalid', 'no')",
            "record_invalid",
        ),
        (
            "from waybill.errors import ParkError\nraise ParkError('my_code', 'no')",
            "unexpected_error",
        ),
        ("from waybill.errors import ParkError\nraise ParkError([], None)", "unexpected_error"),
    ],
)
def test_an_exception_becomes_its_code_and_the_neighbours_pass(body: str, code: str) -> None:
    fault = second(body)
    assert fault.code == code
    assert fault.code in CATALOGUE
    assert "in transform" in fault.where or "in deeper" in fault.where
    assert fault.stack_hash


def test_a_code_of_ones_own_stands_in_the_message() -> None:
    fault = second("from waybill.errors import ParkError\nraise ParkError('my_code', 'why')")
    assert fault.message == "my_code: why"


@pytest.mark.parametrize(
    "head",
    [
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError\n",
        "class Bad(Exception):\n    def __str__(self): return 5\n",
        "from waybill.errors import ParkError\nclass Bad(ParkError):\n    def __init__(self): pass\n",
        "from waybill.errors import ParkError\nclass Odd:\n    def __str__(self): raise OSError\n"
        "    __hash__ = None\nclass Bad(ParkError):\n    def __init__(self): self.code = Odd()\n",
    ],
)
def test_an_exception_that_cannot_be_told_is_still_a_fault(head: str) -> None:
    assert second("raise Bad()", head).code in CATALOGUE


def test_where_and_the_hash_of_the_stack_tell_the_place() -> None:
    head = "def ratio(a, b):\n    return a / b\n"
    first, again = second("return ratio(1, 0)", head), second("return ratio(2, 0)", head)
    assert first.where == "shop/transformation.py:2 in ratio"
    assert first.stack_hash == again.stack_hash
    elsewhere = second("x = 1\nreturn ratio(1, 0)", head)
    assert elsewhere.where == first.where
    assert elsewhere.stack_hash != first.stack_hash


def test_the_marker_holds_the_offset_only_while_user_code_runs() -> None:
    seen: list[int] = []
    watch = NoWatch()

    def transform(e: Event) -> Event:
        seen.append(watch.marker.value)
        return e

    between = [watch.marker.value for _ in run(transform, [event(1), event(2)], watch)]
    assert (seen, between) == ([0, 1], [-1, -1])


@pytest.mark.parametrize(
    "code",
    [
        "def other(event): pass",
        "transform = 5",
        "def transform(event:\n",
        "import no_such_module\ndef transform(event): pass",
        "raise SystemExit",
        "1/0",
        "\0",
        "# \ud800",
    ],
)
def test_code_that_cannot_be_loaded_says_why(code: str) -> None:
    with pytest.raises(ParkError, match="transformation of 'shop'") as caught:
        compile_transformation(code, "shop")
    assert caught.value.code == "code_invalid"


@pytest.fixture
def watchdog() -> Iterator[Clock]:
    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    watch = Clock(timeout_s=1.0)  # three times as long without a breath ends the test runner
    watch.arm()
    yield watch
    watch.disarm()
    signal.signal(signal.SIGALRM, before)  # the test runner's own clock
    signal.setitimer(signal.ITIMER_REAL, *timer)


@pytest.mark.parametrize(
    "loop",
    [
        "while True: pass",
        "while True:\n    try: pass\n    except Exception: pass",
        "while True:\n    try: int('x')\n    except Exception: pass",
        "import time\nwhile True: time.sleep(60)",
        "import time\ntry:\n    while True: time.sleep(60)\nfinally: event.data['n'] = 1",
        "import re\nre.match(r'(a+)+b', 'a' * 60)",
        "class Slow(Exception):\n    def __str__(self):\n        while True: pass\nraise Slow",
    ],
    ids=["plain", "try-pass", "try-int", "sleep", "finally", "regex", "in-__str__"],
)
def test_an_endless_loop_is_a_timeout_and_the_neighbours_pass(loop: str, watchdog: Clock) -> None:
    body = "if event.data['id'] == 2:\n" + "".join(f"    {x}\n" for x in loop.splitlines())
    code = "def transform(event):\n" + "".join(
        f"    {x}\n" for x in (body + "return event").splitlines()
    )
    began = time.monotonic()
    events = [event(n) for n in (1, 2, 3)]
    found = results(run(compile_transformation(code, "shop"), events, watchdog))
    assert [f.code if f else None for _, _, f in found] == [None, "transformation_timeout", None]
    assert time.monotonic() - began < 300
    assert watchdog.marker.value == -1


def test_many_slow_events_in_a_row_are_no_timeout(watchdog: Clock) -> None:
    def slowly(e: Event) -> Event:
        time.sleep(0.1)
        return e

    found = results(run(slowly, [event(n) for n in range(6)], watchdog))
    assert [fault for _, _, fault in found] == [None] * 6


def test_a_text_that_is_no_number_for_decimal_is_said_in_words() -> None:
    fault = second("import decimal\nreturn decimal.Decimal('n/a')")
    assert fault.message == "InvalidOperation: the text is no number (ConversionSyntax)"
