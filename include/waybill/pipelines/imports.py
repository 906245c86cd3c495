"""What code imports, and whether it is there; nothing of it is executed.

Of what is installed only top-level names are looked for. An import that is tried (``try``,
``suppress``) or under a condition of the module may be missing on purpose; what is for type
checkers alone is passed over.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from waybill.nearest_name import hint, shown_name
from waybill.pipelines.folder import SHARED

_MOST_HINTS = 10
"""Modules that are missing for which names like theirs are looked for; that takes 10 ms each."""
_UNKNOWN = (
    "expected the module's name where it is imported; what is imported here is not known before the"
    " code runs. Shared modules are not found so: name them in an import statement"
)
_IMPORTING = frozenset({"import_module", "__import__", "find_spec"})
"""Functions that import what a text names."""


@dataclass(frozen=True, slots=True)
class Import:
    """One module that a statement imports."""

    line: int
    module: str
    """With dots, as it stands there; "" of ``from . import a``."""
    level: int = 0
    """Dots before it."""
    names: tuple[str, ...] | None = None
    """What ``from`` takes of it; None: it is ``import``."""
    is_sure: bool = True
    """It is imported whatever happens; False: it may be missing on purpose."""
    is_early: bool = True
    """It is imported while the code is loaded; False: when a function is called."""


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Where code lies."""

    folder: Path
    """The pipeline's own; or that of shared modules, of one of those."""
    shared: Path | None = None
    """The folder of shared modules beside pipelines; None: there is none."""
    uses_shared: bool = False
    """The pipeline's version has some of them."""

    @property
    def is_shared(self) -> bool:
        """Tell whether the code is a shared module."""
        return self.folder == self.shared


def absent_imports(code: str, place: CodePlace, *, runs_here: bool) -> list[tuple[int, str, bool]]:
    """Return (line, message, is it certain?) of imports that find nothing; by line.

    What this process can import stands for what user code can. What lies in the pipeline's folder
    is not there at run time: its one file is all that is shipped of it. Shared modules are others'
    business (``shared_modules``), but for those that nobody can tell before the code runs.

    Args:
        code: the transformation, or a shared module.
        place: where it lies.
        runs_here: the code runs with what is installed here: what is missing is so for certain.

    Cost: 0.1 ms an import; 50 ms for the first that is missing, 10 ms for each of the next nine.
    """
    found: dict[str, tuple[int, str, bool]] = {}
    imports, by_text = _imports_in(code)
    for line, name in sorted({(one.line, _looked_for(one)) for one in imports if one.is_sure}):
        if name in found:
            continue
        is_hinted = len(found) < _MOST_HINTS
        said = _missing(name, place, runs_here=runs_here, is_hinted=is_hinted)
        if said is not None:
            found[name] = (line, *said)
    unknown = [(line, _UNKNOWN, False) for line, begin in by_text if begin is None]
    return sorted([*found.values(), *(unknown if place.uses_shared else ())])


@lru_cache(maxsize=64)
def _imports_in(code: str) -> tuple[list[Import], list[tuple[int, str | None]]]:
    """Return what a text imports, by statements and by texts; nothing where it is no Python.

    That many pipelines import is parsed once.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], []  # said by others
    return list(imports_of(tree)), list(text_imports(tree))


def _looked_for(one: Import) -> str:
    """Return the top-level name; of what is relative all of it, with its dots."""
    return "." * one.level + one.module if one.level else one.module.partition(".")[0]


def _missing(
    name: str, place: CodePlace, *, runs_here: bool, is_hinted: bool
) -> tuple[str, bool] | None:
    """Return what is said of a module, and whether it is certain; None: it is there."""
    if place.shared is not None and (name == SHARED or (name.startswith(".") and place.is_shared)):
        return None
    expected = f"expected a module that is installed; found {shown_name(name)!r}"
    if name.startswith("."):
        said = f"{expected}: the code is in no package, so nothing is found relative to it"
        plain = name.lstrip(".")
        if place.shared is not None and plain.partition(".")[0] == SHARED:
            said += f"; did you mean {shown_name(plain)!r}, without dots?"
        return said, True
    origin = _origin(name)
    if origin is not None and not _is_beside(origin, name, place.folder):
        return None
    if place.shared is not None and lies_in(name, place.shared):
        return f"{expected}; did you mean `from {SHARED} import {shown_name(name)}`?", True
    if origin is not None or lies_in(name, place.folder):
        said = (
            f"{expected}, which lies beside the code and is not shipped: only the one file is; "
            f"put it in there, into the folder {SHARED!r} beside the pipelines' folders, or install"
            " it where the code runs"
        )
        return said, True
    there = "" if runs_here else " here; it must be where Spark's workers run"
    if name == SHARED:
        there += (
            f"; modules that pipelines share lie in a folder {SHARED!r} beside theirs, which has no"
            " pipeline.yaml"
        )
    like = hint(name, _installed()) if is_hinted else ""
    return f"{expected}, which is not{there}{like}", runs_here


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


def installed_file(name: str) -> Path | None:
    """Return the file of an installed module or package; None: a folder without, or nothing."""
    origin = _origin(name)
    try:
        return Path(origin) if origin and Path(origin).is_file() else None
    except (OSError, ValueError):
        return None


def _is_beside(origin: str, name: str, directory: Path) -> bool:
    """Tell whether a module is a file or folder beside the code; an environment there is none."""
    try:
        within = Path(origin).resolve().relative_to(directory.resolve()) if origin else Path()
    except (OSError, RuntimeError, ValueError):
        return False
    return bool(within.parts) and within.parts[0].partition(".")[0] == name


def lies_in(name: str, directory: Path) -> bool:
    """Tell whether a folder has a module of a name, or a folder."""
    try:
        return (directory / f"{name}.py").is_file() or (directory / name).is_dir()
    except (OSError, ValueError):
        return False


@cache
def _installed() -> list[str]:
    """Return the top-level names that can be imported."""
    return sorted({*sys.stdlib_module_names, *(one.name for one in pkgutil.iter_modules())})


def imports_of(tree: ast.Module) -> Iterator[Import]:
    """Yield what a module imports, in no order; nothing of what is for type checkers alone."""
    waiting: list[tuple[ast.AST, bool, bool]] = [
        (node, not isinstance(node, ast.If), True) for node in tree.body
    ]
    while waiting:
        node, is_sure, is_early = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, is_sure=is_sure, is_early=is_early)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            yield Import(node.lineno, node.module or "", node.level, names, is_sure, is_early)
        else:
            is_sure = is_sure and not _may_fail(node)
            is_early = is_early and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            waiting.extend((child, is_sure, is_early) for child in _done(node))


def text_imports(tree: ast.Module) -> Iterator[tuple[int, str | None]]:
    """Yield (line, how the name begins) of what is imported by a text; None: that is not known."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) in _IMPORTING:
            given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "name")]
            yield node.lineno, _beginning(given[0]) if given else None


def _beginning(node: ast.AST) -> str | None:
    """Return how a text begins, as far as that stands in the code."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        node = node.left
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_text else None  # type: ignore[attr-defined]


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
