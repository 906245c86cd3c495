"""Settings that are lists or objects say what they must look like."""

from __future__ import annotations

import pytest

from waybill.settings import CapacitySettings, EgressSettings, Settings


def test_an_empty_variable_of_a_list_says_that_it_must_be_a_json_list(monkeypatch, tmp_path):
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", "")
    with pytest.raises(ValueError, match='is empty: it must be a JSON list, as in \\["a", "b"\\]'):
        Settings()


def test_plain_text_in_place_of_a_list_or_an_object_says_so_and_shows_no_value():
    with pytest.raises(ValueError, match="is plain text: it must be a JSON list") as caught:
        EgressSettings.model_validate({"allowed_networks": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match="it must be a JSON object"):
        CapacitySettings.model_validate({"thresholds": "{}"})


def test_lists_are_taken_as_they_were(monkeypatch, tmp_path):
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    monkeypatch.setenv("WAYBILL_EGRESS__ALLOWED_HOSTS", '["a", "b:1"]')
    assert Settings().egress.allowed_hosts == ("a", "b:1")
