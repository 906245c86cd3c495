"""Names of topics and of their generations: legal in Kafka, reversible, and never another's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.errors import InputError
from waybill.pipelines import base_topic, generation_name, generation_of, topic_name

PARTS = st.from_regex(r"\A[A-Za-z0-9_-]{1,63}\Z")
NUMBERS = st.integers(1, 10**9 - 1)
LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}")


@given(team=PARTS, destination=PARTS, number=NUMBERS)
def test_a_generation_is_told_from_its_name_which_kafka_takes(
    team: str, destination: str, number: int
) -> None:
    topic = topic_name(team, destination)
    name = generation_name(topic, number)
    assert LEGAL.fullmatch(name)
    assert generation_of(name) == (topic, number)
    assert base_topic(name) == topic


@given(a=PARTS, b=PARTS, c=PARTS, d=PARTS, number=st.integers(2, 10**9 - 1))
def test_no_other_topic_has_a_generations_name_not_even_where_kafka_takes_dots_for_underscores(
    a: str, b: str, c: str, d: str, number: int
) -> None:
    name = generation_name(topic_name(a, b), number)
    assert name.replace(".", "_") != topic_name(c, d).replace(".", "_")


@given(name=st.text())
def test_any_other_name_is_its_own_first_generation(name: str) -> None:
    topic, number = generation_of(name)
    assert (topic, number) == (name, 1) or generation_name(topic, number) == name


@pytest.mark.parametrize("topic", ["orders", "events.", "events.a", "events.a.b.c", "other.a.b"])
def test_a_topic_of_others_has_no_later_generation(topic: str) -> None:
    assert generation_name(topic, 1) == topic
    with pytest.raises(InputError):
        generation_name(topic, 2)
