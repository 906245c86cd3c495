"""What belongs to a team, and that no other team's pipeline is deployed onto it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from tests.support import orders

from waybill import services
from waybill.access import Decision
from waybill.deployment import DeployReport, active_pipeline, begin_undeployment
from waybill.errors import InputError
from waybill.settings import DestinationSettings, Settings
from waybill.storage import open_tracker

pytestmark = pytest.mark.serves
ANN = Decision(who="ann", why="a test")


@pytest.fixture
def settings(stack_settings: Settings) -> Settings:
    """Settings over the servers; two names of one destination."""
    services.migrate(stack_settings)
    [warehouse] = stack_settings.destinations.values()
    return with_destination(stack_settings, "second", dsn=warehouse.dsn)


def with_destination(settings: Settings, name: str, **changed: Any) -> Settings:
    """Return settings in which a destination is made, or changed."""
    before = dict(settings.destinations.get(name, DestinationSettings(dsn=SecretStr("x"))))
    made = DestinationSettings(**{**before, **changed})
    return settings.model_copy(update={"destinations": {**settings.destinations, name: made}})


def pipeline(folder: Path, name: str, team: str, **replaced: str) -> Path:
    """Write a pipeline of a team that loads shop.orders of `warehouse`, where nothing is replaced."""
    home = orders.write_orders(folder / name, rows=1)
    said = (home / "pipeline.yaml").read_text()
    said = said.replace("id: test-orders", f"id: test-{name}")
    said = said.replace("name: orders", f"name: {name}").replace(
        orders.team_of(folder / name), team
    )
    for old, new in replaced.items():
        said = re.sub(rf"\b{old}: [^,}}\n]+", f"{old}: {new}", said, count=1)
    (home / "pipeline.yaml").write_text(said)
    return home


def deploy(settings: Settings, folder: Path) -> DeployReport:
    return services.run_deploy(settings, folder, who="ann")


def undeploy(settings: Settings, name: str, *, drop_tables: bool) -> None:
    """Note that a pipeline was undeployed, and its tables dropped or kept; nobody made them yet."""
    with open_tracker(settings.tracker) as tracker:
        begin_undeployment(tracker, active_pipeline(tracker, name), ANN, drop_tables=drop_tables)
        with tracker.transaction() as connection:
            connection.execute(text("UPDATE undeployments SET done_at = now()"))


def test_a_table_is_the_teams_whose_pipeline_was_first(settings: Settings, tmp_path: Path) -> None:
    deploy(settings, pipeline(tmp_path, "orders", "shop"))
    other = pipeline(tmp_path, "web-orders", "web")
    with pytest.raises(InputError, match="shop.orders of 'warehouse' belongs to team 'shop'") as no:
        deploy(settings, other)
    assert 'table_teams {"shop.orders": ["shop", "web"]}' in str(no.value)
    [warning] = deploy(settings, pipeline(tmp_path, "returns", "shop")).warnings
    assert "both write table shop.orders" in warning  # its own team's
    deploy(settings, pipeline(tmp_path, "elsewhere", "web", schema="web"))


def test_the_other_name_of_a_destination_is_no_way_round(
    settings: Settings, tmp_path: Path
) -> None:
    deploy(settings, pipeline(tmp_path, "orders", "shop"))
    home = pipeline(tmp_path, "web-orders", "web")
    said = (home / "pipeline.yaml").read_text()
    (home / "pipeline.yaml").write_text(said.replace("name: warehouse", "name: second"))
    with pytest.raises(InputError, match="belongs to team 'shop'"):
        deploy(settings, home)
    closed = with_destination(settings, "warehouse", teams=("shop",))
    with pytest.raises(InputError, match="destination 'warehouse' is not for .* team 'web'"):
        deploy(closed, home)


def test_a_table_is_shared_by_the_settings_and_the_deploy_warns(
    settings: Settings, tmp_path: Path
) -> None:
    first = pipeline(tmp_path, "orders", "shop")
    deploy(settings, first)
    other = pipeline(tmp_path, "web-orders", "web")
    shared = with_destination(settings, "warehouse", table_teams={"shop.orders": ("shop", "web")})
    assert any("both write table" in one for one in deploy(shared, other).warnings)
    alone = with_destination(settings, "warehouse", table_teams={"shop.orders": ("web",)})
    first.joinpath("transformation.py").write_text("def transform(event):\n    return event\n")
    with pytest.raises(InputError, match=r"table 'shop.orders' of 'warehouse' .* names web"):
        deploy(alone, first)
    deploy(shared, first)
    with pytest.raises(InputError, match="not for pipelines of team 'shop'"):
        services.run_rollback(alone, "orders", None, ANN)


def test_who_has_a_table_keeps_it_whoever_writes_it_too(settings: Settings, tmp_path: Path) -> None:
    """As where two teams shared one before tables had owners."""
    first = pipeline(tmp_path, "orders", "shop")
    deploy(settings, first)
    shared = with_destination(settings, "warehouse", table_teams={"shop.orders": ("shop", "web")})
    deploy(shared, pipeline(tmp_path, "web-orders", "web"))
    first.joinpath("transformation.py").write_text("def transform(event):\n    return event\n")
    report = deploy(settings, first)
    assert report.changed
    assert any("both write table" in one for one in report.warnings)


def test_tables_that_an_undeployed_pipeline_left_are_its_teams(
    settings: Settings, tmp_path: Path
) -> None:
    deploy(settings, pipeline(tmp_path, "orders", "shop"))
    other = pipeline(tmp_path, "web-orders", "web")
    undeploy(settings, "orders", drop_tables=False)
    with pytest.raises(InputError, match="writes it, or left it there"):
        deploy(settings, other)
    deploy(settings, tmp_path / "orders" / "orders")
    undeploy(settings, "orders", drop_tables=True)
    deploy(settings, other)


@pytest.mark.parametrize(
    ("closed", "what"),
    [
        ({"teams": ("shop",)}, "destination 'warehouse'"),
        ({"schema_teams": {"shop": ("shop", "returns")}}, "schema 'shop' of 'warehouse'"),
        ({"table_teams": {"shop.orders": ("shop",)}}, "table 'shop.orders' of 'warehouse'"),
    ],
)
def test_what_the_settings_give_to_teams_is_for_no_other(
    settings: Settings, tmp_path: Path, closed: dict[str, Any], what: str
) -> None:
    limited = with_destination(settings, "warehouse", **closed)
    with pytest.raises(InputError, match=f"{what} is not for pipelines of team 'web'"):
        deploy(limited, pipeline(tmp_path, "web-orders", "web"))
    deploy(limited, pipeline(tmp_path, "orders", "shop"))


@pytest.fixture
def teams_of_files(settings: Settings, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Gives a pipeline of a team that reads a file of the team `crm`."""
    own = tmp_path / "crm"
    own.mkdir()
    (own / "orders.csv").write_text("number,amount,note\n1,2,x\n")

    def made(team: str) -> Path:
        return pipeline(tmp_path, f"{team}-orders", team, path=str(own / "orders.csv"))

    yield made


