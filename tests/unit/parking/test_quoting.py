"""Values where a text quotes them: the same as one by one, in one pass."""

from __future__ import annotations

import random
import re
import sys

import pytest

from waybill.parking.masking import MASK, QuotedValues


@pytest.mark.parametrize(
    ("values", "text", "masked"),
    [
        (["Berta"], "no such: BERTA!", f"no such: {MASK}!"),
        (["Straße 1"], "at STRASSE 1 or straße 1", f"at {MASK} or {MASK}"),
        (["İpek"], "x İPEK x", f"x {MASK} x"),
        (["name", "name7"], "name77", f"{MASK}7"),
        (["abcd", "cdef"], "abcdef", MASK),
        (["abcd"], "abcdabcd", f"{MASK}{MASK}"),
        (["Ann", "ann@b.c"], "ann@b.c, Ann, Annex", f"{MASK}, {MASK}, Annex"),
        (['Änn "x"'], '["Änn \\"x\\""] [ "\\u00c4nn \\"x\\"" ]', f'["{MASK}"] [ "{MASK}" ]'),
        (["Ann-Marie"], "'Ann-M… is not Ann-Ma", f"'{MASK}… is not {MASK}"),
        (["aab", "aaab"], "aaaab", f"a{MASK}"),
        ([41, 1.5, True], "41 and 1.5 and 410", f"{MASK} and {MASK} and 410"),
        (["is 41 years", "41"], "he is 41 now", f"he is {MASK} now"),
        ([""], "nothing", "nothing"),
        (["x"], "", ""),
    ],
)
def test_values_are_found_as_they_are_written(values, text, masked):
    assert QuotedValues(values).masked(text) == masked


def test_one_pass_finds_what_looking_for_each_value_finds():
    chance = random.Random(7)
    for _ in range(500):
        values = ["".join(chance.choices("ab", k=chance.randint(4, 6))) for _ in range(4)]
        text = "".join(chance.choices("abc", k=40)) + "c"
        covered = {
            at
            for value in values
            for found in re.finditer(f"(?={value})", text)
            for at in range(found.start(), found.start() + len(value))
        }
        left = "".join(c for at, c in enumerate(text) if at not in covered)
        assert QuotedValues(values).masked(text).replace(MASK, "") == left, (values, text)


def lines_run(number: int) -> int:
    """Return how many lines of Python it takes to mask a text of so many values."""
    values = [f"{n:06}aaaa{n:06}aaaab" for n in range(number)]
    text = " ".join(f"{value} {value[:-1]}…" for value in values)
    lines = 0

    def count(_frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        QuotedValues(values).masked(text)
    finally:
        sys.settrace(before)
    return lines


def test_the_work_grows_as_the_values_and_the_text_do():
    """Eight times as much of both is about eight times the work, not sixty-four."""
    assert lines_run(320) < 12 * lines_run(40)
