"""Operators: each declares in ``__init__`` and does one call of the library in ``execute``.

Nothing of the library is imported before ``execute``, so that a DAG file parses fast, and every
client (Kafka's is not fork-safe) is made in the task's own process.
"""
