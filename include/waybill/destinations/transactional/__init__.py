"""Loads that are one transaction: PostgreSQL, DuckDB. One definition of judging and merging.

``session``      what a connection must do, and what an error of the engine says
``engine``       what an engine must supply beside it, all in one object
``books``        commits with their outcomes, tombstones, row counts: three tables of Waybill's own
``row_counts``   how many rows a table has, and must have
``tables``       tables compared with their declarations: what is to be changed, or is a conflict
``table_load``   one table's batch: stage, judge, merge, until no row is open
``examination``  all that loads need, tried on a table of its own
``destination``  the load's one transaction

An engine supplies a ``Session`` and an ``Engine``. The engine stages a batch (its bulk path, its
types), merges what is judged and says which rows it refuses (under savepoints, by trial, or by
asking what its constraints say), spells types, keys and working tables, brings tables to their
declarations, and keeps two loads from one table at once. The statements of the merge come from
``destinations.merging``, rendered for the engine's dialect.
"""
