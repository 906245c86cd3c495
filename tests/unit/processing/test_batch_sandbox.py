"""Tables in confined processes: one bad row parks alone, and what comes back is looked at first."""

from __future__ import annotations

import random
import resource
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from tests.servers import wait_for
from tests.support.processes import has_ended
from tests.support.user_code import sandbox
from tests.unit.processing.made import chained, event, faults, pipeline, rows, total
from tests.unit.processing.test_batch_form import HEAD, SAME, batch, given_pipeline, told

from waybill.errors import ParkError
from waybill.events import Event, encode
from waybill.processing import Fault, Plan, Retries, table_results
from waybill.processing.sandbox import Sandbox
from waybill.processing.sandbox.frames import unpack
from waybill.processing.sandbox.table_frames import pack_table, unpack_table
from waybill.processing.table_results import TableResult, results_of
from waybill.settings import SandboxSettings

CRASHES = {
    "os._exit": "os._exit(0)",
    "sigkill": "os.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "answers nonsense": "for file in (3, 4, 5):\n    try: os.write(file, b'x' * 64)\n"
    "    except OSError: pass  # of these, one is of a fixed size",
}
SIZE = 1000


def when(ids: tuple[int, ...], deed: str) -> str:
    """Return code that does this for a table that holds one of these."""
    lines = "".join(f"        {line}\n" for line in deed.splitlines())
    return (
        f"import os, signal, time\n{HEAD}def transform_batch(table):\n"
        f"    if {set(ids)} & set(table['id'].to_pylist()):\n{lines}    return table\n"
    )


def parked(code: str, size: int = SIZE, box: Any = None, **options: Any) -> list[tuple[int, str]]:
    """Return (id, error type) of what parks of so many events; the others must be rows."""
    made = pipeline(code).model_copy(update=options)
    result = chained(made, [event(n) for n in range(size)], code=box or sandbox())
    gone = {offset for offset, _, _ in faults(result)}
    assert [row["id"] for row in rows(result)] == [n for n in range(size) if n not in gone]
    assert {stage for _, stage, _ in faults(result)} <= {"transformation"}
    counts = {"in_first": size, "passed": size - len(gone), "out": size - len(gone)}
    assert total(result, "transformation") == counts | ({"parked": len(gone)} if gone else {})
    return [(offset, code) for offset, _, code in faults(result)]


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("at", [(617,), (0, 999)], ids=str)
def test_of_a_thousand_rows_the_one_that_crashes_parks(crash: str, at: tuple[int, ...]) -> None:
    assert parked(when(at, crash)) == [(n, "interpreter_crashed") for n in at]


def test_of_a_thousand_rows_those_that_raise_park() -> None:
    rng = random.Random(20261124)
    at = tuple(sorted(rng.sample(range(SIZE), 20)))
    assert parked(when(at, "raise KeyError('x')")) == [(n, "field_missing") for n in at], at


@pytest.mark.parametrize(("loop", "size"), [("while True: pass", 8), ("time.sleep(9)", SIZE)])
def test_of_many_rows_the_one_that_never_ends_parks(loop: str, size: int) -> None:
    """It is looked for in halves, each of which takes its second of the processor or none."""
    at = size * 5 // 8
    found = parked(when((at,), loop), size, sandbox(1.0))
    assert found == [(at, "transformation_timeout")]


def test_a_table_has_its_own_time_beside_those_of_the_requests_before() -> None:
    slow = batch("import time\ntime.sleep(1.5)\nreturn table")
    assert [parked(slow, 1, sandbox(3.0)) for _ in range(3)] == [[]] * 3


