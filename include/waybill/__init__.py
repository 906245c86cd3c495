"""Event pipelines that never lose an event."""

__version__ = "0.1.0"
