"""PostgreSQL as a destination (15 and newer, for MERGE); rows go by ADBC's binary COPY.

``session``  one session, transactions, savepoints; SQLSTATE to what the caller must do
``schema``   tables brought to their declarations, in a short transaction before the load
``books``    commit numbers are taken by a unique index; how keys are spelt in tombstones; what a
             MERGE did, what the server estimates
``engine``   a batch into temporary tables; the merge; rows that PostgreSQL refuses, found by
             halving under savepoints; all of it as ``transactional`` needs it
"""
