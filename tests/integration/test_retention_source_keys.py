"""Keys that ``deletes: compare`` keeps: until no deployed pipeline compares with them any more."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from waybill import services
from waybill.ingestion.connectors import KeyKeepingConnector, open_connector
from waybill.retention import SourceKeysReport
from waybill.services.retention import _trim_known_keys
from waybill.settings import Settings, TrackerSettings
from waybill.storage import open_objects, open_tracker

pytestmark = pytest.mark.serves
PEOPLE = """
id: test-people
name: people
team: crm
owner: shop@example.com
source:
  connector: sql
  event: person
  options: {options}
events:
  person:
    key: [id]
    version: seq
    table: people
    columns: {{id: int64, seq: int64}}
transformation: transformation.py
destination: {{name: warehouse, schema: shop}}
"""
OPTIONS = "{file: shop.db, table: people, cursor: seq%s}"
COMPARES = OPTIONS % ", deletes: compare"


@pytest.fixture
def settings(postgres: Any, s3: Any, tmp_path: Path) -> Settings:
    made = Settings(
        _env_file=None,
        s3=s3.bucket("known-keys"),
        tracker=TrackerSettings(dsn=postgres.tracker()),
        pipelines_dir=tmp_path / "pipelines",
    )
    (made.pipelines_dir / "others").mkdir(parents=True)
    return made


def trimmed(settings: Settings, *, days: float = 0.0) -> SourceKeysReport:
    kept = settings.retention.model_copy(update={"source_keys_days": days})
    due = settings.model_copy(update={"retention": kept})
    with open_tracker(settings.tracker) as tracker:
        return _trim_known_keys(due, tracker, open_objects(settings.s3))


def deployed_people(settings: Settings, options: str, home: Path | None = None) -> str | None:
    """Deploy a pipeline that reads a table; return where it keeps keys."""
    home = home or settings.pipelines_dir / "people"
    home.mkdir(parents=True, exist_ok=True)
    (home / "pipeline.yaml").write_text(PEOPLE.format(options=options))
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    services.run_deploy(settings, home, who="test")
    pipeline = services.deployed_pipeline(settings, "people")
    connector = open_connector(pipeline.source, home, events=pipeline.events, settings=settings)
    assert isinstance(connector, KeyKeepingConnector)
    return connector.keys_prefix()


def test_keys_that_no_deployed_pipeline_compares_with_go_once_they_are_old(
    settings: Settings,
) -> None:
    objects = open_objects(settings.s3)
    own = deployed_people(settings, COMPARES)
    assert own is not None
    other_key, gone = "source-keys/people/0011223344556677/", "source-keys/was%20here/00/"
    names = [
        *(f"{own}{one}.zst" for one in ("known/a.7", "gone/b/0")),
        f"{other_key}known/a.7.zst",
        *(f"{gone}known/{number}.7.zst" for number in range(3)),
    ]
    for name in names:
        objects.put(name, b"keys")

    def left() -> list[str]:
        return sorted(item.key for item in objects.list("source-keys/"))

    assert trimmed(settings, days=30).to_json() == {"deleted": 0, "bytes": 0, "kept": {}}
    assert left() == sorted(names), "none is 30 days old"
    assert trimmed(settings).deleted == 4
    assert left() == sorted(names[:2]), "those of a pipeline that compares are never old"

    folders = settings.pipelines_dir
    folders.rename(folders.with_name("elsewhere"))
    assert trimmed(settings).kept.keys() == {"people"}
    folders.mkdir()
    trimmed(settings)
    assert left() == sorted(names[:2]), "where no folder is there, nobody knows whether one is gone"
    folders.rmdir()
    folders.with_name("elsewhere").rename(folders)

    assert deployed_people(settings, OPTIONS % "") is None
    assert deployed_people(settings, COMPARES) == own
    trimmed(settings)
    assert left() == sorted(names[:2])
    shutil.rmtree(folders / "people")
    trimmed(settings)
    assert left() == [], "its folder is gone, and others are there"


def test_keys_of_a_declaration_that_compares_no_more_go(settings: Settings) -> None:
    objects = open_objects(settings.s3)
    own = deployed_people(settings, COMPARES)
    objects.put(f"{own}known/a.7.zst", b"keys")
    deployed_people(settings, OPTIONS % "")
    trimmed(settings)
    assert not list(objects.list("source-keys/"))


@pytest.mark.parametrize("named", ["people", "staff and others"])
@pytest.mark.parametrize("further", [False, True], ids=["first", "further"])
def test_keys_stay_whatever_folder_the_pipeline_that_compares_is_declared_in(
    settings: Settings, tmp_path: Path, *, named: str, further: bool
) -> None:
    objects, root = open_objects(settings.s3), settings.pipelines_dir
    if further:
        root = tmp_path / "further"
        settings = settings.model_copy(update={"more_pipelines_dirs": (root,)})
    own = deployed_people(settings, COMPARES, root / named)
    key = f"{own}known/a.7.zst"
    objects.put(key, b"keys")
    assert trimmed(settings).to_json() == {"deleted": 0, "bytes": 0, "kept": {}}

    declaration = root / named / "pipeline.yaml"
    right = declaration.read_text()
    declaration.write_text("id: [")
    assert trimmed(settings).kept.keys() == {own and own.split("/")[1]}, "nobody can tell"
    declaration.write_text(right)
    assert [one.key for one in objects.list("source-keys/")] == [key]

    shutil.rmtree(root / named)
    (root / "another").mkdir(exist_ok=True)
    assert trimmed(settings).deleted == 1
