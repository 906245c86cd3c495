"""The package as Airflow finds it where it is installed: a provider, its forms, its plugin."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys

from airflow._shared.secrets_masker import should_hide_value_for_key
from airflow.providers_manager import ProvidersManager
from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.triggers.base import BaseTrigger
from tests.support.marked import fields, is_secret

import waybill_airflow
from waybill.settings import Settings
from waybill_airflow.hooks.waybill import WaybillHook
from waybill_airflow.provider import get_provider_info

INFO = get_provider_info()
SHOWN = {
    "WAYBILL_DESTINATIONS__MARKED__OPTIONS",
    "WAYBILL_SOURCES__CONNECTIONS",
    "WAYBILL_CAPACITY__CELERY_BROKER",
}
"""Airflow hides an object's values by their own names (`password`, `token`, …): docs/airflow.md."""


def classes(base: type) -> dict[str, type]:
    """The package's own classes of a kind, by their full names."""
    names = [
        one.name
        for one in pkgutil.walk_packages(waybill_airflow.__path__, "waybill_airflow.")
        if ".web." not in one.name
    ]
    found = [
        made
        for name in names
        for _, made in inspect.getmembers(importlib.import_module(name), inspect.isclass)
        if issubclass(made, base) and made.__module__ == name and not made.__name__.startswith("_")
    ]
    return {f"{made.__module__}.{made.__name__}": made for made in found}


def variable(path: tuple[str, ...]) -> str:
    return "__".join(("WAYBILL", *path)).replace("__", "_", 1).upper()


def modules(kind: str) -> set[str]:
    return {name for entry in INFO[kind] for name in entry["python-modules"]}


def test_airflow_lists_the_provider_with_its_connection_type():
    manager = ProvidersManager()
    assert manager.providers["waybill"].data["name"] == "Waybill"
    hook = manager.hooks["waybill"]
    assert (hook.hook_class_name, hook.package_name) == (
        "waybill_airflow.hooks.waybill.WaybillHook",
        "waybill",
    )
    assert (hook.hook_name, hook.connection_testable) == ("Waybill", True)


def test_the_provider_names_every_hook_operator_trigger_notifier_and_link():
    assert modules("hooks") == {name.rpartition(".")[0] for name in classes(BaseHook)}
    assert modules("triggers") == {name.rpartition(".")[0] for name in classes(BaseTrigger)}
    operators = {name.rpartition(".")[0] for name in classes(BaseOperator)}
    assert modules("operators") == operators - {"waybill_airflow.families"}
    assert set(INFO["notifications"]) == set(classes(BaseNotifier))
    assert set(INFO["extra-links"]) == set(classes(BaseOperatorLink))


def test_the_form_asks_for_settings_by_their_names_and_hides_what_is_secret():
    [form] = INFO["connection-types"]
    known = {variable(path) for path, _ in fields()}
    secret = {variable(path) for path, one in fields() if is_secret(one)}
    for name, field in form["conn-fields"].items():
        assert name in known
        assert (field["schema"].get("format") == "password") == (name in secret), name
        assert "default" not in field["schema"], name
    widgets = ProvidersManager().connection_form_widgets
    assert {f"extra__waybill__{name}" for name in form["conn-fields"]} <= set(widgets)
    placeholders = form["ui-field-behaviour"]["placeholders"]
    assert not secret & set(placeholders)
    assert "password" not in placeholders


def test_airflow_shows_no_secret_of_an_extra():
    names = {variable(path) for path, field in fields() if is_secret(field)}
    assert {name for name in names if not should_hide_value_for_key(name)} == SHOWN


def test_the_pages_come_with_the_package():
    from airflow import plugins_manager

    [plugin] = [one for one in plugins_manager._get_plugins()[0] if one.name == "waybill"]
    assert str(plugin.source).startswith("waybill==")
    assert {view["name"] for view in plugin.external_views} >= {"Overview", "Parked events"}


def test_settings_that_the_form_names_are_read_from_a_connection(monkeypatch):
    """Each field by itself, through Airflow's own way to a connection."""
    for name in INFO["connection-types"][0]["conn-fields"]:
        value = "http://it:1" if "URL" in name else "given"
        given = {"conn_type": "waybill", "extra": {name: value}}
        monkeypatch.setenv("AIRFLOW_CONN_WAYBILL_DEFAULT", json.dumps(given))
        section, _, field = name.removeprefix("WAYBILL_").lower().partition("__")
        found = getattr(getattr(WaybillHook().get_conn(), section), field)
        assert getattr(found, "get_secret_value", lambda found=found: found)() == value
        assert getattr(getattr(Settings(), section), field) != found


def test_entry_points_import_nothing_of_the_library():
    """Airflow loads them in every command, component and task."""
    code = (
        "import sys, waybill_airflow.provider, waybill_airflow.plugin; "
        "print(sorted(name for name in sys.modules if name.startswith('waybill')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = ["waybill_airflow", "waybill_airflow.plugin", "waybill_airflow.provider"]
    assert done.stdout.strip().splitlines()[-1] == str(ours)
