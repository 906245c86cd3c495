"""The chain: every message ends in exactly one way, and the counts say so."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.user_code import sandbox
from tests.unit.processing.made import (
    MINUTE,
    chained,
    check_books,
    chunk,
    event,
    faults,
    fetch,
    pipeline,
    rows,
    total,
)

from waybill.events import decode, encode, read_heads
from waybill.pipelines import Pipeline
from waybill.processing import Chain, ChainResult, InProcess, Plan
from waybill.processing.chain import _slices

SEED = 20260102
STAGES = ("ingestion", "transformation", "mapping", "destination", "staged")
# What becomes of an event is in its payload: `do`. `n` must be an int64 to be mapped.
WILD = """
def transform(event):
    do = event.data.pop("do", None)
    if do == "drop": return None
    if do == "raise": raise ValueError("no")
    if do == "missing": return event.data["absent"]
    if do == "wrong": return 5
    if do == "nothing": return []
    if do == "unwritable": event.data["n"] = object()
    if do == "family":
        return [event.child(i, {"id": event.data["id"] * 10 + i, "n": i}) for i in range(3)]
    if do == "mixed":
        bad, worse = (event.child(1, {"id": -event.data["id"] - i, "n": "text"}) for i in (1, 2))
        return [event, bad, event.child(2, dict(event.data), name="refund"), worse]
    if do == "twins":
        return [event, event.child(1, {"id": event.data["id"], "n": 0})]
    if do == "spoiled family":
        return [event, event.child(1, {"id": 1, "n": float("nan"), "extra": 1})]
    if do == "stray": event.name = "nobody"
    if do == "stray and raise":
        event.name = "nobody"
        raise KeyError("x")
    return event
