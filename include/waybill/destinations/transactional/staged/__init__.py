"""Loads that stage before their transaction: Snowflake, BigQuery, Redshift. Experimental.

Their engines have transactions, but no savepoints, and enforce no keys.

What stands for a live test: every statement is compared with a golden file, read again in its own
dialect, and run with the same meaning on an engine that is here; the order of calls to the drivers
is compared with recordings, of good days and bad ones.

``dialect``      one engine as a value: types, limits, errors, rewritings
``rewriting``    what a dialect cannot say, said otherwise, in the tree
``session``      one connection; the engines' own are in ``destinations.adapters``
``schema``       tables brought to their declarations
``staging``      rows into working tables, in bulk
``books``        commits, tombstones, row counts, and the row that loads lock
``table_load``   one table's batch: staged before the transaction, judged and merged in it; which
                 rows a merge refuses
``examination``  all that loads need, tried on a table of its own
``destination``  the load
"""
