"""Snowflake as a destination; experimental."""
