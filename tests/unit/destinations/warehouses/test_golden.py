import pytest
import sqlglot
from tests.unit.destinations.warehouses.golden import (
    DIALECTS,
    FOLDER,
    path_of,
    statements,
    text_of,
)


@pytest.mark.parametrize("kind", DIALECTS)
def test_the_statements_are_those_that_were_read(kind):
    found = statements(kind)
    assert {name: text_of(items) for name, items in found.items()} == {
        name: path_of(kind, name).read_text() for name in found
    }
    assert {p.stem for p in (FOLDER / kind).iterdir()} == set(found)


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_statement_is_read_by_its_own_dialect(kind):
    for name, found in statements(kind).items():
        for statement in found:
            tree = sqlglot.parse_one(statement, read=DIALECTS[kind].sqlglot)
            assert tree.key != "command", f"{name} is not understood: {statement}"


@pytest.mark.parametrize("kind", DIALECTS)
def test_no_name_is_left_to_the_engines_own_case(kind):
    for name, found in statements(kind).items():
        if name in ("columns", "changes", "books", "table"):
            continue
        for statement in found:
            tree = sqlglot.parse_one(statement, read=DIALECTS[kind].sqlglot)
            bare = [i.name for i in tree.find_all(sqlglot.exp.Identifier) if not i.quoted]
            assert bare == [], statement
