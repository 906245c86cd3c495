"""The shared modules of a pipeline's version, as its code imports them: from its own texts alone.

``import shared.money`` in a transformation, and in these modules, reads neither files nor what
another pipeline, or another version, has loaded in the same process: an import statement calls the
``__import__`` that its module's builtins have, and here that is the version's own. Modules stand in
``sys.modules`` under a name with the version's digest (``waybill_<digest>.shared.money``), since
libraries look up there where a class is from (dataclasses, pickle, pydantic).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from waybill.pipelines import SHARED
from waybill.processing.failures import CODE_FILE_PREFIX


class SharedCode:
    """The shared modules of one version, in this process.

    Args:
        name: of the version; nothing else in the process has it, and it is no name of a module.
        texts: of its modules, by path (``shared/money.py``).
    """

    def __init__(self, name: str, texts: Mapping[str, str]) -> None:
        self.name = name
        self._texts = texts
        self.builtins = {**vars(builtins), "__import__": self._import}
        """What code of this version has as its builtins."""

    def install(self) -> None:
        """Have this version's code find its modules; those of an earlier run are loaded anew."""
        for module in list(sys.modules):  # a thread that is left may import meanwhile
            if module.partition(".")[0] == self.name:
                del sys.modules[module]
        _INSTALLED[self.name] = self
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        """Import a module, as ``__import__`` does: shared ones from this version's texts."""
        if level or name.partition(".")[0] != SHARED:
            return builtins.__import__(name, globals, locals, fromlist, level)
        found = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist, 0)
        return found if fromlist else sys.modules[f"{self.name}.{SHARED}"]

    def spec(self, module: str) -> ModuleSpec:
        """Return how a module of this version is loaded, by its full name.

        Raises:
            ModuleNotFoundError: the version has none of that name.
        """
        name = module.partition(".")[2]
        path = name.replace(".", "/")
        if f"{path}.py" in self._texts:
            return ModuleSpec(module, _FINDER, origin=f"{path}.py")
        if not name or any(one.startswith(f"{path}/") for one in self._texts):
            return ModuleSpec(module, _FINDER, origin=f"{path}/__init__.py", is_package=True)
        said = f"No module named {name!r} in this version of the pipeline"
        raise ModuleNotFoundError(said, name=module)

    def run(self, module: ModuleType, path: str) -> None:
        """Run the text of a module; a package without one has nothing to run."""
        module.__dict__["__builtins__"] = self.builtins
        text = self._texts.get(path)
        if text is not None:
            code = compile(text, f"{CODE_FILE_PREFIX}{path}", "exec", dont_inherit=True)
            exec(code, module.__dict__)  # noqa: S102 - user code, where user code runs


class _Finder(MetaPathFinder, Loader):
    """Finds and loads the modules of all versions that are installed."""

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        version = _INSTALLED.get(fullname.partition(".")[0])
        return None if version is None else version.spec(fullname)

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        _INSTALLED[spec.name.partition(".")[0]].run(module, spec.origin)


_FINDER = _Finder()
_INSTALLED: dict[str, SharedCode] = {}
"""By name."""
