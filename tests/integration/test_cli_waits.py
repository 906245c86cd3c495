"""A command waits for a server that is being restarted, and says for what."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support import children

from waybill.settings import Settings, TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves


@pytest.fixture
def settings(postgres, tmp_path) -> Settings:
    dsn = postgres.database("cli_waits")
    made = Settings(home=tmp_path, tracker=TrackerSettings(dsn=dsn))
    with TrackerStore(made.tracker) as tracker:
        tracker.migrate()
    return made


def start(settings, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "waybill.cli", *words],
        env=children.environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_waits_for_a_tracker_that_is_restarted_and_says_so(settings, postgres):
    postgres.stop()
    command = start(settings, "pipelines", "holds", "--json")
    try:
        said = command.stderr.readline()
        assert said.startswith("waiting up to 60 s: tracker did not answer"), said
        assert command.poll() is None
        postgres.start()
        output, more = command.communicate(timeout=300)
    finally:
        postgres.start()
        command.kill()
        command.wait()
    assert command.returncode == 0, more
    assert json.loads(output) == []
    assert more == ""


def test_it_is_not_waited_for_when_asked_not_to(settings, postgres):
    postgres.stop()
    try:
        command = start(settings, "--wait", "0", "pipelines", "holds", "--json")
        output, said = command.communicate(timeout=300)
    finally:
        postgres.start()
    assert (command.returncode, output) == (4, "")
    assert "tracker did not answer" in said
    assert "waiting" not in said
