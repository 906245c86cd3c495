"""Whatever stands in a file, checking it gives problems, never an exception."""

from __future__ import annotations

import copy
import shutil

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from waybill.pipelines import DeclarationError, check, load_pipelines
from waybill.pipelines.document import read_document

PIECES = st.sampled_from([
    "id: ", "name: ", "events:", "source:", "columns: ", "key: ", "schedule: ", "[", "]", "{", "}",
    "- ", "? ", ": ", "&a ", "*a", "!!", "!<x>", "|", ">", "'", '"', "\\x", "<<: ", "---", "...",
    "%YAML 1.2", "#", "\n", "\n  ", "\n    ", "\t", "x", "0", "1e9", "-", "~", "null", "true",
    "decimal(1,1)", "not null", "\u2028", "\ufeff", "\x00", "é", "🙂", "@hourly", "* * * * *",
])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
FIELDS = [
    ("id",), ("name",), ("team",), ("owner",), ("schedule",), ("source",), ("events",),
    ("transformation",), ("destination",), ("keep_source",), ("source", "connector"),
    ("source", "event"), ("source", "path"), ("source", "page_rows"), ("source", "order_by"),
    ("source", "columns"), ("source", "columns", "number"), ("source", "null_values"),
    ("events", "order"), ("events", "order", "key"), ("events", "order", "version"),
    ("events", "order", "table"), ("events", "order", "policy"), ("events", "order", "columns"),
    ("events", "order", "columns", "number"), ("events", "order", "columns", "number", "type"),
    ("destination", "name"), ("destination", "schema"), ("events", "order", "nested"),
    ("events", "order", "depth"), ("events", "order", "arrays"), ("events", "order", "deletes"),
    ("events", "order", "children"), ("events", "order", "personal"),
]  # fmt: skip
SHARED = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def problems_of(folder, content: bytes):
    directory = folder.root / "orders"
    shutil.rmtree(directory, ignore_errors=True)
    folder.write()
    (directory / "pipeline.yaml").write_bytes(content)
    problems = check(folder.root)
    for problem in problems:
        assert problem.line >= 1
        assert problem.message
        assert str(problem).isprintable()
    if problems:
        with_same = None
        try:
            load_pipelines(folder.root)
        except DeclarationError as error:
            with_same = list(error.problems)
        assert with_same == problems
    else:
        assert len(load_pipelines(folder.root)) == 1
    return problems


@SHARED
@given(text=st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=80))
def test_any_text(folder, text):
    assert problems_of(folder, text.encode("utf-8", "surrogatepass"))


@SHARED
@given(content=st.binary(max_size=60))
def test_any_bytes(folder, content):
    assert problems_of(folder, content)


NESTED = {
    "policy": "evolve",
    "nested": "flatten",
    "arrays": "child",
    "children": {"lines": {"from": "lines", "columns": {"sku": "string"}}},
}
CHILD = ("events", "order", "children", "lines")
CHILD_FIELDS = [CHILD, (*CHILD, "from"), (*CHILD, "columns"), (*CHILD, "columns", "sku")]


@SHARED
@example(path=("events", "order", "key"), value=True, more={})
@given(
    path=st.sampled_from(FIELDS + CHILD_FIELDS), value=VALUES, more=st.sampled_from([{}, NESTED])
)
def test_any_value_in_any_field(folder, good, path, value, more):
    document = yaml.safe_load(good)
    document["events"]["order"].update(copy.deepcopy(more))
    place = document
    for part in path[:-1]:
        inner = place.get(part)
        place[part] = inner if isinstance(inner, dict) else {}
        place = place[part]
    place[path[-1]] = value
    problems_of(folder, yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "replace"))


@settings(deadline=None)
@example({"begins": "null0", "tilde": "~x", "is": "null", "not": None})
@given(st.dictionaries(st.text(min_size=1), st.text() | st.none() | st.booleans(), max_size=5))
def test_values_are_those_that_were_written(values):
    document = read_document(yaml.safe_dump(values))
    if "<<" in values:
        return
    assert document.faults == []
    assert document.value == values
