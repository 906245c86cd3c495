"""Hooks: the library, opened from a connection of Airflow."""
