"""Where the file of a source may lie: a path in a declaration is untrusted input.

A pipeline's author is not the machine's administrator: a worker can read files (passwords among
them) that the author of a declaration must not get at. A file may lie in the pipeline's own folder,
in an installed package, or below a root of the settings. Links are resolved before this is judged.
"""

from __future__ import annotations

import importlib.util
import json
import posixpath
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from waybill.errors import InputError
from waybill.nearest_name import shown_name
from waybill.pipelines.form import PACKAGE


def find_file(
    path: str,
    folder: Path,
    roots: Sequence[Path] = (),
    *,
    field: str = "source.path",
    is_folder: bool = False,
) -> Path:
    """Return the real path of the file that a declaration names; it need not be there.

    Nothing of it is opened: who opens it must follow no link then (``connectors.source_file``).

    Args:
        path: as the declaration has it.
        folder: the pipeline's own, which a relative path starts from.
        roots: folders of the settings (``sources.roots``) that all pipelines may read.
        field: of the declaration, for errors.
        is_folder: the path is that of a folder, whose files are read.

    Raises:
        InputError: the package is not installed, or the file lies outside of all of these.
    """
    if path.startswith(PACKAGE):
        return _in_package(path, field)
    try:
        own = folder.resolve()
        file = (own / path).resolve()
        allowed = [own, *(root.resolve() for root in roots)]
    except (OSError, RuntimeError, ValueError) as error:  # NUL, too long, links in a circle
        raise InputError(f"{field} {shown_name(path)!r} is no path: {error}") from error
    if not any(file.is_relative_to(place) for place in allowed):
        also = ", ".join(map(str, roots)) or "none"
        advice = roots_advice(str(file if is_folder else file.parent), roots)
        raise InputError(
            f"expected a file in the pipeline's folder ({own}), in a package"
            f" (package:<name>/<path>), or below WAYBILL_SOURCES__ROOTS ({also}); {field}"
            f" {shown_name(path)!r} is outside of them, or a link leads out. {advice}"
        )
    return file


def roots_advice(folder: str, roots: Sequence[Path] = ()) -> str:
    """Return what lets sources read a folder: a setting, as a shell takes it.

    Args:
        folder: an absolute path; of ``/``, where all files of the machine are, another is advised.
        roots: what the setting has already.
    """
    folder = "/" + posixpath.normpath(f"/{folder}").lstrip("/")
    if folder == "/":
        return "Move the files into a folder of their own: `/` is not one to let sources read"
    return f"To let sources read there: {roots_setting(folder, roots)}"


def roots_setting(folder: str, roots: Sequence[Path] = ()) -> str:
    """Return the setting that lets sources read a folder, beside those it has, for a shell."""
    opened = json.dumps([*map(str, roots), shown_name(folder)], ensure_ascii=False)
    return f"WAYBILL_SOURCES__ROOTS={quote(opened)}"


def _in_package(path: str, field: str) -> Path:
    name, _, rest = path.removeprefix(PACKAGE).partition("/")
    folder = package_folder(name)
    if folder is None:
        raise InputError(
            f"{field} {path!r}: the package {name!r} is not installed here; install it"
            " (pip install) or give the file's own path"
        )
    file = (folder / rest).resolve()
    if not file.is_relative_to(folder):
        raise InputError(f"{field} {path!r} leaves the package; name a file inside of it")
    return file


def package_folder(name: str) -> Path | None:
    """Return the real folder of an installed package, without importing it; None: there is none.

    A folder without ``__init__.py`` is none: any folder beside the code would be a package.
    """
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # __main__ and the like, which were not imported from a file
        return None
    if spec is None or not spec.submodule_search_locations or spec.origin is None:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve()
