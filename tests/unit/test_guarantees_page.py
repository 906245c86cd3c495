"""docs/guarantees.md: each promise has a test that runs with every commit; campaigns are called so."""

import ast
import re
from functools import cache

import pytest
from tests.servers import CHECKOUT

PAGE = (CHECKOUT / "docs" / "guarantees.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (G\d)\. [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
TEST = re.compile(r"`(tests/[\w/]+(?:\.py)?(?:::\w+)?)`")


@cache
def marked(path):
    """Return (is the whole file a campaign, names of its tests, those that are campaigns)."""
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    whole = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and "mark.campaign" in ast.unparse(node.value)
        for node in tree.body
    )
    tests = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and "test_" in n.name[:5]]
    campaigns = {
        n.name for n in tests if any("mark.campaign" in ast.unparse(d) for d in n.decorator_list)
    }
    return whole, {n.name for n in tests}, campaigns


def is_campaign(reference):
    """Tell whether `make test` leaves all of it out; it fails where no such test is there."""
    path, _, name = reference.partition("::")
    if not path.endswith(".py"):
        return all(is_campaign(str(one.relative_to(CHECKOUT))) for one in files(path))
    whole, names, campaigns = marked(path)
    assert not name or name in names, f"{reference} is not there"
    return whole or (name in campaigns if name else bool(names) and names == campaigns)


def files(folder):
    found = sorted((CHECKOUT / folder).rglob("test_*.py"))
    assert found, f"{folder} has no tests"
    return found


def rows(section):
    """Yield (reference to a test, the cell that it is in)."""
    for line in SECTIONS[section].splitlines():
        if line.startswith("| ") and "tests/" in line:
            cell = line.split("|")[1]
            for reference in TEST.findall(cell):
                yield reference, cell


def test_what_the_page_of_security_names_is_there():
    page = (CHECKOUT / "docs" / "security.md").read_text(encoding="utf-8")
    named = TEST.findall(page)
    assert len(named) > 15
    assert not [one for one in named if is_campaign(one)], "it runs with every commit"


def test_there_are_seven():
    assert sorted(SECTIONS) == [f"G{number}" for number in range(1, 8)]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_campaign_is_called_one_and_nothing_else_is(section):
    wrong = [one for one, cell in rows(section) if is_campaign(one) != ("(campaign)" in cell)]
    assert not wrong


@pytest.mark.parametrize("section", SECTIONS)
def test_each_guarantee_is_proved_with_every_commit_on_real_servers(section):
    proofs = [one for one, _ in rows(section) if not is_campaign(one)]
    assert any(one.startswith(("tests/faults/", "tests/integration/")) for one in proofs), proofs
