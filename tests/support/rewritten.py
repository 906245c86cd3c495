"""Test files with pytest's asserts, compiled once before the workers start.

Each worker would compile all of them, at the same time as the others: in a fresh checkout 12 s of CPU
in every one of five.

Waybill has a plug-in of pytest in it, for which pytest would compile the whole of it anew as well, each
file as it is imported; where two threads do so at once, Python 3.11 fails (SystemError, "AST
constructor recursion depth mismatch"). The product's asserts need no rewriting.
"""

from __future__ import annotations

import os
import sys
import traceback
from itertools import chain
from pathlib import Path

import pytest
from _pytest.assertion import AssertionState
from _pytest.assertion import rewrite as pytest_rewrite


def leave_out(package: str) -> None:
    """Have a package's modules imported from here on as they are, not rewritten."""
    for finder in sys.meta_path:
        if isinstance(finder, pytest_rewrite.AssertionRewritingHook):
            finder._must_rewrite.discard(package)
            finder._marked_for_rewrite_cache.clear()


def rewrite(config: pytest.Config, folder: Path) -> None:
    """Compile what has changed below a folder, on all cores, into pytest's own cache.

    A file that cannot be compiled is left to the collection, which says where its mistake is.
    """
    if sys.dont_write_bytecode:
        return
    stale = [path for path in _tests(folder) if not _is_fresh(path)]
    cores = min(os.cpu_count() or 1, len(stale))
    children = []
    for core in range(cores):
        child = os.fork()
        if child == 0:
            failed = 1
            try:
                for path in stale[core::cores]:
                    _rewrite(config, path)
                failed = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(failed)
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    assert not any(ends), "test files could not be compiled before the workers start: see above"


def _tests(folder: Path) -> list[Path]:
    return sorted(chain(folder.rglob("test_*.py"), folder.rglob("conftest.py")))


def _cached(path: Path) -> Path:
    return pytest_rewrite.get_cache_dir(path) / f"{path.stem}{pytest_rewrite.PYC_TAIL}"


def _is_fresh(path: Path) -> bool:
    return pytest_rewrite._read_pyc(path, _cached(path)) is not None


def _rewrite(config: pytest.Config, path: Path) -> None:
    try:
        source, code = pytest_rewrite._rewrite_test(path, config)
    except (SyntaxError, ValueError):
        return
    cached = _cached(path)
    cached.parent.mkdir(exist_ok=True)
    state = AssertionState(config, "rewrite")
    pytest_rewrite._write_pyc(state, code, source, cached)
