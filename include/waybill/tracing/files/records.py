"""What the file manager knows of a file, and of a shipment of files. Frozen, with their JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import orjson

FileState = Literal["open", "closed", "shipping", "shipped", "failed"]
"""open: records are added. closed: finished, waits. shipping: in a shipment. shipped: processed.
failed: cannot go on by itself; ``error`` says why; the file stays where it is."""
FILE_STATES: tuple[FileState, ...] = get_args(FileState)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file, from its creation or discovery until some time after it is processed."""

    id: str
    """Unique for ever; any text."""
    created_us: int
    """Microseconds since 1970; never changes."""
    state: FileState = "closed"
    size_bytes: int = 0
    shipment: str | None = None
    """The shipment it goes, or went, with; target keys and attempts stand there."""
    error: str = ""
    changed_us: int = 0
    """When it came into its state; 0: not known."""
    note: str = ""
    """Who brought it back after it failed, and why."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        return asdict(self)

    def encode(self) -> bytes:
        """Return the record as it is stored."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, body: bytes) -> FileRecord:
        """Return the record that ``encode`` stored."""
        return cls(**orjson.loads(body))


@dataclass(frozen=True, slots=True)
class Total:
    """All files of one state."""

    files: int = 0
    size_bytes: int = 0

    def plus(self, files: int, size_bytes: int) -> Total:
        """Return it with files added or, where negative, taken away."""
        return Total(self.files + files, self.size_bytes + size_bytes)


@dataclass(frozen=True, slots=True)
class Shipment:
    """Files that are sent together, and where to; written before the first object is sent."""

    id: str
    created_us: int
    files: tuple[str, ...]
    """File ids, in the order in which they are read."""
    keys: tuple[str, ...]
    """Every object key that is, or will be, written."""
    plan: dict[str, Any] = field(default_factory=dict)
    """What else the sender needs to make the same objects again."""
    records: int = 0
    """How many the files hold together, as the packer counts them."""
    attempts: int = 0
    """Failed ones so far."""
    next_attempt_us: int = 0
    error: str = ""
    """Of the last failed attempt."""
    done: bool = False
    """Nothing more will be sent: shipped, or failed."""

    def to_json(self) -> dict[str, Any]:
        """Return the shipment as JSON."""
        return asdict(self)

    def encode(self) -> bytes:
        """Return the shipment as it is stored."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, body: bytes) -> Shipment:
        """Return the shipment that ``encode`` stored."""
        values = orjson.loads(body)
        return cls(**{**values, "files": tuple(values["files"]), "keys": tuple(values["keys"])})
