"""Databricks as a destination: Delta tables over SQL; experimental.

There is no transaction across tables: exactly once is per table and commit, as for Delta tables
that Waybill writes by itself (``waybill.destinations.per_table``), whose verdicts, books,
tombstones and children these are. See ``table``.
"""
