"""Check a document's shape, and put pydantic's findings into a user's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from waybill.pipelines.form import PipelineForm
from waybill.pipelines.problems import Path, hint, nearest, shown

Finding = tuple[Path, str]
"""(place, message)."""


def check_shape(value: Any) -> tuple[PipelineForm | None, list[Finding]]:
    """Return the form, or None and all that keeps the value from being one."""
    try:
        return PipelineForm.model_validate(value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    if value is None:
        return None, [((), "expected a mapping of fields; the file is empty")]
    typed_wrong = {_meant(detail) for detail in details if detail["type"] == "extra_forbidden"}
    return None, [
        _finding(detail, value)
        for detail in details
        if detail["type"] != "missing" or _in_document(detail["loc"]) not in typed_wrong
    ]


def _meant(detail: Any) -> Path:
    """Return the place of the field that an unknown one was meant to be: a typo is told once."""
    path = _in_document(detail["loc"])
    name = nearest(path[-1], _names(_place(path)[0]))
    return path if name is None else (*path[:-1], name)


def _finding(detail: Any, document: Any) -> Finding:
    path = _in_document(detail["loc"])
    form, info = _place(path)
    kind, found = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        names = _names(form)
        words = f"expected one of {', '.join(names)}; found {shown(path[-1])}"
        return path, words + hint(path[-1], names)
    expected = info.description if info is not None and info.description else "a mapping of fields"
    if kind == "missing":
        return path, f"expected {expected}; it is missing{_instead(info)}"
    reason = detail.get("ctx", {}).get("error")
    because = f" ({reason})" if reason is not None else ""
    choices = info.examples if info is not None and info.examples else []
    near = hint(found, choices) if isinstance(found, str) else ""
    return _existing(path, document), f"expected {expected}; found {shown(found)}{because}{near}"


def _instead(info: FieldInfo | None) -> str:
    """Return what to do about a field that is missing, where its form says it."""
    extra = None if info is None else info.json_schema_extra
    return f": {extra['missing']}" if isinstance(extra, dict) and "missing" in extra else ""


def _in_document(loc: tuple[str | int, ...]) -> Path:
    """Return a location without pydantic's own marks."""
    return tuple(part for part in loc if part != "[key]")


def _existing(path: Path, value: Any) -> Path:
    """Return the part of a path that the document has: a short form has no ``type`` of its own."""
    for depth, part in enumerate(path):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return path[:depth]
    return path


def _names(form: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in form.model_fields.items()]


def _place(path: Path) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the form that holds the last part of a path, and the deepest field on the way."""
    form: type[BaseModel] = PipelineForm
    info: FieldInfo | None = None
    inside: type[BaseModel] | None = PipelineForm
    skip = False
    for part in path:
        if skip:  # a key that users choose: an event name, a column
            skip = False
            continue
        if inside is None:
            break
        form = inside
        field = _field(form, str(part))
        if field is None:
            break
        info = field
        inside, skip = _next_form(field.annotation)
    else:
        if inside is not None and not skip:
            form = inside
    return form, info


def _field(form: type[BaseModel], name: str) -> FieldInfo | None:
    for own, info in form.model_fields.items():
        if (info.alias or own) == name:
            return info
    return None


def _next_form(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the form inside a field's type, and whether it is behind a key of the user's."""
    for candidate in _flat(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate, candidate is not annotation
    return None, False


def _flat(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _flat(part)
