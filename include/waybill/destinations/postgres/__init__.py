"""PostgreSQL as a destination (15 and newer, for MERGE); rows go by ADBC's binary COPY.

``connection``   one session, transactions, savepoints
``errors``       SQLSTATE to what the caller must do
``schema``       tables brought to their declarations, in a short transaction before the load
``books``        ``waybill._waybill_commits`` and ``waybill._waybill_tombstones``
``staging``      a batch into a temporary table, with the types of its target
``refusing``     the rows that PostgreSQL does not take, found by halving under savepoints
``table_load``   one table's batch: stage, judge, merge, until nothing is open
``destination``  the load's one transaction
"""
