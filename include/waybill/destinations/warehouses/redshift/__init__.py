"""Redshift as a destination; not live-tested."""
