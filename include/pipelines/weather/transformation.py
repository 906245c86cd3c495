"""Readings are loaded as they come; the mapping does the rest."""


def transform(event):
    return event
