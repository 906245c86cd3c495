"""PostgreSQL as a destination (15 and newer, for MERGE); rows go by ADBC's binary COPY.

``connection``   one session, transactions, savepoints
``errors``       SQLSTATE to what the caller must do
``schema``       tables brought to their declarations, in a short transaction before the load
``books``        ``waybill._waybill_commits``, ``_waybill_tombstones``, ``_waybill_row_counts``
``counting``     how many rows a table has, and must have
``staging``      a batch into a temporary table, with the types of its target
``refusing``     the rows that PostgreSQL does not take, found by halving under savepoints
``table_load``   one table's batch: stage, judge, merge, until nothing is open
``destination``  the load's one transaction
"""
