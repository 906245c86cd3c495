"""Loads that are one transaction. One definition of judging and merging for all engines.

``session``           what a connection must do, what an error of the engine says; a warehouse's
``dialect``           a warehouse's SQL as a value: types, limits, errors, rewritings
``engine``            what an engine must supply beside its session, all in one object
``warehouse``         the engine of all warehouses: stages before the transaction
``books``             commits with their outcomes, tombstones, row counts: Waybill's own tables
``row_counts``        how many rows a table has, and must have
``tables``            tables compared with their declarations: what to change, what is a conflict
``warehouse_tables``  the same where engines differ in what they alter
``table_load``        one table's batch: stage, judge, merge, until no row is open
``examination``       all that loads need, tried on a table of its own
``destination``       the load's one transaction

PostgreSQL and DuckDB each supply a ``Session`` and an ``Engine``. The engine stages a batch (its
bulk path, its types), merges what is judged and says which rows it refuses (under savepoints, by
trial, or by asking what its constraints say), spells types, keys and working tables, brings tables
to their declarations, and keeps two loads from one table at once. The statements of the merge come
from ``destinations.merging``, rendered for the engine's dialect.

Snowflake, BigQuery and Redshift (experimental) have no savepoints and enforce no keys: each
supplies a ``Dialect`` and a ``WarehouseSession``, and the load stages before its transaction.
"""
