"""Files of a folder or of a bucket as a source: those that are new, and those that have changed.

The cursor is ``{"done": {digest: time}, "before": time, "file": the one being read}``. ``done`` has
the files that were read and are still there, the newest ``_MOST_KNOWN`` of them, and all of one
time with these; of older ones, only that none is younger than ``before``, which stays below the
time of each file that is not read yet. A file that changed is read from its beginning. Files come
by their time, each page is of one file.

``"rereads"`` are files to be read again first, of those that were read: ``{"from": time, "to":
time, "behind": [time, digest] of the last one that was, "file": the one that is}``; the rest of the
cursor stays what it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from waybill.errors import InputError
from waybill.events import instant
from waybill.ingestion.connectors.base import Cursor, Page, Standing
from waybill.ingestion.connectors.file_formats import (
    FORMATS,
    MAPPED_TYPES,
    Piece,
    Position,
    Wanted,
)
from waybill.ingestion.connectors.file_places import S3, Bucket, Folder, FoundFile, Place
from waybill.ingestion.connectors.opening import Opening, Options
from waybill.pipelines import EventDeclaration

_MOST_KNOWN = 2_000
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_PACKED = (".gz", ".zst")
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
Text = Annotated[str, StringConstraints(min_length=1, max_length=4000)]


def _encoding(name: str) -> str:
    import codecs

    try:
        return codecs.lookup(name).name
    except LookupError as error:
        raise ValueError("Python knows no such encoding") from error


class FilesOptions(Options):
    """``source.options`` of connector ``files``."""

    path: Text = Field(
        description="a path, or s3://bucket/key, in which * stands for any part of a name"
    )
    format: Literal["csv", "jsonl", "parquet"] | None = Field(
        None, description="csv, jsonl or parquet; else as the name of the file says"
    )
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)] | None = Field(
        None, description="one character between two fields of CSV"
    )
    encoding: Annotated[str, AfterValidator(_encoding)] = Field(
        "utf-8", description="the encoding of text, such as utf-8, latin-1 or utf-16"
    )
    names: list[Text] | None = Field(
        None, min_length=1, description="a list of the columns of CSV without a header"
    )
    settle_s: int | float = Field(
        10, ge=0, description="seconds for which a file must not have changed, 0 or more"
    )


class FilesConnector:
    """Reads files, the oldest first; looks for them at the first call of ``read``."""

    def __init__(self, opening: Opening) -> None:
        opening.refuse("path", "order_by")
        self._opening = opening
        self._options = options = opening.options(FilesOptions)
        self._remote = options.path.startswith(S3)
        if self._remote:
            opening.require_connection()
        elif opening.source.connection is not None:
            raise InputError("source.connection: files of a folder need none")
        if self._remote and not options.path.removeprefix(S3).partition("/")[2]:
            raise InputError("source.options.path: expected s3://bucket/key; the key is missing")
        self._wanted = _wanted(opening, options)
        self._left: list[FoundFile] = []
        """Files of this run that are not read to their end."""
        self._unsettled: list[FoundFile] = []
        """New or changed files that wait for the next run."""
        if not self._remote:
            self._folder().base()

    def read(self, cursor: Cursor | None) -> Iterator[Page]:
        """Yield the pages of what is new, ``page_rows`` rows each at most.

        Raises:
            InputError: no such folder or bucket, or a file is not what its declaration says.
            RetryError: the disk or the store did not answer, or a file changed while it was read.
        """
        place = self._place()
        found = {file.digest: file for file in place.files()}
        state = _State.of(cursor)
        start = None if cursor is None else dict(cursor)
        unsettled = {file.digest: file for file in place.waiting()}
        self._unsettled = [unsettled[digest] for digest in state.to_read(unsettled)]
        waiting = state.to_read(found)
        if start is not None and start.get("rereads"):
            start = yield from self._read_again(place, found, start)
        self._left = [found[digest] for digest in waiting]
        for number, digest in enumerate(waiting):
            unread = _time_of(found, waiting, number + 1)
            for piece in self._pieces(place, found[digest], state.position(digest)):
                state = state.after(digest, piece, found, unread)
                after = state.to_json()
                yield _page(found[digest], piece, after, start)
                start = after
            self._left = self._left[1:]

    def _pieces(self, place: Place, file: FoundFile, position: Position) -> Iterator[Piece]:
        """Yield the pieces of a file from a position to its end; at least one."""
        name, raw = self._format(file), place.open(file)
        with (
            closing(raw),
            self._hinting(),
            closing(FORMATS[name](raw, file.shown, self._wanted, position)) as opened,
        ):
            while True:
                piece = opened.piece(self._opening.source.page_rows)
                yield piece
                if piece.last:
                    return

    @contextmanager
    def _hinting(self) -> Iterator[None]:
        """Have errors about what is in a file say how the run goes on without it."""
        try:
            yield
        except InputError as error:
            rename = "" if self._remote else ", or rename it so that its name begins with a dot"
            raise InputError(
                f"{error}. Files behind it wait. To leave this file out, move it to where"
                f" source.options.path does not match it{rename}"
            ) from error

    def _read_again(
        self, place: Place, found: Mapping[str, FoundFile], start: dict[str, Any]
    ) -> Generator[Page, None, dict[str, Any]]:
        """Yield the pages of what is to be read again first; return the cursor without it."""
        known = _State.of(start)
        unread = {one for one in known.to_read(found) if one != known.current}
        while rereads := start.get("rereads"):
            asked, *others = rereads
            left = _Reread.of(start, asked)
            files = [one for digest, one in found.items() if digest not in unread and left.has(one)]
            self._left = sorted(files, key=_order)
            while self._left:
                file = self._left[0]
                for piece in self._pieces(place, file, left.position(file)):
                    left = left.after(file, piece)
                    is_last = piece.last and len(self._left) == 1
                    after = _with_rereads(start, others if is_last else [left.to_json(), *others])
                    yield _page(file, piece, after, start)
                    start = after
                self._left = self._left[1:]
            if not files:
                after = _with_rereads(start, others)
                yield Page([], [], cursor=after, start=start)
                start = after
        return start

    def count(self) -> int | None:
        """Return None: to count records is to read them."""
        return None

    @staticmethod
    def check_value(name: str, value: str) -> None:
        """See ``FormCheckingConnector``: it is a time."""
        _microseconds(name, value)

    def cursor_at(self, value: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the cursor before the first file that was changed at a time, or later.

        Raises:
            InputError: it is no time.
        """
        at_us = _microseconds("from", value)
        if stands is None:
            return _State(before=at_us - 1).to_json()
        return _State.of(stands).without(at_us).to_json()

    def reread_between(self, begin: str, end: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the range of the files that were read, and changed from a time up to another one.

        Raises:
            InputError: one is no time, ``begin`` is behind ``end``, or nothing was read yet.
        """
        from_us, to_us = _microseconds("from", begin), _microseconds("to", end)
        if from_us > to_us:
            raise InputError(f"to: {end!r} is before from, {begin!r}")
        if stands is None:
            raise InputError(
                "to: no file was read yet, so nothing can be read again: a run without from and to"
                " reads them all"
            )
        return _Reread(from_us, to_us).to_json()

    def standing(self, cursor: Cursor) -> Standing | None:
        """Return the file that is read, and how many bytes, as stored, this run has left of files.

        One that is begun counts whole, and so do files that wait for ``settle_s``. What came since
        the run began is not among them.
        """
        current = self._left[0].shown if _State.of(cursor).current and self._left else ""
        many = f"{_files(len(self._left))} left" if self._left else ""
        words = "; ".join(part for part in (current, many, self.waiting()) if part)
        left = sum(file.size for file in (*self._left, *self._unsettled))
        return Standing(words or "all files are read", left, "bytes")

    def waiting(self) -> str:
        """Return how many files the last ``read`` left to the next run, and why; empty: none."""
        number = len(self._unsettled)
        if not number:
            return ""
        verb = "waits" if number == 1 else "wait"
        return (
            f"{_files(number)} {verb} for the next run: changed less than"
            f" {self._options.settle_s:g} s before this one began (source.options.settle_s)"
        )

    def _place(self) -> Place:
        if self._remote:
            return Bucket(self._options.path, self._opening.connection("aws"))
        return self._folder()

    def _folder(self) -> Folder:
        opening, options = self._opening, self._options
        return Folder(options.path, opening.folder, opening.roots, settle_s=options.settle_s)

    def _format(self, file: FoundFile) -> str:
        name = self._options.format or _format_of(file.name)
        if name is None:
            raise InputError(
                f"source file {file.shown!r}: its name does not say its format; declare it in"
                " source.options.format"
            )
        return name


def _files(number: int) -> str:
    return f"{number:,} file{'' if number == 1 else 's'}"


def _microseconds(name: str, value: str) -> int:
    """Return a time that a person gave, microseconds since 1970."""
    moment = instant(value.strip())
    if moment is None:
        raise InputError(
            f"{name}: expected when a file was changed, such as 2024-01-31T12:00:00Z; found"
            f" {value!r}"
        )
    return (moment - _EPOCH) // _MICROSECOND


def _order(file: FoundFile) -> tuple[int, str]:
    return file.modified_us, file.digest


def _with_rereads(cursor: Mapping[str, Any], rereads: Sequence[Any]) -> dict[str, Any]:
    without = {name: value for name, value in cursor.items() if name != "rereads"}
    return without | ({"rereads": [*rereads]} if rereads else {})


def _time_of(found: Mapping[str, FoundFile], waiting: Sequence[str], number: int) -> int | None:
    return found[waiting[number]].modified_us if number < len(waiting) else None


def _wanted(opening: Opening, options: FilesOptions) -> Wanted:
    event, source = opening.event, opening.source
    fields = [] if event is None else [*event.key, *([event.version] if event.version else [])]
    tabs = ".tsv" in PurePosixPath(options.path).suffixes
    return Wanted(
        fields=fields,
        declared=source.columns or {},
        mapped={} if event is None else _mapped(event),
        nulls=source.null_values,
        delimiter=options.delimiter or ("\t" if tabs else ","),
        encoding=options.encoding,
        names=options.names,
    )


def _mapped(event: EventDeclaration) -> dict[str, str]:
    """Return the types that the mapping has for fields."""
    return {
        column.source: column.type
        for column in event.table.columns
        if column.type in MAPPED_TYPES or column.type.startswith("decimal(")
    }


def _format_of(name: str) -> str | None:
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1]) if suffixes else None


def _page(
    file: FoundFile, piece: Piece, after: dict[str, Any], start: dict[str, Any] | None
) -> Page:
    def place(index: int) -> str:
        return f"{file.shown}, line {piece.places[index]}"

    is_cut = any(bad.code == "payload_too_large" for bad in piece.bad)  # others may begin like it
    origin = None if is_cut else file.shown
    return Page(
        piece.rows,
        piece.bad,
        cursor=after,
        start=start,
        place=place,
        origin=origin,
        finite=piece.finite,
    )


@dataclass(frozen=True, slots=True)
class _State:
    """What was read."""

    done: Mapping[str, int] = field(default_factory=dict)
    """Digest of a file to when it was changed, microseconds since 1970."""
    before: int = -1
    """Files that are not younger, and not in ``done``, were read before."""
    current: str = ""
    """Digest of the file of which some was read."""
    at: Position = field(default_factory=Position)

    @classmethod
    def of(cls, cursor: Cursor | None) -> _State:
        if cursor is None:
            return cls()
        try:
            current = cursor.get("file")
            done = {str(digest): int(time) for digest, time in cursor["done"].items()}
            if current is None:
                return cls(done, int(cursor["before"]))
            at = Position(int(current["at"]), int(current["line"]))
            return cls(done, int(cursor["before"]), str(current["digest"]), at)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"cursor {str(dict(cursor))[:200]} is not one of this connector; reset it"
            ) from error

    def to_json(self) -> dict[str, Any]:
        current = None
        if self.current:
            current = {"digest": self.current, "at": self.at.at, "line": self.at.line}
        return {"done": dict(self.done), "before": self.before, "file": current}

    def without(self, at_us: int) -> _State:
        """Return the state in which no file that was changed at a time or later was read."""
        done = {digest: time for digest, time in self.done.items() if time < at_us}
        return _State(done, min(self.before, at_us - 1))

    def to_read(self, found: Mapping[str, FoundFile]) -> list[str]:
        """Return the files to read: the one that was begun, then the oldest first.

        Args:
            found: by digest, the oldest first.
        """
        begun = [self.current] if self.current in found else []
        return begun + [
            digest
            for digest, file in found.items()
            if digest not in self.done and file.modified_us > self.before and digest != self.current
        ]

    def position(self, digest: str) -> Position:
        return self.at if digest == self.current else Position()

    def after(
        self, digest: str, piece: Piece, found: Mapping[str, FoundFile], unread: int | None
    ) -> _State:
        """Return the state behind a piece of a file.

        Args:
            digest: of the file.
            piece: what was read.
            found: all that is there.
            unread: the least time of the files that are not read yet; None: all are.
        """
        if not piece.last:
            return _State(self.done, self.before, digest, piece.end)
        known = {one: time for one, time in self.done.items() if one in found}
        known[digest] = found[digest].modified_us
        times = sorted(known.values())
        least = times[-_MOST_KNOWN] if len(times) > _MOST_KNOWN else times[0]
        if unread is not None:
            least = min(least, unread)
        dropped = [known.pop(one) for one, time in [*known.items()] if time < least]
        return _State(known, max([self.before, *dropped]))


@dataclass(frozen=True, slots=True)
class _Reread:
    """What is left of the files of a time that are read again."""

    from_us: int
    """When those were changed at the earliest, microseconds since 1970; those of then, too,"""
    to_us: int
    """and at the latest."""
    behind: tuple[int, str] = (-1, "")
    """Time and digest of the last file that was read to its end again."""
    current: str = ""
    """Digest of the one behind it, of which some was."""
    at: Position = field(default_factory=Position)

    @classmethod
    def of(cls, cursor: Cursor, told: Mapping[str, Any]) -> _Reread:
        try:
            time, digest = told["behind"]
            current = told["file"] or {"digest": "", "at": 0, "line": 1}
            at = Position(int(current["at"]), int(current["line"]))
            return cls(
                int(told["from"]),
                int(told["to"]),
                (int(time), str(digest)),
                str(current["digest"]),
                at,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"cursor {str(dict(cursor))[:200]} is not one of this connector; reset it"
            ) from error

    def to_json(self) -> dict[str, Any]:
        current = None
        if self.current:
            current = {"digest": self.current, "at": self.at.at, "line": self.at.line}
        return {
            "from": self.from_us,
            "to": self.to_us,
            "behind": list(self.behind),
            "file": current,
        }

    def has(self, file: FoundFile) -> bool:
        """Tell whether a file is still to be read, or some of it."""
        return self.from_us <= file.modified_us <= self.to_us and _order(file) > self.behind

    def position(self, file: FoundFile) -> Position:
        return self.at if file.digest == self.current else Position()

    def after(self, file: FoundFile, piece: Piece) -> _Reread:
        """Return what is left behind a piece of a file."""
        if piece.last:
            return replace(self, behind=_order(file), current="", at=Position())
        return replace(self, current=file.digest, at=piece.end)
