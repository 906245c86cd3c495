"""DuckDB's exceptions to what the caller must do. What no rule names stops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from waybill.destinations.transactional.session import SqlError
from waybill.errors import InputError, RetryError, StopError, WaybillError

if TYPE_CHECKING:
    from duckdb import Error

_REFUSED = (
    ("ConstraintException", "not null", "destination_not_null_violation"),
    ("ConstraintException", "check", "destination_check_violation"),
    ("ConstraintException", "foreign key", "destination_foreign_key_violation"),
    ("ConstraintException", "", "destination_unique_violation"),
    ("ConversionException", "", "destination_value_refused"),
    ("OutOfRangeException", "", "destination_value_refused"),
    ("InvalidInputException", "json", "destination_value_refused"),
)
"""Kind of exception, words in it, error type; the first that fits counts."""
_FULL = re.compile(
    r"no space left|disk quota|file too large|could not write|failed to offload|"
    r"max_temp_directory_size",
    re.IGNORECASE,
)
_FULL_KINDS = ("IOException", "OutOfMemoryException", "FatalException", "TransactionException")
"""Other kinds show values of rows."""
_RETRY = (
    ("IOException", "could not set lock", "another process holds the file"),
    ("TransactionException", "", "another transaction was at the same rows"),
    ("CatalogException", "does not exist", "a table is gone; it is looked for again"),
    ("BinderException", "column", "a column is gone; it is looked for again"),
    ("FatalException", "", "the file is opened anew"),
)
_ADVICE = (
    ("IOException", "no such file or directory", "make the folder, or correct the dsn: a file"),
    ("IOException", "not a valid duckdb", "give the destination a file of its own in its dsn"),
    ("IOException", "is a directory", "let the dsn name a file"),
    ("IOException", "permission denied", "let this user write the file and its folder"),
    ("IOException", "read-only", "let this user write the file and its folder"),
    (
        "SerializationException",
        "",
        "another version of DuckDB made the file: export, import",
    ),
    ("OutOfMemoryException", "", "raise the option memory_limit, or lower max_rows"),
    ("ParserException", "memory", "correct the option memory_limit, such as 1GB"),
    ("InvalidInputException", "failed to cast value", "correct the option threads: a number"),
)


class DuckError(SqlError):
    """What DuckDB said.

    Args:
        message: its words.
        kind: the name of its exception.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, _code(kind, message))
        self.kind = kind

    @property
    def full(self) -> bool:
        """Say whether there is no room: on the disk, or within a limit of it."""
        return self.kind in _FULL_KINDS and _FULL.search(self.message) is not None


def duck_error(error: Error) -> DuckError:
    """Return an exception of DuckDB's as ours."""
    text = str(error).partition("\n")[0].partition(" See also")[0]
    return DuckError(text, type(error).__name__)


def sorted_error(error: SqlError, destination: str) -> WaybillError:
    """Return the error to raise: RetryError, InputError or StopError, in words."""
    where = f"destination {destination!r}"
    kind = error.kind if isinstance(error, DuckError) else ""
    if isinstance(error, DuckError) and error.full:
        return RetryError(f"{where}: the disk is full, or a limit is reached: {error.words}")
    said = error.message.lower()
    for name, words, advice in _ADVICE:
        if kind == name and words in said:
            return InputError(f"{where}: {error.words}; {advice}")
    for name, words, meaning in _RETRY:
        if kind == name and words in said:
            return RetryError(f"{where}: {meaning}: {error.words}")
    return StopError(f"{where}: {error.words}")


def _code(kind: str, message: str) -> str | None:
    said = message.lower()
    return next((code for name, words, code in _REFUSED if kind == name and words in said), None)
