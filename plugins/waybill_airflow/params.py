"""Params that several DAGs take."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow.sdk import Param

from waybill.request import Request


def params_of(model: type[Request], *, only: Collection[str] = (), **more: Any) -> dict[str, Param]:
    """Return the fields of a request as params of a DAG, in their order.

    :param only: these fields; none: all.
    :param more: keywords of each ``Param``, such as ``section``.
    """
    properties = model.model_json_schema()["properties"]
    return {
        name: _param(schema, **more)
        for name, schema in properties.items()
        if not only or name in only
    }


def _param(schema: dict[str, Any], **more: Any) -> Param:
    """Return one field; a form of Airflow wants the types of ``X | null`` in one list."""
    options = schema.pop("anyOf", [])
    for option in options:
        schema = {**option, **schema}
    if options:
        schema["type"] = ["null", *(one["type"] for one in options if one["type"] != "null")]
    return Param(**{**schema, **more})


def grace(title: str, setting: str) -> dict[str, Param]:
    """Return ``grace_s``, which overrides a setting."""
    return {
        "grace_s": Param(
            None,
            type=["null", "number"],
            minimum=0,
            title=title,
            description=f"Empty: the setting {setting}.",
        )
    }


__all__ = ["grace", "params_of"]
