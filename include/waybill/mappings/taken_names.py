"""Names that an engine keeps for itself, in small letters, as its documentation lists them.

Waybill quotes every name, so that words of SQL are names like others; here stands what quoting does
not free: system columns, hidden columns, and words that are refused all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

_POSTGRES = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_CHANGE_FEED = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})

RESERVED: Mapping[str, frozenset[str]] = {
    # PostgreSQL, "System Columns"
    "postgres": _POSTGRES,
    # DuckDB, "Rowid Pseudocolumn"
    "duckdb": frozenset({"rowid"}),
    # Delta Lake, "Change data feed"; Spark's hidden column of files
    "delta": _CHANGE_FEED | {"_metadata"},
    # Iceberg's reserved field ids, and the change log's columns
    "iceberg": frozenset(
        {
            "_file",
            "_pos",
            "_deleted",
            "_spec_id",
            "_partition",
            "_row_id",
            "_last_updated_sequence_number",
            "_change_type",
            "_change_ordinal",
            "_commit_snapshot_id",
        }
    ),
    # Snowflake, "Reserved & limited keywords": what cannot be a column's name, or be read as one
    "snowflake": frozenset(
        {
            "constraint",
            "current_date",
            "current_time",
            "current_timestamp",
            "current_user",
            "localtime",
            "localtimestamp",
            "case",
            "cast",
            "false",
            "true",
            "try_cast",
            "when",
        }
    ),
    # Redshift keeps PostgreSQL's of its time, and two of its own
    "redshift": _POSTGRES | {"oid", "deletexid", "insertxid"},
    "databricks": _CHANGE_FEED | {"_metadata"},
    # ClickHouse, "Virtual columns" of MergeTree and Merge
    "clickhouse": frozenset(
        {
            "_part",
            "_part_index",
            "_part_starting_offset",
            "_part_uuid",
            "_part_offset",
            "_part_data_version",
            "_partition_id",
            "_partition_value",
            "_sample_factor",
            "_block_number",
            "_block_offset",
            "_disk_name",
            "_row_exists",
            "_table",
            "_database",
        }
    ),
}

RESERVED_PREFIXES: Mapping[str, tuple[str, ...]] = {
    # BigQuery, "Column names"; _change_ belongs to its change data capture
    "bigquery": (
        "_table_",
        "_file_",
        "_partition",
        "_row_timestamp",
        "__root__",
        "_colidentifier",
        "_change_",
    ),
}
