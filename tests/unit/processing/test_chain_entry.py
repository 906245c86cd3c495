"""The chain: where messages enter, and what cannot: unreadable, unknown, undeclared."""

from __future__ import annotations

import pytest
from tests.unit.processing.made import (
    AT_US,
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

from waybill.events import decode, encode
from waybill.processing import Chain, Plan


def test_replays_enter_at_their_stage_and_are_counted_as_replayed() -> None:
    code = "def transform(event): raise ValueError\n"
    result = chained(
        pipeline(code),
        [
            event(1, stage="mapping", attempt=1),
            event(2, stage="destination", attempt=1),
            event(3, stage="transformation", attempt=1),
        ],
    )
    assert faults(result) == [(2, "transformation", "value_error")]
    assert total(result, "transformation") == {"in_replayed": 1, "parked": 1}
    assert total(result, "mapping") == {"in_replayed": 1, "passed": 1, "out": 1}
    assert total(result, "destination") == {}, "it is counted where it is loaded"
    assert total(result, "staged") == {"in_first": 1, "in_replayed": 1}
    assert {r["_waybill_id"]: r["_waybill_replayed"] for r in rows(result)} == {
        "e1": False,
        "e2": True,
    }


def test_a_replay_into_the_destination_that_does_not_fit_is_parked_there_and_counted_in() -> None:
    result = chained(
        pipeline(),
        [
            event(1, {"id": 1, "n": "x"}, stage="destination", attempt=1),
            event(2, stage="destination", attempt=1, name="nobody"),
            event(3, stage="destination", attempt=1, pipeline_id="gone"),
        ],
    )
    assert faults(result) == [
        (0, "destination", "type_mismatch"),
        (1, "destination", "event_name_unknown"),
        (2, "destination", "pipeline_unknown"),
    ]
    assert total(result, "destination") == {"in_replayed": 3, "parked": 3}


def test_an_event_of_a_pipeline_that_is_not_deployed_waits_at_its_stage() -> None:
    result = chained(pipeline(), [event(1, pipeline_id="p9"), event(2), event(3, pipeline_id="")])
    assert faults(result) == [
        (0, "transformation", "pipeline_unknown"),
        (2, "transformation", "pipeline_unknown"),
    ]
    assert [f.pipeline_id for f in result.failures] == ["p9", ""]
    assert [row["id"] for row in rows(result)] == [2]


def test_broken_code_parks_its_own_pipelines_events_only() -> None:
    pipelines = [pipeline("def transform(event:\n", ident="p2"), pipeline()]
    result = chained(pipelines, [event(n, pipeline_id=f"p{n % 2 + 1}") for n in range(10)])
    assert {f.offset for f in result.failures} == {1, 3, 5, 7, 9}
    assert {f.fault.code for f in result.failures} == {"code_invalid"}
    assert sorted(row["id"] for row in rows(result)) == [0, 2, 4, 6, 8]


def test_broken_code_is_loaded_once_and_its_faults_do_not_pile_up() -> None:
    plan = Plan(pipeline("loaded.append(1)\n1/0", ident="p1"))
    chain = Chain({"p1": plan})
    chain.process(chunk([encode(event(n)) for n in range(1000)]))
    assert len(chain.result.failures) == 1000
    assert len({f.fault for f in chain.result.failures}) == 1
    assert not any(hasattr(value, "__traceback__") for value in (plan._code, plan._invalid))


def test_an_event_name_nobody_declared_is_parked_at_the_mapping_under_its_own_name() -> None:
    result = chained(pipeline(), [event(1, name="💥/../"), event(2)])
    (failure,) = result.failures
    assert (failure.stage, failure.event_name, failure.fault.code) == (
        "mapping",
        "💥/../",
        "event_name_unknown",
    )
    assert decode(failure.value).name == "💥/../"


def test_what_is_no_event_is_parked_and_its_books_balance() -> None:
    result = chained(pipeline(), [b"\xff\x00", event(1), b""])
    assert faults(result) == [
        (0, "transformation", "envelope_not_json"),
        (2, "transformation", "envelope_not_json"),
    ]
    unknown = [row for row in result.counts.to_json() if row[0] == "unknown"]
    assert [(stage, minute, row) for _, _, stage, minute, row in unknown] == [
        ("ingestion", AT_US // 60_000_000, [2, 0, 2, 2, 0, 0, 0, 0]),
        ("transformation", AT_US // 60_000_000, [2, 0, 0, 0, 2, 0, 0, 0]),
    ]


def test_a_payload_that_is_gone_parks_its_event_under_its_own_name_and_stage() -> None:
    messages = [
        event(1, data_ref="payloads/p1/gone"),
        event(2, data_ref="payloads/p1/there"),
        event(3, data_ref="payloads/p1/garbage", stage="mapping", attempt=1),
        event(4),
    ]
    result = chained(pipeline(), messages, fetch=fetch)
    assert [
        (f.offset, f.pipeline_id, f.event_id, f.stage, f.fault.code) for f in result.failures
    ] == [
        (0, "p1", "e1", "transformation", "data_ref_missing"),
        (2, "p1", "e3", "mapping", "envelope_invalid"),
    ]
    assert result.failures[0].value == encode(messages[0]), "the claim check itself is parked"
    assert [row["n"] for row in rows(result)] == [1, 4]
    check_books(result)


@pytest.mark.parametrize(
    "reference",
    [
        "parked/2026/01/01/x.jsonl.zst",
        "staged/x.wbs",
        "payloads",
        "payloads/p2/there",
        "payloads/p1",
        "payloads/p1/",
        "payloads/p1/../p2/there",
        "payloads/p1/./there",
        "payloads/p1//there",
        "/payloads/p1/there",
        "Payloads/p1/there",
        "s3://payloads/p1/there",
    ],
)
def test_no_other_object_is_read_as_a_payload(reference: str) -> None:
    asked: list[str] = []

    def any_object(key: str) -> bytes:
        asked.append(key)
        return b'{"id":1,"n":1}'

    result = chained(pipeline(), [event(1, data_ref=reference), event(2)], fetch=any_object)
    assert faults(result) == [(0, "transformation", "data_ref_refused")]
    assert reference in result.failures[0].fault.message
    assert (asked, len(rows(result))) == ([], 1)
    check_books(result)


def test_without_a_store_a_claim_check_is_parked_not_lost() -> None:
    result = chained(pipeline(), [event(1, data_ref="payloads/p1/there")])
    assert faults(result) == [(0, "transformation", "data_ref_missing")]


def test_a_store_that_is_away_stops_the_task_and_parks_nothing() -> None:
    from waybill.errors import RetryError

    def away(_key: str) -> bytes:
        raise RetryError("away")

    with pytest.raises(RetryError):
        chained(pipeline(), [event(1, data_ref="payloads/p1/there")], fetch=away)


SPLITS = """
def transform(event):
    return [event.child(i, {"id": i, "n": "no" if i else 1}) for i in range(3)]
"""


@pytest.mark.parametrize("keeps", [True, False])
def test_what_mapping_parks_carries_the_message_it_was_made_from(keeps: bool) -> None:
    given = pipeline(SPLITS).model_copy(update={"keep_source": keeps})
    message = encode(event(7)).replace(b'"data"', b' "data"')
    failures = chained(given, [message]).failures
    assert [failure.event_id for failure in failures] == ["e7/1", "e7/2"]
    assert {failure.source for failure in failures} == {message if keeps else b""}


def test_what_fails_where_it_entered_carries_no_source() -> None:
    code = "def transform(event): raise ValueError"
    given = pipeline(code).model_copy(update={"keep_source": True})
    entered = encode(event(1, {"id": 1, "n": "no"}, stage="mapping", attempt=1))
    failures = chained(given, [encode(event(2)), entered]).failures
    assert [(failure.stage, failure.source) for failure in failures] == [
        ("transformation", b""), ("mapping", b"")
    ]  # fmt: skip
