"""Settings full of marked secrets, and what finds a mark again. All by walking the model."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from waybill.settings import DestinationSettings, Settings

MARK = "CANARY7f3a"
DESTINATION = "marked"
_BESIDE_KAFKAS = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "marked",
    "ssl_certificate_pem": "-----BEGIN CERTIFICATE-----",
}
"""Kafka's secrets are refused where nothing uses them."""


def fields(
    model: type[BaseModel] = Settings, *above: str
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield (path, field) of every setting, those of one destination among them."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if (*above, name) == ("destinations",):
            yield from fields(DestinationSettings, *above, name, DESTINATION)
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(inner, *above, name)
        else:
            yield (*above, name), field


def is_secret(field: FieldInfo) -> bool:
    """Tell whether a setting is a secret, or holds some."""
    return _holds_secret(field.annotation)


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))


def mark(path: tuple[str, ...]) -> str:
    """Return the mark of one setting: no other's mark holds it."""
    return f"{MARK}x{'y'.join(path).replace('_', '')}z"


def marked_value(path: tuple[str, ...], field: FieldInfo) -> Any:
    """Return a secret that is as its setting wants it, and leads to nobody."""
    if path[-1] == "dsn":
        return f"postgresql://user:{mark(path)}@127.0.0.1:1/nowhere"
    if path[-1].endswith("_pem"):
        return f"-----BEGIN PRIVATE KEY-----\n{mark(path)}\n-----END PRIVATE KEY-----\n"
    if path[-1].endswith("_url"):
        return f"http://127.0.0.1:1/{mark(path)}"
    if dict in (field.annotation, getattr(field.annotation, "__origin__", None)):
        return {"password": mark(path)}
    return mark(path)


def marked() -> dict[str, Any]:
    """Return values for `Settings` in which every secret is marked."""
    found: dict[str, Any] = {}
    for path, field in fields():
        if is_secret(field):
            put(found, path, marked_value(path, field))
    for name, value in _BESIDE_KAFKAS.items():
        put(found, ("kafka", name), value)
    return found


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Put a value into nested settings."""
    inner = tree
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
    inner[path[-1]] = value
    return tree


def said(error: BaseException) -> str:
    """Return what a log shows of an error: its words, its causes' and their stacks."""
    return "".join(traceback.format_exception(error))
