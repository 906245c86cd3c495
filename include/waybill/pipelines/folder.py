"""A pipeline's folder, and how its files are read; nothing of it is understood here."""

from __future__ import annotations

import os
from pathlib import Path

from waybill.nearest_name import shown_name

DECLARATION = "pipeline.yaml"
SHARED = "shared"
"""The folder of modules that pipelines share, beside theirs, and the package that it is to code."""
MAX_CODE_BYTES = 1024**2
_MAX_DECLARATION_BYTES = 8 * 1024**2


def folder_names(root: Path) -> list[str]:
    """Return the names of the pipelines' folders in a folder of them; sorted.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(root) as entries:
        names = [e.name for e in entries if not e.name.startswith((".", "_")) and _is_dir(e)]
    return sorted(name for name in names if name != SHARED or not has_shared(root))


def has_shared(root: Path) -> bool:
    """Tell whether a folder of pipelines has modules that they share; a declaration makes it one.

    A pipeline may have been named so before there were such modules.
    """
    try:
        return (root / SHARED).is_dir() and not (root / SHARED / DECLARATION).is_file()
    except OSError:
        return False


def root_of(directory: Path) -> Path:
    """Return the folder that a pipeline's folder lies in, as that is named."""
    is_plain = directory.name not in {"", ".."}
    return directory.parent if is_plain else directory.resolve().parent


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Tell whether it is a folder, or a link of which that cannot be told: reading says why."""
    try:
        return entry.is_dir()
    except OSError:
        return True


def read_declaration(directory: Path) -> tuple[str | None, str]:
    """Return the text of a folder's declaration, as ``read_inside`` does."""
    return read_inside(directory, DECLARATION, _MAX_DECLARATION_BYTES)


def read_inside(
    directory: Path, name: str, limit: int, place: str = "the pipeline's folder"
) -> tuple[str | None, str]:
    """Return (text, "") of a file in a pipeline's folder, or (None, what is wrong).

    Args:
        directory: the folder; a file that links lead out of it to is refused.
        name: relative to it.
        limit: most bytes that it may have.
        place: what the folder is, in words.
    """
    expected = f"expected a file {shown_name(name)!r} in {place}"
    try:
        path = (directory / name).resolve()
        if not path.is_relative_to(directory.resolve()):
            return None, f"{expected}; this one is outside of it"
        if not path.is_file():
            return None, f"{expected}; there is none"
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, RuntimeError, ValueError) as error:  # NUL, too long, links in a circle
        return None, f"{expected}; it cannot be read: {shown_name(str(error))}"
    return _decoded(content, limit, expected)


def _decoded(content: bytes, limit: int, expected: str) -> tuple[str | None, str]:
    if len(content) > limit:
        return None, f"{expected} of at most {limit} bytes; it is larger"
    try:
        return content.decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return None, f"{expected}, in UTF-8; line {line} is not"
