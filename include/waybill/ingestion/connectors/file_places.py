"""Where the files of a source lie: folders of this machine, and buckets of S3.

A file is known by a digest of its name, its size, and when it was changed (of an object: its ETag).
What is being written waits: a file of a folder until nothing of it has changed for ``settle_s``; an
object is there at once, whole. A file is opened as it was listed, up to its size then.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.source_file import open_unlinked
from waybill.nearest_name import shown_name
from waybill.pipelines import find_file

S3 = "s3://"
_WILD = re.compile(r"[*?\[]")
_DIGITS = 16
_FIELD = "source.options.path"


@dataclass(frozen=True, slots=True, order=True)
class FoundFile:
    """One file, as it was listed."""

    modified_us: int
    """When it was changed, microseconds since 1970."""
    name: str
    """Its path, or the key of an object."""
    size: int
    tag: str = ""
    """An object's ETag."""

    @property
    def digest(self) -> str:
        """Return what identifies the file with its content: 16 hex digits."""
        known = repr((self.name, self.size, self.tag or self.modified_us))
        return hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]

    @property
    def shown(self) -> str:
        """Return its name as it can be printed."""
        return self.name if self.name.isprintable() else repr(self.name)[1:-1]


class Place(Protocol):
    """Where files are."""

    def files(self) -> list[FoundFile]:
        """Return the files that can be read, the oldest first.

        Raises:
            InputError: the place is not there, or may not be read.
            RetryError: it did not answer.
        """
        ...

    def waiting(self) -> list[FoundFile]:
        """Return the files that ``files`` left out, as they were being written."""
        ...

    def open(self, found: FoundFile) -> IO[bytes]:
        """Open a file; it can be sought in.

        Raises:
            RetryError: it is gone, or another one by now.
        """
        ...


