"""Commands that are services: a server that is away is theirs to wait for, not the command line's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

import pytest
from typer.testing import CliRunner

from waybill import services, storage, tracing
from waybill.cli import app
from waybill.errors import AwayError
from waybill.services import collector
from waybill.waiting import answered


@pytest.mark.parametrize("command", [["traces", "ship"], ["capacity", "enhance"], ["collector"]])
def test_what_a_service_asks_fails_at_once_and_is_tried_again_by_the_service(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask() -> Never:
        asked.append("once")
        raise AwayError("the store does not answer", setting="WAYBILL_S3__ENDPOINT")

    def serve(*_given: object, **_named: object) -> Any:
        with pytest.raises(AwayError):
            answered(ask)
        raise SystemExit

    def nothing(*_given: object) -> None:
        return None

    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (tracing, "run_shipper", serve),
        (services, "run_enhancer", serve),
        (storage, "refuse_foreign_bucket", nothing),
        (storage, "open_owned_objects", nothing),
        (collector, "refuse_foreign_bucket", nothing),
    ]
    for module, name, does in places:
        monkeypatch.setattr(module, name, does)
    monkeypatch.setattr("uvicorn.run", serve)
    assert CliRunner().invoke(app, ["--wait", "2", *command]).exit_code == 0
    assert asked == ["once"]
