"""Sparklines of the page "Overview": well-formed, in words as well, and never without a scale."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.parsers import expat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill_airflow.web.sparkline import spark_words, sparkline

SINCE = datetime(2026, 11, 27, 9, 5, tzinfo=UTC)


def elements(markup):
    """Return (tag, attributes, text) of each element, as a strict parser reads them."""
    found = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda tag, given: found.append([tag, given, ""])

    def add(text):
        found[-1][2] += text

    parser.CharacterDataHandler = add
    parser.Parse(markup, True)
    return found


def paths(markup):
    return [given["d"] for tag, given, _ in elements(markup) if tag == "path"]


@given(st.lists(st.tuples(*[st.integers(0, 2**62)] * 2), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_any_numbers_make_a_drawing_that_stays_inside_its_box(minutes):
    came_in, delivered = zip(*minutes, strict=True)
    drawing = sparkline(SINCE, came_in, delivered)
    (root, attributes, _), (title, _, words), *_ = elements(drawing)
    assert (root, title, attributes["aria-label"]) == ("svg", "title", words)
    area, *lines = paths(drawing)
    assert len(lines) == 2
    for line in (area, *lines):
        points = re.findall(r"(\d+) ([\d.]+)", line)
        assert len(points) == len(minutes) + 2 * (line is area)
        assert all(0 <= float(height) <= 100 for _, height in points)


@pytest.mark.parametrize(
    ("came_in", "delivered", "words"),
    [
        ([0, 0], [0, 0], "Nothing came in or was delivered in 2 minutes from 09:05 UTC"),
        ([1, 0], [0, 0], "1 event taken in within 2 minutes from 09:05 UTC, at most 1 in one; 0 delivered"),
        ([0, 0], [0, 7], "0 events taken in within 2 minutes from 09:05 UTC, at most 0 in one; 7 delivered"),
        ([900, 1500], [2000, 3], "2,400 events taken in within 2 minutes from 09:05 UTC, at most 1,500 in one; 2,003 delivered"),
    ],
    ids=["nothing", "one", "backlog", "many"],
)  # fmt: skip
def test_the_words_say_what_the_lines_show(came_in, delivered, words):
    assert spark_words(SINCE, came_in, delivered) == words


def test_a_greater_number_lies_higher():
    line = paths(sparkline(SINCE, [0, 10, 5], [0, 0, 0]))[1]
    low, high, between = (float(y) for _, y in re.findall(r"(\d+) ([\d.]+)", line))
    assert high < between < low == 100