@pytest.mark.parametrize(
    "stuck",
    [
        "any(iter(int, 1))",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}); time.sleep(3600)",
    ],
)
def test_a_row_that_does_not_give_up_is_ended(stuck: str) -> None:
    began = time.monotonic()
    assert parked(when((5,), stuck), 8, sandbox(1.0)) == [(5, "transformation_timeout")]
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    "deed",
    [
        "import sys; sys.modules.clear()",
        "import sys; sys.modules['pyarrow'] = sys.modules['msgspec'] = None",
        "import builtins; builtins.isinstance = builtins.len = None",
        "import waybill.processing.batch_form as b; b.BatchRun._part = None",
        "import waybill.processing.table_results as r; r.plain_column = lambda c: (['x'], {})",
        "import gc; [d.clear() for d in gc.get_objects() if type(d) is dict and len(d) > 500]",
        "import sys; sys.setrecursionlimit(10)",
        "os.close(3); os.close(4); os.close(5)",
        "signal.setitimer(signal.ITIMER_REAL, 0)",
        "import threading; [threading.Thread(target=time.sleep, args=(9,)).start() for _ in range(9)]",
        "pa.set_memory_pool(pa.system_memory_pool()); pa.set_cpu_count(64)",
        "print('x' * 10**7)",
    ],
)  # fmt: skip
def test_code_that_breaks_its_own_process_breaks_nobody_else(deed: str) -> None:
    made = pipeline(when((2,), deed)).model_copy(update={"team": deed})
    result = chained(made, [event(n) for n in range(6)], code=sandbox())
    told_of = dict.fromkeys(f.offset for f in result.failures)
    assert told_of.keys() <= {2} or "builtins" in deed, [f.fault for f in result.failures]
    assert len(rows(result)) == 6 - len(told_of)
    assert parked(batch("return table"), 6) == []


def test_a_table_that_takes_long_but_whose_rows_do_not_passes() -> None:
    slow = batch("import time\ntime.sleep(0.08 * len(table))\nreturn table")
    assert parked(slow, 30, sandbox(1.0)) == []


def test_memory_that_grows_ends_with_its_row() -> None:
    box = sandbox(memory_mb=300)
    assert parked(when((3,), "x = bytearray(2**29)"), 6, box) == [(3, "memory_error")]
    grow = f"{HEAD}KEPT = []\ndef transform_batch(table):\n    KEPT.append(bytearray(2**25))\n    return table\n"
    made = pipeline(grow)
    for _ in range(12):
        assert chained(made, [event(n) for n in range(3)], code=box).failures == []


def test_a_result_that_is_too_large_parks_alone() -> None:
    body = (
        "texts = ['x' * (65 * 2**20) if i == 1 else 'y' for i in table['id'].to_pylist()]\n"
        "return table.set_column(table.schema.get_field_index('s'), 's', pa.array(texts))"
    )
    result = chained(given_pipeline(batch(body)), [event(n) for n in range(3)], code=sandbox())
    assert faults(result) == [(1, "transformation", "result_invalid")]
    assert "at most 67,108,864" in result.failures[0].fault.message
    assert [row["s"] for row in rows(result)] == ["y", "y"]


def test_json_texts_that_grow_where_they_are_read_park_alone() -> None:
    """Of three characters is an object of 72 bytes; a worker reads none of too many."""
    deed = (
        "texts = ['[' + '{}' + ',{}' * 1_500_000 + ']' if n == 3 else '[]' for n in table['id'].to_pylist()]\n"
        "return table.drop_columns('x').append_column('x', pa.array(texts))"
    )
    made = pipeline(when(tuple(range(8)), deed), n="int64", x="json")
    before = psutil.Process().memory_info().rss
    result = chained(made, [event(n) for n in range(8)], code=sandbox())
    assert faults(result) == [(3, "transformation", "result_invalid")]
    assert psutil.Process().memory_info().rss - before < 128 * 2**20


def test_the_network_is_closed_and_said_so() -> None:
    code = batch("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)")
    result = chained(pipeline(code), [event(1)], code=sandbox())
    assert [(f.fault.code, "network: true" in f.fault.message) for f in result.failures] == [
        ("network_closed", True)
    ]


def test_code_that_takes_events_meets_nothing_of_what_tables_need() -> None:
    """Neither its memory nor its modules, also where its team has code of the other form."""
    ask = "__import__('os').getpid()"
    many = pipeline(
        batch(f"return table.drop_columns('n').append_column('n', pa.repeat({ask}, len(table)))"),
    )
    one = pipeline(
        "import os, sys\ndef transform(e):\n"
        "    assert not {'pyarrow', 'numpy', 'pandas'} & set(sys.modules)\n"
        "    e.data['n'] = os.getpid()\n    return e\n"
    )
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        results = [chained(made, [event(1)], code=box) for made in (many, one, many)]
        assert [f.fault.message for result in results for f in result.failures] == []
        first, other, again = (rows(result)[0]["n"] for result in results)
        assert first == again != other
        data_pages = int(Path(f"/proc/{other}/statm").read_text().split()[5])
        assert data_pages * resource.getpagesize() < 32 * 2**20
    finally:
        box.close()


