from hypothesis import given
from hypothesis import strategies as st

from waybill.parking.names import escape, storable, summary, unescape

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=700)
HOSTILE = ["", "\x00", "\ud800", "a\\b", "é" * 300, "x" * 512, "x" * 513, "../../etc", "😀", "a\\0"]


def holds(text):
    return "\x00" not in text and len(text.encode("utf-8", "strict")) <= 512


@given(ANY_TEXT)
def test_any_name_becomes_one_that_sql_and_an_index_can_hold(name):
    assert holds(storable(name))


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=100))
def test_a_clean_short_name_stays_as_it_is(name):
    assert storable(name) == name


@given(st.lists(ANY_TEXT | st.sampled_from(HOSTILE), unique=True, max_size=30))
def test_two_names_stay_two(names):
    assert len({storable(name) for name in names}) == len(names)


def test_names_that_differ_only_far_behind_stay_two():
    assert storable("x" * 10_000 + "a") != storable("x" * 10_000 + "b")


@given(ANY_TEXT)
def test_escape_is_undone_and_is_valid_unicode(text):
    assert unescape(escape(text)) == text
    escape(text).encode("utf-8", "strict")


@given(ANY_TEXT)
def test_a_summary_is_short_and_can_be_stored(text):
    short = summary(text)
    assert "\x00" not in short
    assert len(short.encode("utf-8", "strict")) <= 500 * 6
