"""PostgreSQL as a destination (15 and newer, for MERGE); rows go by ADBC's binary COPY.

``connection``   one session, transactions, savepoints
``errors``       SQLSTATE to what the caller must do
``schema``       tables brought to their declarations, in a short transaction before the load
``books``        commit numbers are taken by a unique index; how keys are spelt in tombstones; what
                 a MERGE did, what the server estimates
``staging``      a batch into temporary tables, with the types of their targets
``refusals``     the rows that PostgreSQL does not take, found by halving under savepoints
``engine``       all of it, as the load that is one transaction needs it (``transactional``)
"""
