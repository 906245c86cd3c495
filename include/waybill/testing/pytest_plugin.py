"""The pytest plug-in: the fixture ``waybill_pipeline``, for a pipeline's own tests.

Tests in a pipeline's folder, and in the folder of shared modules, import those as the pipeline's
code does: ``from shared.money import cents``.

pytest loads it wherever Waybill is installed, by the entry point ``waybill`` of ``pytest11``; it
imports nothing of Waybill before a test asks for the fixture.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from waybill.pipelines import Pipeline
    from waybill.testing import Event, PipelineResult

MARKER = "waybill_pipeline"
_DECLARATION, _SHARED = "pipeline.yaml", "shared"
"""As ``waybill.pipelines`` has them."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, which names another folder than the test's own."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(folder): the pipeline of fixture {MARKER}, by its folder, relative to the"
        " test's file; else the test's own folder, or the nearest above it",
    )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Have a test find the shared modules beside its pipeline, before pytest imports it."""
    home = _shared_home(module_path)
    if home is None:
        return
    finder = next((one for one in sys.meta_path if isinstance(one, _SharedFinder)), None)
    if finder is None:
        sys.meta_path.insert(0, _SharedFinder(home))
    elif finder.home != home:
        raise parent.CollectError(
            f"{module_path} means the modules of {home} by {_SHARED!r}, other tests of this run"
            f" those of {finder.home}: test each folder of pipelines by itself"
        )


def _shared_home(test: Path) -> Path | None:
    """Return the folder of shared modules that a test's imports mean; None: there is none."""
    for folder in test.parents:
        if (folder / _DECLARATION).is_file() or folder.name == _SHARED:
            home = folder.parent / _SHARED
            is_shared = home.is_dir() and not (home / _DECLARATION).is_file()
            beside = (path.parent for path in home.parent.glob(f"*/{_DECLARATION}"))
            return home if is_shared and next(beside, None) is not None else None
    return None


class _SharedFinder(MetaPathFinder):
    """Finds ``shared`` in one place, whatever else of that name ``sys.path`` has."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        if fullname != _SHARED:
            return None
        init, places = self.home / "__init__.py", [str(self.home)]
        if init.is_file():
            return spec_from_file_location(fullname, init, submodule_search_locations=places)
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = places
        return spec


@dataclass(frozen=True)
class PipelineFixture:
    """A pipeline, and what tests do with it."""

    folder: Path

    @cached_property
    def pipeline(self) -> Pipeline:
        """Its declaration and code.

        Raises:
            DeclarationError: they have mistakes.
        """
        from waybill.pipelines import load_pipeline

        return load_pipeline(self.folder)

    @cached_property
    def examples(self) -> tuple[Event, ...]:
        """The events of its ``events.jsonl``, in order.

        Raises:
            DeclarationError: there is no such file, or it has mistakes.
        """
        from waybill.testing import read_examples

        return tuple(example.given for example in read_examples(self.folder))

    def event(self, /, **fields: Any) -> Event:
        """Return its first example event, with these fields of the payload as given.

        Raises:
            DeclarationError: as ``examples``.
        """
        return self.examples[0].with_fields(**fields)

    def run(self, *events: Event | Mapping[str, Any]) -> PipelineResult:
        """Run events through its stages, its code in the sandbox; see ``run_pipeline``."""
        from waybill.testing import run_pipeline

        return run_pipeline(self.pipeline, events)


@pytest.fixture
def waybill_pipeline(request: pytest.FixtureRequest) -> PipelineFixture:
    """Return the pipeline of the test's folder, or of the marker ``waybill_pipeline``."""
    marker = request.node.get_closest_marker(MARKER)
    own = request.path.parent
    if marker is not None:
        if len(marker.args) != 1 or marker.kwargs:
            pytest.fail(f"marker {MARKER}: expected one folder", pytrace=False)
        folder = own / marker.args[0]
        if not (folder / _DECLARATION).is_file():
            pytest.fail(f"marker {MARKER}: {folder} has no {_DECLARATION}", pytrace=False)
        return PipelineFixture(folder)
    for folder in (own, *own.parents):
        if (folder / _DECLARATION).is_file():
            return PipelineFixture(folder)
    return pytest.fail(
        f"fixture {MARKER}: no {_DECLARATION} in {own} or above it; name the pipeline's folder by"
        f' @pytest.mark.{MARKER}("…")',
        pytrace=False,
    )
