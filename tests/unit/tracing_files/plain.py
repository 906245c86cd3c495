"""Files to test with: plain ones, shipped as they are."""

from __future__ import annotations

from pathlib import Path

from tests.unit.tracing_files.folder_store import FolderStore

from waybill.tracing.files import FileManager, Pace, Shipper, Sound, Spool, WholeFilePacker

ENDING = ".bin"
END = b"."


def whole_if_ended(path: Path) -> Sound:
    """A file is whole when it ends with a full stop."""
    body = path.read_bytes()
    return Sound(len(body) if body.endswith(END) else 0)


def plain_spool(directory: Path) -> Spool:
    return Spool(directory, ending=ENDING, sound=whole_if_ended)


def plain_shipper(
    spool: Spool, files: FileManager, store: FolderStore, *, pace: Pace | None = None
) -> Shipper:
    packer = WholeFilePacker("bin/")
    return Shipper(spool, files, store, packer, roll_s=0.0, roll_bytes=10**9, pace=pace)


def stored(store: FolderStore) -> dict[str, bytes]:
    """Name and content of every object."""
    folder = store.folder / "bin"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
