"""No function of the product takes more than seven parameters: what goes together is one record."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 7
ALLOWED = {
    # what callers of confluent_kafka.Producer.produce call, with its names
    "include/waybill/producer/lossless.py:produce",
}


def functions():
    for folder in ("include/waybill", "plugins", "dags", "spark_jobs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "migrations" in path.parts:  # frozen
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.relative_to(ROOT).as_posix()}:{node.name}", node.args


def number(arguments):
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    stars = (arguments.vararg is not None) + (arguments.kwarg is not None)
    return sum(one.arg not in ("self", "cls") for one in named) + stars


def test_functions_take_seven_parameters_at_most():
    many = {name for name, arguments in functions() if number(arguments) > MOST}
    assert many == ALLOWED
