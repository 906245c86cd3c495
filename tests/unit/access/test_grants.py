"""Who may do what: nothing but what a grant says."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from waybill.access.grants import access_of
from waybill.settings import PERMISSIONS, AccessSettings, Grant, Settings

ALL = frozenset(PERMISSIONS)


def grant(who, teams, *permissions):
    return Grant(who=who, teams=teams, permissions=permissions)


def test_by_default_airflow_admins_have_everything_and_nobody_else_anything():
    grants = AccessSettings().grants
    admin = access_of(grants, "ann", ["Admin"])
    assert admin.everywhere == ALL
    assert all(admin.may(permission, team) for permission in ALL for team in ("a", ""))
    for roles in ([], ["user"], ["administrator"], ["op", "viewer"]):
        nobody = access_of(grants, "admin", roles)
        assert nobody.permissions() == []
        assert not any(nobody.may(permission, team) for permission in ALL for team in ("a", ""))


def test_grants_add_up_by_name_role_and_for_everybody():
    grants = [
        grant("uma", ("a",), "replay"),
        grant("role:support", ("a", "b"), "view"),
        grant("*", ("c",), "view"),
    ]
    uma = access_of(grants, "uma", ["SUPPORT"])
    assert uma.permissions() == ["view", "replay"]
    assert uma.teams("view") == ("a", "b", "c")
    assert uma.teams("replay") == ("a",)
    assert uma.may("replay", "a")
    assert not uma.may("replay", "b")
    assert access_of(grants, "Uma", []).teams("replay") == ()
    assert access_of(grants, "uma2", []).teams("view") == ("c",)


def test_no_permission_implies_another():
    for permission in PERMISSIONS:
        access = access_of([grant("uma", ("a",), permission)], "uma", [])
        assert access.permissions() == [permission]


def test_what_has_no_team_is_for_those_only_who_have_all():
    some = access_of([grant("uma", ("a", ""), "view")], "uma", [])
    assert not some.may("view", "")
    assert some.teams("view") == ("a",)
    everything = access_of([grant("uma", "*", "view")], "uma", [])
    assert everything.may("view", "")
    assert everything.teams("view") is None
    assert access_of([grant("uma", ("*",), "view")], "uma", []).teams("view") is None


def test_a_name_that_looks_like_a_role_or_everybody_is_neither():
    assert access_of([grant("role:admin", "*", "view")], "role:admin", []).permissions() == []
    assert access_of([grant("uma", "*", "view")], "*", ["uma"]).permissions() == []


@pytest.mark.parametrize(
    "wrong",
    [
        '[{"who": "", "teams": "*", "permissions": ["view"]}]',
        '[{"who": "a", "teams": "all", "permissions": ["view"]}]',
        '[{"who": "a", "teams": "*", "permissions": ["viev"]}]',
        '[{"who": "a", "teams": "*", "permissions": []}]',
        '[{"who": "a", "teams": "*"}]',
    ],
)
def test_a_wrong_grant_is_refused(monkeypatch, wrong):
    monkeypatch.setenv("WAYBILL_ACCESS__GRANTS", wrong)
    with pytest.raises(ValidationError):
        Settings(_env_file=None)


def test_grants_come_from_a_variable_and_go_to_children(monkeypatch):
    said = '[{"who": "uma", "teams": ["a"], "permissions": ["view"]}]'
    monkeypatch.setenv("WAYBILL_ACCESS__GRANTS", said)
    settings = Settings(_env_file=None)
    assert settings.access.grants == (grant("uma", ("a",), "view"),)
    monkeypatch.delenv("WAYBILL_ACCESS__GRANTS")
    monkeypatch.setenv("WAYBILL_ACCESS", settings.to_env()["WAYBILL_ACCESS"])
    assert Settings(_env_file=None).access == settings.access
