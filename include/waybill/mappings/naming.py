"""Names that a destination takes, from names that payloads have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NameRules:
    """What names of tables and columns a kind of destination takes."""

    longest: int
    """In bytes of UTF-8."""
    folds: bool
    """Names that differ only in case are one name."""
    reserved: frozenset[str] = frozenset()
    """Names, in small letters, that are taken: system columns, words that cannot be quoted."""
    most_columns: int = 1_000
    """Columns that a table may have."""


_RULES: Mapping[str, NameRules] = {
    "postgres": NameRules(
        63,
        folds=False,
        reserved=frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"}),
        most_columns=1_500,
    ),
    "duckdb": NameRules(255, folds=True, reserved=frozenset({"rowid"})),
    "delta": NameRules(255, folds=True),
    "iceberg": NameRules(255, folds=True),
    "snowflake": NameRules(255, folds=False),
    "bigquery": NameRules(300, folds=True),
    "redshift": NameRules(127, folds=True),
    "databricks": NameRules(255, folds=True),
    "clickhouse": NameRules(206, folds=False),
}


def rules_of(kind: str) -> NameRules:
    """Return the rules of a kind of destination, as settings name it."""
    return _RULES[kind]
