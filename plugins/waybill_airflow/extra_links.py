"""Links from a run to Waybill's own pages.

Airflow calls `get_link` when the task ends and keeps the answer, which the API server shows. Names
come from payloads and declarations, so each is percent-encoded into the part of the address behind
the ``#``, which only the page's script reads: no name ends it, adds to it, or leads elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_GROUP = ("pipeline", "event_name", "stage", "error_type")


class ParkedGroupLink(BaseOperatorLink):
    """From a replay or dry run to its parked group, on the page *Parked events*."""

    name = "Parked events"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the page, with the group as its filters."""
        request = getattr(operator, "request", None)
        if request is None:  # when a task ends, Airflow hands over its instance, and not a key
            context: Mapping[str, Any] = getattr(ti_key, "get_template_context", dict)()
            request = context.get("params", {})
        return page_url("parked", {name: request[name] for name in _GROUP if request.get(name)})


class PipelineLink(BaseOperatorLink):
    """From an ingest run to its pipeline, on the page *Overview*."""

    name = "Pipeline"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the page, which finds the pipeline by its name."""
        return page_url("overview", {"words": getattr(operator, "pipeline", "")})


def page_url(page: str, view: Mapping[str, Any]) -> str:
    """Return the address of a page inside Airflow's own.

    :param page: ``parked``, ``overview``, …
    :param view: what it shows, by the names of the page's own address.
    """
    base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
    shown = urlencode(dict(view), quote_via=quote, safe="", errors="replace")
    return f"{base}/plugin/waybill-{page}/waybill/{page}#{shown}"


__all__ = ["ParkedGroupLink", "PipelineLink", "page_url"]
