"""Versions of pipelines by the command line: what is active beside folders, back, and compared."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
from pathlib import Path

import psycopg
import pytest
from tests.support import orders
from typer.testing import CliRunner

from waybill.cli import app
from waybill.settings import Settings

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres):
    return postgres.tracker()


@pytest.fixture
def home(dsn, tmp_path, monkeypatch):
    """A folder of pipelines with `orders`, and the command line beside a real tracker."""
    for name, value in {
        "WAYBILL_HOME": str(tmp_path / "state"),
        "WAYBILL_TRACKER__DSN": dsn,
        "WAYBILL_PIPELINES_DIR": str(tmp_path / "pipelines"),
        "WAYBILL_AIRFLOW__URL": "http://127.0.0.1:1",
        "COLUMNS": "80",
    }.items():
        monkeypatch.setenv(name, value)
    return orders.write_orders(tmp_path / "pipelines", rows=1)


def run(*words, code=0):
    done = CliRunner().invoke(app, ["pipelines", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def as_json(*words, code=0):
    return json.loads(run(*words, "--json", code=code).stdout)


def flat(text):
    return " ".join(text.split())


def listed():
    return {one["name"]: one for one in as_json("list")}


def elsewhere(home, tmp_path, name="elsewhere", *, fixed=True):
    """Copy the pipeline's folder to another place, with other code."""
    copy = tmp_path / name / "orders"
    shutil.copytree(home, copy)
    if fixed:
        (copy / "transformation.py").write_text(orders.FIXED)
    return copy


def test_list_and_show_tell_what_is_active_and_what_the_folder_has(home, tmp_path):
    assert (listed()["orders"]["state"], listed()["orders"]["active"]) == ("not_deployed", None)
    first = as_json("deploy", home)
    assert listed()["orders"]["state"] == "same"
    fixed = as_json("deploy", elsewhere(home, tmp_path))
    one = listed()["orders"]
    assert (one["state"], one["folder_number"]) == ("older", 1)
    assert (one["version"], one["active"]["version"]) == (first["version"], fixed["version"])
    text = run("list").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert first["version"] in text
    assert "the folder's version" in flat(text)
    assert "is number 1, which was active before. Active is number 2" in flat(text)
    shown = flat(run("show", "orders").stdout)
    assert f"active: {fixed['version']}" in shown
    assert "waybill pipelines diff orders" in shown
    (home / "transformation.py").write_text(orders.FIRST + "\n# mine\n")
    assert listed()["orders"]["state"] == "changed"
    assert "was never deployed" in flat(run("list").stdout)


def test_what_is_deployed_and_in_no_folder_is_listed(home, tmp_path, monkeypatch):
    run("deploy", elsewhere(home, tmp_path, fixed=False))
    shutil.rmtree(home)
    one = listed()["orders"]
    assert (one["state"], one["version"], one["active"]["number"]) == ("no_folder", None, 1)
    assert "orders: deployed, and declared in none of these folders" in flat(run("list").stdout)
    assert as_json("list", "--from", home.parent) == [], "not all folders were looked at"
    monkeypatch.setenv("WAYBILL_MORE_PIPELINES_DIRS", json.dumps([str(tmp_path / "elsewhere")]))
    assert listed() == {}, "a further folder has it"


def test_a_list_without_a_tracker_says_that_the_active_versions_are_not_known(home, monkeypatch):
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://nobody@127.0.0.1:1/none")
    listing = run("list")
    assert "orders" in listing.stdout
    assert "which versions are active is not known" in listing.stderr
    assert listed()["orders"]["state"] == "unknown"


