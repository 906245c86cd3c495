"""Iceberg as a destination, by pyiceberg."""
