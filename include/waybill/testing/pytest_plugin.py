"""The pytest plug-in: the fixture ``waybill_pipeline``, for a pipeline's own tests.

pytest loads it wherever Waybill is installed, by the entry point ``waybill`` of ``pytest11``; it
imports nothing of Waybill before a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from waybill.pipelines import Pipeline
    from waybill.testing import Event, PipelineResult

MARKER = "waybill_pipeline"
_DECLARATION = "pipeline.yaml"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, which names another folder than the test's own."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(folder): the pipeline of fixture {MARKER}, by its folder, relative to the"
        " test's file; else the test's own folder, or the nearest above it",
    )


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