def test_a_deploy_does_not_take_back_what_was_deployed_from_elsewhere(home, tmp_path):
    first = as_json("deploy", home)
    fix = elsewhere(home, tmp_path)
    replaced = as_json("deploy", fix)["replaced"]
    assert (replaced["number"], replaced["version"]) == (1, first["version"])
    assert replaced["place"].endswith(f":{home}")
    # the folder as it was: the bug would be back
    refused = run("deploy", home, code=1).stderr
    assert "this folder holds number 1, which was active before" in flat(refused)
    assert f"{fix} on " in flat(refused), "who, from where, and when"
    assert listed()["orders"]["active"]["number"] == 2
    # the folder as somebody changed it, who has not seen the fix
    (home / "transformation.py").write_text(orders.FIRST + "\n# mine\n")
    refused = run("deploy", home, code=1).stderr
    assert "last deployed as number 1, and changed since" in flat(refused)
    assert "--force" in refused
    assert as_json("deploy", home, "--force")["number"] == 3
    assert "already" in run("deploy", home).stdout
    # what was deployed last from here may go on from here, and what is new anywhere
    (home / "transformation.py").write_text(orders.FIXED + "\n# mine\n")
    assert "in place of number 3" in flat(run("deploy", home).stdout)
    third = elsewhere(home, tmp_path, "third", fixed=False)
    (third / "transformation.py").write_text(orders.FIXED + "\n# third\n")
    assert as_json("deploy", third)["number"] == 5


def unchanged(dsn):
    with psycopg.connect(dsn) as connection:
        query = "SELECT detail FROM audit_log WHERE action = 'deploy_unchanged' ORDER BY id"
        return [detail["number"] for (detail,) in connection.execute(query)]


def changed(folder, note):
    (folder / "transformation.py").write_text(f"{orders.FIRST}\n# {note}\n")
    return folder


def test_a_folder_that_was_deployed_as_what_a_rollback_made_active_goes_on_from_there(home, dsn):
    first = as_json("deploy", home)
    (home / "transformation.py").write_text(orders.FIXED)
    as_json("deploy", home)
    run("rollback", "orders", "1", "--why", "wrong sums")
    (home / "transformation.py").write_text(orders.FIRST)
    for _ in range(3):
        assert f"version {first['version']} was active already" in run("deploy", home).stdout
    assert unchanged(dsn) == [3], "once for each version"
    newest = as_json("history", "orders")[0]
    assert (newest["rolled_back_to"], newest["why"]) == (1, "wrong sums"), (
        "its history is as it was"
    )
    assert as_json("deploy", changed(home, "mine"))["number"] == 4


def test_of_two_folders_that_hold_what_is_active_the_second_to_change_is_refused(
    home, tmp_path, monkeypatch
):
    as_json("deploy", home)
    other = elsewhere(home, tmp_path, fixed=False)
    assert as_json("deploy", other)["changed"] is False
    assert as_json("deploy", changed(home, "mine"))["number"] == 2
    refused = flat(run("deploy", changed(other, "others"), code=1).stderr)
    assert "was as number 1 when last deployed, and changed since" in refused
    # the same folder on another node is another: nothing came from there
    monkeypatch.setattr(socket, "gethostname", lambda: "node-2")
    assert as_json("deploy", other)["number"] == 3


def test_a_branch_from_before_a_fix_does_not_take_it_back_where_the_folder_once_had_it(
    home, tmp_path
):
    as_json("deploy", home)
    as_json("deploy", elsewhere(home, tmp_path))
    (home / "transformation.py").write_text(orders.FIXED)
    assert as_json("deploy", home)["changed"] is False
    # `git checkout` of what was there before the fix, and of a branch that begins there
    (home / "transformation.py").write_text(orders.FIRST)
    assert "this folder holds number 1" in flat(run("deploy", home, code=1).stderr)
    refused = flat(run("deploy", changed(home, "branch"), code=1).stderr)
    assert "was as number 2 when last deployed" in refused
    assert "it is from before that, or that was taken out on purpose" in refused
    # the fix, and a change of it
    (home / "transformation.py").write_text(f"{orders.FIXED}\n# mine\n")
    assert as_json("deploy", home)["number"] == 3


