"""DuckDB as a destination: one file, one process that writes it at a time.

``connection``   the file held while a load runs, transactions, rows registered from Arrow
``errors``       DuckDB's exceptions to what the caller must do
``schema``       tables brought to their declarations
``books``        the books without unique indexes: who holds the file is alone
``constraints``  rows that a table's NOT NULL and CHECK do not take, found by asking
``engine``       all of it, as the load that is one transaction needs it (``transactional``)
``destination``  rows that unique or foreign keys refuse, found by trial and rolled back
"""
