"""Packages export lazily; what stands for type checkers is what is there."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "include" / "waybill"
PACKAGES = [
    path
    for path in sorted(LIBRARY.rglob("__init__.py"))
    if "lazy_exports(" in path.read_text(encoding="utf-8")
]


def name_of(path: Path) -> str:
    return ".".join(("waybill", *path.parent.relative_to(LIBRARY).parts))


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_a_package_offers_what_it_says_and_nothing_that_a_module_hides(path):
    package = importlib.import_module(name_of(path))
    typed = {
        alias.asname
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(f"{package.__name__}.")
        for alias in node.names
    }
    assert typed == set(package.__all__) == set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    modules = {one.stem for one in path.parent.glob("*.py")}
    modules |= {one.parent.name for one in path.parent.glob("*/__init__.py")}
    assert not modules & set(package.__all__), "once the module is imported, it hides the name"


def test_there_are_such_packages():
    assert len(PACKAGES) > 20


def test_what_is_not_there_is_said_as_ever():
    package = importlib.import_module("waybill.parking")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing
