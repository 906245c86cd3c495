"""Engines: each supplies what its way of committing asks of it, and is registered by name."""
