"""What is said of a destination that is added or changed; apart, as commands are made of it."""

from __future__ import annotations

from pydantic import Field

from waybill.request import Request


class DestinationRequest(Request):
    """What is said of a destination; None: nothing, so that it stays as it is."""

    name: str = Field(description="Its name, by which pipelines name it.")
    kind: str | None = Field(None, description="postgres (if not given), duckdb, delta, …")
    dsn: str | None = Field(
        None, description="Its address. - (if not given to `add`): asked for, or standard input."
    )
    no_check: bool = Field(
        default=False, description="Do not try first what loads need, as `check` does."
    )
    options: list[str] = Field(
        default=[], description="What a kind needs beside its address; no value removes it."
    )
    values: list[str] = Field(default=[], description="Another setting: max_rows, max_wait_s, …")
