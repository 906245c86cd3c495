"""A name, number or id that is not there ends every command that looks one up with 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import commands, names_something, words
from typer.testing import CliRunner

from waybill.cli import app
from waybill.cli.exit_codes import ExitCode
from waybill.settings import Settings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves

EVERY = dict(commands())
_ASK_ANOTHER_FIRST = {"topics show", "topics configure", "topics settle"}
"""Kafka, which is away here."""
_TAKE_ANY_NAME = {
    "new": "makes it",
    "pipelines new": "makes it",
    "clusters create": "makes it",
    "destination add": "makes it",
    "clusters delete": "what is gone already is deleted",
    "capacity simulate": "one of a few words",
    "notices test": "an owner is whoever is to be told",
    "bucket claim": "a bucket that nobody has is claimed",
    "sql": "a statement",
}


def test_what_is_not_there_ends_with_3(
    postgres: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dsn = postgres.database("absent_names")
    settings = Settings(
        _env_file=None,
        home=tmp_path / "home",
        pipelines_dir=tmp_path,
        tracker={"dsn": dsn},
        kafka={"bootstrap_servers": "127.0.0.1:1"},
        s3={"endpoint_url": "http://127.0.0.1:1", "access_key": "a", "secret_key": "b"},
        destinations={"warehouse": {"kind": "postgres", "dsn": dsn}},
    )
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_TRACES__SPOOL_DIR", str(tmp_path / "spool"))
    monkeypatch.setattr("waybill.storage.log._ANSWER_S", 0.5)
    with TrackerStore(settings.tracker) as tracker:
        tracker.migrate()
    texts = {"int": "7", "Path": str(tmp_path / "nothing-there.jsonl")}
    looked_up = [one for one in EVERY if names_something(EVERY[one]) and one not in _TAKE_ANY_NAME]
    assert len(looked_up) > 40
    wrong = {}
    for path in looked_up:
        given = words(EVERY[path], texts, other="nothing-there")
        done = CliRunner().invoke(app, ["--wait", "0", *path.split(), *given])
        expected = ExitCode.AWAY if path in _ASK_ANOTHER_FIRST else ExitCode.ABSENT
        if done.exit_code != expected:
            wrong[path] = (given, done.exit_code, done.output[-300:], repr(done.exception))
    assert not wrong, "\n".join(f"{path}: {what}" for path, what in wrong.items())