def test_processes_draw_random_numbers_of_their_own() -> None:
    body = (
        "import numpy as np\n"
        "n = pa.array(np.random.randint(0, 2**60, len(table)))\n"
        "return table.drop_columns('n').append_column('n', n)"
    )
    drawn = []
    for team in ("draws-a", "draws-b", "draws-c"):
        made = pipeline(batch(body)).model_copy(update={"team": team})
        drawn += [row["n"] for row in rows(chained(made, [event(1), event(2)], code=sandbox()))]
    assert len(set(drawn)) == 6


def count_starts(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the owner of each process that is started."""
    starts: list[str] = []
    start = box._start

    def counting(owner: str, **options: Any) -> Any:
        starts.append(owner)
        return start(owner, **options)

    monkeypatch.setattr(box, "_start", counting)
    return starts


@pytest.mark.parametrize(("every", "size", "most"), [(1000, 1000, 12), (10, 100, 50), (2, 40, 70)])
def test_the_search_for_rows_at_which_a_process_dies_takes_few_starts(
    every: int, size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = tuple(n for n in range(size) if n % every == min(7, every - 1))
    box = sandbox()
    starts = count_starts(box, monkeypatch)
    assert parked(when(at, "os._exit(1)"), size, box) == [(n, "interpreter_crashed") for n in at]
    assert len(starts) <= most, starts


def test_tables_that_are_too_large_for_their_process_go_on_in_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = sandbox()
    starts = count_starts(box, monkeypatch)
    for most in (1, 100):
        code = f"import os\ndef transform_batch(t):\n    if len(t) > {most}: os._exit(1)\n    return t\n"
        assert parked(code, 500, box) == []
    assert len(starts) <= 20, starts


def test_rows_that_multiply_park_their_event_in_the_process() -> None:
    body = (
        "import numpy as np\n"
        "more = pa.table({'_row': np.ones(10**7 if 1 in table['_row'].to_pylist() else 0, int)})\n"
        "return pa.concat_tables([table.select(['_row', 'id']), more], promote_options='default')"
    )
    result = chained(given_pipeline(batch(body)), [event(n) for n in range(3)], code=sandbox())
    assert faults(result) == [(1, "transformation", "result_invalid")]
    assert "10,000,001 rows of 2 columns; at most" in result.failures[0].fault.message


def test_rows_that_multiply_anyway_never_become_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker counts them itself: an event each is 400 bytes and 20 µs."""
    with pytest.raises(ParkError, match="1,000,000 rows"):
        unpack_table([[0] * 10**6, [], []], 1)
    with pytest.raises(ParkError, match="rows of 10,000 columns"):
        unpack_table([None, [["x", "", []]] * 10**4, []], 1024)
    monkeypatch.setattr(table_results, "_MOST_BYTES", 3200)
    children = batch(
        "tables = [table.drop_columns('id').append_column('id', pc.add(table['id'], 100 * n))\n"
        "          for n in range(5)]\n"
        "return pa.concat_tables(tables)"
    )
    result = chained(given_pipeline(children), [event(n) for n in range(12)], code=sandbox())
    assert faults(result) == []
    assert sorted(row["id"] for row in rows(result)) == sorted(
        n + 100 * child for n in range(12) for child in range(5)
    )


def test_rows_of_as_many_names_cost_what_they_do_of_one() -> None:
    names = [f"n{n}" for n in range(20_000)]
    made = Plan(given_pipeline(batch("return table")))
    columns: list[tuple[str, Any]] = [("_event_name", names), ("n", pa.array(range(20_000)))]
    began = time.process_time()
    results_of(made, [event(1)], TableResult(1, [0] * 20_000, columns))
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "column",
    [
        r"pa.array([b'\xff'] * len(table)).view(pa.string())",
        r"pa.Array.from_buffers(pa.decimal128(3, 0), len(table), [None, pa.py_buffer(b'\x7f' * 16 * len(table))])",
    ],
    ids=["text", "decimal"],
)  # fmt: skip
def test_what_is_wrong_with_a_column_is_found_in_the_process(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = sandbox()
    starts = count_starts(box, monkeypatch)
    code = when((3,), f"return table.drop_columns('s').append_column('s', {column})")
    result = chained(given_pipeline(code), [event(n) for n in range(6)], code=box)
    assert faults(result) == [(3, "transformation", "result_invalid")]
    assert "a table that is not valid" in result.failures[0].fault.message
    assert len(starts) <= 1


def test_a_dictionary_of_nulls_is_null() -> None:
    body = (
        "column = pa.DictionaryArray.from_arrays(pa.array([0] * len(table)), pa.nulls(1))\n"
        "return table.drop_columns('s').append_column('s', column).append_column('new', column)"
    )
    result = chained(given_pipeline(batch(body)), [event(1, {"id": 1, "s": "x"})], code=sandbox())
    assert (faults(result), rows(result)[0]["s"]) == ([], None)


@pytest.mark.parametrize("code", ["memory_error", "interpreter_crashed", "pipeline_held"])
def test_no_row_gives_itself_a_type_that_only_waybill_gives(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = sandbox()
    starts = count_starts(box, monkeypatch)
    body = f"return table.append_column('_error_type', pa.repeat({code!r}, len(table)))"
    failures = chained(pipeline(batch(body)), [event(n) for n in range(4)], code=box).failures
    assert [(f.fault.code, f.fault.message) for f in failures] == [
        ("unexpected_error", f"{code}: ")
    ] * 4
    assert len(starts) <= 1


def test_code_with_both_functions_runs_as_it_did() -> None:
    """It was deployed when the other name was none: a deploy takes it no more."""
    code = "def transform_batch(t):\n    1 / 0\ndef transform(event):\n    return event\n"
    assert parked(code, 3) == []


ODD: list[dict[str, Any]] = [
    {"id": 0, "n": 1, "s": "é", "t": "2026-01-02T03:04:05Z", "d": "1.25", "j": {"a": 2**70}, "y": "YQ=="},
    {"id": 1, "n": "text"}, {"id": 2, "n": 2**64}, {"id": 3, "n": None, "s": "\0"}, {},
    {"id": 4, "z": [1]}, {"id": 5, "f": 10**30, "j": [None, "\ud800"]}, {"id": 6, "s": "\ud800"},
    {"id": 7, "n": {"deep": [1]}}, {"id": 8, "_op": "x", "_row": 7}, {"id": 2**70, "n": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("way", SAME)
@pytest.mark.parametrize("policy", ["strict", "ignore"])
def test_the_process_answers_what_code_here_does(way: str, policy: str) -> None:
    """By columns and message by message; a payload that is in the store is the latter's."""
    made = given_pipeline(batch(SAME[way][1]), policy)
    for first in (event(99, ODD[0]), event(99, ODD[0], attempt=1, replay_id="r", op="delete")):
        events: list[Event] = [first, *(event(n, data) for n, data in enumerate(ODD))]
        assert told(chained(made, events, code=sandbox())) == told(chained(made, events))


def test_plain_slices_travel_by_columns_and_are_the_same() -> None:
    made = given_pipeline(batch("return table.filter(pc.not_equal(table['id'], 3))"))
    events = [event(n, {"id": n, "n": n, "s": f"v{n}", "d": "1.5"}) for n in range(2000)]
    assert told(chained(made, events, code=sandbox())) == told(chained(made, events))


MANY = 3_000
"""Events of one request, of three tables."""


def test_events_of_several_tables_park_alone_for_what_each_of_them_does() -> None:
    """Where one is too large for a number, all of them travel as messages instead."""
    deeds = {
        5: "raise KeyError('x')",
        1_024: "os._exit(1)",
        1_500: "time.sleep(3600)",
        2_999: "assert len(table) > 1024",
    }
    code = (
        f"import os, time\n{HEAD}def transform_batch(table):\n    ids = table['id'].to_pylist()\n"
    )
    code += "    assert len(ids) <= 1024 and table['_row'].to_pylist()[-1] < 1024\n"
    code += "".join(f"    if {n} in ids: {deed}\n" for n, deed in deeds.items())
    code += "    return table\n"
    expected = [
        (5, "field_missing"),
        (1_024, "interpreter_crashed"),
        (1_500, "transformation_timeout"),
        (2_999, "assertion_failed"),
    ]
    assert parked(code, MANY, sandbox(1.0)) == expected


def test_a_payload_that_cannot_be_read_parks_alone_of_several_tables() -> None:
    good = [event(n) for n in range(2_500)]
    bad = encode(event(1_100)).replace(b'"n":1100', b'"n":1E9999999999999999999')
    events = [*good[:1_100], bad, *good[1_101:]]
    made = pipeline(batch("return table.filter(pc.not_equal(table['id'], 2000))"))
    result = chained(made, events, code=sandbox())
    assert faults(result) == [(1_100, "transformation", "envelope_not_json")]
    assert [row["id"] for row in rows(result)] == [
        n for n in range(2_500) if n not in (1_100, 2_000)
    ]


@pytest.mark.parametrize("way", SAME)
def test_several_tables_of_one_request_become_what_code_here_makes_of_them(way: str) -> None:
    events = [event(n, {"id": n, "n": n, "s": f"v{n}", "d": "1.5"}) for n in range(MANY)]
    events[1_030:1_030] = [event(n, data) for n, data in enumerate(ODD)]
    made = given_pipeline(batch(SAME[way][1]))
    expected = told(chained(made, events))
    assert told(chained(made, events, code=sandbox())) == expected
    if way == "passes":
        single = "def transform(event):\n    return event\n"
        assert told(chained(given_pipeline(single), events)) == expected


def test_code_whose_tables_are_too_many_rows_together_is_asked_for_fewer_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = sandbox()
    twice = "table.set_column(table.schema.get_field_index('id'), 'id', pc.add(table['id'], 10**6))"
    made = pipeline(batch(f"return pa.concat_tables([table, {twice}])"))
    monkeypatch.setattr(table_results, "_MOST_BYTES", 4_000 * (100 + 10 * 2))
    starts = count_starts(box, monkeypatch)
    for most in (3, 0):
        starts.clear()
        result = chained(made, [event(n) for n in range(MANY)], code=box)
        assert (result.failures, len(rows(result))) == ([], 2 * MANY)
        assert len(starts) <= most
    assert box.most_events(Plan(made)) == 1024


def test_a_transient_error_is_met_again_in_the_process() -> None:
    code = (
        f"{HEAD}TRIES = []\n"
        "def transform_batch(table):\n"
        "    if 1 in table['id'].to_pylist():\n"
        "        TRIES.append(len(table))\n"
        "        if TRIES.count(1) < 3: raise ConnectionError('away')\n"
        "    return table\n"
    )
    retries = Retries(3, backoff_s=0.01)
    result = chained(pipeline(code), [event(n) for n in range(4)], retries=retries, code=sandbox())
    assert (result.failures, len(rows(result))) == ([], 4)
    assert 0.02 < retries.spent_s < 5


def test_results_come_back_as_they_are() -> None:
    arrays: list[tuple[str, Any]] = [
        ("n", pa.array([1, None, 3])),
        ("s", pa.array(["a", "", None])),
        ("none", pa.array(["", "", ""])),
        ("slice", pa.array(["x" * 5000, "a", "b", "c", "y" * 5000])[1:4]),
        ("o", pa.array([True, None, False])),
        ("d", pa.array([None, None, 1]).cast(pa.decimal128(20, 1))),
        ("v", [1, {"a": 2**70}, "\ud800"]),
    ]
    fault = Fault("value_error", "no", "here", "hash")
    result = TableResult(4, [0, 2, 3], arrays, {1: fault})
    content = pack_table(result, "printed")
    assert len(content) < 2000
    kind, body, printed = unpack(content)
    back = unpack_table(body, 4)
    assert (kind, printed, list(back.rows), back.faults) == (
        "table",
        "printed",
        [0, 2, 3],
        {1: fault},
    )
    for (name, mine), (other, theirs) in zip(arrays, back.columns, strict=True):
        assert name == other
        assert (mine.to_pylist() if isinstance(mine, pa.Array) else mine) == (
            theirs.to_pylist() if isinstance(theirs, pa.Array) else theirs
        )


def offsets(*numbers: int) -> bytes:
    return pa.array(numbers, pa.int32()).buffers()[1].to_pybytes()


@pytest.mark.parametrize(
    ("rows_", "column", "faults_"),
    [
        (None, ("string", [None, offsets(0, 1, 1 << 30), b"ab"]), []),
        (None, ("string", [None, offsets(0, -5, 2), b"ab"]), []),
        (None, ("string", [None, offsets(2, 1, 0), b"ab"]), []),
        (None, ("string", [None, offsets(0, 1), b"ab"]), []),
        (None, ("string", [None, offsets(0, 1, 2), b"\xff\xfe"]), []),
        (None, ("string", [None, None, b"ab"]), []),
        (None, ("binary", [None, offsets(0, 1, 3), b"ab"]), []),
        (None, ("int64", [None, bytes(15)]), []),
        (None, ("int64", [b"", bytes(16)]), []),
        (None, ("int64", [bytes(16)]), []),
        (None, ("int64", [None, bytes(16), b""]), []),
        (None, ("int64", ["x", "y"]), []),
        (None, ("date32[day]", [None, b"\xff\xff\xff\x7f" * 2]), []),
        (None, ("timestamp[us, tz=UTC]", [None, b"\xff" * 7 + b"\x7f" + bytes(8)]), []),
        (None, ("decimal128(2, 0)", [None, b"\xff" * 7 + bytes(25)]), []),
        (None, ("decimal128(99, 0)", [None, bytes(32)]), []),
        (None, ("list<item: int64>", [None, bytes(32)]), []),
        (None, ("dictionary<values=string, indices=int32, ordered=0>", [None, bytes(8)]), []),
        (None, ("", [1]), []),
        (None, ("", "ab"), []),
        (None, (None, [1, 2]), []),
        ([0], ("int64", [None, bytes(16)]), [[0, ["value_error", "m", "", "", []]]]),
        ([1, 0], ("int64", [None, bytes(16)]), []),
        ([0, 2], ("int64", [None, bytes(16)]), []),
        ([-1, 0], ("int64", [None, bytes(16)]), []),
        ([True], ("", [1]), []),
        (["0"], ("", [1]), []),
        ("01", ("", [1, 2]), []),
        ([], ("", []), [[2, ["value_error", "m", "", "", []]]]),
        ([], ("", []), [[0, ["no_such_code", "m", "", "", []]]]),
        ([], ("", []), [[0, "m"]]),
    ],
)
def test_an_answer_that_no_process_of_ours_gives_is_refused(
    rows_: Any, column: tuple[Any, Any], faults_: Any
) -> None:
    """Before a value is looked at: offsets may point to anywhere in the worker's memory."""
    with pytest.raises(Exception):  # noqa: B017 - any will do: it is met as a crash
        unpack_table([rows_, [["x", *column]], faults_], 2)


def test_columns_without_a_name_are_refused() -> None:
    for body in ([None, [[5, "", [1, 2]]], []], [None, [["x", ""]], []], [None, 5, []], None, []):
        with pytest.raises(Exception):  # noqa: B017 - as above
            unpack_table(body, 2)


def test_a_payload_that_only_the_careful_way_reads_is_read() -> None:
    quick = encode(event(1))
    values = [
        quick,
        quick.replace(b'"n":1', b'"n":1,"s":"\\u0000"'),
        quick.replace(b'"n":1', b'"n":1,"f":1e999'),
        quick.replace(b'"n":1', '"n":1,"s":"é"'.encode()),
        quick.replace(b'"n":1', b'"n":1,"n":2'),
    ]
    made = given_pipeline(batch("return table"))
    for part in ([0, 1, 2, 3], [0, 2], [0, 3, 4], [2], [4]):
        mine = [values[index] for index in part]
        assert told(chained(made, mine, code=sandbox())) == told(chained(made, mine))


def test_a_number_that_only_the_process_cannot_read_parks_alone() -> None:
    code = f"import sys; sys.set_int_max_str_digits(640)\n{batch('return table')}"
    events = [event(0, {"id": 0, "n": 10**1000}), event(1)]
    result = chained(pipeline(code), events, code=sandbox())
    assert [(f.offset, f.fault.code) for f in result.failures] == [(0, "interpreter_crashed")]


def test_a_process_that_answers_in_the_other_form_is_met_as_a_crash() -> None:
    code = (
        "import waybill.processing.sandbox.child as child\n"
        "child._Child._run = lambda *a: child.pack([['id', 'n'], [[1], [1]], ''])\n"
        + batch("return table")
    )
    result = chained(pipeline(code).model_copy(update={"team": "odd"}), [event(1)], code=sandbox())
    assert faults(result) == [(0, "transformation", "interpreter_crashed")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "there = table['t'].cast(pa.timestamp('us', 'Europe/Berlin'))\n"
            "words = pc.strftime(there, format='%H:%M %Z').cast(pa.string())\n"
            "return table.drop_columns('s').append_column('s', words)",
            "12:00 CEST",
        ),
        (
            "frame = table.to_pandas()\n"
            "frame['s'] = frame['t'].dt.tz_convert('Europe/Berlin').astype(str)\n"
            "return pa.Table.from_pandas(frame, preserve_index=False)",
            "2026-07-01 12:00:00+02:00",
        ),
        (
            "import numpy as np\n"
            "return table.drop_columns('n').append_column('n', pa.array(np.arange(len(table))))",
            "a",
        ),
        (
            "sums = table.group_by('s').aggregate([('n', 'sum')])\n"
            "return table.join(sums, 's').drop_columns(['n_sum'])",
            "a",
        ),
        ("import pyarrow.dataset, pyarrow.acero\nreturn table", "a"),
    ],
    ids=["time zones", "pandas", "numpy", "joins", "datasets"],
)
def test_what_engineers_do_with_tables_works_in_there(body: str, expected: str) -> None:
    data = {"n": 1, "t": "2026-07-01T10:00:00Z", "s": "a"}
    events = [event(n, {"id": n, **data}) for n in range(3)]
    result = chained(given_pipeline(batch(body)), events, code=sandbox())
    assert [failure.fault.message for failure in result.failures] == []
    assert [(row["id"], row["s"]) for row in rows(result)] == [(n, expected) for n in range(3)]


def test_a_process_that_somebody_else_killed_parks_nothing() -> None:
    """While a table is worked on: it is run again, in halves."""
    box = Sandbox(SandboxSettings(), timeout_s=100)
    try:
        pid = rows(
            chained(
                pipeline(
                    batch(
                        "import os\n"
                        "n = pa.repeat(os.getpid(), len(table))\n"
                        "return table.drop_columns('n').append_column('n', n)"
                    )
                ),
                [event(1)],
                code=box,
            )
        )[0]["n"]
        victim = psutil.Process(pid)
        kill = threading.Timer(0.3, victim.kill)
        kill.start()
        slow = batch("import time\ntime.sleep(0.6 if len(table) > 5 else 0)\nreturn table")
        assert parked(slow, 10, box) == []
        kill.join()
        wait_for(lambda: has_ended(victim))
    finally:
        box.close()


COUNTS_UP = (
    "import signal, sys, time\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
    "frame = sys._getframe()\n"
    "while '_watch' not in getattr(frame.f_locals.get('self'), '__dict__', {}):\n"
    "    frame = frame.f_back\n"
    "marker = frame.f_locals['self']._watch.marker\n"
    "marker.value = START\n"
    "while True:\n"
    "    marker.value += STEP\n"
    "    time.sleep(0.05)\n"
)


@pytest.mark.parametrize(
    ("start", "step"), [("0", "1"), ("marker.value", "1"), ("marker.value", "1 << 20")]
)
def test_code_that_raises_its_marker_itself_is_ended(start: str, step: str) -> None:
    """Row by row nothing is further on than its table; and no request may take for ever."""
    code = batch(COUNTS_UP.replace("START", start).replace("STEP", step))
    made, found = pipeline(code).model_copy(update={"team": start + step}), list[Any]()
    box = sandbox(0.1)

    def work() -> None:
        many = Retries(1000, budget_s=0.0)  # as many markers as in a slice of a thousand events
        found.extend(faults(chained(made, [event(n) for n in range(2)], code=box, retries=many)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(600)
    assert found == [(n, "transformation", "transformation_timeout") for n in range(2)]
