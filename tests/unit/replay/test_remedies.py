"""What is advised of parked groups: each way with its commands, and only what applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.replays import dry_run_request

from waybill.cli.replays import print_verdict
from waybill.deployment import ActiveSource
from waybill.parking import ParkedGroup
from waybill.replay import DryRunReport, Remedy
from waybill.replay.remedies import remedies_of

PARKED = datetime(2026, 11, 28, 8, tzinfo=UTC)
BEFORE = ActiveSource("0fe460dfc505", PARKED - timedelta(hours=1), False, False, False)
SINCE = replace(BEFORE, deployed_at=PARKED + timedelta(hours=1))
WHICH = "loans -e loan -s mapping -t"
WAY = "mapping/unknown_column"


def group(
    number: int, error_type: str = "unknown_column", stage: str = "mapping", parked: int = 3
) -> ParkedGroup:
    names = ("pl-1", "risk", "loan", stage, error_type)
    return ParkedGroup(
        number, "loans", *names, parked, 0, 0, 5, 0, 90, PARKED, PARKED, PARKED, PARKED, "message"
    )


def advised(source: ActiveSource, *found: ParkedGroup, **options: Any) -> list[Sequence[Remedy]]:
    at_mapping: Mapping[str, int] = {"pl-1": sum(one.stage == "mapping" for one in found)}
    remedies = remedies_of(found, {"pl-1": source}, at_mapping, **options)
    return [remedies.get(one.id, ()) for one in found]


def test_a_dry_run_that_fails_prints_each_way_with_its_commands_the_mild_one_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    [remedies] = advised(BEFORE, group(1), tried=True)
    report = DryRunReport(
        *("loans", "0fe460dfc505", 3, 3, 0, 0, {WAY: 3}, 0.0, 0.0, 0.0, 0, {WAY: 3}, {}),
        {WAY: "field 'branch' has no column"},
        remedies=tuple(remedies),
    )
    print_verdict(report, dry_run_request("loans", "loan", "mapping", "unknown_column"))
    printed = " ".join(capsys.readouterr().out.split())
    mild, _, other = printed.partition("way 2:")
    assert "what to do: try way 1 first: it is the mild one and discards nothing" in mild
    assert "way 1: Change the mapping, dry-run, deploy, replay. Nothing is discarded. " in mild
    assert mild.strip().endswith(
        "`waybill sources discover` writes a column for each new field of the source into "
        "pipeline.yaml; one that the transformation makes of none is written by hand "
        "waybill sources discover loans --write --sample 100000 "
        f"waybill parked dry-run {WHICH} unknown_column --proposed loans "
        "waybill pipelines deploy loans "
        f"waybill parked replay {WHICH} unknown_column"
    )
    assert "Only if the source still has these rows" in other
    assert "`waybill parked discard` asks before it discards" in other
    assert "does not run again" not in printed, "no other version was tried"
    assert other.endswith(
        "waybill pipelines deploy loans waybill ingest loans --full --yes --why corrected --wait && "
        f"waybill parked discard {WHICH} unknown_column --parked-until 2026-11-28T08:00:01Z "
        "--why corrected"
    )


def test_what_is_deployed_since_the_events_parked_is_tried_not_made() -> None:
    mapped, code = advised(SINCE, group(1), group(2, "null_value", "transformation"))
    for remedy in (*mapped, *code):
        assert remedy.advice.startswith("Version 0fe460dfc505 was deployed after these parked: if")
        assert not any(
            "deploy" in command or "--proposed" in command for command in remedy.commands
        )
    [tried] = advised(SINCE, group(1), tried=True)
    assert tried[0].advice.startswith("Change the mapping"), "what is deployed was tried"
    assert tried[1].advice.startswith("Version"), "its transformation was not"
    [other] = advised(SINCE, group(1), tried=True, proposed=True)
    assert other[1].advice.startswith("Change the mapping in another way than was just tried")


def test_what_a_dry_run_has_just_tried_comes_last_and_code_that_runs_no_more_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    [remedies] = advised(BEFORE, group(1, "value_error"), tried=True, proposed=True)
    way = "mapping/value_error"
    report = DryRunReport(
        *("loans", "0fe460dfc505", 3, 3, 0, 0, {way: 3}, 0.0, 0.0, 0.0, 0, {way: 3}, {}),
        {way: "column 'days' is int64; got str 'n/a'"},
        remedies=tuple(remedies),
    )
    print_verdict(report, dry_run_request("loans", "loan", "mapping", "value_error"))
    printed = " ".join(capsys.readouterr().out.split())
    first, _, last = printed.partition("way 2:")
    assert "way 1: The transformation does not run again on these events" in first
    assert "no change of it has an effect on them (`keep_source: true` in the declaration" in first
    assert "waybill ingest loans --full" in first
    assert "way 1 discards what is parked, once it was read again; way 2 discards nothing" in first
    assert "the mild one" not in printed
    assert "Change the mapping in another way than was just tried" in last


def test_a_field_without_a_column_is_discovered_where_the_source_can_be_read() -> None:
    [(mild, _)] = advised(BEFORE, group(1))
    assert mild.commands[0] == "waybill sources discover loans --write --sample 100000"
    for source in (SINCE, replace(BEFORE, is_pushed=True)):
        [(mild, _)] = advised(source, group(1))
        assert not any("discover" in command for command in mild.commands)
    [(mild, _)] = advised(BEFORE, group(1, "type_mismatch"))
    assert mild.commands[0].startswith("waybill parked dry-run")
    [(only,)] = advised(replace(BEFORE, keeps_source=True), group(1))
    assert only.commands[0].startswith("waybill sources discover loans --write")
    assert len(only.commands) == 4


def test_one_reading_serves_all_groups_of_a_pipeline() -> None:
    first, second = advised(BEFORE, group(1), group(2, "type_mismatch"))
    assert first[-1] == second[-1]
    assert first[-1].discards
    read, *discards = first[-1].commands[-1].split(" && ")
    assert read == "waybill ingest loans --full --yes --why corrected --wait"
    assert [command.split(" --parked-until")[0] for command in discards] == [
        f"waybill parked discard {WHICH} unknown_column",
        f"waybill parked discard {WHICH} type_mismatch",
    ]
    assert "One reading serves 2 groups" in first[-1].advice
    alone = remedies_of([group(1)], {"pl-1": BEFORE}, {"pl-1": 2})[1]
    assert "`waybill parked show loans -s mapping` gives one command" in alone[-1].advice


def test_a_group_without_parked_events_or_without_a_pipeline_has_none() -> None:
    assert advised(BEFORE, group(1, parked=0)) == [()]
    assert remedies_of([group(1)], {}, {}) == {}
    assert advised(BEFORE, group(1, "destination_full", "destination")) == [()]


def test_what_no_command_delivers_is_said() -> None:
    [(mild, other)] = advised(replace(BEFORE, is_pushed=True), group(1))
    assert len(mild.commands) == 3
    assert "cannot be read again" in other.advice
    assert not other.discards
    [(only,)] = advised(replace(BEFORE, keeps_source=True), group(1))
    assert only.commands[-1].endswith("unknown_column --enter transformation")


def test_names_are_quoted() -> None:
    hostile = replace(group(1), event_name="x; rm -rf $HOME")
    [(mild, other)] = advised(BEFORE, hostile)
    for command in (mild.commands[1], mild.commands[3], other.commands[1]):
        assert "-e 'x; rm -rf $HOME' -s" in command


def test_what_may_be_a_delete_is_not_discarded_where_a_reading_brings_none() -> None:
    [(_, reading)] = advised(replace(BEFORE, brings_deletes=True), group(1))
    assert not reading.discards
    assert "what is deleted there is not read again" in reading.advice
    assert [one for one in reading.commands if "discard" in one] == []


def test_one_reading_says_that_it_serves_groups_that_are_not_shown_too() -> None:
    found = [group(1), group(2, "type_mismatch")]
    remedies = remedies_of(found, {"pl-1": BEFORE}, {"pl-1": 7})
    assert "`waybill parked show loans -s mapping` gives one command" in remedies[1][1].advice
    assert "do it once" not in remedies[1][1].advice
