"""Links from runs to pages: where they lead, whatever the names are."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.serialization.serialized_objects import DagSerialization
from tests.dags.conftest import ROOT, load_dags

from waybill_airflow.extra_links import ParkedGroupLink, PipelineLink
from waybill_airflow.operators.ingest import IngestOperator
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator

GROUP = {"pipeline": "flights", "event_name": "flight", "stage": "mapping", "error_type": "x"}
HOSTILE = ["a&id=7", "a#b", "javascript:alert(1)", "//evil.example", "../../logout", "+ %2e%0a",
           "{{ 7*7 }}", '"><script>', "é\u202e\n", "\ud800"]  # fmt: skip
PARKED = "/plugin/waybill-parked/waybill/parked"


def of_run(params):
    return SimpleNamespace(get_template_context=lambda: {"params": params})


def view(link, path):
    """What the page's script reads of an address; only the part behind `#` is from outside."""
    parts = urlsplit(link)
    assert (parts.netloc, parts.path, parts.query) == (urlsplit(link[:40]).netloc, path, "")
    return {name: value for name, [value] in parse_qs(parts.fragment).items()}


def test_a_replay_leads_to_its_group():
    task = ReplayParkedPartitionOperator(task_id="t")
    run = of_run({**GROUP, "rate_per_s": 5, "since": None})
    assert view(ParkedGroupLink().get_link(task, ti_key=run), PARKED) == GROUP
    given = ReplayParkedPartitionOperator(task_id="t", request=GROUP | {"dry_run": True})
    assert view(ParkedGroupLink().get_link(given, ti_key=of_run({})), PARKED) == GROUP


def test_an_ingest_run_leads_to_its_pipeline():
    link = PipelineLink().get_link(
        IngestOperator(task_id="t", pipeline="flights"), ti_key=of_run({})
    )
    assert view(link, "/plugin/waybill-overview/waybill/overview") == {"words": "flights"}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leads_elsewhere(name):
    link = ParkedGroupLink().get_link(
        ReplayParkedPartitionOperator(task_id="t"), ti_key=of_run(GROUP | {"event_name": name})
    )
    assert link.isascii()
    assert view(link, PARKED) == GROUP | {"event_name": name.replace("\ud800", "?")}


def test_links_lie_below_the_address_of_the_api_server(monkeypatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/data/")
    link = PipelineLink().get_link(IngestOperator(task_id="t", pipeline="p"), ti_key=of_run({}))
    assert link == ("https://airflow.example/data/plugin/waybill-overview/waybill/overview#words=p")


def test_the_serialised_dags_have_them():
    dags = load_dags(ROOT / "dags").dags
    for dag_id, task_id, name in (
        ("replay", "replay", "Parked events"),
        ("ingest_flights", "ingest", "Pipeline"),
    ):
        dag = DagSerialization.from_dict(DagSerialization.to_dict(dags[dag_id]))
        [link] = dag.get_task(task_id).operator_extra_links
        assert link.name == name
