"""The ingest family: which file has which DAG, what a task builds, and what the index changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.dags.conftest import ROOT, load_dags

from waybill.pipelines import SHARDS, cron_schedule, shard_of

FILES = sorted((ROOT / "dags").glob("ingest*.py"))
DECLARATION = """\
id: id-{name}
name: {name}
team: shop
owner: "{name}@example.com"
schedule: {schedule}
source: {{connector: csv, path: rows.csv, event: row}}
events:
  row: {{key: [number], table: {name}, columns: {{number: int64}}}}
destination: {{name: warehouse, schema: shop}}
"""


class Declared:
    """A folder of pipelines that tests write into."""

    def __init__(self, root):
        self.root = root

    def write(self, folder, *, name=None, schedule="null"):
        directory = self.root / folder
        directory.mkdir(exist_ok=True)
        text = DECLARATION.format(name=name or folder, schedule=schedule)
        (directory / "pipeline.yaml").write_text(text)
        (directory / "transformation.py").write_text("def transform(event):\n    return event\n")

    def break_off_new(self, folder):
        (self.root / folder).mkdir()
        self.break_off(folder)

    def break_off(self, folder):
        (self.root / folder / "pipeline.yaml").write_text("id: [")


@pytest.fixture
def declared(tmp_path, monkeypatch):
    root, home = tmp_path / "pipelines", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(root))
    monkeypatch.setenv("WAYBILL_HOME", str(home))
    return Declared(root)


def file_of(folder):
    return ROOT / "dags" / f"ingest_{shard_of(folder):02}.py"


def parsed(path):
    bag = load_dags(path)
    assert bag.import_errors == {}
    return dict(bag.dags)


def family():
    """Return {DAG id: DAG}, and {DAG id: file}."""
    dags, files = {}, {}
    for path in FILES:
        for dag_id, dag in parsed(path).items():
            assert dag_id not in dags, (dag_id, path, files[dag_id])
            dags[dag_id], files[dag_id] = dag, path
    return dags, files


def for_a_task(path, dag_id):
    """Parse a file as Airflow does for a task: it sets these, and never takes them back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)
        patch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "ingest")
        return parsed(path)


def problem(dag):
    return dag.get_task("declaration").problem


def mates(count, shard=5):
    names = (f"orders-{number}" for number in range(400))
    return [name for name in names if shard_of(name) == shard][:count]


def test_each_file_is_of_another_shard_and_there_is_one_for_each(declared):
    calls = [path.read_text().splitlines()[-1] for path in FILES]
    numbers = [int(path.stem.removeprefix("ingest_")) for path in FILES]
    assert numbers == list(range(SHARDS))
    assert calls == [f"globals().update(ingest_shard({number}))" for number in numbers]


def test_each_pipeline_is_in_the_file_of_its_folder_and_in_no_other(declared):
    names = [f"pipeline-{number}" for number in range(40)]
    for name in names:
        declared.write(name)
    _, files = family()
    assert files == {f"ingest_{name}": file_of(name) for name in names}


def test_a_pipeline_whose_source_sends_by_itself_has_no_dag(declared):
    one, other = mates(2)
    for name in (one, other):
        declared.write(name)
    declaration = declared.root / other / "pipeline.yaml"
    source = "connector: http, event: row, options: {auth: bearer, secret: 'env:A_TOKEN'}"
    text = declaration.read_text().replace("connector: csv, path: rows.csv, event: row", source)
    declaration.write_text(text)
    assert set(parsed(file_of(one))) == {f"ingest_{one}"}
    assert for_a_task(file_of(other), f"ingest_{other}") == {}


@pytest.mark.filterwarnings("ignore:pipeline")
@pytest.mark.parametrize("indexed", [False, True])
def test_a_task_builds_its_dag_alone_and_other_files_build_none(declared, indexed):
    one, broken, third = names = mates(3)
    for name in names:
        declared.write(name)
    declared.break_off(broken)
    if indexed:
        family()
    path = file_of(one)
    for name in names:
        assert list(for_a_task(path, f"ingest_{name}")) == [f"ingest_{name}"]
    assert for_a_task(path, f"ingest_{one}")[f"ingest_{one}"].get_task("ingest").pipeline == one
    assert "expected YAML" in problem(for_a_task(path, f"ingest_{broken}")[f"ingest_{broken}"])
    for other in set(FILES) - {path}:
        assert for_a_task(other, f"ingest_{third}") == {}
    for strange in ("replay", "ingest_", "ingest_.", f"ingest_{mates(4)[3]}", "ingest_../x"):
        assert for_a_task(path, strange) == {}


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_task_finds_a_dag_that_is_not_named_as_its_folder(declared):
    declared.write("folder", name="renamed")
    declared.write("folder2", name="renamed")
    (declared.root / "öd: é").mkdir()
    dags, files = family()
    assert len(dags) == 3
    for dag_id, path in files.items():
        assert list(for_a_task(path, dag_id)) == [dag_id]
    assert files["ingest_renamed"] == file_of("folder")
    assert "another pipeline" in problem(dags["ingest_folder2"])


