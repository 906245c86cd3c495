"""The pages and their files: ordinary routes, since a mount of files would be open to everybody."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Annotated, Any

import fastapi
from fastapi import APIRouter, HTTPException, status
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse

from waybill_airflow.web.guard import Viewer
from waybill_airflow.web.models import problems

_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

_ANY_FILE: dict[str, Any] = {"content": {kind: {} for kind in _TYPES.values()}}
_NO_FILE = problems(_404="There is no such file.")

_FRAME = Template((_STATIC / "page.html").read_text(encoding="utf-8"))
_PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "parked": ("Parked events", ("parked", "detail")),
    "trails": ("Where is that event?", ("trails",)),
    "balance": ("Balance", ("parked", "balance")),
    "clusters": ("Clusters", ("parked", "balance", "chart", "clusters")),
    "capacity": ("Capacity", ("parked", "balance", "chart", "clusters")),
    "overview": ("Overview", ("parked", "chart", "pipelines", "overview")),
    "sources": ("Sources", ("parked", "balance", "pipelines", "sources")),
}
"""Each page's title and style sheets, by its name, which its script and address have as well."""

router = APIRouter(tags=["page"])


def _add(name: str, title: str, styles: tuple[str, ...]) -> None:
    """Add the route of a page, which Airflow shows in a frame."""
    links = "\n".join(f'<link rel="stylesheet" href="static/{style}.css">' for style in styles)
    html = _FRAME.substitute(name=name, title=title, styles=links)

    def page(_access: Viewer) -> HTMLResponse:
        return HTMLResponse(html)

    router.add_api_route(
        f"/{name}",
        page,
        name=f"{name}_page",
        response_class=HTMLResponse,
        summary=f"The page “{title}”",
        description="A page that Airflow shows in a frame.",
    )


for _name, (_title, _styles) in _PAGES.items():
    _add(_name, _title, _styles)


@router.get(
    "/",
    response_class=RedirectResponse,
    responses={200: {"description": "The page “Overview”, to who follows."}},
    summary="The page “Overview”, by the address of all pages",
)
def root(_access: Viewer) -> RedirectResponse:
    """Lead to the page “Overview”."""
    return RedirectResponse("overview")


@router.get(
    "/pipelines",
    response_class=RedirectResponse,
    status_code=status.HTTP_308_PERMANENT_REDIRECT,
    responses={200: {"description": "The page “Overview”, to who follows."}},
    summary="The page “Overview”, at its address before",
)
def moved(_access: Viewer) -> RedirectResponse:
    """Lead to the page; what stands behind the address's `#` comes along."""
    return RedirectResponse("overview", status.HTTP_308_PERMANENT_REDIRECT)


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
    path = _STATIC / name
    if not path.is_file():
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"the page has no file {name!r}")
    return FileResponse(path, media_type=_TYPES[path.suffix])
