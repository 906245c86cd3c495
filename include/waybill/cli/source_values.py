"""What is said of a source's values, and of a source that has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from typing import Any

from waybill.cli.output import echo, encodable_json, plain

_SLOW_S = 3.0
_LEVELS = 8
"""That are shown of a value that is nested too deeply, or has what is no JSON."""

_NOTHING: Mapping[str, str] = {
    "csv": "the file of source.path has no line below its header",
    "files": (
        "no file has the name of options.path, or it is being written: a file waits until it has"
        " not changed for options.settle_s (10 s)"
    ),
    "sql": "the table or view has no row that this user sees",
    "dlt": (
        "the source answered, and nothing was found in what it said; of a REST API see that"
        " endpoint.data_selector names where the records stand in an answer, that the paginator is"
        " the API's, and what endpoint.params select (docs/connectors.md#dlt)"
    ),
    "singer": "the tap gave no record: see its config, and options.streams if that is given",
    "kafka": "no message came: see options.topics, and that something was sent to them",
    "postgres_cdc": "the tables of options.tables have no row",
}


def nothing_read(connector: str) -> str:
    """Return why nothing may be there to be read, by the kind of the source."""
    why = _NOTHING.get(connector, "it has no record yet, or none that the options select")
    return f"nothing is there to be read: {why}"


def shown_value(value: Any) -> str:
    """Return a value on one line: null, text as it is, all else as JSON.

    What has no JSON form is text within it, and what is nested deeply is shortened.
    """
    import orjson

    from waybill.events import dumps
    from waybill.testing import json_value

    try:
        shown = json_value(value)
        text = shown if isinstance(shown, str) else dumps(shown).decode()
    except (TypeError, ValueError, RecursionError):
        text = orjson.dumps(encodable_json(value, _LEVELS), default=str).decode()
    return plain(text)


@contextmanager
def said_if_slow() -> Iterator[None]:
    """Say on standard error that a source is waited for, if what is done takes some seconds."""
    timer = Timer(
        _SLOW_S, echo, ("the source has not answered yet; it is waited for",), {"err": True}
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