def test_what_a_rollback_took_back_may_come_again_corrected(home, tmp_path):
    as_json("deploy", home)
    as_json("deploy", elsewhere(home, tmp_path))
    run("rollback", "orders", "1", "--why", "wrong sums")
    assert as_json("deploy", home)["changed"] is False
    (home / "transformation.py").write_text(f"{orders.FIXED}\n# corrected\n")
    assert as_json("deploy", home)["number"] == 4


def test_hosts_that_each_deploy_gets_anew_do_not_fill_the_audit_log(home, dsn, monkeypatch):
    monkeypatch.setattr("waybill.deployment._MOST_AGREED", 2)
    as_json("deploy", home)
    host = socket.gethostname()
    for name in ("runner-1", "runner-2", "runner-3", "runner-1"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        assert as_json("deploy", home)["changed"] is False
    assert unchanged(dsn) == [1, 1]
    # a folder that something came from is noted all the same
    as_json("deploy", changed(home, "runner's"))
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    for name in ("runner-4", "runner-5", "runner-6"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        as_json("deploy", home)
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    as_json("deploy", home)
    assert unchanged(dsn) == [1, 1, 2, 2, 2]


def test_a_folder_that_held_what_was_active_does_not_take_back_a_later_rollback(home, dsn):
    as_json("deploy", home)
    as_json("deploy", changed(home, "mine"))
    run("rollback", "orders", "1", "--why", "wrong sums")
    (home / "transformation.py").write_text(orders.FIRST)
    as_json("deploy", home)
    run("rollback", "orders", "2", "--why", "right after all")
    assert "this folder holds number 3" in flat(run("deploy", home, code=1).stderr)
    refused = flat(run("deploy", changed(home, "again"), code=1).stderr)
    assert "was as number 3 when last deployed" in refused
    assert unchanged(dsn) == [3]


def test_a_deploy_says_what_was_tried_if_anything_was(home):
    said = run("deploy", home).stdout
    assert "tried: 1 of the first 1 rows of its source pass" in flat(said)
    assert max(map(len, said.splitlines())) <= 80
    assert "tried" not in run("deploy", "--no-deep", changed(home, "mine")).stdout
    assert as_json("deploy", changed(home, "more"))["tried"] == [
        "1 of the first 1 rows of its source pass"
    ]


def test_a_deploy_warns_of_a_source_that_the_settings_close(home, monkeypatch):
    text = (home / "pipeline.yaml").read_text()
    begin, _, rest = text.partition("source:\n")
    _, _, events = rest.partition("events:\n")
    source = (
        "source:\n  connector: dlt\n  event: order\n  options:\n    rest_api:\n"
        "      client: {base_url: 'http://127.0.0.1:1/'}\n      resources: [orders]\n"
    )
    (home / "pipeline.yaml").write_text(f"{begin}{source}events:\n{events}")
    monkeypatch.chdir(home.parent.parent)
    done = run("deploy", home)
    said = flat(done.stderr)
    assert "warning: pipelines/orders/pipeline.yaml:12: '127.0.0.1' is not one of the" in said
    assert "WAYBILL_EGRESS__ALLOWED_HOSTS='[\"127.0.0.1:1\"]'" in said
    assert "the transformation was not tried: its source is closed here" in said
    assert "is active" in done.stdout
    assert "tried" not in done.stdout
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", '["127.0.0.1:1"]')
    assert "closed" not in run("deploy", "--no-deep", home).stderr


def test_history_names_each_version_with_who_when_and_from_where(home, tmp_path, monkeypatch):
    first = as_json("deploy", home)
    run("deploy", elsewhere(home, tmp_path))
    run("rollback", "orders", "1", "--who", "ann\x1b[2J", "--why", "wrong sums")
    newest, second, oldest = as_json("history", "orders")
    assert [one["number"] for one in (newest, second, oldest)] == [3, 2, 1]
    assert newest["active"]
    assert not oldest["active"]
    assert newest["version"] == oldest["version"] == first["version"]
    assert (newest["rolled_back_to"], newest["why"]) == (1, "wrong sums")
    assert oldest["place"].endswith(f":{home}")
    text = run("history", "orders").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b[2J" not in text
    monkeypatch.setenv("COLUMNS", "250")
    wide = flat(run("history", "orders").stdout)
    assert "ann\\x1b[2J active, rollback to 1: wrong sums" in wide
    assert f":{home}" in wide
    assert first["version"] in text
    refused = flat(run("history", "order", code=3).output)
    assert "(deployed: orders; did you mean 'orders'?)" in refused
    assert "pipelines deploy" not in refused, "the near name is what to take"
    assert "run `waybill pipelines deploy`" in flat(run("history", "zzz", code=3).output)


def test_a_rollback_makes_an_earlier_version_active_and_is_in_the_audit_log(home, tmp_path, dsn):
    first = as_json("deploy", home)
    run("deploy", elsewhere(home, tmp_path))
    said = flat(run("rollback", "orders", "--who", "ann", "--why", "wrong sums").stdout)
    assert f"version {first['version']} is active again, as number 3 (it was number 1)" in said
    assert listed()["orders"]["state"] == "same"
    with psycopg.connect(dsn) as connection:
        query = "SELECT who, target, detail FROM audit_log WHERE action = 'rollback'"
        [(who, target, detail)] = connection.execute(query).fetchall()
    assert (who, target) == ("ann", "test-orders")
    assert (detail["number"], detail["rolled_back_to"]) == (3, 1)
    assert detail["why"] == "wrong sums"
    # the next one would bring back what was taken back
    assert "say which version" in flat(run("rollback", "orders", code=1).output)
    assert as_json("rollback", "orders", "3")["changed"] is False
    again = as_json("rollback", "orders", "2")
    assert (again["number"], again["rolled_back_to"]) == (4, 2)
    assert as_json("rollback", "orders", first["version"][:6])["version"] == first["version"]


@pytest.mark.parametrize("given", ["99", "0", "zz", "", "123456789012"])
def test_a_version_that_is_not_there_is_refused_with_those_that_are(home, given):
    first = as_json("deploy", home)
    refused = run("rollback", "orders", "--", given, code=3).output
    assert f"by number and digest there are 1 ({first['version']})" in flat(refused)
    assert len(as_json("history", "orders")) == 1


def test_a_rollback_is_refused_as_a_deploy_of_that_version_would_be(home, tmp_path):
    as_json("deploy", home)
    text = (home / "pipeline.yaml").read_text()
    (home / "pipeline.yaml").write_text(text.replace("name: orders", "name: sales"))
    as_json("deploy", home)
    other = elsewhere(home, tmp_path, "other", fixed=False)
    changed = text.replace("test-orders", "test-others").replace("table: orders", "table: others")
    (other / "pipeline.yaml").write_text(changed)
    as_json("deploy", other)  # has the name that was free
    refused = run("rollback", "test-orders", "1", code=1).output
    assert "a pipeline named 'orders' exists with id 'test-others'" in flat(refused)
    assert [one["number"] for one in as_json("history", "test-orders")] == [2, 1]


def test_a_name_is_no_other_pipelines_id_and_an_id_no_others_name(home, tmp_path):
    as_json("deploy", home)
    text = (home / "pipeline.yaml").read_text()

    def deployed(name, pipeline_id, **more):
        other = elsewhere(home, tmp_path, f"{name}-{pipeline_id}", fixed=False)
        changed = text.replace("name: orders", f"name: {name}")
        (other / "pipeline.yaml").write_text(
            changed.replace("id: test-orders", f"id: {pipeline_id}")
        )
        return run("deploy", other, "--force", **more).output

    refused = flat(deployed("test-orders", "test-others", code=1))
    assert "name 'test-orders' is the id of pipeline 'orders'" in refused
    assert "choose another name" in refused
    refused = flat(deployed("others", "orders", code=1))
    assert "id 'orders' is the name of the pipeline with id 'test-orders'" in refused
    deployed("test-orders", "test-orders")
    assert [one["number"] for one in as_json("history", "test-orders")] == [2, 1]


def test_one_version_alone_cannot_be_rolled_back(home):
    as_json("deploy", home)
    assert "has had one version only" in flat(run("rollback", "orders", code=1).output)


def test_a_diff_has_declaration_and_code_of_any_two_versions(home, tmp_path):
    run("deploy", home)
    assert "are the same" in flat(run("diff", "orders").stdout)
    fix = elsewhere(home, tmp_path)
    text = (fix / "pipeline.yaml").read_text()
    (fix / "pipeline.yaml").write_text(text.replace("owner: shop@", "owner: new@"))
    (fix / "transformation.py").write_text("# \x1b[2J\n" + orders.FIXED)
    run("deploy", fix)
    found = as_json("diff", "orders", code=2)
    lines = found["diff"].splitlines()
    assert '-        raise ParkError("record_invalid", "a negative amount")' not in lines
    assert '+        raise ParkError("record_invalid", "a negative amount")' in lines
    assert any(line.startswith("--- pipeline.yaml, active, number 2 (") for line in lines)
    assert any(line.startswith(f"+++ transformation.py, folder {home}") for line in lines)
    back = as_json("diff", "orders", "1", "active", code=2)["diff"].splitlines()
    assert '-        raise ParkError("record_invalid", "a negative amount")' in back
    owners = [line for line in back if line[1:].startswith("owner: ")]
    assert owners == ["-owner: shop@example.com", "+owner: new@example.com"]
    assert "\x1b" not in run("diff", "orders", "1", "2", code=2).stdout
    assert as_json("diff", "orders", "2", "2")["same"]
    shutil.rmtree(home)
    assert "no folder declares pipeline 'orders'" in flat(run("diff", "orders", code=1).output)
    assert as_json("diff", "orders", "active", "folder", "--from", fix)["same"]


def test_a_name_that_is_not_known_is_not_deployed_without_a_word(home, monkeypatch):
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps({"warehouse": {"dsn": "host=localhost"}}))
    text = (home / "pipeline.yaml").read_text()
    (home / "pipeline.yaml").write_text(text.replace("name: warehouse", "name: warehose"))
    (home / "transformation.py").write_text("import pandaz\n" + orders.FIXED)
    refused = flat(run("deploy", home, code=1).output)
    assert "expected a destination of the settings (warehouse); found 'warehose'" in refused
    assert "did you mean 'warehouse'?" in refused
    assert "found 'pandaz', which is not; did you mean 'pandas'?" in refused
    assert listed()["orders"]["active"] is None
    done = as_json("deploy", home, "--missing-ok")
    assert (done["number"], len(done["warnings"])) == (1, 3)  # and no trial was possible


def test_compose_keeps_what_is_active_where_its_folder_is_behind(home, tmp_path):
    path = Path(__file__).parents[2] / "include" / "docker" / "prepare.py"
    spec = importlib.util.spec_from_file_location("prepare", path)
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    assert prepare.deployed(Settings(), home)["number"] == 1
    fixed = as_json("deploy", elsewhere(home, tmp_path))
    line = prepare.deployed(Settings(), home)
    assert (line["changed"], line["folder"]) == (False, str(home))
    assert "this folder holds number 1" in line["kept"]
    assert listed()["orders"]["active"]["version"] == fixed["version"]


def test_who_and_why_may_be_bytes_that_are_no_text(home):
    run("deploy", home)
    (home / "transformation.py").write_text(orders.FIXED)
    run("deploy", home)
    run("rollback", "orders", "1", "--who", "m\udcff\x1b[31m", "--why", "w\udcff\x1b[31m")
    text = run("history", "orders").stdout
    assert "\x1b" not in text
    assert "rollback to 1" in text