def test_a_task_sees_a_change_that_the_index_has_not(declared):
    [name] = mates(1)
    declared.write(name)
    family()
    declared.write(name, schedule='"5 * * * *"')
    dag = for_a_task(file_of(name), f"ingest_{name}")[f"ingest_{name}"]
    assert dag.timetable.expression == "5 * * * *"


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_broken_pipeline_leaves_its_neighbours_in_the_file_alone(declared):
    names = mates(4)
    for name in names:
        declared.write(name)
    before, _ = family()
    declared.break_off(names[1])
    (declared.root / os.fsdecode(b"caf\xe9")).mkdir()
    after, _ = family()
    assert len(after) == 5
    for dag_id in before.keys() - {f"ingest_{names[1]}"}:
        assert serialised(after[dag_id]) == serialised(before[dag_id])
    assert "expected YAML" in problem(after[f"ingest_{names[1]}"])
    [strange] = after.keys() - before.keys()
    assert "caf\\udce9" in problem(after[strange])
    assert serialised(after[strange]).encode()


def serialised(dag):
    from airflow.serialization.serialized_objects import DagSerialization

    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True, ensure_ascii=False)


@pytest.mark.filterwarnings("ignore:pipeline")
@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_damaged_or_missing_index_changes_no_dag(declared, tmp_path, damage):
    names = mates(3)
    for name in names:
        declared.write(name, schedule='"@hourly"')
    declared.break_off(names[2])
    before, _ = family()
    index = tmp_path / "home" / "declarations"
    assert [file.name for file in index.iterdir()] == ["05.json"]
    if damage is None:
        shutil.rmtree(index)
    else:
        (index / "05.json").write_bytes(damage)
    after, _ = family()
    assert {name: serialised(dag) for name, dag in after.items()} == {
        name: serialised(dag) for name, dag in before.items()
    }
    assert len((index / "05.json").read_bytes()) > 100


def test_names_that_two_folders_swapped_are_both_served(declared):
    declared.write("first", name="second")
    declared.write("second", name="first")
    dags, files = family()
    assert {name: dag.task_ids for name, dag in dags.items()} == {
        "ingest_first": ["ingest"],
        "ingest_second": ["ingest"],
    }
    assert files["ingest_first"] == file_of("second") != file_of("first")


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_name_belongs_to_its_folder_also_while_that_is_broken(declared):
    declared.write("another", name="orders")
    declared.write("orders")
    declared.break_off("orders")
    dags, _ = family()
    assert "expected YAML" in problem(dags["ingest_orders"])
    assert "another pipeline" in problem(dags["ingest_another"])


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_notice_makes_way_for_the_pipeline_that_has_its_folders_name(declared):
    declared.write("b", name="taken")
    declared.write("a", name="taken")
    declared.write("c", name="b")
    dags, files = family()
    assert files["ingest_taken"] == file_of("a")
    assert files["ingest_b"] == file_of("c")
    [notice] = dags.keys() - {"ingest_taken", "ingest_b"}
    assert notice.startswith("ingest_b_")
    assert "another pipeline" in problem(dags[notice])


def test_hourly_is_a_minute_of_the_pipelines_own_which_its_page_says(declared):
    declared.write("orders", schedule='"@hourly"')
    declared.write("sharp", schedule='"0 * * * *"')
    dags, _ = family()
    cron = cron_schedule("@hourly", "id-orders")
    assert dags["ingest_orders"].timetable.expression == cron
    assert f"`{cron}`" in dags["ingest_orders"].doc_md
    assert dags["ingest_sharp"].timetable.expression == "0 * * * *"
    assert "hourly" not in dags["ingest_sharp"].doc_md


def test_the_folders_are_those_of_the_settings(declared, monkeypatch):
    from waybill.settings import Settings
    from waybill_airflow.families import _folders

    for name in ("", "WAYBILL_HOME", "WAYBILL_PIPELINES_DIR"):
        if name:
            monkeypatch.setenv(name, "")
        settings = Settings()
        assert _folders() == (settings.pipelines_dir, settings.home, ())
        monkeypatch.delenv(name, raising=False)
        settings = Settings()
        assert _folders() == (settings.pipelines_dir, settings.home, ())


@pytest.fixture
def more(declared, tmp_path, monkeypatch):
    """A further folder of declarations, beside that of ``declared``."""
    root = tmp_path / "more"
    root.mkdir()
    monkeypatch.setenv("WAYBILL_MORE_PIPELINES_DIRS", json.dumps([str(root)]))
    return Declared(root)