class Folder:
    """Files of this machine, below the pipeline's folder or a root of the settings.

    Args:
        pattern: a path with ``*``, ``?``, ``[...]``, and ``**`` for any folders.
        folder: the pipeline's own, which a relative pattern starts from.
        roots: folders outside of it that sources may lie in.
        settle_s: what has changed since is being written, seconds.
    """

    def __init__(
        self, pattern: str, folder: Path, roots: Sequence[Path], *, settle_s: float
    ) -> None:
        parts = PurePosixPath(pattern).parts
        fixed = next((n for n, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
        self._base, self._rest = str(PurePosixPath(*parts[:fixed])), "/".join(parts[fixed:])
        self._folder, self._roots, self._settle_s = folder, roots, settle_s
        self._waiting: list[FoundFile] = []

    def base(self) -> Path:
        """Return the folder that the pattern begins with; it need not be there.

        Raises:
            InputError: sources may not lie there.
        """
        return find_file(self._base, self._folder, self._roots, field=_FIELD, is_folder=True)

    def files(self) -> list[FoundFile]:
        """See ``Place``."""
        base = self.base()
        if not base.is_dir():
            raise InputError(f"source.options.path: there is no folder {str(base)!r}")
        now = time.time()
        self._waiting = []
        found = [one for path in base.glob(self._rest) if (one := self._seen(path, now))]
        return sorted(found)

    def waiting(self) -> list[FoundFile]:
        """See ``Place``."""
        return self._waiting

    def _seen(self, path: Path, now: float) -> FoundFile | None:
        """Return a file; None: it is none, is hidden, or is being written."""
        if path.name.startswith("."):
            return None
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RetryError(f"source file {str(path)!r} cannot be looked at: {error}") from error
        changed = max(status.st_ctime, min(status.st_mtime, now))
        if not stat.S_ISREG(status.st_mode):
            return None
        found = FoundFile(_changed_us(status), str(path), status.st_size)
        if now - changed < self._settle_s:
            self._waiting.append(found)
            return None
        return found

    def open(self, found: FoundFile) -> IO[bytes]:
        """See ``Place``."""
        file = find_file(found.name, self._folder, self._roots, field=_FIELD)
        try:
            stream = os.fdopen(open_unlinked(file), "rb")
        except PermissionError as error:
            raise InputError(f"source file {found.shown!r} may not be read") from error
        except OSError as error:
            raise RetryError(f"source file {found.shown!r} cannot be opened: {error}") from error
        status = os.fstat(stream.fileno())
        if (status.st_size, _changed_us(status)) != (found.size, found.modified_us):
            stream.close()
            raise RetryError(f"source file {found.shown!r} is being written; the next run reads it")
        return stream


def _changed_us(status: os.stat_result) -> int:
    """Return when a file was changed; one from before 1970 would be behind every cursor."""
    return max(0, status.st_mtime_ns // 1000)


class Bucket:
    """Objects of S3, or of a store that speaks its protocol.

    Args:
        address: ``s3://bucket/key``, with ``*``, ``?`` and ``[...]``, which match ``/`` too.
        connection: ``login`` and ``password`` are the access key and its secret; ``extra`` may have
            ``endpoint_url`` and ``region_name``. Without a login, boto3's own ways are taken.
    """

    def __init__(self, address: str, connection: Connection) -> None:
        self._bucket, _, self._pattern = address.removeprefix(S3).partition("/")
        self._connection = connection
        endpoint = connection.extra.get("endpoint_url")
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=connection.extra.get("region_name") or "us-east-1",
            aws_access_key_id=connection.login or None,
            aws_secret_access_key=connection.password.get_secret_value() or None,
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                retries={"mode": "standard", "max_attempts": 4},
                s3={"addressing_style": "path"} if endpoint else {},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def files(self) -> list[FoundFile]:
        """See ``Place``."""
        wild = _WILD.search(self._pattern)
        prefix = self._pattern if wild is None else self._pattern[: wild.start()]
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix
            )
            return sorted(self._matching(pages))
        except (ClientError, BotoCoreError) as error:
            raise self._error(error, prefix) from None

    def waiting(self) -> list[FoundFile]:
        """See ``Place``; an object is there whole."""
        return []

    def _matching(self, pages: Any) -> Iterator[FoundFile]:
        for page in pages:
            for item in page.get("Contents", ()):
                key = item["Key"]
                if fnmatch.fnmatchcase(key, self._pattern) and not key.endswith("/"):
                    modified = int(item["LastModified"].timestamp() * 1_000_000)
                    yield FoundFile(modified, key, item["Size"], item["ETag"].strip('"'))

    def open(self, found: FoundFile) -> IO[bytes]:
        """See ``Place``."""
        return _ObjectStream(self, found)  # type: ignore[return-value]

    def get(self, found: FoundFile, begin: int) -> Any:
        """Return the body of an object from a byte on."""
        try:
            answer = self._client.get_object(
                Bucket=self._bucket, Key=found.name, Range=f"bytes={begin}-", IfMatch=found.tag
            )
        except (ClientError, BotoCoreError) as error:
            raise self._error(error, found.name) from None
        return answer["Body"]

    def _error(self, error: Exception, key: str) -> Exception:
        words = self._connection.hide(str(error))
        said = f"s3://{self._bucket}/{shown_name(key)}: {words}"
        status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        mend = status in _MEND and "PreconditionFailed" not in words
        return InputError(said) if mend else RetryError(said)


_MEND = (400, 401, 403, 404)


class _ObjectStream:
    """An object as a file: each seek opens its body anew, from there."""

    def __init__(self, bucket: Bucket, found: FoundFile) -> None:
        self._bucket, self._found = bucket, found
        self._position = 0
        self._body: Any = None

    def read(self, size: int = -1) -> bytes:
        """Return up to so many bytes; fewer only at the end."""
        if self._position >= self._found.size or size == 0:
            return b""
        if self._body is None:
            self._body = self._bucket.get(self._found, self._position)
        try:
            content: bytes = self._body.read(None if size < 0 else size)
        except (BotoCoreError, OSError) as error:
            raise RetryError(f"object {self._found.shown!r}: {error}") from error
        self._position += len(content)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._found.size}[whence]
        if base + offset != self._position:
            self._drop()
            self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def seekable(self) -> bool:
        """Return that it is."""
        return True

    def writable(self) -> bool:
        """Return that it is not."""
        return False

    @property
    def closed(self) -> bool:
        """Return that it is not: it can always be read again."""
        return False

    def flush(self) -> None:
        """Do nothing: it is read."""

    def close(self) -> None:
        """Give the connection back."""
        self._drop()

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
