"""An object store in a folder, for tests of what surrounds it; tests/integration use the real."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from waybill.errors import RetryError, ThrottledError
from waybill.storage import ObjectInfo, ObjectMissingError


class FolderStore:
    """Counts PUTs; ``fail_at`` makes the PUTs of these numbers (from 1 on) not answer,
    ``slow_at`` refuses them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.puts: list[str] = []
        self.fail_at: set[int] = set()
        self.slow_at: set[int] = set()
        self.lose_at: set[int] = set()
        self.opaque_etags = False

    def put(self, key: str, body: bytes) -> str:
        self.puts.append(key)
        number = len(self.puts)
        if number in self.fail_at:
            raise RetryError("store is away")
        if number in self.slow_at:
            raise ThrottledError("slow down")
        if number not in self.lose_at:
            path = self.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        if self.opaque_etags or number in self.lose_at:
            return '"not-an-md5"'
        return f'"{hashlib.md5(body).hexdigest()}"'

    def get(self, key: str) -> bytes:
        try:
            return (self.folder / key).read_bytes()
        except FileNotFoundError as error:
            raise ObjectMissingError(key) from error

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        body = self.get(key)
        return body, hashlib.md5(body).hexdigest()

    def swap(self, key: str, body: bytes, *, expected: str | None) -> str | None:
        try:
            _, tag = self.get_tagged(key)
        except ObjectMissingError:
            tag = None
        return self.put(key, body).strip('"') if tag == expected else None

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            (self.folder / key).unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for path in sorted(self.folder.rglob("*")):
            key = path.relative_to(self.folder).as_posix()
            if path.is_file() and key.startswith(prefix):
                yield ObjectInfo(key, path.stat().st_size, datetime.now(UTC))
