"""Drivers that are not installed with Waybill: imported when a destination of their kind opens."""

from __future__ import annotations

import importlib
from typing import Any

from waybill.errors import InputError


def driver(module: str, package: str, kind: str) -> Any:
    """Import a driver.

    Args:
        module: what is imported.
        package: what pip calls it.
        kind: the kind of destination that needs it; the name of the extra too.

    Raises:
        InputError: it is not installed; says the command that does.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"a destination of kind {kind!r} needs {package}, which cannot be imported here "
            f"({error}); run: pip install '{package}'"
        ) from error
