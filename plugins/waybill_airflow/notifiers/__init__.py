"""Notifiers: who hears of a task that fails."""
