"""Connectors and destinations that other packages bring, by entry points of an installed package."""

from __future__ import annotations

import importlib

import pytest

from waybill.destinations import is_experimental, open_destination
from waybill.errors import InputError
from waybill.ingestion.connectors import open_connector
from waybill.mappings import rules_of
from waybill.pipelines import DeclarationError, check, load_pipeline
from waybill.settings import DestinationSettings

MODULE = """
from waybill.ingestion.connectors import BadRow, Page

class Lines:
    def __init__(self, opening):
        self.texts = opening.source.options["texts"].split("|")

    def read(self, cursor):
        done = (cursor or {"line": 0})["line"]
        if rows := self.texts[done:]:
            end = {"line": len(self.texts)}
            yield Page([{"text": row} for row in rows], [], end, cursor)

    def count(self):
        return len(self.texts)

def open_house(name, settings, s3):
    return ("a house", name, settings.dsn.get_secret_value())

def open_tested(name, settings, s3):
    return None

open_tested.experimental = False
"""
ENTRY_POINTS = """
[waybill.connectors]
lines = brought:Lines
gone = brought_no_more:Lines

[waybill.destinations]
house = brought:open_house
tested = brought:open_tested
gone = brought_no_more:open_house
"""
PIPELINE = """
id: texts-0001
name: texts
team: shop
owner: shop@example.com
source: {{connector: {connector}, event: line, options: {{texts: "a|b|c"}}}}
events:
  line: {{key: [text], table: lines, columns: {{text: string}}}}
destination: {{name: house, schema: shop}}
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package as pip leaves it: a module and its ``dist-info``."""
    folder = tmp_path / "site-packages"
    info = folder / "brought-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "brought.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()


def declared(folder, connector):
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(PIPELINE.format(connector=connector))
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    return load_pipeline(folder)


def test_a_connector_of_another_package_is_declared_and_opened_with_its_options(tmp_path):
    folder = tmp_path / "texts"
    source = declared(folder, "lines").source
    connector = open_connector(source, folder)
    [page] = connector.read(None)
    assert [row["text"] for row in page.rows] == ["a", "b", "c"]
    assert list(connector.read(page.cursor)) == []
    assert connector.count() == 3


def test_a_connector_that_no_package_brings_is_a_mistake_with_those_there_are(tmp_path):
    with pytest.raises(DeclarationError, match="csv.*, lines"):
        declared(tmp_path / "texts", "line")


def test_a_connector_whose_package_is_broken_says_which(tmp_path):
    folder = tmp_path / "texts"
    source = declared(folder, "gone").source
    with pytest.raises(InputError, match="brought_no_more:Lines"):
        open_connector(source, folder)


def test_check_says_what_a_connector_has_against_its_options(tmp_path):
    folder = tmp_path / "texts"
    declared(folder, "lines")
    assert check(folder, open_source=open_connector) == []
    file = folder / "pipeline.yaml"
    file.write_text(file.read_text().replace("texts: ", "text: "))
    [problem] = check(folder, open_source=open_connector)
    assert "connector 'lines' refuses them: KeyError('texts')" in problem.message
    assert problem.line == 6


def test_waybills_own_connector_takes_no_options_and_needs_a_path(tmp_path):
    with pytest.raises(DeclarationError, match="path is missing"):
        declared(tmp_path / "texts", "csv")


def test_a_destination_of_another_package_is_configured_and_opened():
    settings = DestinationSettings(kind="house", dsn="house://ann:secret@there")
    assert open_destination("main", settings) == ("a house", "main", "house://ann:secret@there")
    assert is_experimental("house")
    assert not is_experimental("tested")


def test_names_in_a_destination_that_nobody_knows_are_such_as_all_others_take():
    rules = rules_of("house")
    assert rules.longest == 63
    assert rules.folds
    assert not rules.takes("ctid")
    assert not rules.takes("rowid")


def test_a_kind_that_no_package_brings_is_a_mistake_with_those_there_are():
    with pytest.raises(ValueError, match="clickhouse.*gone, house, tested"):
        DestinationSettings(kind="hause", dsn="x")


def test_a_destination_whose_package_is_broken_says_which_and_shows_no_secret():
    settings = DestinationSettings(kind="gone", dsn="house://ann:secret@there")
    with pytest.raises(InputError, match="brought_no_more:open_house") as caught:
        open_destination("main", settings)
    assert "secret" not in str(caught.value)
