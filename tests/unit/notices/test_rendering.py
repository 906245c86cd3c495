"""What a message to an owner says."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from waybill.notices.rendering import Message, Named


def test_an_empty_event_name_is_shown_and_stays_empty_for_programs():
    detail = {"event_name": "", "stage": "mapping", "error_type": "null_value", "count": 3}
    named = Named("first", "weird", datetime(2026, 1, 1, tzinfo=UTC), detail)
    message = Message(UUID(int=1), "ops", (named,), {"first": 1})
    assert "weird / (empty) / mapping / null_value" in message.text
    assert message.to_json()["notices"][0]["event_name"] == ""
