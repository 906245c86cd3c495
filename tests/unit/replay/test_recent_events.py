"""What a proposed version would do to recent good events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.support.user_code import sandbox
from tests.unit.processing.made import event, pipeline

from waybill.cli.replays import print_good
from waybill.events import decode, encode
from waybill.parking.masking import MASK
from waybill.processing.dry_runner import DryRunner
from waybill.replay.recent_events import GoodReport, compare, recent_events
from waybill.storage.log import TopicInfo

FROM_DO = """
def transform(event):
    do = event.data.pop("do", "")
    if do == "filter": return None
    if do == "fail": raise ValueError("today")
    if do == "text": event.data["n"] = "x"
    return event
"""


def runner(code: str, **types: str) -> DryRunner:
    return DryRunner(pipeline(code, **types), code=sandbox(), rows=True)


def compared(active: str, proposed: str, data: list[dict[str, Any]], **types: str) -> GoodReport:
    values = [encode(event(n, {"id": n, **one})) for n, one in enumerate(data)]
    return compare(runner(active), runner(proposed, **types), values)


def test_each_event_is_the_same_changed_newly_broken_or_was_not_good() -> None:
    proposed = """
def transform(event):
    kind = event.data.pop("do", "")
    if kind == "filter": return None
    if kind == "gone": return None
    if kind == "break": raise KeyError("n")
    if kind == "wrong": event.data["n"] = "x"
    if kind == "more": event.data["n"] += 1
    return event
"""
    kinds = ["", "", "filter", "fail", "text", "gone", "break", "wrong", "more"]
    report = compared(FROM_DO, proposed, [{"n": 5, "do": kind} for kind in kinds])
    assert (report.tried, report.same, report.changed, report.newly_broken) == (7, 3, 1, 3)
    assert report.ways == {
        "filtered": 1,
        "transformation/field_missing": 1,
        "mapping/type_mismatch": 1,
    }
    [changed] = [one for one in report.examples if one["kind"] == "changed"]
    assert changed == {"event_id": "e8", "kind": "changed", "columns": {"order.n": [5, 6]}}
    broken = [one for one in report.examples if one["kind"] == "newly_broken"]
    assert [one["event_id"] for one in broken] == ["e5", "e6", "e7"]
    assert broken[1]["message"] == "KeyError: 'n'"


def test_a_column_that_no_two_runs_agree_on_is_not_compared() -> None:
    code = "import os\ndef transform(event):\n    event.data['n'] = int.from_bytes(os.urandom(6))\n    return event\n"
    report = compared(code, code + "\n# anew\n", [{"n": 1}] * 4)
    assert (report.tried, report.same) == (4, 4)


def test_columns_rows_keys_and_operations_that_come_or_go_are_changes() -> None:
    passes = "def transform(event):\n    return event\n"
    split = (
        "def transform(event):\n    return [event.child(i, {'id': i, 'n': 7}) for i in (1, 2)]\n"
    )
    two = compared(passes, split, [{"n": 1}])
    assert two.changed == 1
    assert two.examples[0]["columns"]["rows"] == [1, 2]
    deletes = "def transform(event):\n    event.op = 'delete'\n    return event\n"
    assert compared(passes, deletes, [{"n": 1}]).examples[0]["columns"] == {
        "order._waybill_op": ["upsert", "delete"]
    }
    floats = compared(passes, passes, [{"n": 1}], n="float64")
    assert floats.examples[0]["columns"] == {"order.n": [1, 1.0]}


def test_a_new_column_is_other_output_only_where_it_has_a_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    passes = "def transform(event):\n    return event\n"
    fills = "def transform(event):\n    event.data['m'] = 7\n    return event\n"
    print_good(compared(passes, passes, [{"n": 1}] * 3, n="int64", m="int64"))
    said = " ".join(capsys.readouterr().out.split())
    assert "of 3 recent good events: 3 the same, 0 with other output, 0 newly broken" in said
    print_good(compared(passes, fills, [{"n": 1}] * 3, n="int64", m="int64"))
    said = " ".join(capsys.readouterr().out.split())
    assert "0 the same, 3 with other output" in said
    assert "order.m: null → 7" in said


def test_examples_are_few_and_values_in_them_short() -> None:
    long = "def transform(event):\n    event.data['n'] = 'y' * 5_000\n    return event\n"
    active = runner("def transform(event):\n    return event\n", n="string")
    values = [encode(event(n, {"id": n, "n": "a"})) for n in range(20)]
    report = compare(active, runner(long, n="string"), values)
    assert (report.changed, len(report.examples)) == (20, 5)
    assert len(report.examples[0]["columns"]["order.n"][1]) == 201


def test_examples_hold_no_personal_value() -> None:
    proposed = """
