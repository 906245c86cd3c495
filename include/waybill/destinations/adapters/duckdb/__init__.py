"""DuckDB as a destination: one file, one process that writes it at a time.

``session``      the file held while a load runs, transactions, rows registered from Arrow; errors
``schema``       tables brought to their declarations
``books``        the books without unique indexes: who holds the file is alone
``engine``       rows that a table's NOT NULL and CHECK do not take, found by asking; the merge; all
                 of it as ``transactional`` needs it
``destination``  rows that unique or foreign keys refuse, found by trial and rolled back
"""
