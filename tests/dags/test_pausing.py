"""DAGs that promises rest on run from the beginning, and those that move data when asked to."""

from __future__ import annotations

import pytest
from tests.dags.conftest import ROOT, load_dags

DATA = {"ingest_flights", "ingest_weather", "stream_clusters", "stream_default"}


@pytest.fixture
def paused():
    def read():
        bag = load_dags(ROOT / "dags")
        assert bag.import_errors == {}
        return {dag_id: dag.is_paused_upon_creation for dag_id, dag in bag.dags.items()}

    return read


def test_upkeep_and_replays_are_on_and_what_moves_data_is_left_to_airflow(paused):
    found = paused()
    assert len(found) >= 13
    assert {dag_id: None if dag_id in DATA else False for dag_id in found} == found


@pytest.mark.parametrize(("said", "value"), [("all", False), ("none", None)])
def test_a_setting_turns_all_on_or_leaves_all_to_airflow(paused, monkeypatch, said, value):
    monkeypatch.setenv("WAYBILL_AIRFLOW__UNPAUSED_DAGS", said)
    assert set(paused().values()) == {value}


def test_the_setting_is_read_from_the_stacks_file(paused, monkeypatch, tmp_path):
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    (tmp_path / "stack.env").write_text("WAYBILL_AIRFLOW__UNPAUSED_DAGS=none\n")
    assert set(paused().values()) == {None}


def test_wrong_settings_neither_hide_upkeep_nor_pause_it(monkeypatch):
    """Its tasks fail and name the setting."""
    monkeypatch.setenv("WAYBILL_KAFKA__TOPIC_PARTITIONS", "none")
    bag = load_dags(ROOT / "dags" / "upkeep.py")
    assert bag.import_errors == {}
    assert bag.dags["upkeep"].is_paused_upon_creation is False