def transform(event):
    if event.data["n"] == "Cleo": raise ValueError("no " + event.data["n"])
    event.data["m"] = "was " + event.data["n"]
    event.data["n"] = "Dora"
    return event
"""
    passes = "def transform(event):\n    return event\n"
    types = {"n": "string", "m": "string"}
    values = [encode(event(n, {"id": n, "n": name})) for n, name in enumerate(["Berta", "Cleo"])]
    report = compare(runner(passes, **types), runner(proposed, **types), values, personal=("n",))
    changed, broken = report.examples
    assert changed["columns"] == {"order.n": [MASK, MASK], "order.m": [None, f"was {MASK}"]}
    assert broken["message"] == f"ValueError: no {MASK}"


class Log:
    """A log in memory that counts what is read of it."""

    def __init__(self, partitions: list[list[bytes]], low: int = 0) -> None:
        self.partitions, self.low, self.read_messages = partitions, low, 0

    def describe(self, name: str) -> TopicInfo:
        return TopicInfo(name, "c", "t", len(self.partitions))

    def watermarks(self, topic: TopicInfo) -> dict[int, tuple[int, int]]:
        return {
            n: (self.low, len(one)) for n, one in enumerate(self.partitions[: topic.partitions])
        }

    def read(self, _topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[bytes]:
        for number, (start, end) in ranges.items():
            assert self.low <= start <= end
            self.read_messages += end - start
            yield from self.partitions[number][start:end]


def recent(log: Log, n: int) -> list[str]:
    found = recent_events(
        log, "events.team.warehouse", pipeline_id="p1", event_name="order", n=n, seed=1
    )
    return [decode(value).id for value in found]


def test_recent_events_are_the_newest_of_this_name_that_enter_at_transformation() -> None:
    own = [encode(event(n)) for n in range(30_000)]
    log = Log([own[:15_000], own[15_000:]])
    found = recent(log, 100)
    assert len(set(found)) == 100
    assert log.read_messages <= 1_000
    assert min(int(name[1:]) % 15_000 for name in found) >= 14_500
    foreign = [
        encode(event(1, pipeline_id="p2")),
        encode(event(2, name="invoice")),
        encode(event(3, stage="mapping")),
        b"junk",
    ]
    assert recent(Log([foreign * 50 + [encode(event(9))]]), 5) == ["e9"]


def test_rare_events_are_looked_for_further_back_but_not_for_ever() -> None:
    other = encode(event(1, name="invoice"))
    log = Log([[encode(event(7))] + [other] * 20_000])
    assert recent(log, 3) == ["e7"]
    endless = Log([[encode(event(7))] + [other] * 300_000])
    assert recent(endless, 3) == []
    assert endless.read_messages == 200_000


@pytest.mark.parametrize("partitions", [[], [[], []]])
def test_a_log_with_nothing_in_it_gives_nothing(partitions: list[list[bytes]]) -> None:
    assert recent(Log(partitions), 5) == []


def test_what_the_log_has_deleted_is_not_asked_for() -> None:
    log = Log([[b"deleted"] * 40 + [encode(event(n)) for n in range(3)]], low=40)
    assert sorted(recent(log, 50)) == ["e0", "e1", "e2"]