def test_a_teams_folder_is_read_by_its_pipelines_alone(
    settings: Settings, tmp_path: Path, teams_of_files: Callable[[str], Path]
) -> None:
    roots = {"team_roots": {"crm": (tmp_path / "crm",)}}
    limited = settings.model_copy(
        update={"sources": settings.sources.model_copy(update=roots), "pipelines_dir": tmp_path}
    )
    with pytest.raises(InputError, match="is outside of them"):
        deploy(limited, teams_of_files("web"))
    deploy(limited, teams_of_files("crm"))


def test_a_teams_connection_is_used_by_its_pipelines_alone(
    settings: Settings, tmp_path: Path
) -> None:
    given = {"connections": {"crm_db": SecretStr("postgres://u:p@h/d")}}
    limits = {"connection_teams": {"crm_db": ("crm",)}}
    sources = settings.sources.model_copy(update={**given, **limits})
    limited = settings.model_copy(update={"sources": sources})

    def with_connection(team: str) -> Path:
        home = pipeline(tmp_path, f"{team}-orders", team, schema=team)
        said = (home / "pipeline.yaml").read_text()
        source = (
            "source:\n  connector: sql\n  event: order\n  connection: crm_db\n"
            "  options: {table: orders, cursor: number, key: [number]}\nevents:\n"
        )
        said = re.sub(r"source:\n.*?events:\n", source, said, flags=re.DOTALL)
        (home / "pipeline.yaml").write_text(said)
        return home

    with pytest.raises(InputError, match="connection 'crm_db' is not for .* team 'web'"):
        deploy(limited, with_connection("web"))
    deploy(limited, with_connection("crm"))
    assert sources.connections_of("web") == {}
    assert set(sources.connections_of("crm")) == {"crm_db"}
