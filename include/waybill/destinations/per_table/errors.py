"""Errors of the formats' libraries, sorted by what the caller must do; unknown ones stop."""

from __future__ import annotations

import re
from collections.abc import Callable

from waybill.errors import InputError, RetryError, StopError, ThrottledError, WaybillError

_SHOWN_CHARACTERS = 500
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _answer(code: str) -> str:
    """Return a pattern of a server's answer, not of a number in a path: part-503.parquet."""
    return rf"(?<![\w/.-]){code}(?![\w/-])"


_RULES: tuple[tuple[str, type[WaybillError], str], ...] = (
    (
        r"no module named",
        InputError,
        "has a table that needs a library which is not installed; install it, or load into another "
        "table",
    ),
    (
        r"slow ?down|too many requests|throttl|status code: 429|service unavailable|"
        + _answer("503"),
        ThrottledError,
        "asks for fewer requests",
    ),
    (
        r"no space left|os error 28|errno 28|disk quota|quota exceeded|storage ?full|not enough "
        r"space|insufficient storage|" + _answer("507"),
        RetryError,
        "is full; free some space, loading goes on by itself",
    ),
    (
        r"access.?denied|forbidden|permission denied|unauthor|invalidaccesskeyid|"
        + _answer("403")
        + "|"
        r"signaturedoesnotmatch|status code: 401|read-only file system|os error 13|errno 13",
        InputError,
        "does not allow it; grant list, read, write and delete on the folder or bucket of the "
        "destination's dsn, or correct the object store's keys",
    ),
    (
        r"nosuchbucket|bucket does not exist|specified bucket",
        InputError,
        "does not have the bucket; create it, or correct the destination's dsn",
    ),
    (
        r"password authentication failed|role .* does not exist|database .* does not exist",
        InputError,
        "cannot open the catalog; correct options.catalog of the destination",
    ),
    (
        r"unsupported.*feature|reader feature|writer feature|not support",
        InputError,
        "has a table with features that this library does not write; turn them off, or load into "
        "another table",
    ),
    (
        r"invariant violations|failed validation check|check constraint",
        InputError,
        "did not take rows that its constraints, evaluated here, allow; write them in plainer SQL",
    ),
    (
        r"connect|connection|timed? ?out|timeout|dns error|unreachable|reset by peer|broken pipe|"
        r"error sending request|http error|internalerror|after \d+ retries|eof|"
        + _answer("50[0-9]")
        + "|"
        r"generic s3 error|curl|server closed|could not translate|database is locked",
        RetryError,
        "did not answer",
    ),
    (
        r"unique constraint|duplicate key|commit failed|has been updated by another|concurrent|"
        r"conflict|already exists",
        RetryError,
        "was written to by another process at the same time",
    ),
    (
        r"not ?found|no such file|does not exist|no files in log",
        RetryError,
        "lacks a table or a file that was there before; it is looked for again",
    ),
)


def sorter(name: str, libraries: tuple[str, ...]) -> Callable[[Exception], WaybillError | None]:
    """Return what sorts errors of a destination.

    Args:
        name: the destination's.
        libraries: names of modules whose errors are the destination's; of others, OSError.
    """

    def sort(error: Exception) -> WaybillError | None:
        module = type(error).__module__
        ours = isinstance(error, OSError) or any(
            module == known or module.startswith(f"{known}.") for known in libraries
        )
        return _sorted(name, error) if ours else None

    return sort


def _sorted(name: str, error: Exception) -> WaybillError:
    """Return our error; what it came of counts too: closing a file hides why writing it failed."""
    texts = [_in_a_line(cause) for cause in _chain(error)]
    for text in reversed(texts):
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
        for pattern, kind, meaning in _RULES:
            if re.search(pattern, text, re.IGNORECASE):
                return kind(f"destination {name!r} {meaning}: {shown}")
    return StopError(f"destination {name!r}: {texts[0][:_SHOWN_CHARACTERS]}")


def _in_a_line(error: BaseException) -> str:
    """Return an error's words without line ends and colours."""
    return " ".join(_COLOUR.sub("", f"{type(error).__name__}: {error}").split())


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and what it came of, the first cause last."""
    chain: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and here not in chain:
        chain.append(here)
        here = here.__cause__ or here.__context__
    return chain
