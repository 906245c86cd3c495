"""Events of a held pipeline wait as they came; its neighbours never notice."""

from __future__ import annotations

from tests.unit.processing.made import chained, check_books, event, faults, pipeline, rows, total

from waybill.events import encode

ENDS = "raise SystemExit\n"
FAILS = "def transform(event): raise ValueError\n"


def test_held_events_are_parked_at_their_entry_byte_for_byte_and_neighbours_go_on() -> None:
    came = [
        event(1, pipeline_id="p2"),
        event(2),
        event(3, pipeline_id="p2", stage="mapping", attempt=1),
        event(4, pipeline_id="p2", stage="destination", attempt=2),
        event(5, pipeline_id="p2", name="never-declared"),
    ]
    result = chained([pipeline(), pipeline(FAILS, ident="p2")], came, held=["p2"])
    assert faults(result) == [
        (0, "transformation", "pipeline_held"),
        (2, "mapping", "pipeline_held"),
        (3, "destination", "pipeline_held"),
        (4, "transformation", "pipeline_held"),
    ]
    held = sorted(result.failures, key=lambda failure: failure.offset)
    assert [f.value for f in held] == [encode(came[n]) for n in (0, 2, 3, 4)]
    assert [f.attempt for f in held] == [0, 1, 2, 0]
    assert [row["id"] for row in rows(result)] == [2]


def test_the_books_balance_while_a_pipeline_is_held() -> None:
    came = [event(n, pipeline_id=f"p{n % 2 + 1}") for n in range(20)]
    came += [event(30, pipeline_id="p2", stage="mapping", attempt=1)]
    result = chained([pipeline(), pipeline(FAILS, ident="p2")], came, held=["p2"])
    check_books(result)
    assert total(result, "transformation") == {
        "in_first": 20, "passed": 10, "out": 10, "parked": 10,
    }  # fmt: skip
    assert total(result, "mapping") == {
        "in_first": 10, "in_replayed": 1, "passed": 10, "out": 10, "parked": 1,
    }  # fmt: skip


def test_neither_code_nor_a_claim_checks_payload_is_touched_for_what_is_held() -> None:
    def fetch(key: str) -> bytes:
        raise AssertionError(key)

    held = event(1, pipeline_id="p2", data_ref="payloads/1")
    result = chained([pipeline(ENDS, ident="p2")], [held], held=["p2"], fetch=fetch)
    assert faults(result) == [(0, "transformation", "pipeline_held")]
    assert result.failures[0].value == encode(held)
