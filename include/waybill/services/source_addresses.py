"""Sources of declarations that the settings of egress close, as far as the declarations tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from waybill.ingestion.connectors import closed_places
from waybill.pipelines import Problem, problem_at

if TYPE_CHECKING:
    from waybill.pipelines import Pipeline
    from waybill.settings import Settings


def closed_sources(
    settings: Settings, pipeline: Pipeline, folder: Callable[[], Path]
) -> list[Problem]:
    """Return a warning for each address of a source that ingestion here would refuse.

    No mistakes: where it runs, other settings may open them. No server is asked, so what only a
    server of names could tell is left to ingestion, and to ``waybill sources test``.

    Args:
        settings: which addresses are open.
        pipeline: whose source it is.
        folder: returns that of its declaration; called where there is something to warn of.
    """
    found = closed_places(pipeline.source, settings.egress)
    return [problem_at(folder(), place, said) for place, said in found]
