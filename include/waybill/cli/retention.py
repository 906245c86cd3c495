"""``waybill retention``: what grows, how long it is kept, and trimming it now."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import Yes, ask
from waybill.cli.output import counted, echo, plain, print_folded, print_json, readable_size
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import Column, Table, print_table

app = typer.Typer(
    no_args_is_help=True, help="Retention: show how long things are kept, and trim them."
)
_KEPT = {
    "staged_days": "staged files that are loaded",
    "log_days": "records in Kafka",
    "payloads_days": "payloads",
    "source_keys_days": "keys of sources that no pipeline compares with",
    "traces_days": "traces",
    "books_days": "rows of the tracker",
}
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


@app.command()
def show(*, as_json: AsJson = False) -> None:
    """Show the settings, how large each table of the tracker is, and when its rows are deleted."""
    from waybill.services import retention_rules
    from waybill.settings import Settings

    settings = Settings()
    rules = retention_rules(settings)
    if as_json:
        print_json(rules)
        return
    for name, days in rules["settings"].items():
        setting = f"WAYBILL_RETENTION__{name.upper()}"
        print_folded([f"{_KEPT.get(name, name)}: {days:g} days ({setting})"])
    echo("")
    print_table(_rule_table(rules["tables"]), _steady_tables(rules["tables"]))
    if rules["problem"]:
        print_folded([f"sizes are not known: {rules['problem']}"], err=True)
    tell_hindrances(settings, "nothing of this is deleted by itself", dags=["apply_retention"])


def _rule_table(rules: dict[str, Any]) -> Table:
    """Return a line a table that grows with events or with what people do, the largest first."""
    grows = {name: one for name, one in rules.items() if one["grows"]}
    return Table(
        (
            Column("table"),
            Column("size", "number"),
            Column("a row for each", "words", spare=1),
            Column("deleted", "words", least=42),
        ),
        [
            (name, _size(one["bytes"]), one["by"], one["trimmed"])
            for name, one in sorted(grows.items(), key=lambda item: -(item[1]["bytes"] or 0))
        ],
        "the tracker has no table",
    )


def _steady_tables(rules: dict[str, Any]) -> list[str]:
    """Return the sentence on tables that have a row for each thing there is, and keep it."""
    steady = {name: one["bytes"] for name, one in rules.items() if not one["grows"]}
    size = _size(None if None in steady.values() else sum(steady.values()))
    return [
        f"{counted(len(steady), 'table')} more do not grow with events, and no row of them is "
        f"deleted{size and f' ({size} together)'}: {', '.join(steady)}",
    ]


def _size(number: int | None) -> str:
    return "" if number is None else readable_size(number)


@app.command()
def run(
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete what is older than the settings allow, as the DAG apply_retention does each day.

    Exit code 2: some of it could not be deleted now.
    """
    from waybill.services import apply_retention
    from waybill.settings import Settings

    settings = Settings()
    if not yes:
        kept = settings.retention
        echo(
            f"This deletes for good what is loaded or over, and older than: records in\n"
            f"Kafka {kept.log_days:g} days, payloads {kept.payloads_days:g}, keys that no pipeline "
            f"compares with {kept.source_keys_days:g}, traces\n{kept.traces_days:g}, rows of the "
            f"tracker {kept.books_days:g}",
            err=True,
        )
        ask("Go on?", as_json=as_json)
    report = apply_retention(settings)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report.to_json())
    if report.problems:
        raise typer.Exit(ExitCode.FOUND)


def _print(report: dict[str, Any]) -> None:
    for topic in report["topics"]:
        echo(f"{topic['deleted']:,} records of {topic['topic']}")
        if topic["held"]:
            echo(f"  {plain(topic['held'])}")
    for name in report["ended_topics"]:
        echo(f"topic {name}, which had ended")
    echo(f"{report['payloads'].get('deleted', 0):,} payloads")
    for pipeline_id, why in report["payloads"].get("kept", {}).items():
        echo(f"  {pipeline_id} keeps its payloads: {why}")
    echo(f"{report['source_keys'].get('deleted', 0):,} objects of known keys")
    for folder, why in report["source_keys"].get("kept", {}).items():
        echo(f"  those of {plain(folder)} stay: {plain(why)}")
    echo(f"{report['trace_objects']:,} objects of traces")
    for table, number in report["rows"].items():
        echo(f"{number:,} rows of {table}")
    for problem in report["problems"]:
        echo(f"not done: {problem}", err=True)
