"""Redshift as a destination; experimental."""
