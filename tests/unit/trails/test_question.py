"""However an id or a key was copied, it is meant; what is no question is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from waybill.errors import InputError
from waybill.events import ordering_key
from waybill.trails.question import (
    MOST_IDS,
    Question,
    ask_for_ids,
    ask_for_key,
    ids_in,
    key_spellings,
    spellings,
)

HEX = "0123456789abcdef" * 2
DASHED = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        (HEX, f"  {HEX}\n"),
        (HEX, HEX.upper()),
        (HEX, f'"{HEX}",'),
        (HEX, DASHED.upper()),
        (f"{HEX}/3", f" {HEX.upper()}/3 "),
        ("Order-7", " Order-7"),
        (" padded ", " padded "),
        (HEX.upper(), HEX.upper()),
        ("'quoted'", "'quoted'"),
        (DASHED, DASHED),
    ],
)
def test_blanks_quotes_and_capitals_do_not_hide_an_event(there: str, asked: str) -> None:
    assert there in spellings(asked)


def test_a_producers_own_id_is_never_changed_to_small_letters() -> None:
    assert spellings("ORDER-7") == ["ORDER-7"]


def test_an_id_that_is_right_is_looked_for_once() -> None:
    assert spellings(HEX) == [HEX]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (f"{HEX}\n\n {HEX}/1 \r\n", [HEX, f" {HEX}/1 "]),
        (f"{HEX}, {HEX}/1;{HEX}/2", [HEX, f"{HEX}/1", f"{HEX}/2"]),
        ("an id with blanks\nb", ["an id with blanks", "b"]),
        ("a,b", ["a,b"]),
        ("\ufeff" + HEX, ["\ufeff" + HEX]),
    ],
)
def test_ids_are_one_a_line_and_own_ids_also_in_one_line(text: str, ids: list[str]) -> None:
    assert ids_in(text) == ids


def test_doubles_and_empty_lines_are_no_questions() -> None:
    assert ask_for_ids(["a", "", " ", "a", "b"]).ids == ("a", "b")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "no event id"),
        ([" ", ""], "no event id"),
        ([str(n) for n in range(MOST_IDS + 1)], "1,001 ids"),
        (["x" * 501], "at most 500"),
        (["a\x00b"], "NUL"),
        (["a\ud800"], "Unicode"),
    ],
)
def test_what_is_no_question_is_refused(texts: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ask_for_ids(texts)


@pytest.mark.parametrize(
    ("data", "given"),
    [
        ({"id": 4711}, ["4711"]),
        ({"id": "4711"}, ["4711"]),
        ({"id": "0815"}, ["0815"]),
        ({"id": 2**70}, [str(2**70)]),
        ({"id": Decimal("0.1234567890123456789")}, ["0.1234567890123456789"]),
        ({"id": True}, ["true"]),
        ({"id": "true"}, ["true"]),
        ({"id": "EUR"}, ['"EUR"']),
        ({"id": '"EUR"'}, ['"EUR"']),
        ({"id": " EUR"}, [" EUR"]),
        ({"id": "EUR"}, [" EUR"]),
        ({"id": "[1]"}, ["[1]"]),
        ({"id": "null"}, ["null"]),
    ],
)
def test_a_value_is_tried_as_the_number_and_as_the_text(data: dict, given: list[str]) -> None:
    assert ordering_key(data, ["id"]) in key_spellings(given)


def test_each_value_of_a_composite_key_is_tried_both_ways() -> None:
    for data in ({"a": 1, "b": "2"}, {"a": "1", "b": 2}, {"a": 1, "b": 2}, {"a": "1", "b": "2"}):
        assert ordering_key(data, ["a", "b"]) in key_spellings(["1", "2"])
        assert ordering_key(data, ["a", "b"]) in key_spellings([ordering_key(data, ["a", "b"])])


def test_a_key_of_many_fields_does_not_ask_for_too_many_ways() -> None:
    assert len(key_spellings([str(n) for n in range(20)])) == 2


def test_the_likeliest_way_is_first() -> None:
    assert key_spellings(["4711"]) == ["[4711]", '["4711"]']


def test_a_question_is_the_same_after_it_was_stored() -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    for asked in (
        ask_for_ids(["a", "é'"], since=since, until=since),
        ask_for_key("pl", ["4711", "x"], event_name="order"),
        Question(("a",), teams=("t",)),
    ):
        assert Question.from_json(asked.to_json()) == asked


def test_a_window_the_wrong_way_round_is_refused() -> None:
    early, late = datetime(2026, 1, 1), datetime(2026, 1, 2)
    with pytest.raises(InputError, match="later than"):
        ask_for_ids(["a"], since=late, until=early)
    with pytest.raises(InputError, match="no key"):
        ask_for_key("pl", [" "])
