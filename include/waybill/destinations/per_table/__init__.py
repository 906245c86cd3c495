"""Delta Lake and Iceberg as destinations: tables of files that change by commits of their own.

Neither has transactions across tables, so that a load is not one transaction but one commit a
table. Exactly once is per table and commit number.

Invariants, beside those of ``waybill.destinations``
  L1  A table's commit that changes rows for some commit numbers says so itself: the last number of
      the destination, and what became of the rows, which a repeat reads back however it batches.
  L2  A load's commits come in one order: tombstones, children, the table. Until the last one a
      repeat judges as if none had been: tombstones count from the table's commit on, and children
      that have the parent's versions are left alone.
  L3  A commit is made on top of the snapshot that was judged, or not at all.
  L4  What is cut from a history costs no row and doubles none: a commit whose outcome is no longer
      told is judged again, and its rows are duplicates.

``model``        what loads ask of a table, whatever its format
``shape``        columns that must be, and what has to change for them
``books``        what a commit says of the loads
``judging``      verdicts: DuckDB joins keys, Arrow compares contents
``constraints``  rows that a table does not take
``tombstones``   deleted keys, a table of its own
``children``     tables of items
``table_load``   one table's part of a load
``destination``  the load
``delta_table``, ``delta``      by delta-rs
``iceberg_table``, ``iceberg``  by pyiceberg
"""
