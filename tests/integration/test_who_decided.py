"""A name given on the command line stands beside that of the system user, with every command."""

import pytest
from tests.integration import parking_lot, test_parking_cli, test_parking_cli_states
from tests.integration.test_held_pipelines import deployed
from tests.support import parked_orders
from typer.testing import CliRunner

from waybill.cli import app
from waybill.services import current_user

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
settings = test_parking_cli.run
"""For the environment that it sets."""
PLACE = ("-e", "order", "-s", "transformation", "-t", "null_value")
WHY = ("--why", "a test")
ENTRIES = "SELECT action, who, detail ->> 'system_user' FROM audit_log WHERE id > :last ORDER BY id"


@pytest.fixture
def decide(settings, lot, tmp_path):
    """Run a command; return what it wrote to the audit log."""
    deployed(lot, tmp_path, fixed=False)
    lot.park([parked_orders.parked(parked_orders.order(n, "team")) for n in range(3)])

    def run(*words):
        [(last,)] = lot.sql("SELECT coalesce(max(id), 0) FROM audit_log")
        done = CliRunner().invoke(app, [*words, "--who", "ada"])
        assert done.exception is None, (done.output, done.exception)
        return lot.sql(ENTRIES, last=last)

    return run


@pytest.mark.parametrize(
    ("actions", "commands"),
    [
        (
            ("discard", "undo_discard"),
            (
                ("parked", "discard", "orders", *WHY, "--yes"),
                ("parked", "undo-discard", "orders", *WHY, "--yes"),
            ),
        ),
        (
            ("hold", "release"),
            (
                ("pipelines", "hold", "orders", *WHY),
                ("pipelines", "release", "orders", *WHY),
            ),
        ),
        (
            ("auto_replay_on", "auto_replay_off"),
            (
                ("parked", "auto-replay", "orders", *PLACE),
                ("parked", "auto-replay", "orders", *PLACE, "--off"),
            ),
        ),
    ],
)
def test_both_names_are_written_down(decide, actions, commands):
    said = [entry for words in commands for entry in decide(*words)]
    assert said == [(action, "ada", current_user()) for action in actions]


def test_both_names_are_written_down_where_what_was_damaged_is_parked_again(decide, lot):
    test_parking_cli_states.quarantine(lot, "transformation")
    assert decide("parked", "recheck") == [("recheck", "ada", current_user())]


def test_what_an_owner_is_told_has_the_given_name_only(decide, lot):
    decide("pipelines", "hold", "orders", *WHY)
    decide("pipelines", "release", "orders", *WHY)
    told = lot.sql("SELECT kind, detail FROM notices WHERE kind IN ('hold', 'release') ORDER BY id")
    assert [(kind, detail["why"]) for kind, detail in told] == [
        ("hold", "a test"),
        ("release", "a test"),
    ]
    assert not [detail for _, detail in told if "system_user" in detail]
