"""``waybill parked replay``: what its options get wrong is said before anything is asked."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.replay import DryRunReport, DryRunRequest, GoodReport

PARTITION = ("orders", "-e", "order", "-s", "mapping", "-t", "null_value")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--since", "tomorrow"), "since: 'tomorrow' is not a time; write 2013-01-31"),
        (("--parked-until", "x"), "parked_until: 'x' is not a time; write 2013-01-31"),
        (("--since", "2014-01-01", "--until", "2013-01-01"), "is not before until"),
        (("--parked-since", "2014-01-01", "--parked-until", "2013-01-01"), "before parked_until"),
        (("--fingerprint", "zzz"), "fingerprint: 'zzz' is not a fingerprint: it has 16 digits"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_wrong_condition_is_said_with_what_to_write(monkeypatch, words, error, more):
    monkeypatch.setattr(services, "replayable", lambda *_, **__: pytest.fail("it was looked up"))
    done = CliRunner().invoke(app, ["parked", "replay", *PARTITION, *words, *more])
    assert done.exit_code == 1
    assert error in done.output


def test_a_dry_run_says_which_events_are_good(monkeypatch, tmp_path):
    passed = DryRunReport("orders", "v", 2, 2, 2, 0, {}, 1.0, 1.0, 1.0, 0, {}, {}, {})
    good = GoodReport(tried=496, same=496)
    monkeypatch.setattr(services, "run_dry_run", lambda *_: replace(passed, good=good))
    done = CliRunner().invoke(
        app, ["parked", "dry-run", *PARTITION, "--proposed", str(tmp_path)], catch_exceptions=False
    )
    said = " ".join(done.output.split())
    assert "of 496 recent good events: 496 the same" in said
    assert "good: those that the active version does not park, of the newest in Kafka" in said
    assert "500 at most without --good" in said
    assert DryRunRequest.model_fields["good"].default == 500


def test_times_without_a_zone_are_utc(monkeypatch):
    asked = []

    def found(_, request):
        asked.extend((request.since, request.until))
        raise KeyError

    monkeypatch.setattr(services, "replayable", found)
    edges = ("--since", "2013-01-31", "--until", "2013-01-31T06:00:00+01:00")
    done = CliRunner().invoke(app, ["parked", "replay", *PARTITION, *edges])
    assert isinstance(done.exception, KeyError)
    assert [edge.isoformat() for edge in asked] == [
        "2013-01-31T00:00:00+00:00",
        "2013-01-31T05:00:00+00:00",
    ]
