"""Query parameters: a name that a route does not know is refused, never left out in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from fastapi import HTTPException, Request, status
from fastapi._compat import ModelField
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from waybill.errors import InputError
from waybill.nearest_name import nearest_or_all

T = TypeVar("T")
_OFTEN_MEANT = {"format": "kind", "order": "sort", "cursor": "after", "page": "after"}
"""Names of other APIs, which are not like ours at all."""


def refuse_unknown(request: Request) -> None:
    """Refuse a request to the API with a query parameter that its route does not have.

    The page's own address may have any: what is around it adds some.

    :raises HTTPException: 422; names the nearest that there is.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not route.path.startswith("/api/"):
        return
    known = sorted(_names(get_flat_dependant(route.dependant).query_params))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise HTTPException(
            status.HTTP_422_UNPROCESSABLE_CONTENT,
            f"query.{unknown[0][:80]}: there is no such parameter; {_nearest(unknown[0], known)}",
        )


def _names(parameters: Iterable[ModelField]) -> Iterator[str]:
    """Yield the names of query parameters; a request model stands for its fields."""
    for one in parameters:
        model = one.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from model.model_fields
        else:
            yield one.alias


def _nearest(name: str, known: list[str]) -> str:
    meant = _OFTEN_MEANT.get(name)
    if meant in known:
        return f"did you mean {meant!r}?"
    return nearest_or_all(name, known, none="this address takes none")


def either(name: str, value: T | None, older: str, before: T | None) -> T | None:
    """Return what was given under a name, or under the one it had before.

    :raises InputError: two different values.
    """
    if value is not None and before is not None and value != before:
        raise InputError(f"{name}: {older} is the same, and says something else; give one of them")
    return before if value is None else value
