"""A broken pipeline.yaml is named, and takes no other pipeline with it."""

from __future__ import annotations

import shutil

import pytest
from tests.dags.conftest import ROOT, load_dags

from waybill.pipelines import SHARDS


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """A copy of the real declarations that a test may break."""
    folder = tmp_path / "pipelines"
    shutil.copytree(
        ROOT / "include" / "pipelines", folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder))
    return folder


def edit(declared, name, old, new):
    path = declared / name / "pipeline.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def family():
    dags = {}
    for number in range(SHARDS):
        bag = load_dags(ROOT / "dags" / f"ingest_{number:02}.py")
        assert bag.import_errors == {}
        assert not dags.keys() & bag.dags.keys()
        dags |= bag.dags
    return dags


def run_notice(dag):
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException) as failure:
        dag.get_task("declaration").execute({})
    return str(failure.value)


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_typo_gives_a_notice_with_file_line_and_field_and_the_others_live(declared):
    line = edit(declared, "flights", "schedule:", "shedule:")
    dags = family()
    assert set(dags) == {"ingest_flights", "ingest_weather"}
    assert dags["ingest_weather"].get_task("ingest").pipeline == "weather"
    notice = dags["ingest_flights"]
    assert "broken" in notice.tags
    assert "broken" in notice.dag_display_name
    said = run_notice(notice)
    assert f"{declared}/flights/pipeline.yaml:{line}:" in said
    assert "shedule" in said
    assert "schedule" in said
    assert said in notice.doc_md


def test_the_dag_processor_is_warned(declared):
    edit(declared, "flights", "schedule:", "shedule:")
    with pytest.warns(UserWarning, match="pipeline flights: .*shedule"):
        family()


@pytest.mark.filterwarnings("ignore:pipeline")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('schedule: "@once"', 'schedule: "61 * * * *"'),
        ("name: flights", "name: weather"),
        ("team: aviation", "team: [aviation"),
        ("name: flights", "name: ''"),
    ],
)
def test_whatever_is_wrong_the_good_pipeline_keeps_its_dag(declared, old, new):
    edit(declared, "flights", old, new)
    dags = family()
    assert dags["ingest_weather"].task_ids == ["ingest"]
    assert dags["ingest_flights"].task_ids == ["declaration"]


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_name_that_two_claim_stays_with_the_folder_of_that_name(declared):
    edit(declared, "flights", "name: flights", "name: weather")
    dags = family()
    assert dags["ingest_weather"].owner == "weather@meteo.example"
    assert "another pipeline" in run_notice(dags["ingest_flights"])


def test_an_id_that_two_claim_changes_no_dag_because_runs_use_what_was_deployed(declared):
    edit(declared, "flights", "id: nyc-flights", "id: nyc-weather")
    assert {name: dag.task_ids for name, dag in family().items()} == {
        "ingest_flights": ["ingest"],
        "ingest_weather": ["ingest"],
    }


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_transformation_that_does_not_compile_is_named(declared):
    (declared / "flights" / "transformation.py").write_text("def transform(event:\n")
    dags = family()
    assert "flights/transformation.py:1" in run_notice(dags["ingest_flights"])
    assert dags["ingest_weather"].task_ids == ["ingest"]


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_folder_without_a_declaration_and_with_a_strange_name_is_named(declared):
    (declared / "öd: é").mkdir()
    dags = family()
    assert {"ingest_flights", "ingest_weather"} < set(dags)
    [strange] = set(dags) - {"ingest_flights", "ingest_weather"}
    assert "pipeline.yaml" in run_notice(dags[strange])


@pytest.mark.filterwarnings("ignore:pipeline")
def test_notices_survive_serialization_and_a_mended_declaration_brings_the_dag_back(declared):
    from airflow.serialization.serialized_objects import DagSerialization

    edit(declared, "flights", "schedule:", "shedule:")
    for dag in family().values():
        assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).dag_id == dag.dag_id
    edit(declared, "flights", "shedule:", "schedule:")
    assert family()["ingest_flights"].task_ids == ["ingest"]


def test_schedules_and_owners_are_the_declared_ones(declared):
    edit(declared, "weather", 'schedule: "@once"', 'schedule: "15 3 * * *"')
    dag = family()["ingest_weather"]
    assert dag.timetable.expression == "15 3 * * *"
    assert dag.owner == "weather@meteo.example"
    assert {"ingest", "meteo"} < dag.tags


def test_a_folder_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(tmp_path / "nowhere"))
    bag = load_dags(ROOT / "dags" / "ingest_00.py")
    [error] = bag.import_errors.values()
    assert "WAYBILL_PIPELINES_DIR" in error
    assert str(tmp_path / "nowhere") in error


@pytest.mark.filterwarnings("ignore:pipeline")
def test_no_text_of_a_declaration_leaves_the_code_that_it_is_shown_in(declared):
    from markdown_it import MarkdownIt

    folder = declared / "a`` # b"
    folder.mkdir()
    path = folder / "pipeline.yaml"
    path.write_text("id: x\n'` ````` <b>`': 1\n'```\\n# out': 2\n")
    [notice] = [dag for dag in family().values() if "broken" in dag.tags]
    assert "`````" in notice.doc_md
    tokens = MarkdownIt().parse(notice.doc_md)
    said = run_notice(notice)
    assert [one.content.strip() for one in tokens if one.type == "fence"] == [said.strip()]
    [heading] = [tokens[n + 1] for n, one in enumerate(tokens) if one.type == "heading_open"]
    assert [one.content for one in heading.children if one.type == "code_inline"] == ["a`` # b"]


def test_an_owner_is_shown_as_it_is(declared):
    from markdown_it import MarkdownIt

    edit(declared, "weather", "owner: weather@meteo.example", "owner: 'a` [b](c) ``'")
    [line] = [one for one in MarkdownIt().parse(family()["ingest_weather"].doc_md) if one.children
              and "Fetches" in one.content]  # fmt: skip
    assert "a` [b](c) ``" in [one.content for one in line.children if one.type == "code_inline"]
