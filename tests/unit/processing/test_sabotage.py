"""What campaigns put in the product's place is called as the product calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from tests.faults.sabotage import SabotagedChain, SabotagedTask


@pytest.mark.parametrize("sabotaged", [SabotagedChain, SabotagedTask])
def test_each_method_takes_what_the_one_below_takes(sabotaged: type) -> None:
    own = {
        name: method
        for name, method in vars(sabotaged).items()
        if inspect.isfunction(method) and name != "__init__"
    }
    below = {name: getattr(sabotaged.__base__, name, None) for name in own}
    kept = {name: method for name, method in below.items() if method is not None}
    assert kept
    for name, method in kept.items():
        assert _kinds(own[name]) == _kinds(method), name


def _kinds(method: Callable[..., object]) -> list[object]:
    """Return the kinds of its parameters: by place, or by name alone."""
    return [
        one.name if one.kind is one.KEYWORD_ONLY else one.kind
        for one in inspect.signature(method).parameters.values()
    ]
