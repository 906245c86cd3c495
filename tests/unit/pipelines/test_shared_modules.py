"""Modules that pipelines share: which a pipeline's version has, and what `check` refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.unit.pipelines.conftest import CODE, GOOD
from typer.testing import CliRunner

from waybill.cli.pipelines import app
from waybill.errors import InputError
from waybill.pipelines import (
    DeclarationError,
    DeclarationIndex,
    NewPipeline,
    Pipeline,
    RunEnvironment,
    check,
    check_sources,
    check_version,
    folder_names,
    load_pipeline,
    load_pipelines,
    shard_of,
    write_new,
)

CENTS = "def cents(amount):\n    return int(amount * 100)\n"
HERE = RunEnvironment(runs_code=True)


def other(name):
    """Return the declaration of another pipeline."""
    text = GOOD.replace("shop-orders", f"shop-{name}").replace("name: orders", f"name: {name}")
    return text.replace("table: orders", f"table: {name}")


def share(folder, **texts):
    """Write shared modules: ``a__b="…"`` is ``shared/a/b.py``, ``a__init`` its ``__init__.py``."""
    for name, text in texts.items():
        parts = ["__init__" if part == "init" else part for part in name.split("__")]
        path = folder.root.joinpath("shared", *parts).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def code(folder, *lines, name="orders"):
    """Write a pipeline whose code begins with these lines; return its folder."""
    home, text = folder.root / name, "\n".join([*lines, CODE])
    if not home.exists():
        folder.write(name, text=GOOD if name == "orders" else other(name))
    (home / "transformation.py").write_text(text)
    return home


def shared_of(home):
    return list(load_pipeline(home).shared_code)


def said(folder, *lines):
    """Return the mistakes of a pipeline whose code begins with these lines, files relative."""
    code(folder, *lines)
    return [str(one).replace(f"{folder.root}/", "") for one in check(folder.root, environment=HERE)]


def test_the_versions_of_pipelines_without_shared_modules_are_what_they_were(folder):
    assert load_pipeline(folder.write()).version == "df7fc7458f4c"
    share(folder, money=CENTS)
    pipeline = load_pipeline(folder.root / "orders")
    assert pipeline.version == "df7fc7458f4c"
    assert "shared_code" not in pipeline.to_json(), "a release before can read it"


def test_a_version_has_the_modules_that_its_code_imports_and_those_that_these_import(folder):
    share(
        folder,
        money="from shared.rates import RATES\nfrom . import rounding\n" + CENTS,
        rates="RATES = {}\n",
        rounding="from .deep.low import LOW\n",
        deep__low="LOW = 1\n",
        deep__high="HIGH = 1\n",
        unused="import shared.rates\n",
    )
    home = code(folder, "from shared.money import cents")
    assert shared_of(home) == [
        "shared/deep/low.py",
        "shared/money.py",
        "shared/rates.py",
        "shared/rounding.py",
    ]
    share(folder, init="from .rates import RATES\n", deep__init="")
    assert {"shared/__init__.py", "shared/deep/__init__.py"} < set(shared_of(home))
    assert check(folder.root, environment=HERE) == []


@pytest.mark.parametrize(
    "line",
    [
        "import shared.money",
        "import shared.money as m",
        "import json, shared.money",
        "from shared import money",
        "from shared import money as m",
        "from shared.money import *",
        "def later():\n    from shared.money import cents",
        "class A:\n    import shared.money",
        "try:\n    import shared.money\nexcept ImportError:\n    pass",
        "import sys\nif sys.version_info > (3,):\n    from shared import money",
        "from \uff53hared.money import cents",
        "import \uff53\uff48\uff41\uff52\uff45\uff44.money",
    ],
    ids=[
        *("plain", "as", "list", "from", "from_as", "star", "later", "class", "tried", "condition"),
        *("one_wide_letter", "wide"),
    ],
)
def test_a_module_is_found_by_every_import_statement(folder, line):
    share(folder, money=CENTS)
    assert shared_of(code(folder, line)) == ["shared/money.py"]


@pytest.mark.parametrize(
    "line",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shared import money",
        "TEXT = 'import shared.money'",
        "shared = 'money'",
    ],
    ids=["for_type_checkers", "text", "variable"],
)
def test_what_code_does_not_import_is_not_in_its_version(folder, line):
    share(folder, money=CENTS)
    assert shared_of(code(folder, line)) == []


def test_a_version_changes_with_a_module_that_it_imports_and_with_no_other(folder):
    share(folder, money="from shared import rates\n" + CENTS, rates="A = 1\n", other="B = 1\n")
    orders = code(folder, "from shared.money import cents")
    plain = folder.write("refunds", text=other("refunds"))
    before = {one.name: load_pipeline(one).version for one in (orders, plain)}
    share(folder, other="B = 2\n", added="C = 1\n")
    assert {one.name: load_pipeline(one).version for one in (orders, plain)} == before
    share(folder, rates="A = 2\n")
    assert load_pipeline(orders).version != before["orders"]
    assert load_pipeline(plain).version == before["refunds"]
    share(folder, rates="A = 1\n")
    assert load_pipeline(orders).version == before["orders"]


def test_a_version_with_shared_modules_survives_a_trip_through_a_database_row(folder):
    share(folder, money=CENTS, rates="A = 1\n")
    pipeline = load_pipeline(code(folder, "from shared import money, rates"))
    stored = pipeline.to_json()
    stored["shared_code"] = dict(reversed(stored["shared_code"].items()))
    again = Pipeline.from_json(json.loads(json.dumps(stored)))
    assert again == pipeline
    assert Pipeline.from_json({**stored, "version": ""}).version == pipeline.version


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import shared.mony", "found 'shared.mony', which is not there; did you mean 'money'?"),
        ("from shared.mony import a", "found 'shared.mony', which is not there"),
        ("from shared import mony", "found 'mony', which is not there; did you mean 'money'?"),
        ("from shared.money import cens", "found 'cens', which is not there; did you mean 'cents'"),
        ("import shared.money.deep", "money.py is a module, and has none in it"),
        ("import shared.rates.low", "'rates'; ", ),
        ("import shared", "a folder without __init__.py, of which nothing is imported so"),
        ("from shared import *", "found * of the package 'shared'"),
        ("from .shared import money", "did you mean 'shared', without dots?"),
        ("from ..shared import money", "the code is in no package"),
        ("import money", "found 'money'; did you mean `from shared import money`?"),
        ("import importlib\nimportlib.import_module('shared.money')", "expected an import statement"),
        ("__import__('shared.' + 'money')", "expected an import statement"),
        ("from importlib import import_module as i\nname = 1\n"
         "import importlib\nimportlib.import_module(name=f'shared.{name}')", "an import statement"),
        ("def later():\n    import shared.mony", "which is not there"),
    ],
    ids=[
        "missing", "missing_from", "missing_name", "no_such_name", "in_a_module", "both", "folder",
        "star", "relative", "relative_up", "without_prefix", "dynamic", "built_in", "text", "later",
    ],
)  # fmt: skip
def test_an_import_that_cannot_be_is_one_mistake_with_its_line(folder, line, words):
    share(folder, money=CENTS, rates="A = 1\n", rates__low="B = 1\n")
    if words == "'rates'; ":
        words = "has rates.py and a folder rates: rename one"
    [message] = said(folder, line)
    assert words in message
    where = next(n for n, one in enumerate(line.split("\n"), 1) if "shared" in one or "mon" in one)
    assert message.startswith(f"orders/transformation.py:{where}: ")


def test_mistakes_in_a_shared_module_name_its_file_and_line_once_for_all_pipelines(folder):
    share(
        folder,
        money="import os\ndef cents(:\n",
        rates="import pandaz\nfrom .. import a\nfrom ...up import b\nfrom . import gone\n",
    )
    for name in ("orders", "refunds"):
        code(folder, "from shared import money", "from shared import rates", name=name)
    problems = check(folder.root, environment=HERE)
    found = [(Path(one.file).name, one.line) for one in problems]
    assert found == [("money.py", 2), ("rates.py", 2), ("rates.py", 3), ("rates.py", 4)]
    assert "expected Python; found" in problems[0].message
    assert "'..', which leads out of it" in problems[1].message
    assert "found 'gone'" in problems[3].message
    share(folder, money=CENTS, rates="import pandaz\n")
    [problem] = check(folder.root, environment=HERE)
    assert (Path(problem.file).name, problem.line) == ("rates.py", 1)
    assert "found 'pandaz', which is not; did you mean 'pandas'?" in problem.message


def test_what_nobody_imports_is_not_looked_at(folder):
    share(folder, money=CENTS, test_money="import nothing_of_that_name\n", broken="def (\n")
    assert said(folder, "from shared import money") == []


def test_modules_that_import_one_another_while_they_are_loaded_are_refused(folder):
    share(
        folder,
        a="from shared import b\nx = 1\n",
        b="import shared.c\n",
        c="from .a import x\nx = 1\n",
    )
    [message] = said(folder, "import shared.b")
    circle = "shared/a.py → shared/b.py → shared/c.py → shared/a.py"
    assert f"shared/c.py:1: expected no modules that import one another; found {circle}" in message
    share(folder, a="x = 1\ndef f():\n    from shared import b\n", c="from .a import x\n")
    assert said(folder, "import shared.b") == []
    share(folder, a="x = 1\nimport shared.a\n")
    assert "shared/a.py → shared/a.py" in said(folder, "import shared.b")[0]


def test_a_package_may_give_names_of_its_modules(folder):
    share(folder, init="from .money import cents\n", money="from . import rates\n" + CENTS)
    share(folder, rates="A = 1\n")
    assert said(folder, "import shared", "from shared import cents") == []
    share(folder, rates="from shared import cents\n")
    assert "import one another" in said(folder, "import shared")[0]


@pytest.mark.parametrize(
    "text",
    ["from json import *\n", "def __getattr__(name):\n    return 1\n", "globals()['a'] = 1\n"],
    ids=["star", "getattr", "globals"],
)
def test_a_module_that_may_have_any_name_is_not_held_to_one(folder, text):
    share(folder, money=text)
    assert said(folder, "from shared.money import a") == []


def test_another_module_of_the_name_is_refused(folder, tmp_path, monkeypatch):
    share(folder, money=CENTS)
    home = code(folder, "import json", "from shared import money")
    (home / "shared.py").touch()
    [message] = said(folder, "import json", "from shared import money")
    assert message.startswith("orders/transformation.py:2: expected 'shared' to be the folder ")
    assert "the pipeline's own folder has one too" in message
    assert said(folder, "import json") == [], "what does not import it is not concerned"
    (home / "shared.py").unlink()
    package = tmp_path / "site" / "shared"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(str(package.parent))
    [message] = said(folder, "from shared import money")
    assert f"an installed package has that name ({package / '__init__.py'})"[:60] in message


def test_the_folder_itself_on_the_path_is_no_other_module(folder, monkeypatch):
    share(folder, money=CENTS, init="")
    monkeypatch.syspath_prepend(str(folder.root))
    assert said(folder, "from shared import money") == []


def test_an_installed_package_is_imported_where_there_is_no_such_folder(
    folder, tmp_path, monkeypatch
):
    assert (
        "modules that pipelines share lie in a folder 'shared'" in said(folder, "import shared")[0]
    )
    (tmp_path / "site" / "shared").mkdir(parents=True)
    (tmp_path / "site" / "shared" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert said(folder, "import shared") == []
    assert shared_of(folder.root / "orders") == []


def test_what_the_code_of_standard_modules_shares_names_with_is_found_by_its_prefix(folder):
    share(folder, json="A = 1\n")
    assert shared_of(code(folder, "import json", "from shared.json import A")) == ["shared/json.py"]
    assert check(folder.root, environment=HERE) == []


def test_links_that_lead_out_of_the_folder_are_refused(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("PASSWORD = 'x'\n")
    share(folder, money=CENTS)
    shared = folder.root / "shared"
    (shared / "linked.py").symlink_to(outside / "secret.py")
    (shared / "deep").symlink_to(outside)
    (shared / "circle").symlink_to("circle")
    assert "this one is outside of it" in said(folder, "import shared.linked")[0]
    [message] = said(folder, "from shared.deep import secret", "import shared.deep.sicret")[:1]
    assert "is a link that leads out of it" in message
    assert "secret" not in message.split("found")[1]
    assert "which" in said(folder, "import shared.circle.x")[0]
    os.mkfifo(shared / "pipe.py")
    assert "there is none" in said(folder, "import shared.pipe")[0]
    shared.rename(outside / "all")
    shared.symlink_to(outside / "all")
    assert "is a link that leads out of it" in said(folder, "import shared.money")[0]


def test_shared_modules_have_the_limit_that_a_pipelines_own_code_has(folder):
    large = "A = '" + "x" * (600 * 1024) + "'\n"
    share(folder, a=large, b=large)
    [message] = said(folder, "from shared import a, b")
    assert "shared/b.py:1: expected the shared modules of one pipeline to be at most" in message
    share(folder, b="A = '" + "x" * 1024**2 + "'\n")
    assert "of at most 1048576 bytes; it is larger" in said(folder, "import shared.b")[0]
    share(folder, **{f"m{n}": "" for n in range(205)})
    [message] = said(folder, *(f"import shared.m{n}" for n in range(205)))
    assert "200 modules, of 1048576 bytes together" in message


def test_a_chain_of_modules_is_followed_to_its_end(folder):
    share(folder, **{f"m{n}": f"from shared import m{n + 1}\n" for n in range(199)}, m199="A = 1\n")
    assert len(shared_of(code(folder, "import shared.m0"))) == 200


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"A = 1\0\n", b"(" * 5000, b"\n\nreturn 1\n"],
    ids=["bytes", "nul", "deep", "no_module"],
)  # fmt: skip
def test_a_module_that_is_no_python_is_a_mistake_of_that_file(folder, content):
    share(folder, money=CENTS)
    (folder.root / "shared" / "money.py").write_bytes(content)
    [message] = said(folder, "import shared.money")
    assert message.startswith("shared/money.py:")


def test_nothing_of_a_shared_module_is_run(folder):
    share(folder, init="raise SystemExit('it was run')\n", money="raise SystemExit('so was it')\n")
    assert said(folder, "import shared.money") == []
    assert shared_of(folder.root / "orders") == ["shared/__init__.py", "shared/money.py"]


def test_the_folder_is_no_pipeline_unless_it_declares_one(folder):
    share(folder, money=CENTS)
    home = code(folder, "from shared import money")
    assert folder_names(folder.root) == ["orders"]
    assert list(load_pipelines(folder.root)) == ["orders"]
    [problem] = check(folder.root / "shared")
    assert "that of the modules that they share" in problem.message
    with pytest.raises(DeclarationError, match="has the modules that pipelines share"):
        load_pipeline(folder.root / "shared")
    with pytest.raises(InputError, match="the folder of modules that pipelines share"):
        write_new(folder.root, NewPipeline(name="shared"))
    (folder.root / "shared" / "pipeline.yaml").write_text(other("shared"))
    (folder.root / "shared" / "transformation.py").write_text(CODE)
    assert folder_names(folder.root) == ["orders", "shared"], "one that was named so before"
    assert load_pipeline(home).shared_code == {}


def test_a_pipeline_is_found_beside_its_shared_modules_wherever_it_is_checked_from(
    folder, monkeypatch
):
    share(folder, money=CENTS)
    home = code(folder, "from shared import money")
    version = load_pipeline(home).version
    for here, place in ((home, "."), (home / "..", "orders"), (folder.root, "./orders/../orders")):
        monkeypatch.chdir(here)
        assert load_pipeline(Path(place)).version == version
    share(folder, money="def (\n")
    monkeypatch.chdir(folder.root)
    assert CliRunner().invoke(app, ["check", "orders"]).stderr.startswith("shared/money.py:1")


def test_an_import_that_is_known_only_at_run_time_is_a_warning_beside_shared_modules(folder):
    share(folder, money=CENTS)
    lines = ["import importlib", "importlib.import_module(CODE)"]
    code(folder, *lines)
    assert [one.line for one in check_sources(folder.root, HERE) if not one.field] == []
    code(folder, *lines, "from shared import money")
    [warning] = [one for one in check_sources(folder.root, HERE) if not one.field]
    assert warning.line == 2
    assert "what is imported here is not known before the code runs" in warning.message
    assert check(folder.root, environment=HERE) == []


def test_a_deployed_version_is_looked_at_by_its_own_modules(folder, tmp_path):
    share(folder, money="import pandaz\n" + CENTS)
    pipeline = load_pipeline(code(folder, "from shared import money"))
    mistakes, warnings = check_version(pipeline, "version x", tmp_path / "gone" / "orders", HERE)
    assert [(one.file, one.line) for one in mistakes] == [("version x, shared/money.py", 1)]
    assert warnings == []


def test_the_index_of_declarations_sees_each_change_of_shared_modules(folder, tmp_path):
    home = tmp_path / "home"
    home.mkdir()

    def problem():
        [found] = DeclarationIndex(folder.root, home).shard(shard_of("orders"))
        again = DeclarationIndex(folder.root, home).folder("orders")
        assert again == found
        return found.problem

    code(folder, "from shared.money import cents")
    assert problem() == "", "no such folder: whether it is installed is for a deploy to say"
    share(folder, rates="A = 1\n")
    assert "found 'shared.money', which is not there" in problem()
    share(folder, money="from . import rates\n" + CENTS)
    assert problem() == ""
    share(folder, rates="def (\n")
    assert "shared/rates.py:1: expected Python" in problem()
    share(folder, rates="B = 1\n")
    assert problem() == ""
    share(folder, money__init="")
    assert "has money.py and a folder money" in problem()
    assert DeclarationIndex(folder.root, home).folder("shared") is None
