"""The app that Airflow mounts at ``/waybill``: guards, headers, answers to errors, routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders

from waybill.errors import InputError, RetryError, WaybillError
from waybill_airflow.web import (
    balance,
    campaigns,
    capacity,
    clusters,
    decisions,
    declarations,
    destinations,
    mappings,
    pages,
    parked,
    pipelines,
    runs,
    sources,
    trails,
    upkeep,
)
from waybill_airflow.web.guard import refuse_foreign, signed_in
from waybill_airflow.web.models import problems
from waybill_airflow.web.parameters import refuse_unknown
from waybill_airflow.web.services import OPENED

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREFIX = "/waybill"
_RETRY_AFTER_S = "5"
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


_MOST_BODY_BYTES = 64 * 1024


class _SmallBodies:
    """Refuses large bodies: they are read before it is known who asks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > _MOST_BODY_BYTES:
                raise HTTPException(413, f"a request has at most {_MOST_BODY_BYTES:,} bytes")
            return message

        await self._app(scope, counted, send)


class _SecureHeaders:
    """Adds the headers to every answer, errors among them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


def _problem(code: int, detail: str, **headers: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, code, headers=headers)


async def _not_taken(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it alone
    words = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    return _problem(422, "; ".join(words))


async def _wrong(_request: Request, error: Exception) -> JSONResponse:
    """Answer for the library: wrong input, not now, or stopped at damage."""
    if isinstance(error, InputError):
        return _problem(422, str(error))
    if isinstance(error, RetryError):
        return _problem(503, str(error), **{"retry-after": _RETRY_AFTER_S})
    return _problem(500, str(error))


@asynccontextmanager
async def _lifespan(_app: FastAPI) -> AsyncIterator[None]:
    yield
    OPENED.close()


_PROBLEMS = problems(
    _401="Nobody is signed in.",
    _403="Not permitted, another team's, or another site asks.",
    _413="The request is too large.",
    _422="Something given is wrong.",
    _500="The settings of this web server are wrong, or it stopped at damage.",
    _503="Tracker or object store do not answer; try again.",
)


def make_app() -> FastAPI:
    """Return the app; Airflow runs its lifespan."""
    app = FastAPI(
        title="Waybill",
        description="Parked events: look, dry-run, replay, discard, download. The balance, "
        "pipelines, sources, clusters, capacity. Where events are.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=_lifespan,
        dependencies=[Depends(signed_in), Depends(refuse_foreign), Depends(refuse_unknown)],
        responses=_PROBLEMS,
        exception_handlers={RequestValidationError: _not_taken, WaybillError: _wrong},
    )
    app.add_middleware(_SmallBodies)
    app.add_middleware(_SecureHeaders)
    parts = (
        pages,
        parked,
        decisions,
        declarations,
        runs,
        sources,
        campaigns,
        balance,
        capacity,
        clusters,
        pipelines,
        destinations,
        mappings,
        trails,
        upkeep,
    )
    for part in parts:
        app.include_router(part.router)
    return app


app = make_app()

__all__ = ["PREFIX", "app", "make_app"]
