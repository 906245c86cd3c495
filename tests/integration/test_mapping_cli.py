"""``waybill mapping show|diff`` on the real tracker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import orders
from tests.support.mapped import learn_payloads
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.deployment import active_pipeline
from waybill.mappings import rules_of
from waybill.mappings.versions import in_force
from waybill.storage import open_tracker

pytestmark = pytest.mark.serves
RULES = rules_of("postgres")


@pytest.fixture
def folder(stack_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The orders, deployed with policy evolve; then their events brought two fields more."""
    home = orders.write_orders(tmp_path / "pipelines", rows=1)
    declaration = home / "pipeline.yaml"
    declaration.write_text(evolving(declaration.read_text()))
    made = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(made)
    services.run_deploy(made, home, who="ann")
    with open_tracker(made.tracker) as tracker:
        pipeline = active_pipeline(tracker, "orders")
        event = pipeline.events["order"]
        for field in ("userId", "Größe"):
            learn_payloads(tracker, pipeline.id, event, [{field: 1}], RULES, f"task {field}")
        assert in_force(tracker)[pipeline.id, "order"].number == 3
    for name, value in made.to_env().items():
        monkeypatch.setenv(name, value)
    return home


def evolving(text: str) -> str:
    lines = [line for line in text.splitlines() if "policy:" not in line]
    place = next(n for n, line in enumerate(lines) if line.strip().startswith("table:"))
    indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
    more = [f"{indent}policy: evolve", f"{indent}personal: [amount]"]
    return "\n".join([*lines[:place], *more, *lines[place:]]) + "\n"


def called(*words: str, code: int = 0) -> str:
    run = CliRunner().invoke(app, ["mapping", *words])
    assert run.exit_code == code, (run.output, run.exception)
    return run.stdout if code == 0 else run.stderr


def test_what_is_in_force_and_what_was_before(folder: Path) -> None:
    said = called("show", "orders")
    assert max(map(len, said.splitlines())) <= 80
    assert "version 3 (in force)" in said
    assert "by task Größe: new column grosse" in said
    assert "\npersonal: amount\n" in said
    assert "\nversion: " in said
    line = next(line for line in said.splitlines() if "user_id" in line)
    assert line.split() == ["user_id", "int64", "yes", "userId", "learned"]
    earlier = called("show", "orders", "--version", "2")
    assert "version 2 (version 3 is in force)" in earlier
    assert "grosse" not in earlier
    (shown,) = json.loads(called("show", "orders", "--event", "order", "--json"))
    origins = {column["name"]: column["origin"] for column in shown["columns"]}
    assert (shown["number"], shown["in_force"], shown["author"]) == (3, True, "task Größe")
    assert shown["personal"] == ["amount"]
    assert origins["user_id"] == origins["grosse"] == "learned"
    assert {origin for name, origin in origins.items() if name in shown["key"]} == {"declared"}


def test_versions_and_folders_are_compared(folder: Path) -> None:
    assert called("diff", "orders").splitlines() == [
        "event order: version 2 to version 3",
        "  + column orders.grosse: int64",
    ]
    assert "orders.user_id: int64" in called("diff", "orders", "--from", "1", "--to", "2")
    (backwards,) = json.loads(called("diff", "orders", "--from", "3", "--to", "1", "--json"))
    assert [one["after"] for one in backwards["differences"]] == [None, None]
    assert called("diff", str(folder)) == ("event order: version 3 to deployed: nothing differs\n")
    text = (folder / "pipeline.yaml").read_text().replace("policy: evolve", "policy: ignore")
    (folder / "pipeline.yaml").write_text(text)
    assert called("diff", str(folder)).splitlines()[1:] == [
        "  ~ orders policy: evolve -> ignore",
    ]


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("show", "ordres"), "no pipeline 'ordres' is deployed", 3),
        (("show", "orders", "--event", "ordr"), "did you mean 'order'?", 3),
        (("show", "orders", "--version", "9"), "no mapping version 9; it has versions 1 to 3", 3),
        (("diff", "orders", "--to", "9"), "no mapping version 9", 3),
        (("diff", "./nowhere", "--to", "2"), "leave --from and --to out", 1),
        (("diff", "./nowhere"), "expected a file 'pipeline.yaml'", 1),
    ],
)
def test_errors_say_what_there_is(
    folder: Path, words: tuple[str, ...], said: str, code: int
) -> None:
    assert said in called(*words, code=code)