"""
FAMILIES = ("family", "mixed", "spoiled family", "twins")
DOINGS = (
    "drop", "raise", "missing", "wrong", "nothing", "unwritable", "family", "mixed",
    "spoiled family", "twins", "stray", "stray and raise", None, None, None, None,
)  # fmt: skip


def wild_messages(chance: random.Random, count: int) -> list[bytes]:
    values = []
    for number in range(count):
        data: dict[str, Any] = {"id": number, "n": number, "do": chance.choice(DOINGS)}
        stage = chance.choice(["transformation"] * 6 + ["mapping", "destination"])
        if stage != "transformation":
            del data["do"]
        if chance.random() < 0.1:
            data["n"] = "text"
        if chance.random() < 0.05:
            data["unknown"] = 1
        if chance.random() < 0.05:
            values.append(chance.choice([b"", b"{}", b"\xff", b"null", b'{"id":1}', b"[" * 5000]))
            continue
        one = event(
            number,
            data,
            stage=stage,
            attempt=chance.choice([1, 2])
            if stage != "transformation"
            else chance.choice([0, 0, 3]),
            name=chance.choice(["order", "order", "refund", "nobody"]),
            pipeline_id=chance.choice(["p1", "p1", "p1", "p2", "broken", "unknown one"]),
            intake_minute=MINUTE - chance.randrange(3),
            op=chance.choice(["upsert", "upsert", "delete"]),
        )
        if chance.random() < 0.05:
            name = chance.choice(["there", "gone", "garbage"])
            one.data_ref = f"payloads/{one.pipeline_id}/{name}"
        values.append(encode(one))
    return values


def wild_pipelines() -> list[Pipeline]:
    names = ("order", "refund")
    return [
        pipeline(WILD, events=names),
        pipeline(WILD, ident="p2", events=names, policy="ignore"),
        pipeline("import nothing_of_the_kind", ident="broken", events=names),
    ]


def count_of(result: ChainResult, outcome: str) -> int:
    return sum(len(m.offsets) for (_, _, how), m in result.mapped.items() if how == outcome)


@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_every_message_has_exactly_one_outcome_and_the_books_balance(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    values = wild_messages(chance, 1_500)
    chain = Chain({p.id: Plan(p) for p in wild_pipelines()}, fetch=fetch)
    for start in range(0, len(values), 700):
        chain.process(chunk(values[start : start + 700], first=start))
    result = chain.result
    check_books(result)

    parked = Counter(f.offset for f in result.failures)
    ended = Counter(parked)
    for group in result.mapped.values():
        ended.update(group.offsets)
    assert set(ended) == set(range(len(values))), "a message without an outcome"
    # Only what a transformation made can have ends of its own.
    for offset, ends in ended.items():
        if ends > 1:
            assert decode(values[offset]).data.get("do") in FAMILIES
    assert sum(parked.values()) == result.counts.total("parked")
    staged = count_of(result, "passed")
    assert staged == len(rows(result)) == result.staged.rows
    assert staged == total(result, "staged")["in_first"] + total(result, "staged")["in_replayed"]
    filtered = count_of(result, "filtered")
    assert filtered == result.counts.total("filtered")
    ids = [row["_waybill_id"] for row in rows(result)]
    events = [v for v in ids if "/" not in v]
    assert len(set(events)) == len(events)


@pytest.mark.parametrize("seed", [SEED])
def test_a_chain_whose_code_runs_in_a_sandbox_comes_to_the_same_end(seed: int) -> None:
    values = wild_messages(random.Random(seed), 600)
    results = []
    for code in (None, sandbox()):
        chain = Chain({p.id: Plan(p) for p in wild_pipelines()}, fetch=fetch, code=code)
        chain.process(chunk(values))
        results.append(chain.result)
    plain, confined = results
    assert confined.counts.to_json() == plain.counts.to_json()
    assert rows(confined) == rows(plain)
    assert [(f.offset, f.fault.code, f.value) for f in confined.failures] == [
        (f.offset, f.fault.code, f.value) for f in plain.failures
    ]


@pytest.mark.parametrize("seed", [SEED])
def test_what_is_parked_can_enter_again_where_it_failed(seed: int) -> None:
    """Each parked value, sent as a replay sends it, fails there again and nowhere else."""
    values = wild_messages(random.Random(seed), 600)
    chain = Chain({p.id: Plan(p) for p in wild_pipelines()}, fetch=fetch)
    chain.process(chunk(values))
    again = Chain({p.id: Plan(p) for p in wild_pipelines()}, fetch=fetch)
    sent = []
    for failure in chain.result.failures:
        if failure.pipeline_id == "unknown":
            continue
        one = decode(failure.value)
        assert (one.id, one.name, one.pipeline_id) == (
            failure.event_id,
            failure.event_name,
            failure.pipeline_id,
        )
        one.stage, one.attempt = failure.stage, failure.attempt + 1
        sent.append((failure, encode(one)))
    again.process(chunk([value for _, value in sent]))
    found = {f.offset: f for f in again.result.failures if f.event_id.count("/") <= 1}
    for offset, (failure, _) in enumerate(sent):
        assert found[offset].fault.code == failure.fault.code
        assert found[offset].stage == failure.stage
        assert found[offset].attempt == failure.attempt + 1
    check_books(again.result)


def test_parks_at_the_first_stage_keep_the_message_byte_for_byte() -> None:
    odd = b" " + encode(event(1, {"id": 1, "n": 1})).replace(b'"n":1', b'"n" : 1.0e0 ') + b"\n"
    spaced = b"\t" + encode(event(2, {"id": 2, "n": "x"}, stage="mapping", attempt=1))
    delivered = encode(event(3, {"id": 3, "n": "x"}, stage="destination", attempt=1)) + b"  "
    junk = b"\x00junk"
    result = chained(pipeline("def transform(event): 1/0"), [odd, spaced, delivered, junk])
    assert {f.offset: f.value for f in result.failures} == {
        0: odd,
        1: spaced,
        2: delivered,
        3: junk,
    }


def test_what_fails_behind_a_transformation_is_parked_as_it_entered_there() -> None:
    code = "def transform(event):\n    event.data['n'] = str(event.data['n'])\n    return event\n"
    result = chained(pipeline(code), [event(1)])
    (failure,) = result.failures
    assert (failure.stage, failure.fault.code, failure.fault.where) == (
        "mapping",
        "type_mismatch",
        "n",
    )
    one = decode(failure.value)
    assert (one.data, one.stage) == ({"id": 1, "n": "1"}, "mapping")


@pytest.mark.parametrize(
    "change",
    ["event.data['n'] = {1, 2}", "event.data['x'] = float('nan')", "event.data['n'] = b'raw'"],
)
def test_a_result_that_cannot_be_written_down_parks_its_parent_at_the_transformation(
    change: str,
) -> None:
    """Parked at the mapping, the untransformed payload would enter there."""
    message = encode(event(1))
    result = chained(
        pipeline(f"def transform(event):\n    {change}\n    return event\n"), [message]
    )
    (failure,) = result.failures
    assert (failure.stage, failure.fault.code, failure.value) == (
        "transformation",
        "result_invalid",
        message,
    )
    assert total(result, "transformation") == {"in_first": 1, "parked": 1}
    assert total(result, "mapping") == {}


def test_siblings_of_a_child_that_fails_go_on() -> None:
    result = chained(
        pipeline(WILD, events=("order", "refund")), [event(5, {"id": 5, "n": 5, "do": "mixed"})]
    )
    assert sorted(row["_waybill_id"] for row in rows(result)) == ["e5/0", "e5/2"]
    assert [(f.event_id, f.fault.code) for f in result.failures] == [
        ("e5/1", "type_mismatch"),
        ("e5/3", "type_mismatch"),
    ]
    assert total(result, "transformation") == {"in_first": 1, "passed": 1, "out": 4}
    assert total(result, "mapping") == {"in_first": 4, "passed": 2, "out": 2, "parked": 2}


STRAYS = """
def transform(event):
    n = event.data["n"]
    return [event, event.child(1, {"id": -n, "n": n}, name=f"made-up-{n}" + "\\x1b[2J" * n)]
