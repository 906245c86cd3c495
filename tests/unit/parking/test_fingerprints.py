import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.parking import fingerprint
from waybill.parking.fingerprints import _fingerprint

ALIKE = [
    ("value 17 is too large", "value 180.5 is too large"),
    ("value -17 is too large", "value 17 is too large"),
    ("column 'a' takes no null", "column 'O'Brien' takes no null"),
    ('no "x"', 'no "a \\" b"'),
    ("order A12 is unknown", "order ZZ999 is unknown"),
    (
        "id deadbeef-aaaa-4abc-9def-abcdefabcdef gone",
        "id 00000000-bbbb-4abc-9def-abcdefabcdef gone",
    ),
    ("due 2013-01-01T05:00:00Z", "due 2014-11-21T05:00:00.123+01:00"),
    ("at 0xff in", "at 0x7f00aa in"),
    ("cannot read /tmp/a.csv now", "cannot read /var/lib/x/y.json now"),
    ("GET https://a.b/c?x=1 failed", "GET https://long.example/d?y=2 failed"),
    ("mail to a@b.de bounced", "mail to long.name@example.com bounced"),
    ("one of 1, 2, 3 expected", "one of 4, 5 expected"),
    ("column 'x' is text; got str 'aaaaaaaaaaaa…", "column 'x' is text; got str 'b'"),
]


@pytest.mark.parametrize("one, other", ALIKE)
def test_one_cause_with_other_values_is_one_group(one, other):
    assert fingerprint(one, "f.py:3 in transform") == fingerprint(other, "f.py:3 in transform")


@pytest.mark.parametrize(
    "one, other",
    [
        (("no value", "f.py:3"), ("no value", "f.py:4")),
        (("no value", "column1"), ("no value", "column2")),
        (("no value", "a"), ("no name", "a")),
        (("it isn't there", "a"), ("it isn't here", "a")),
        (("a", "b"), ("ab", "")),
        (("value 1 is too large", ""), ("value 1 is too small", "")),
    ],
)
def test_other_words_or_another_place_are_another_group(one, other):
    assert fingerprint(*one) != fingerprint(*other)


def test_the_line_of_the_data_is_no_place_of_the_cause():
    assert fingerprint("no JSON", "line 3") == fingerprint("no JSON", "line 4711")


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters()))
def test_any_words_give_16_hex_digits(message, where):
    found = fingerprint(message, where)
    assert len(found) == 16
    assert int(found, 16) >= 0
    assert found == fingerprint(message, where)


@pytest.mark.parametrize(
    "text",
    ["a" * 10**7, "'" * 10**6, "\\" * 10**6, "a'" * 10**6, "1 " * 10**6, "'\\" * 10**6, "-" * 10**6,
     "a." * 10**6, "\ud800" * 10**6, "# " * 10**6, "0" * 8 + "-" * 10**6, "a@" * 10**6],
    ids=range(12),
)  # fmt: skip
def test_a_message_made_to_be_slow_is_not(text):
    _fingerprint.cache_clear()
    began = time.thread_time()
    fingerprint(text, text)
    assert time.thread_time() - began < 0.02
