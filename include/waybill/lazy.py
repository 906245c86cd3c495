"""Packages export lazily (PEP 562): importing one loads what is used of it, and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    The same names stand in the package behind ``if TYPE_CHECKING``, for people and type checkers; a
    test holds the two against each other.

    Args:
        package: its ``__name__``.
        modules: {module inside of the package: names that it exports}.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    names = sorted(places)
    return load, lambda: names, names
