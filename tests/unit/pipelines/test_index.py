"""The index of declarations saves checking; whatever becomes of it, what is found is the same."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import astuple

import pytest
from tests.unit.pipelines.conftest import CODE, GOOD

from waybill.pipelines import (
    SHARDS,
    DeclarationIndex,
    cron_schedule,
    load_pipeline,
    shard_of,
    validation,
)
from waybill.pipelines import index as index_module

NAMES = [name for name in (f"p{number:03}" for number in range(200)) if shard_of(name) == 3][:4]


def named(name, **changes):
    text = GOOD.replace("id: shop-orders", f"id: id-{name}").replace(
        "name: orders", f"name: {name}"
    )
    for old, new in changes.items():
        text = text.replace(f"{old}: ", f"{new}: ", 1)
    return text


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def checked(monkeypatch):
    """The folders that are checked from here on."""
    folders, examine = [], validation.examine

    def watched(directory, complete=None):
        folders.append(directory.name)
        return examine(directory, complete)

    monkeypatch.setattr(validation, "examine", watched)
    return folders


@pytest.fixture
def pipelines(folder):
    """Three right declarations and a broken one, all of one shard."""
    for name in NAMES[:3]:
        folder.write(name, text=named(name))
    folder.write(NAMES[3], text=named(NAMES[3], owner="ovner"))
    return folder.root


def look(root, home):
    return DeclarationIndex(root, home).shard(3)


def kept(home):
    return home / "declarations" / "03.json"


def test_what_is_found_is_what_the_declarations_say(pipelines, home):
    *right, broken = found = look(pipelines, home)
    assert [one.folder for one in found] == NAMES
    for one in right:
        pipeline = load_pipeline(pipelines / one.folder)
        said = (pipeline.id, pipeline.name, pipeline.team, pipeline.owner, pipeline.schedule)
        assert astuple(one) == (one.folder, "", *said, False, pipeline.source.connection, 1)
    assert f"{pipelines}/{NAMES[3]}/pipeline.yaml:4: ovner" in broken.problem
    assert look(pipelines, home) == found


def test_only_what_changed_is_checked_again(pipelines, home, checked):
    look(pipelines, home)
    assert checked == NAMES
    checked.clear()
    look(pipelines, home)
    assert checked == []
    (pipelines / NAMES[1] / "transformation.py").write_text("def transform(event):\n  pass\n")
    look(pipelines, home)
    assert checked == [NAMES[1]]


@pytest.mark.parametrize("file", ["pipeline.yaml", "transformation.py"])
def test_a_change_that_keeps_size_and_times_is_seen(pipelines, home, file):
    before = look(pipelines, home)[0]
    path = pipelines / NAMES[0] / file
    stat, text = path.stat(), path.read_text()
    path.write_text(text.replace("e", "(", 1))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert before.problem == ""
    assert look(pipelines, home)[0].problem
    path.write_text(text)
    assert look(pipelines, home)[0] == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: b"",
        lambda body: body[: len(body) // 2],
        lambda body: body[:-1],
        lambda body: b"\0" * len(body),
        lambda body: body.replace(b"shop@example.com", b"ship@example.com", 1),
        lambda body: body.split(b"\n", 1)[1],
        lambda body: b"[]",
        lambda body: body + body,
    ],
)
def test_a_damaged_index_changes_nothing_and_is_written_anew(pipelines, home, checked, damage):
    found = look(pipelines, home)
    whole = kept(home).read_bytes()
    kept(home).write_bytes(damage(whole))
    assert look(pipelines, home) == found
    assert checked == NAMES * 2
    assert kept(home).read_bytes() == whole


def test_a_declaration_with_thousands_of_mistakes_is_a_notice_of_some(folder, home):
    columns = "\n".join(f"      column_{number}: nonsense" for number in range(3_000))
    folder.write(NAMES[0], text=named(NAMES[0]).replace("      note: string", columns))
    *some, last = look(folder.root, home)[0].problem.splitlines()
    assert len(some) == 50
    assert last == "2950 more; `waybill pipelines check` has all"


def test_an_index_of_another_release_is_not_read(pipelines, home, checked, monkeypatch):
    found = look(pipelines, home)
    monkeypatch.setattr(index_module, "_judge", lambda: b"another")
    assert look(pipelines, home) == found
    assert checked == NAMES * 2


def test_an_index_of_other_folders_is_not_believed(pipelines, home, tmp_path):
    look(pipelines, home)
    elsewhere = tmp_path / "elsewhere"
    pipelines.rename(elsewhere)
    assert f"{elsewhere}/{NAMES[3]}" in look(elsewhere, home)[3].problem


def test_without_a_state_folder_or_with_one_that_takes_nothing_all_is_found(
    pipelines, home, caplog
):
    found = look(pipelines, home)
    assert look(pipelines, home / "nowhere") == found
    assert not (home / "nowhere").exists()
    kept(home).unlink()
    kept(home).parent.rmdir()
    kept(home).parent.write_text("no folder")
    caplog.clear()
    assert look(pipelines, home) == found
    assert "checked anew at each parse" in caplog.text


def test_a_file_that_could_not_be_read_is_tried_again(pipelines, home, monkeypatch):
    def unreadable(directory, name, limit):
        return None, "it cannot be read: Input/output error"

    with monkeypatch.context() as patch:
        patch.setattr(validation, "read_inside", unreadable)
        assert all("Input/output error" in one.problem for one in look(pipelines, home)[:3])
    assert [one.problem for one in look(pipelines, home)[:3]] == ["", "", ""]


def test_what_is_wrong_with_a_missing_file_is_looked_at_anew(pipelines, home):
    (pipelines / NAMES[0] / "pipeline.yaml").unlink()
    assert "did you mean" not in look(pipelines, home)[0].problem
    (pipelines / NAMES[0] / "pipeline.yml").touch()
    assert "did you mean 'pipeline.yml'?" in look(pipelines, home)[0].problem


def test_a_connector_of_a_package_is_asked_for_each_time(pipelines, home, checked, monkeypatch):
    from waybill.pipelines import form

    path = pipelines / NAMES[0] / "pipeline.yaml"
    path.write_text(path.read_text().replace("connector: csv", "connector: lines"))
    brought: dict[str, object] = {}
    monkeypatch.setattr(form, "brought_connectors", lambda: brought)
    assert "no such connector" in look(pipelines, home)[0].problem
    brought["lines"] = object()
    assert "no such connector" not in look(pipelines, home)[0].problem
    brought.clear()
    assert "no such connector" in look(pipelines, home)[0].problem
    checked.clear()
    look(pipelines, home)
    assert checked == []


def test_a_parse_that_is_ended_keeps_what_it_found(pipelines, home, checked, monkeypatch):
    class EndedError(BaseException):
        pass

    def ended(directory, complete=None):
        raise EndedError

    path = pipelines / NAMES[2] / "pipeline.yaml"
    look(pipelines, home)
    (pipelines / NAMES[0] / "pipeline.yaml").write_text(named(NAMES[0]) + "\n")
    look(pipelines, home)
    path.write_text(named(NAMES[2]) + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(validation, "examine", ended)
        with pytest.raises(EndedError):
            look(pipelines, home)
    checked.clear()
    look(pipelines, home)
    assert checked == [NAMES[2]]


def test_two_that_write_at_once_leave_an_index_that_is_right(pipelines, home):
    one, other = (DeclarationIndex(pipelines, home) for _ in range(2))
    one.folder(NAMES[0])
    other.folder(NAMES[0])
    (pipelines / NAMES[0] / "pipeline.yaml").write_text(named(NAMES[0], owner="ovner"))
    found = one.shard(3)
    (pipelines / NAMES[0] / "pipeline.yaml").write_text(named(NAMES[0]))
    assert other.shard(3) != found
    one._write(3, one._shards[3])
    assert look(pipelines, home) == other.shard(3)


def test_what_is_gone_is_dropped(pipelines, home):
    look(pipelines, home)
    for name in ("pipeline.yaml", "transformation.py"):
        (pipelines / NAMES[0] / name).unlink()
    (pipelines / NAMES[0]).rmdir()
    assert [one.folder for one in look(pipelines, home)] == NAMES[1:]
    assert NAMES[0] not in kept(home).read_text()
    assert [file.name for file in kept(home).parent.iterdir()] == ["03.json"]


def test_one_folder_is_found_by_itself(pipelines, home, checked):
    whole = look(pipelines, home)
    checked.clear()
    index = DeclarationIndex(pipelines, home)
    assert [index.folder(name) for name in NAMES] == whole
    assert checked == []
    (pipelines / "_hidden").mkdir()
    for none in ("", ".", "..", "nobody", "_hidden", f"../{pipelines.name}", "a\0b"):
        assert index.folder(none) is None


def test_pipelines_that_are_not_named_as_their_folders_are_found_in_all_shards(folder, home):
    for name in ("a", "b", "c"):
        folder.write(name, text=named(f"{name}-new"))
    folder.write("d", text=named("d"))
    folder.write("e", text=named("f", owner="ovner"))
    index = DeclarationIndex(folder.root, home)
    assert [one.name for one in index.renamed()] == ["a-new", "b-new", "c-new"]
    for number in range(SHARDS):
        index.shard(number)
    again = DeclarationIndex(folder.root, home)
    assert [one.folder for one in again.renamed()] == ["a", "b", "c"]


def test_shards_are_of_like_size_and_stay_what_they_are():
    sizes = Counter(shard_of(f"pipeline_{number}") for number in range(5_000))
    assert len(sizes) == SHARDS
    assert max(sizes.values()) < 1.3 * 5_000 / SHARDS
    # Another number here moves DAGs between files, where Airflow may lose sight of them for a while.
    assert [shard_of(name) for name in ("flights", "weather", "öd: é", "\udce9")] == [14, 11, 7, 13]


def test_each_hourly_pipeline_has_a_minute_of_its_own_that_stays():
    minutes = Counter(cron_schedule("@hourly", f"id-{number}") for number in range(6_000))
    assert len(minutes) == 60
    assert max(minutes.values()) < 160
    assert cron_schedule("@hourly", "nyc-flights") == "3 * * * *"
    assert cron_schedule("@hourly", "nyc-weather") == "19 * * * *"


@pytest.mark.parametrize("schedule", [None, "@once", "@daily", "0 * * * *", "15 3 * * 1-5"])
def test_other_schedules_are_meant_as_they_stand(schedule):
    assert cron_schedule(schedule, "nyc-flights") == schedule


def test_a_folder_or_link_that_cannot_be_looked_into_is_found_and_named(folder, home):
    folder.write("orders", code=CODE)
    (folder.root / "circle").symlink_to("circle")
    index = DeclarationIndex(folder.root, home)
    found = {one.folder: one for number in range(SHARDS) for one in index.shard(number)}
    assert found["orders"].problem == ""
    assert "pipeline.yaml" in found["circle"].problem
