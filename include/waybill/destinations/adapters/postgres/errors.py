"""SQLSTATE to what the caller must do. What no rule names stops: better than to guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.destinations.transactional.session import SqlError, shortened
from waybill.errors import InputError, RetryError, StopError, WaybillError

if TYPE_CHECKING:
    from adbc_driver_manager import Error

_REFUSED_CODES = {
    "23505": "destination_unique_violation",
    "23P01": "destination_unique_violation",  # exclusion constraint
    "23503": "destination_foreign_key_violation",
    "23001": "destination_foreign_key_violation",  # ON DELETE RESTRICT
    "23514": "destination_check_violation",
    "23502": "destination_not_null_violation",
    "44000": "destination_check_violation",  # a view's CHECK OPTION
    "P0001": "destination_check_violation",  # a trigger's RAISE EXCEPTION
    "54000": "destination_value_refused",  # an index entry that is too large
}
_REFUSED_CLASSES = {"22": "destination_value_refused", "23": "destination_check_violation"}
_RETRY_CLASSES = ("08", "40", "53", "57", "58")
_RETRY_CODES = {
    "55P03": "another load holds a lock for too long",
    "55006": "an object is in use",
    "42P01": "a table is gone; it is looked for again",
    "42703": "a column is gone; it is looked for again",
    "3F000": "a schema is gone; it is looked for again",
    "25P03": "the transaction was idle for too long",
    "25P04": "the transaction took too long",
    "25006": "the server takes no writes now",
}
_PARKED_UNDER = {
    "53100": "destination_full",
    "53": "destination_throttled",
    "55P03": "destination_timeout",
    "57014": "destination_timeout",
    "25P03": "destination_timeout",
    "25P04": "destination_timeout",
}
"""What rows park under when nobody waits for it; all others: it did not answer."""
_ADVICE = {
    "28": "check user and password in the destination's dsn",
    "3D": "create the database, or correct the destination's dsn",
    "42501": "grant the right to the destination's user: CREATE on the database, and on the tables "
    "and schemas of the mappings USAGE, SELECT, INSERT, UPDATE, DELETE",
}
_CONFIGURATION_WORDS = (
    ("does not exist", "create it, or correct the destination's dsn"),
    ("authentication failed", "check user and password in the destination's dsn"),
    ("no password supplied", "add the password to the destination's dsn"),
    ("pg_hba.conf", "let the server's pg_hba.conf admit this host and user"),
    ("permission denied", "grant CONNECT on the database to the destination's user"),
    ("is not permitted to log in", "grant LOGIN to the destination's user"),
    ("certificate", "check sslmode and the certificates in the destination's dsn"),
    ("does not support ssl", "check sslmode in the destination's dsn"),
)


class PostgresError(SqlError):
    """What the server, or the way to it, said.

    Args:
        message: the primary message.
        sqlstate: five characters; None when it came from no server.
        detail: the server's detail; holds values of the row.
    """

    def __init__(self, message: str, sqlstate: str | None = None, detail: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail

    @property
    def refused_code(self) -> str | None:
        """Return the error type when a row is at fault, else None."""
        if self.sqlstate is None:
            return None
        by_class = _REFUSED_CLASSES.get(self.sqlstate[:2])
        return _REFUSED_CODES.get(self.sqlstate, by_class)

    @property
    def words(self) -> str:
        """Return the message for people, with the keys that clash where keys clash."""
        shows_keys = self.sqlstate in ("23505", "23503", "23P01")
        text = f"{self.message}: {self.detail}" if shows_keys and self.detail else self.message
        return shortened(text)


def sql_error(error: Error) -> PostgresError:
    """Return the driver's error as ours."""
    details = {
        key if isinstance(key, str) else key.decode(): value for key, value in error.details or ()
    }

    def text(name: str) -> str:
        value = details.get(name, b"")
        return value if isinstance(value, str) else value.decode(errors="replace")

    message = text("PG_DIAG_MESSAGE_PRIMARY") or _first_lines(str(error))
    return PostgresError(message, error.sqlstate, text("PG_DIAG_MESSAGE_DETAIL"))


def _first_lines(text: str) -> str:
    return " ".join(text.partition("\n\nQuery was")[0].split())


def sorted_error(error: SqlError, destination: str) -> WaybillError:
    """Return the error to raise: RetryError, InputError or StopError, in words."""
    code = error.sqlstate if isinstance(error, PostgresError) else None
    where = f"destination {destination!r}"
    if code is None:
        return _connection_error(error, where)
    if code in _RETRY_CODES:
        words = f"{where}: {_RETRY_CODES[code]}: {error.words} ({code})"
        return RetryError(words, code=_parked_under(code))
    if code[:2] in _RETRY_CLASSES:
        words = f"{where} did not take the load now: {error.words} ({code})"
        return RetryError(words, code=_parked_under(code))
    if code == "54011":
        words = f"{where}: {error.words} ({code}); declare tables of at most 800 columns"
        return InputError(words, code="destination_schema_conflict")
    advice = _ADVICE.get(code) or _ADVICE.get(code[:2])
    if advice is not None:
        words = f"{where}: {error.words} ({code}); {advice}"
        return InputError(words, code="destination_unauthorized")
    return StopError(f"{where}: {error.words} ({code})")


def _parked_under(sqlstate: str) -> str:
    by_class = _PARKED_UNDER.get(sqlstate[:2], "destination_unreachable")
    return _PARKED_UNDER.get(sqlstate, by_class)


def _connection_error(error: SqlError, where: str) -> WaybillError:
    if "Failed to connect" in error.message:
        for words, advice in _CONFIGURATION_WORDS:
            if words in error.message.lower():
                opened = f"{where} cannot be opened: {error.words}; {advice}"
                return InputError(opened, code="destination_unauthorized")
    return RetryError(f"{where} did not answer: {error.words}", code="destination_unreachable")
