"""A command loads what it uses: what ``make bench-cli`` measures does not grow back unseen."""

import subprocess
import sys
from pathlib import Path

import pytest

LIST = "import waybill.cli.parked, waybill.services; waybill.services.opened_parked_events"
OPEN = "from waybill.settings import S3Settings; from waybill.storage import open_objects"
FLIGHTS = Path(__file__).resolve().parents[3] / "include" / "pipelines" / "flights"
CHECK = f"from waybill.cli import app; app(['pipelines', 'check', {str(FLIGHTS)!r}], standalone_mode=False)"
ARRAY = """
from waybill.cli.arrow import pandas_left_out
with pandas_left_out():
    import duckdb, pyarrow.parquet, waybill.tracing.duckdb_traces
    pyarrow.table({"a": [""]}).to_pylist()
    duckdb.connect().execute("SELECT ?", [""]).to_arrow_table()
"""
BALANCE = "import waybill.cli.balance, waybill.services; waybill.services.balance; from waybill.reconciliation import balance"
SERVICE = f"{LIST}; from waybill.inspection import ParkedEventsService; {OPEN}; open_objects(S3Settings())"


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import waybill.cli", {"pydantic", "rich", "sqlalchemy", "yaml"}),
        (
            "import waybill.cli.new_pipeline, waybill.cli.pipeline_tests, waybill.cli.local_runs",
            {"pyarrow", "sqlalchemy", "waybill.processing.chain"},
        ),
        (CHECK, {"numpy", "pyarrow", "sqlalchemy"}),
        (ARRAY, {"numpy", "pandas"}),
        (BALANCE, {"boto3", "botocore", "numpy", "pyarrow", "yaml", "waybill.pipelines.form"}),
        (
            SERVICE,
            {
                "boto3",
                "botocore",
                "numpy",
                "pyarrow",
                "confluent_kafka",
                "yaml",
                "waybill.pipelines.form",
                "waybill.producer.lossless",
            },
        ),
    ],
    ids=["help", "pipelines new", "pipelines check", "trail", "balance", "parked list"],
)
def test_a_command_does_not_load_what_it_does_not_use(code, unused):
    shown = f"import sys\n{code}\nprint(*sys.modules)"
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


def test_garbage_is_looked_for_less_often_while_a_command_runs_and_as_usual_after_it():
    import gc

    from waybill.cli.lazy import root

    seen = []
    group = root({}, {})()
    group.callback = lambda: seen.append(gc.get_threshold()[0])
    group.invoke_without_command = True
    usual = gc.get_threshold()
    group.main([], standalone_mode=False)
    assert seen == [10_000]
    assert gc.get_threshold() == usual
