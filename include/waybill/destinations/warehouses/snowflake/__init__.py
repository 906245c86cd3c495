"""Snowflake as a destination; not live-tested."""
