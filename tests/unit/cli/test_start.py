"""A command loads what it uses: what ``make bench-cli`` measures does not grow back unseen."""

import subprocess
import sys

import pytest

LIST = "import waybill.cli.parked, waybill.services; waybill.services.opened_parked_events"
OPEN = "from waybill.settings import S3Settings; from waybill.storage import open_objects"
SERVICE = f"{LIST}; from waybill.inspection import ParkedEventsService; {OPEN}; open_objects(S3Settings())"


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import waybill.cli", {"pydantic", "rich", "sqlalchemy", "yaml"}),
        (
            "import waybill.cli.pipeline_tests",
            {"pyarrow", "sqlalchemy", "waybill.processing.chain"},
        ),
        (SERVICE, {"boto3", "numpy", "pyarrow", "confluent_kafka", "waybill.producer.lossless"}),
    ],
    ids=["help", "pipelines new", "parked list"],
)
def test_a_command_does_not_load_what_it_does_not_use(code, unused):
    shown = f"import sys; {code}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) & unused == set()


def test_a_command_that_is_called_again_in_a_process_is_not_made_again():
    """Groups took their members anew at each call: each took longer than the one before."""
    from waybill.cli import COMMANDS
    from waybill.cli.pipelines import app

    made = COMMANDS["pipelines"].load("pipelines")
    members = len(app.registered_commands)
    assert COMMANDS["pipelines"].load("pipelines") is made
    assert len(app.registered_commands) == members
    assert {"list", "deploy", "new"} <= made.commands.keys()
