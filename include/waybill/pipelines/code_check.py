"""Check a transformation's source text. It is compiled, never executed or imported."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

from waybill.nearest_name import hint, shown_name

EVENT_FUNCTION, BATCH_FUNCTION = "transform", "transform_batch"
_ARGUMENTS = {EVENT_FUNCTION: "event", BATCH_FUNCTION: "table"}
_MOST_BATCH_CHARS = 128 * 1024
"""Of code that takes tables: workers parse it, with 600 bytes of memory a character at worst."""


def check_code(code: str) -> list[tuple[int, str]]:
    """Return (line, message) of what keeps the text from being a transformation."""
    tree, faults = parsed_module(code)
    return faults if tree is None else _check_function(tree, len(code))


def parsed_module(code: str) -> tuple[ast.Module | None, list[tuple[int, str]]]:
    """Return a module's tree; or None, and (line, message) of what keeps it from being Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            compile(tree, "<module>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return None, [(error.lineno or 1, f"expected Python; found: {error.msg}")]
    except (ValueError, RecursionError, MemoryError) as error:
        said = shown_name(str(error) or type(error).__name__)
        return None, [(1, f"expected Python; found: {said}")]
    return tree, []


def takes_tables(code: str) -> bool:
    """Tell whether a transformation has the batch form; False for what is none.

    Cost: where the name stands in it, it is parsed, some ms for a file of a thousand lines.
    """
    return len(code) <= _MOST_BATCH_CHARS and BATCH_FUNCTION in code and _takes_tables(code)


@lru_cache(maxsize=32)
def _takes_tables(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = {name for node in tree.body for name in _bound(node)}
    return BATCH_FUNCTION in names and EVENT_FUNCTION not in names


def _check_function(tree: ast.Module, chars: int) -> list[tuple[int, str]]:
    names: dict[str, int] = {}
    wrong: dict[str, list[tuple[int, str]]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in _ARGUMENTS:
            wrong[node.name] = _check_signature(node)
        for name in _bound(node):
            names.setdefault(name, node.lineno)
    forms = [name for name in _ARGUMENTS if name in names]
    if len(forms) > 1:
        line = max(names[name] for name in forms)
        said = f"expected one of {' and '.join(map(_shown, forms))}; found both"
        return [(line, f"{said}: take one out, or give it another name")]
    if forms == [BATCH_FUNCTION] and chars > _MOST_BATCH_CHARS:
        said = f"expected at most {_MOST_BATCH_CHARS:,} characters beside {_shown(BATCH_FUNCTION)}"
        return [(1, f"{said}; found {chars:,}")]
    if forms:
        return wrong.get(forms[0], [])
    said = f"expected a function {' or '.join(map(_shown, _ARGUMENTS))}; found none"
    return [(1, said + (hint(EVENT_FUNCTION, names, ask="is it")))]


def _shown(name: str) -> str:
    return f"'def {name}({_ARGUMENTS[name]})'"


def _check_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[int, str]]:
    expected = f"expected {_shown(node.name)}"
    if isinstance(node, ast.AsyncFunctionDef):
        return [(node.lineno, f"{expected}; found an async function")]
    taken = node.args
    positional = len(taken.posonlyargs) + len(taken.args)
    needed = positional - len(taken.defaults)
    named = sum(default is None for default in taken.kw_defaults)
    if needed > 1 or named or (positional == 0 and taken.vararg is None):
        return [
            (
                node.lineno,
                f"{expected}, which is called with one {_ARGUMENTS[node.name]};"
                f" found a function of {needed + named} arguments",
            )
        ]
    return []


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a top-level statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []
