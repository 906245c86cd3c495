"""Modules that pipelines share: those of the folder ``shared`` that a transformation imports.

The folder lies beside the pipelines' own, and is a package to their code: ``from shared.money
import cents`` reads ``shared/money.py``. Which modules a pipeline imports, and these in turn, is
told from their text; so its version has exactly those, and nothing of it is read when code runs.

Invariants
  I1  Nothing outside of the folder is read, whatever names and links say; nothing is executed.
  I2  What is found depends on the texts that it gives and on the names in the folders that it
      looked into, and on nothing else but installed packages.
  I3  All that Python can import of the folder by statements of this code is found, or a mistake: an
      import that is known only when code runs finds none of it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from waybill.nearest_name import hint, shown_name
from waybill.pipelines.code_check import parsed_module
from waybill.pipelines.folder import MAX_CODE_BYTES, SHARED, has_shared, read_inside, root_of
from waybill.pipelines.imports import Import, imports_of, installed_file, lies_in, text_imports
from waybill.pipelines.problems import Problem

MAX_SHARED_MODULES = 200
"""Of one pipeline; together they have ``MAX_CODE_BYTES`` at most."""
_INIT = "__init__.py"
_SUFFIX = ".py"
_OPEN = frozenset({"globals", "setattr", "exec", "vars"})
"""Functions by which a module may get names that do not stand in it."""
_ALWAYS = frozenset({"__name__", "__doc__", "__package__", "__spec__", "__path__", "__dict__"})


class Listing(NamedTuple):
    """What code may import of a folder, by name."""

    files: frozenset[str]
    folders: frozenset[str]

    @property
    def modules(self) -> set[str]:
        """Return the names of what can be imported."""
        return {*(name.removesuffix(_SUFFIX) for name in self.files), *self.folders}


@dataclass(frozen=True, slots=True)
class SharedModules:
    """What a pipeline's code imports of the folder ``shared``."""

    code: dict[str, str] = field(default_factory=dict)
    """Texts by path (``shared/money.py``), sorted."""
    problems: tuple[Problem, ...] = ()
    texts: tuple[tuple[str, str | None], ...] = ()
    """All that was read, by path; None: it cannot be, or is too much."""
    folders: tuple[str, ...] = ()
    """That were looked into, sorted."""
    state: str | None = ""
    """What it depends on beside the code itself, see ``shared_state``; "": on nothing."""


def find_shared(directory: Path, name: str, code: str) -> SharedModules:
    """Return the shared modules of a pipeline, and what is wrong with them.

    Args:
        directory: the pipeline's folder.
        name: of the file of its transformation.
        code: its text.

    Cost: nothing where the word does not stand in the code; else 0.1 ms a module, and 10 ms for a
    thousand lines that were not looked at before.
    """
    if not _may_import(code):
        return SharedModules()
    search = _Search(directory)
    if has_shared(root_of(directory)):
        search.look(name, code)
    return search.found()


def _may_import(code: str) -> bool:
    """Tell whether the folder's name is in a text, in any spelling that Python takes for it."""
    if SHARED in code:
        return True
    return not code.isascii() and SHARED in unicodedata.normalize("NFKC", code)


def shared_state(directory: Path, paths: Iterable[str], folders: Iterable[str]) -> str | None:
    """Return a digest of all that the shared modules of a pipeline depend on, beside its code.

    Args:
        directory: the pipeline's folder.
        paths: of what was read of them.
        folders: that were looked into.

    Returns:
        None: some of it cannot be read.
    """
    home = root_of(directory) / SHARED
    texts = [
        (path, read_inside(home, path.removeprefix(f"{SHARED}/"), MAX_CODE_BYTES)[0])
        for path in paths
    ]
    listings = [(folder, folder_listing(home.parent, folder)) for folder in folders]
    return _state(directory, texts, listings)


def _state(
    directory: Path,
    texts: Iterable[tuple[str, str | None]],
    listings: Iterable[tuple[str, Listing | None]],
) -> str | None:
    judged: list[object] = [has_shared(root_of(directory)), lies_in(SHARED, directory)]
    for path, text in texts:
        if text is None:
            return None
        judged.append((path, text))
    for folder, listing in listings:
        if listing is None:
            return None
        judged.append((folder, sorted(listing.files), sorted(listing.folders)))
    return hashlib.sha256(json.dumps(judged).encode()).hexdigest()


def folder_listing(root: Path, folder: str) -> Listing | None:
    """Return what a folder of shared modules has, as it is spelt there; None: it cannot be listed.

    Args:
        root: the folder of pipelines.
        folder: ``shared``, or a folder in it. One that links lead out of ``shared`` to is not read.
    """
    files, folders = set[str](), set[str]()
    try:
        home = root.resolve() / SHARED
        path = (root / folder).resolve()
        if not path.is_relative_to(home):
            return None
        with os.scandir(path) as entries:
            for entry in entries:
                stem, dot, suffix = entry.name.rpartition(".")
                if dot and f".{suffix}" == _SUFFIX and stem.isidentifier():
                    files.add(entry.name)
                elif entry.name.isidentifier() and entry.name != "__pycache__" and _is_dir(entry):
                    folders.add(entry.name)
    except (OSError, RuntimeError, ValueError):
        return None
    return Listing(frozenset(files), frozenset(folders))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle: who looks into it is told
        return True


class _Facts(NamedTuple):
    """What is to be known of a module's text."""

    imports: Sequence[Import]
    dynamic: Sequence[int]
    """Lines where shared modules are imported by a text."""
    names: frozenset[str] | None
    """That it has; None: it may have any."""


class _Module(NamedTuple):
    """A module that an import names."""

    path: str
    """Of its file; of a package, its folder."""
    is_package: bool
    packages: Sequence[str]
    """The folders that it lies in, and itself where it is one: all of them are imported."""


class _Code(NamedTuple):
    """A file whose imports are looked at."""

    path: str
    """``shared/money.py``; "": the transformation."""
    file: str
    """As a problem names it."""


class _Search:
    """The modules of one pipeline, as they are found."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        """Of the pipeline."""
        self._root = root_of(directory)
        self._texts: dict[str, str | None] = {}
        self._facts: dict[str, _Facts | None] = {}
        """None: it is no Python, or cannot be read; that is said once."""
        self._listings: dict[str, Listing | None] = {}
        self._problems: dict[Problem, None] = {}
        self._uses: dict[str, dict[str, int]] = {}
        """By module: the modules that it needs while it is loaded, and in which line."""
        self._bytes = 0
        self._is_full = False
        self._waiting: deque[_Code] = deque()

    def found(self) -> SharedModules:
        """Return what was found."""
        self._find_circles()
        code = {path: text for path, text in sorted(self._texts.items()) if text is not None}
        return SharedModules(
            code,
            tuple(sorted(self._problems)),
            tuple(sorted(self._texts.items())),
            tuple(sorted(self._listings)),
            _state(self._directory, sorted(self._texts.items()), sorted(self._listings.items())),
        )

    def look(self, name: str, code: str) -> None:
        """Look at a transformation, by its file's name and its text, and at all that it imports."""
        facts, _ = _looked_at(code)
        if facts is None:  # said by others
            return
        own = _Code("", str(self._directory / name))
        if line := _first_line(facts):
            self._refuse_other_meanings(name, own, line)
        self._follow(own, facts)
        while self._waiting:
            waiting = self._waiting.popleft()
            known = self._facts[waiting.path]
            if known is not None:
                self._follow(waiting, known)

    def _say(self, code: _Code, line: int, message: str) -> None:
        self._problems.setdefault(Problem(code.file, line, "", message))

    def _refuse_other_meanings(self, name: str, own: _Code, line: int) -> None:
        """Refuse ``shared`` where Python may find another module of that name."""
        here = f"expected {SHARED!r} to be the folder {self._shown(SHARED)} alone"
        if name.removesuffix(_SUFFIX) == SHARED or lies_in(SHARED, self._directory):
            self._say(own, line, f"{here}; the pipeline's own folder has one too: rename that")
        installed = installed_file(SHARED)
        if installed is None:
            return
        try:
            is_own = installed.resolve().is_relative_to(self._root.resolve() / SHARED)
        except (OSError, RuntimeError):
            is_own = False
        if not is_own:
            said = f"an installed package has that name ({shown_name(str(installed))})"
            self._say(own, line, f"{here}; {said}: rename the folder, or take the package out")

    def _follow(self, code: _Code, facts: _Facts) -> None:
        for line in facts.dynamic:
            self._say(
                code,
                line,
                f"expected an import statement; found the name of a module of {SHARED!r} as a text:"
                " what is imported so is not part of the pipeline's version",
            )
        for one in facts.imports:
            parts = self._parts(code, one)
            if parts is not None:
                self._import(code, one, parts)

    def _parts(self, code: _Code, one: Import) -> tuple[str, ...] | None:
        """Return the full name of what is imported, in parts; None: it is not of the folder."""
        given = tuple(one.module.split(".")) if one.module else ()
        if not one.level:
            return given if given[0] == SHARED else None
        if not code.path:
            return None  # said by others
        package = tuple(code.path.split("/"))[:-1]
        if one.level > len(package):
            dots = "." * one.level
            self._say(
                code,
                one.line,
                f"expected a module of {SHARED!r}; found {shown_name(dots + one.module)!r}, which"
                " leads out of it",
            )
            return None
        return package[: len(package) - one.level + 1] + given

    def _import(self, code: _Code, one: Import, parts: tuple[str, ...]) -> None:
        module = self._module(code, one, parts)
        if module is None:
            return
        self._take(module)
        if one.names is None:
            self._refuse_empty(code, one, module)
            self._use(code, one, module)
        elif not module.is_package:
            self._use(code, one, module)
            self._look_for_names(code, one, module.path, one.names)
        else:
            self._import_from(code, one, module, parts)

    def _import_from(
        self, code: _Code, one: Import, package: _Module, parts: tuple[str, ...]
    ) -> None:
        """Import what ``from`` takes of a package: modules, and names of its ``__init__``."""
        listing = self._listed(code, one, package.path)
        if listing is None:
            return
        names = []
        for name in one.names or ():
            if name == "*":
                said = f"expected names; found * of the package {'.'.join(parts)!r}"
                self._say(code, one.line, f"{said}, which may mean any of its modules")
            elif name in listing.modules and name != "__init__":
                module = self._module(code, one, (*parts, name))
                if module is not None:
                    self._take(module)
                    self._use(code, one, module)
            else:
                names.append(name)
        if names:
            self._use(code, one, package)
            self._look_for_names(code, one, f"{package.path}/{_INIT}", names)

    def _refuse_empty(self, code: _Code, one: Import, module: _Module) -> None:
        """Refuse to import a folder alone that has no code of its own."""
        if module.is_package and one.is_sure and f"{module.path}/{_INIT}" not in self._texts:
            name = module.path.replace("/", ".")
            self._say(
                code,
                one.line,
                f"expected a module; found {name!r}, a folder without {_INIT}, of which nothing is"
                f" imported so: write `from {name} import <module>`",
            )

    def _look_for_names(self, code: _Code, one: Import, path: str, names: Sequence[str]) -> None:
        """Say which names a module does not have."""
        if not one.is_sure:
            return
        folder = path.removesuffix(f"/{_INIT}")
        listing = self._listings.get(folder)
        choices = set[str]() if listing is None else listing.modules - {"__init__"}
        if path in self._texts:
            facts = self._facts[path]
            if facts is None or facts.names is None:
                return
            choices |= facts.names
            missing = [name for name in names if name not in facts.names | _ALWAYS | {"*"}]
        else:
            missing = list(names)
        for name in missing:
            place = path if path in self._texts else folder
            said = f"expected a name of {self._shown(place)}; found {shown_name(name)!r}"
            self._say(code, one.line, f"{said}, which is not there{hint(name, choices)}")

    def _module(self, code: _Code, one: Import, parts: tuple[str, ...]) -> _Module | None:
        """Return the module of a name; None: there is none, which is said."""
        folder, packages = SHARED, [SHARED]
        for place, part in enumerate(parts[1:], 2):
            listing = self._listed(code, one, folder)
            if listing is None:
                return None
            is_file, is_folder = f"{part}{_SUFFIX}" in listing.files, part in listing.folders
            if is_file and is_folder:
                both = f"{self._shown(folder)} has {part}{_SUFFIX} and a folder {part}"
                self._say(code, one.line, f"expected one module {part!r}; {both}: rename one")
                return None
            if is_file and place == len(parts):
                return _Module(f"{folder}/{part}{_SUFFIX}", is_package=False, packages=packages)
            if not is_folder:
                if one.is_sure:
                    self._say(code, one.line, self._missing(parts, place, folder, listing))
                return None
            folder = f"{folder}/{part}"
            packages.append(folder)
        return _Module(folder, is_package=True, packages=packages)

    def _missing(self, parts: tuple[str, ...], place: int, folder: str, listing: Listing) -> str:
        name = shown_name(".".join(parts))
        said = f"expected a module of {self._shown(SHARED)}; found {name!r}"
        part = parts[place - 1]
        if f"{part}{_SUFFIX}" in listing.files:
            return f"{said}: {self._shown(folder)}/{part}{_SUFFIX} is a module, and has none in it"
        return f"{said}, which is not there{hint(part, listing.modules - {'__init__'})}"

    def _listed(self, code: _Code, one: Import, folder: str) -> Listing | None:
        """Return what a folder has; None: it cannot be listed, which is said."""
        listing = self._listing(folder)
        if listing is None:
            found = f"expected a folder in {self._shown(SHARED)}; found {self._shown(folder)}"
            why = "which cannot be listed, or is a link that leads out of it"
            self._say(code, one.line, f"{found}, {why}")
        return listing

    def _listing(self, folder: str) -> Listing | None:
        if folder not in self._listings:
            self._listings[folder] = folder_listing(self._root, folder)
        return self._listings[folder]

    def _take(self, module: _Module) -> None:
        """Take a module, and the packages that it lies in, into the version."""
        for package in module.packages:
            listing = self._listing(package)
            if listing is not None and _INIT in listing.files:
                self._read(f"{package}/{_INIT}")
        if not module.is_package:
            self._read(module.path)

    def _read(self, path: str) -> None:
        if path in self._texts:
            return
        code = _Code(path, self._shown(path))
        self._facts[path] = self._texts[path] = None
        name = path.removeprefix(f"{SHARED}/")
        place = f"the folder {self._shown(SHARED)}"
        text, wrong = read_inside(self._root / SHARED, name, MAX_CODE_BYTES, place)
        if text is None:
            self._say(code, 1, wrong)
            return
        self._bytes += len(text.encode())
        if self._bytes > MAX_CODE_BYTES or len(self._texts) > MAX_SHARED_MODULES:
            self._refuse_more(code)
            return
        self._texts[path] = text
        facts, faults = _looked_at(text)
        for line, message in faults:
            self._say(code, line, message)
        if facts is not None:
            self._facts[path] = facts
            self._waiting.append(code)

    def _refuse_more(self, code: _Code) -> None:
        """Say once that a pipeline's shared modules are too many."""
        if not self._is_full:
            self._is_full = True
            most = f"{MAX_SHARED_MODULES} modules, of {MAX_CODE_BYTES} bytes together"
            said = f"expected the shared modules of one pipeline to be at most {most}"
            self._say(code, 1, f"{said}; with this one they are more")

    def _use(self, code: _Code, one: Import, module: _Module) -> None:
        """Note that a module needs another while it is loaded."""
        path = f"{module.path}/{_INIT}" if module.is_package else module.path
        if code.path and one.is_early and path in self._texts:
            self._uses.setdefault(code.path, {}).setdefault(path, one.line)

    def _find_circles(self) -> None:
        done: set[str] = set()
        for start in sorted(self._uses):
            if start in done:
                continue
            way, following = [start], [iter(sorted(self._uses[start]))]
            while way:
                path = next(following[-1], None)
                if path is None:
                    following.pop()
                    done.add(way.pop())
                elif path in way:
                    self._refuse_circle([*way[way.index(path) :], path])
                elif path not in done:
                    way.append(path)
                    following.append(iter(sorted(self._uses.get(path, ()))))

    def _refuse_circle(self, way: Sequence[str]) -> None:
        last, first = way[-2], way[-1]
        self._say(
            _Code(last, self._shown(last)),
            self._uses[last][first],
            f"expected no modules that import one another; found {' → '.join(way)}: put what they"
            " both need into a third, or import it inside of the function that needs it",
        )

    def _shown(self, path: str) -> str:
        return str(self._root / path)


def _first_line(facts: _Facts) -> int:
    """Return the line where code first imports a shared module; 0: nowhere."""
    lines = [
        one.line
        for one in facts.imports
        if not one.level and one.module.partition(".")[0] == SHARED
    ]
    return min(lines, default=0)


@lru_cache(maxsize=64)
def _looked_at(text: str) -> tuple[_Facts | None, list[tuple[int, str]]]:
    """Return what is to be known of a text, once for all pipelines; or what is wrong with it."""
    tree, faults = parsed_module(text)
    if tree is None:
        return None, faults
    imports = sorted(imports_of(tree), key=lambda one: (one.line, one.module))
    dynamic = [
        line
        for line, begin in text_imports(tree)
        if begin is not None and begin.partition(".")[0] == SHARED
    ]
    return _Facts(imports, dynamic, _names(tree)), []


def _names(tree: ast.Module) -> frozenset[str] | None:
    """Return all names that anything in a module binds, its own among them; None: any."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _OPEN:
            return None
        names.update(_bound(node))
    return None if names & {"*", "__getattr__"} else frozenset(names)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds; ``*`` of an import."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case _:
            pass
