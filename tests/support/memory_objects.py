"""An object store in memory, for runs that would otherwise wait for HTTP most of the time."""

from __future__ import annotations

from waybill.storage import ObjectMissingError, ObjectShorterError


class MemoryObjects:
    """What parking uses of an ``ObjectStore``."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def put(self, key: str, body: bytes) -> str:
        assert key not in self.bodies, "a key is written once"
        self.bodies[key] = body
        return ""

    def get(self, key: str, *, position: int | None = None, length: int | None = None) -> bytes:
        if key not in self.bodies:
            raise ObjectMissingError(key)
        body = self.bodies[key]
        if position is None or length is None:
            return body
        if position >= len(body):
            raise ObjectShorterError(key)
        return body[position : position + length]

    def exists(self, key: str) -> bool:
        return key in self.bodies