def test_the_pipelines_of_a_further_folder_have_dags_and_an_index_of_their_own(
    declared, more, tmp_path
):
    one, other = mates(2)
    declared.write(one)
    more.write(other)
    dags, files = family()
    assert set(dags) == {f"ingest_{one}", f"ingest_{other}"}
    index = tmp_path / "home" / "declarations"
    assert sorted(file.name for file in index.iterdir()) == ["05.json", "1-05.json"]
    for dag_id, path in files.items():
        assert list(for_a_task(path, dag_id)) == [dag_id]
    assert set(family()[0]) == set(dags)


@pytest.mark.filterwarnings("ignore:pipeline")
def test_a_name_that_two_folders_have_is_the_first_ones_also_where_that_is_broken(declared, more):
    names = mates(3)
    for name in names:
        more.write(name, schedule='"5 * * * *"')
    declared.write(names[0])
    declared.break_off_new(names[1])
    declared.write("elsewhere", name=names[2])
    dags, files = family()
    assert set(dags) == {f"ingest_{name}" for name in names}
    assert "expected YAML" in problem(dags[f"ingest_{names[1]}"])
    for name in (names[0], names[2]):
        assert dags[f"ingest_{name}"].schedule is None
    for dag_id, path in files.items():
        assert list(for_a_task(path, dag_id)) == [dag_id]
    assert for_a_task(file_of(names[2]), f"ingest_{names[2]}") == {}


def test_a_further_folder_that_is_not_there_takes_no_dag_away(declared, more):
    [name] = mates(1)
    declared.write(name)
    more.root.rmdir()
    with pytest.warns(UserWarning, match="WAYBILL_MORE_PIPELINES_DIRS: .* no such folder"):
        dags = parsed(file_of(name))
    assert set(dags) == {f"ingest_{name}"}


SERIALISED = """
import json, sys
from tests.dags import test_ingest_family as tests
dags, _ = tests.family()
sys.stdout.write("DAGS" + json.dumps({name: tests.serialised(dag) for name, dag in dags.items()}))
"""


@pytest.mark.filterwarnings("ignore:pipeline")
def test_another_process_serialises_them_alike(declared):
    """Else each parse would make a new version of each DAG: the order of a set differs."""
    for number in range(12):
        declared.write(f"orders-{number}", schedule='"@hourly"')
    declared.break_off("orders-3")
    here = {name: serialised(dag) for name, dag in family()[0].items()}
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join([str(ROOT / "plugins"), str(ROOT)])
    there = subprocess.run(
        [sys.executable, "-c", SERIALISED],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout.partition("DAGS")[2]) == here


def test_runs_that_read_by_a_limited_connection_share_a_pool_that_the_stack_makes(
    declared, monkeypatch
):
    from waybill.settings import Settings
    from waybill.stack.airflow import pool_sizes

    for name, connection in (("one", "shop_db"), ("two", "shop_db"), ("three", "crm")):
        declared.write(name)
        file = declared.root / name / "pipeline.yaml"
        source = f"connector: sql, event: row, connection: {connection}, options: {{table: rows}}"
        file.write_text(file.read_text().replace("connector: csv, path: rows.csv, event: row", source))  # fmt: skip
    declared.write("file")

    def pools():
        dags, _ = family()
        return {dag_id: dag.get_task("ingest").pool for dag_id, dag in dags.items()}

    common = {f"ingest_{name}": "waybill_ingest" for name in ("one", "two", "three", "file")}
    assert pools() == common
    monkeypatch.setenv("WAYBILL_AIRFLOW__SOURCE_SLOTS", '{"shop_db": 2}')
    own = "waybill_source_shop_db"
    assert pools() == common | {"ingest_one": own, "ingest_two": own}
    assert pool_sizes(Settings().airflow)[own][0] == 2


def test_a_run_that_reads_by_several_connections_takes_as_many_slots_of_their_pool(
    declared, monkeypatch
):
    monkeypatch.setenv("WAYBILL_AIRFLOW__SOURCE_SLOTS", '{"shop_db": 3}')
    for name, connection, more in (
        ("one", "shop_db", ""),
        ("two", "shop_db", ", backfill: {ranges: 8}, limits: {max_connections: 2}"),
        ("three", "shop_db", ", backfill: {ranges: 8}"),
        ("four", "crm", ", backfill: {ranges: 8}"),
    ):
        declared.write(name)
        file = declared.root / name / "pipeline.yaml"
        options = f"{{table: rows, cursor: seq{more}}}"
        source = f"connector: sql, event: row, connection: {connection}, options: {options}"
        file.write_text(file.read_text().replace("connector: csv, path: rows.csv, event: row", source))  # fmt: skip
    dags, _ = family()
    slots = {dag_id: dag.get_task("ingest").pool_slots for dag_id, dag in dags.items()}
    assert slots == {"ingest_one": 1, "ingest_two": 2, "ingest_three": 3, "ingest_four": 1}