"""


def test_names_that_code_makes_up_make_no_groups_and_no_books() -> None:
    messages = [encode(event(n, {"id": n, "n": n})) for n in range(50)]
    result = chained(pipeline(STRAYS), messages)
    check_books(result)
    assert {(f.event_name, f.stage, f.fault.code) for f in result.failures} == {
        ("order", "transformation", "event_name_unknown")
    }
    assert [f.value for f in result.failures] == messages, "each event parks once, as it came"
    assert {name for _, name, _, _, _ in result.counts.to_json()} == {"order"}
    assert {name for _, name, _ in result.mapped} == {"order"}
    assert len(rows(result)) == 50, "its other children go on"
    shown = [f.fault.message for f in result.failures]
    assert shown[0] == "'name-of-p1' declares no event 'made-up-0'"
    assert max(map(len, shown)) < 500
    assert not any("\x1b" in words for words in shown)


def test_a_name_that_is_declared_since_goes_through_with_the_event_that_parked() -> None:
    code = STRAYS.replace('f"made-up-{n}" + "\\x1b[2J" * n', '"refund"')
    [failure] = chained(pipeline(code), [event(1)]).failures
    again = decode(failure.value)
    again.stage, again.attempt = failure.stage, failure.attempt + 1
    result = chained(pipeline(code, events=("order", "refund")), [again])
    check_books(result)
    assert result.failures == []
    assert result.counts.total("in_replayed", stage="transformation") == 1
    assert sorted(row["_waybill_id"] for row in rows(result)) == ["e1/0", "e1/1"]


def test_an_event_that_is_given_an_undeclared_name_parks_under_its_own() -> None:
    code = "def transform(event):\n    event.name = 'nobody'\n    return event\n"
    [failure] = chained(pipeline(code), [event(1)]).failures
    assert (failure.event_name, failure.stage) == ("order", "transformation")
    assert failure.value == encode(event(1))


def test_children_that_are_one_row_park_their_parent() -> None:
    """Neither is newer, so one would be swallowed as a duplicate."""
    result = chained(pipeline(WILD), [event(5, {"id": 5, "n": 5, "do": "twins"}), event(6)])
    assert faults(result) == [(0, "transformation", "result_invalid")]
    assert (
        "children 0 and 1 are the same row of 'order': key [5]" in result.failures[0].fault.message
    )
    assert decode(result.failures[0].value).data["do"] == "twins"
    assert [row["_waybill_id"] for row in rows(result)] == ["e6"]


def test_a_parent_that_goes_on_as_children_has_an_end_of_its_own() -> None:
    result = chained(pipeline(WILD), [event(5, {"id": 5, "n": 5, "do": "family"}), event(6)])
    ids = {how: mapped.ids for (_, _, how), mapped in result.mapped.items()}
    assert ids == {"passed": ["e5/0", "e5/1", "e5/2", "e6"]}
    assert [group.ids for group in result.transformed.values()] == [["e5", "e6"]]


def test_a_key_s_events_keep_their_order() -> None:
    messages = [event(n, {"id": n % 3, "n": n}, source_version=n) for n in range(2_000)]
    found = [row["n"] for row in rows(chained(pipeline(), messages))]
    assert found == list(range(2_000))


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_slices_read_at_once_end_as_those_read_by_message(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns of plain first passes are a short cut, and nothing else."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    plain = [value for value in wild_messages(chance, 3_000) if read_heads([value]) is not None]
    assert len(plain) > 500

    def ended() -> Any:
        chain = Chain({p.id: Plan(p) for p in wild_pipelines()}, fetch=fetch)
        for start in range(0, len(plain), 700):
            chain.process(chunk(plain[start : start + 700], first=start))
        result = chain.result
        failures = sorted(result.failures, key=lambda failure: failure.offset)
        ends = {key: sorted(zip(m.ids, m.offsets, strict=True)) for key, m in result.mapped.items()}
        staged = sorted(rows(result), key=lambda row: str(row["_waybill_id"]))
        return failures, ends, staged, result.counts.to_json()

    at_once = ended()
    monkeypatch.setattr("waybill.processing.chain.read_first_passes", lambda values: None)
    assert ended() == at_once


def of_two_teams(chance: random.Random, count: int) -> list[bytes]:
    """Return wild messages, some pipelines' from two teams, in runs of plain ones and others."""
    values = wild_messages(chance, count)
    for start in range(0, count, 90):
        end = start + chance.choice([20, 45])
        plain = [event(n, {"id": n, "n": n}) for n in range(start, end)]
        names = [chance.choice(["order", "refund"]) for _ in plain]
        team = chance.choice(["team", "team", "other"])
        pairs = zip(plain, names, strict=True)
        values[start:end] = [encode(replace(one, name=name, team=team)) for one, name in pairs]
    return values


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
@pytest.mark.parametrize("most", [(64, 2**21), (64, 9_000)], ids=["by number", "by size"])
def test_blocks_that_are_worked_on_together_end_as_each_by_itself(
    seed: int, most: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    values = of_two_teams(chance, 1_500)
    sizes: list[int] = []

    class Noting(InProcess):
        def run(self, plan: Plan, events: Any, values: Any, retries: Any) -> Any:
            sizes.append(len(events))
            return super().run(plan, events, values, retries)

    def ended() -> Any:
        sizes.clear()
        chain = Chain({p.id: Plan(p) for p in wild_pipelines()}, fetch=fetch, code=Noting())
        chain.process(chunk(values))
        result = chain.result
        check_books(result)
        failures = sorted(result.failures, key=lambda failure: failure.offset)
        ends = {key: sorted(zip(m.ids, m.offsets, strict=True)) for key, m in result.mapped.items()}
        staged = {
            (head.pipeline_id, head.event_name): data.to_pylist()
            for head, data in result.staged.tables()
        }
        return failures, ends, staged, result.counts.to_json(), result.replayed

    monkeypatch.setattr("waybill.processing.chain._GROUP", 1)
    monkeypatch.setattr("waybill.processing.chain._BLOCK", 16)
    monkeypatch.setattr("waybill.processing.chain._SLICE", 16)
    alone = ended()
    assert max(sizes) <= 16
    monkeypatch.setattr("waybill.processing.chain._SLICE", most[0])
    monkeypatch.setattr("waybill.processing.chain._SLICE_BYTES", most[1])
    assert ended() == alone
    assert 16 < max(sizes) <= most[0]


def test_a_slice_holds_more_messages_where_there_are_more_names() -> None:
    for names, sizes in ((3, [4096, 4096, 1808]), (16, [8192, 1808]), (40, [10_000])):
        values = [encode(event(n, {"id": n}, name=f"name {n % names}")) for n in range(10_000)]
        found = list(_slices(values))
        assert [end - start for start, end, _ in found] == sizes
        for start, end, made in found:
            assert made is not None
            for heads, places in made.groups(values[start:end]):
                assert [f"e{start + place}" for place in places] == heads.ids


def test_of_one_name_no_more_are_worked_on_together_however_many_names_there_are() -> None:
    names = [f"name {n % 100}" if n % 10 == 0 else "most" for n in range(20_000)]
    values = [encode(event(n, {"id": n}, name=name)) for n, name in enumerate(names)]
    seen: dict[str, list[int]] = {name: [] for name in names}
    sizes = []
    for start, end, made in _slices(values):
        assert made is not None
        for heads, places in made.groups(values[start:end]):
            sizes.append(len(heads))
            assert [f"e{start + place}" for place in places] == heads.ids
            seen[heads.name] += [start + place for place in places]
    assert max(sizes) == 4096
    for name, places in seen.items():
        assert places == [n for n in range(20_000) if names[n] == name]


def test_large_messages_are_read_in_blocks_of_eight_mebibytes() -> None:
    value = encode(event(1, {"id": 1, "s": "x" * 100_000}))
    found = list(_slices([value] * 300))
    sizes = [end - start for start, end, _ in found]
    assert sum(sizes) == 300
    assert len(value) * max(sizes) <= 8 * 2**20
    assert len(sizes) < 8
    assert all(made is not None for _, _, made in found), "read at once"
    assert [(start, end) for start, end, _ in _slices([b"x" * (9 * 2**20)] * 2)] == [(0, 1), (1, 2)]


def test_what_a_chain_was_given_is_let_go() -> None:
    chain = Chain({p.id: Plan(p) for p in wild_pipelines()}, fetch=fetch)
    taken: list[int] = []
    values = [encode(event(n, {"id": n, "n": n}, name="order")) for n in range(9_000)]
    chain.process(chunk(values), lambda result: taken.append(len(result.failures)))
    assert len(taken) == 3, "behind each slice"
    value = values.pop()
    assert sys.getrefcount(value) == 2


def test_a_slice_holds_many_small_messages_and_few_large_ones() -> None:
    for data, sizes in (("x", [4096, 904]), ("x" * 1_500, [1024, 1024, 1024, 1024, 904])):
        values = [encode(event(n, {"id": n, "s": data})) for n in range(5_000)]
        found = list(_slices(values))
        assert [end - start for start, end, _ in found] == sizes
        for start, end, made in found:
            assert made is not None
            [(heads, places)] = made.groups(values[start:end])
            assert places == range(end - start)
            assert heads.ids == [f"e{n}" for n in range(start, end)]
