"""``waybill.testing``: an ``Event``, and the fixture ``waybill_pipeline`` for pipelines' own tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from waybill.errors import InputError
from waybill.pipelines import NewPipeline, load_pipeline, write_new
from waybill.testing import Event, run_pipeline

ROOT = Path(__file__).parents[3]
FAILS = """\
import pytest

@pytest.mark.waybill_pipeline("../nowhere")
def test_marked(waybill_pipeline):
    pass
"""


def run_pytest(folder, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"]
    return subprocess.run(
        [*command, *options, str(folder)], cwd=folder, capture_output=True, text=True, check=False
    ).stdout


@pytest.fixture
def orders(tmp_path):
    write_new(tmp_path, NewPipeline(name="orders"))
    return tmp_path / "orders"


def test_the_documented_tests_run_as_they_are_by_the_fixture(orders):
    page = (ROOT / "docs" / "pipelines.md").read_text("utf-8")
    [example] = re.findall(
        r"```python\n((?:(?!```).)*waybill_pipeline(?:(?!```).)*)```", page, re.S
    )
    inner = orders / "tests"  # the nearest pipeline above is meant
    inner.mkdir()
    (inner / "test_documented.py").write_text(example)
    said = run_pytest(inner)
    assert f"{example.count('def test_')} passed" in said, said


def test_a_test_that_finds_no_pipeline_says_what_to_do(tmp_path):
    (tmp_path / "test_lost.py").write_text(FAILS + "\ndef test_lost(waybill_pipeline):\n    pass\n")
    said = run_pytest(tmp_path)
    assert "2 errors" in said
    assert "nowhere has no pipeline.yaml" in said
    assert "name the pipeline's folder by" in said


def test_the_plug_in_imports_nothing_of_the_library_before_it_is_asked():
    code = "import sys, waybill.testing.pytest_plugin; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pyarrow", "pydantic", "yaml", "sqlalchemy", "waybill.pipelines", "waybill.processing"}
    assert heavy & set(run.stdout.split()) == set()


def test_events_are_values_of_which_others_are_made():
    event = Event({"id": 1, "amount": "5"})
    assert event.with_fields(amount=None).data == {"id": 1, "amount": None}
    assert event.with_fields(self=2).data["self"] == 2
    assert event.without("amount", "gone").data == {"id": 1}
    assert event.deleted("id") == Event({"id": 1}, op="delete")
    assert event.deleted().data == event.data
    assert event == Event({"id": 1, "amount": "5"})  # none of this changed it


def test_an_event_has_a_name_and_may_be_a_delete(tmp_path):
    """Where the collector finds names in the payload, so does the run."""
    folder = tmp_path / "shop"
    folder.mkdir()
    tables = "".join(
        f"  {name}: {{key: [id], table: {name}s, columns: {{id: int64, kind: string}}}}\n"
        for name in ("order", "refund")
    )
    (folder / "pipeline.yaml").write_text(
        "id: shop-shop\nname: shop\nteam: shop\nowner: shop\n"
        "source: {connector: http, event: order, options: {auth: bearer, secret: 'env:SHOP_TOKEN',"
        f" event_name: 'field:kind'}}}}\nevents:\n{tables}"
        "destination: {name: warehouse, schema: shop}\n"
    )
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    result = run_pipeline(
        folder,
        [
            {"id": 1, "kind": "refund"},
            Event({"id": 2, "kind": "refund"}, name="order"),
            Event({"id": 3, "kind": "refund"}).deleted(),
            Event({"id": 4}, name="gone"),
        ],
    )
    assert result.rows == {
        "orders": [{"id": 2, "kind": "refund"}],
        "refunds": [{"id": 1, "kind": "refund"}],
    }
    assert result.deleted["refunds"] == [{"id": 3}]
    assert [parked.way for parked in result.parked] == ["ingestion/event_undeclared"]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(5), "event 1: expected a mapping, got int"),
        (Event({}, op="drop"), "event 1: expected op upsert or delete, got 'drop'"),
        (5, "event 1: expected a mapping, got int"),
    ],
    ids=["payload", "op", "number"],
)
def test_what_is_no_event_is_told_by_its_number(orders, event, words):
    with pytest.raises(InputError, match=re.escape(words)):
        run_pipeline(load_pipeline(orders), [event])
