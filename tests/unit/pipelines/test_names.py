"""Names that a pipeline gives, and that are not there: imports, and the destination."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from waybill.cli.pipelines import app
from waybill.pipelines import RunEnvironment, check, check_sources

CODE = "def transform(event):\n    return event\n"
HERE = RunEnvironment(runs_code=True)


def messages(folder, code, environment=HERE):
    home = folder.root / "orders"
    (home if home.exists() else folder.write()).joinpath("transformation.py").write_text(code)
    return [one.message for one in check(folder.root, environment=environment)]


def test_check_names_line_and_nearest_name_of_what_is_not_there(folder, good, monkeypatch):
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps({"warehouse": {"dsn": "host=localhost"}}))
    folder.write(
        text=good.replace("name: warehouse", "name: warehose"),
        code="import json\nimport pandaz\n" + CODE,
    )
    done = CliRunner().invoke(app, ["check", str(folder.root)])
    assert done.exit_code == 1
    assert "expected a destination of the settings (warehouse); found 'warehose'" in done.stderr
    assert "did you mean 'warehouse'?" in done.stderr
    assert "transformation.py:2" in done.stderr
    assert "found 'pandaz', which is not; did you mean 'pandas'?" in done.stderr
    assert "2 mistakes in 2 files" in done.stderr


def test_no_destination_is_held_against_settings_that_have_none(folder, good):
    folder.write(text=good.replace("name: warehouse", "name: elsewhere"))
    done = CliRunner().invoke(app, ["check", str(folder.root)])
    assert (done.exit_code, "of the settings" in done.output) == (0, False)


def test_what_only_workers_may_have_is_a_warning(folder, monkeypatch):
    monkeypatch.setenv("WAYBILL_SPARK__MASTER", "spark://spark:7077")
    folder.write(code="import pandaz\n" + CODE)
    done = CliRunner().invoke(app, ["check", str(folder.root), "--json"])
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["problems"]) == (0, [])
    [warning] = [one for one in answer["warnings"] if not one["field"]]
    assert "it must be where Spark's workers run" in warning["message"]
    assert warning["line"] == 1


@pytest.mark.parametrize(
    "code",
    [
        "import os.path, decimal as d\nfrom waybill.errors import ParkError\n",
        "import pyarrow.compute as pc\nimport sys, __main__\nfrom __future__ import annotations\n",
        "try:\n    import pandaz\nexcept ImportError:\n    pandaz = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandaz\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import pandaz\n",
        "import typing\nclass A:\n    if typing.TYPE_CHECKING:\n        import pandaz\n",
        "WORDS = 'import pandaz'\n",
    ],
    ids=["submodules", "known", "tried", "for_type_checkers", "suppressed", "in_a_class", "text"],
)
def test_what_is_there_or_may_be_missing_on_purpose_is_no_mistake(folder, code):
    if "__future__" in code:
        code = (
            "\n".join(sorted(code.splitlines(), key=lambda line: "__future__" not in line)) + "\n"
        )
    assert messages(folder, code + CODE) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("from . import rates", "the code is in no package"),
        ("from .rates import a", "the code is in no package"),
        ("from pandaz.core import a", "found 'pandaz', which is not"),
        ("import " + "x" * 5000, "found 'xxxxx"),
        ("import ünïcode", "found 'ünïcode', which is not"),
        ("import pandaz, pandaz", "found 'pandaz', which is not"),
    ],
    ids=["dot", "dot_name", "submodule", "long", "letters", "twice"],
)
def test_an_import_that_finds_nothing_is_one_mistake(folder, line, words):
    [message] = messages(folder, f"{line}\n{CODE}")
    assert words in message
    assert len(message) < 400
    assert len(messages(folder, f"{CODE}\n\ndef later():\n    {line}\n")) == 1


def test_a_module_beside_the_code_is_said_not_to_be_shipped(folder, monkeypatch):
    home = folder.write(code="import rates\n" + CODE)
    (home / "rates.py").write_text("raise SystemExit('it was run')\n")
    for path in (None, str(home)):  # as where Python is started in that folder
        if path:
            monkeypatch.syspath_prepend(path)
        for environment in (HERE, RunEnvironment()):
            [problem] = check(folder.root, environment=environment)
            assert "lies beside the code and is not shipped" in problem.message
            assert check_sources(folder.root, environment)[0].field == "source.path"


def test_what_an_environment_in_the_folder_has_is_installed(folder, monkeypatch):
    packages = folder.write() / ".venv" / "site-packages"
    (packages / "rates_of_shops").mkdir(parents=True)
    (packages / "rates_of_shops" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(packages))
    assert messages(folder, "import rates_of_shops\n" + CODE) == []


def test_names_are_looked_for_near_the_first_missing_modules_only(folder):
    found = messages(folder, "".join(f"import pandas{n}\n" for n in range(12)) + CODE)
    assert len(found) == 12
    assert sum("did you mean 'pandas'" in one for one in found) == 10


def test_nothing_of_what_is_imported_is_run(folder, tmp_path, monkeypatch):
    package = tmp_path / "packages" / "loud"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(str(package.parent))
    assert messages(folder, "import loud.inner\n" + CODE) == []
