"""Loads that are one commit a table: Delta Lake, Iceberg, ClickHouse, Databricks.

None has transactions across tables, so that exactly once is per table and commit number.

Invariants, beside those of ``waybill.destinations``
  L1  A table's commit that changes rows for some commit numbers says so itself: the last number of
      the destination, and what became of the rows, which a repeat reads back however it batches.
  L2  A load's commits come in one order: tombstones, children, the table. Until the last one a
      repeat judges as if none had been: tombstones count from the table's commit on, and children
      that have the parent's versions are left alone.
  L3  A commit is made on top of the snapshot that was judged, or not at all.
  L4  What is cut from a history costs no row and doubles none: a commit whose outcome is no longer
      told is judged again, and its rows are duplicates.

``table``        what loads ask of a table, whatever its format; columns that must be
``sql_table``    tables behind SQL: ClickHouse, Databricks
``files``        tables that are files: Delta, Iceberg; folders, files written anew
``books``        what a commit says of the loads
``verdicts``     verdicts: DuckDB joins keys, Arrow compares contents; rows that a table refuses
``tombstones``   deleted keys, a table of its own
``children``     tables of items
``table_load``   one table's part of a load
``errors``       what a library says, and what the caller must do
``examination``  all that loads need, tried on a table of its own
``destination``  the load
"""
