"""What the settings give to teams: nobody else reaches it by a way round."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from waybill.settings import DestinationSettings, SourceSettings


@pytest.mark.parametrize(
    ("roots", "team_roots"),
    [
        (("/data",), {"crm": ("/data/crm",)}),
        (("/data/crm",), {"crm": ("/data/crm",)}),
        (("/data/crm/open",), {"crm": ("/data/crm",)}),
        ((), {"crm": ("/data",), "web": ("/data/web",)}),
        ((), {"crm": ("/data", "/data/crm"), "web": ("/data/crm",)}),
        ((), {"crm": ("/data/../data",), "web": ("/data/web",)}),
    ],
)
def test_a_teams_folder_that_others_may_read_is_refused(
    roots: tuple[str, ...], team_roots: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(ValidationError, match="which others may read"):
        SourceSettings(roots=roots, team_roots=team_roots)


def test_a_link_into_a_teams_folder_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "crm").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "crm")
    with pytest.raises(ValidationError, match="which others may read"):
        SourceSettings(roots=(tmp_path / "link",), team_roots={"crm": (tmp_path / "crm",)})


def test_folders_beside_each_other_and_a_shared_one_are_taken() -> None:
    made = SourceSettings(
        roots=("/open",),
        team_roots={"crm": ("/data/crm", "/both"), "web": ("/data/web", "/both")},
    )
    assert made.roots_of("crm") == (Path("/open"), Path("/data/crm"), Path("/both"))
    assert made.roots_of("nobody") == (Path("/open"),)


def test_relative_folders_and_empty_teams_are_refused() -> None:
    with pytest.raises(ValidationError, match="absolute folder"):
        SourceSettings(team_roots={"crm": ("data",)})
    with pytest.raises(ValidationError, match="names no team"):
        SourceSettings(connection_teams={"crm_db": ()})
    with pytest.raises(ValidationError, match="'crmdb', which is none of connections: crm_db"):
        SourceSettings(
            connections={"CRM_DB": SecretStr("a://b")}, connection_teams={"crmdb": ("crm",)}
        )
    with pytest.raises(ValidationError, match="names no team"):
        DestinationSettings(dsn=SecretStr("x"), schema_teams={"sales": ()})
    with pytest.raises(ValidationError, match=r"<schema>\.<table>"):
        DestinationSettings(dsn=SecretStr("x"), table_teams={"orders": ("shop",)})


def test_a_connection_that_is_not_named_is_for_all() -> None:
    made = SourceSettings(
        connections={"crm_db": SecretStr("a://b"), "open": SecretStr("a://b")},
        connection_teams={"CRM_DB": ("crm",)},  # their names are the same whatever their case
    )
    assert set(made.connections_of("crm")) == {"crm_db", "open"}
    assert set(made.connections_of("web")) == {"open"}
