"""What a transformation imports, and whether it is there; nothing of it is executed.

Only top-level names are looked for. An import that is tried (``try``, ``suppress``), for type
checkers alone, or under a condition of the module, may be missing on purpose and is passed over.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from waybill.nearest_name import hint, shown_name

_MOST_HINTS = 10
"""Modules that are missing for which names like theirs are looked for; that takes 10 ms each."""


def absent_imports(code: str, directory: Path, *, runs_here: bool) -> list[tuple[int, str, bool]]:
    """Return (line, message, is it certain?) of imports that find nothing; by line.

    What this process can import stands for what user code can. What lies in the pipeline's folder
    is not there at run time: the one file is all that is shipped.

    Args:
        code: the transformation.
        directory: the pipeline's folder.
        runs_here: the code runs with what is installed here: what is missing is so for certain.

    Cost: 0.1 ms an import; 50 ms for the first that is missing, 10 ms for each of the next nine.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # said by others
    found: dict[str, tuple[int, str, bool]] = {}
    for line, name in sorted(_imports(tree)):
        if name in found:
            continue
        is_hinted = len(found) < _MOST_HINTS
        said = _missing(name, directory, runs_here=runs_here, is_hinted=is_hinted)
        if said is not None:
            found[name] = (line, *said)
    return sorted(found.values())


def _missing(
    name: str, directory: Path, *, runs_here: bool, is_hinted: bool
) -> tuple[str, bool] | None:
    """Return what is said of a module, and whether it is certain; None: it is there."""
    expected = f"expected a module that is installed; found {shown_name(name)!r}"
    if name.startswith("."):
        said = f"{expected}: the code is in no package, so nothing is found relative to it"
        return said, True
    origin = _origin(name)
    if origin is not None and not _is_beside(origin, name, directory):
        return None
    if origin is not None or _lies_beside(name, directory):
        said = (
            f"{expected}, which lies beside the code and is not shipped: only the one file is; "
            "put it in there, or install it where the code runs"
        )
        return said, True
    place = "" if runs_here else " here; it must be where Spark's workers run"
    like = hint(name, _installed()) if is_hinted else ""
    return f"{expected}, which is not{place}{like}", runs_here


def _origin(name: str) -> str | None:
    """Return where a module comes from, "" if that is no file; None: there is no such module."""
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return ""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # it is loaded, and says nothing of where from
        return "" if name in sys.modules else None
    if spec is None:
        return None
    if spec.origin is None and spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations), "")
    return spec.origin or ""


def _is_beside(origin: str, name: str, directory: Path) -> bool:
    """Tell whether a module is a file or folder beside the code; an environment there is none."""
    try:
        within = Path(origin).resolve().relative_to(directory.resolve()) if origin else Path()
    except (OSError, RuntimeError, ValueError):
        return False
    return bool(within.parts) and within.parts[0].partition(".")[0] == name


def _lies_beside(name: str, directory: Path) -> bool:
    try:
        return (directory / f"{name}.py").is_file() or (directory / name).is_dir()
    except (OSError, ValueError):
        return False


@cache
def _installed() -> list[str]:
    """Return the top-level names that can be imported."""
    return sorted({*sys.stdlib_module_names, *(one.name for one in pkgutil.iter_modules())})


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, top-level name) of what is imported whatever happens; relative ones as "."."""
    for node in tree.body:
        if not isinstance(node, ast.If):
            yield from _of(node)


def _of(root: ast.stmt) -> Iterator[tuple[int, str]]:
    waiting: list[ast.AST] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            yield node.lineno, relative if node.level else relative.partition(".")[0]
        elif not _may_fail(node):
            waiting.extend(_done(node))


def _may_fail(node: ast.AST) -> bool:
    """Tell whether imports below may fail on purpose."""
    if isinstance(node, ast.With):
        return any(
            isinstance(one.context_expr, ast.Call)
            and _last_name(one.context_expr.func) == "suppress"
            for one in node.items
        )
    return isinstance(node, ast.Try | ast.TryStar)


def _done(node: ast.AST) -> Iterable[ast.AST]:
    if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
        return node.orelse
    return ast.iter_child_nodes(node)


def _last_name(node: ast.AST) -> str:
    """Return ``b`` of ``b`` and of ``a.b``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
