"""ClickHouse as a destination; experimental.

It has no transactions and no merge: a table is a ReplacingMergeTree, which keeps of each key the
row with the greatest version, and hides it when that one is a delete. So inserts in any order, and
any number of times, end in the same rows. Verdicts and books are those of
``waybill.destinations.per_table``: a table's load is judged on what it has (``SELECT … FINAL``),
then inserted; see ``table`` for how a load that died in between is ended by the next.
"""
