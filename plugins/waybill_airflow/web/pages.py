"""The page and its files: ordinary routes, since a mount of files would be open to everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import fastapi
from fastapi import APIRouter, HTTPException, status
from fastapi.responses import FileResponse, HTMLResponse

from waybill_airflow.web.guard import Viewer
from waybill_airflow.web.models import problems

_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

_ANY_FILE: dict[str, Any] = {"content": {kind: {} for kind in _TYPES.values()}}
_NO_FILE = problems(_404="There is no such file.")

router = APIRouter(tags=["page"])


@router.get("/parked", response_class=HTMLResponse, responses=_NO_FILE, summary="The page")
def page(_access: Viewer) -> HTMLResponse:
    """Return the page "Parked events", which Airflow shows in a frame."""
    return HTMLResponse(_file("parked.html").read_text(encoding="utf-8"))


@router.get("/trails", response_class=HTMLResponse, responses=_NO_FILE, summary="The other page")
def trails_page(_access: Viewer) -> HTMLResponse:
    """Return the page "Where is that event?", which Airflow shows in a frame."""
    return HTMLResponse(_file("trails.html").read_text(encoding="utf-8"))


@router.get(
    "/balance", response_class=HTMLResponse, responses=_NO_FILE, summary="The page of the balance"
)
def balance_page(_access: Viewer) -> HTMLResponse:
    """Return the page "Balance", which Airflow shows in a frame."""
    return HTMLResponse(_file("balance.html").read_text(encoding="utf-8"))


@router.get(
    "/clusters", response_class=HTMLResponse, responses=_NO_FILE, summary="The page of clusters"
)
def clusters_page(_access: Viewer) -> HTMLResponse:
    """Return the page "Clusters", which Airflow shows in a frame."""
    return HTMLResponse(_file("clusters.html").read_text(encoding="utf-8"))


@router.get(
    "/capacity", response_class=HTMLResponse, responses=_NO_FILE, summary="The page of capacity"
)
def capacity_page(_access: Viewer) -> HTMLResponse:
    """Return the page "Capacity", which Airflow shows in a frame."""
    return HTMLResponse(_file("capacity.html").read_text(encoding="utf-8"))


@router.get(
    "/pipelines", response_class=HTMLResponse, responses=_NO_FILE, summary="The page of pipelines"
)
def pipelines_page(_access: Viewer) -> HTMLResponse:
    """Return the page "Pipelines", which Airflow shows in a frame."""
    return HTMLResponse(_file("pipelines.html").read_text(encoding="utf-8"))


@router.get(
    "/sources", response_class=HTMLResponse, responses=_NO_FILE, summary="The page of sources"
)
def sources_page(_access: Viewer) -> HTMLResponse:
    """Return the page "Sources", which Airflow shows in a frame."""
    return HTMLResponse(_file("sources.html").read_text(encoding="utf-8"))


@router.get(
    "/static/{name}",
    response_class=FileResponse,
    responses={200: _ANY_FILE, **_NO_FILE},
    summary="A file of the page",
)
def static(
    _access: Viewer, name: Annotated[str, fastapi.Path(pattern=r"^[a-z][a-z0-9_]*\.(js|css|svg)$")]
) -> FileResponse:
    """Return a script, a style sheet or a drawing of the page."""
    path = _file(name)
    return FileResponse(path, media_type=_TYPES[path.suffix])


def _file(name: str) -> Path:
    path = _STATIC / name
    if not path.is_file():
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"the page has no file {name!r}")
    return path
