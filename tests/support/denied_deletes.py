"""A real object store that keeps some objects, as where a policy denies their deletion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waybill.storage import ObjectStore

_NOBODY = "nobody/has/this/key"


@contextmanager
def denied(objects: ObjectStore, *keys: str) -> Iterator[None]:
    """Have a client's deletions of these keys denied, by S3's answer: an error for each of them.

    The store deletes the others of a call.
    """
    events = objects._opened_client().meta.events
    kept: list[str] = []

    def take_out(params: dict[str, Any], **_: Any) -> None:
        asked = [one["Key"] for one in params["Delete"]["Objects"]]
        kept[:] = [key for key in asked if key in keys]
        left = [{"Key": key} for key in asked if key not in keys] or [{"Key": _NOBODY}]
        params["Delete"] = {**params["Delete"], "Objects": left}

    def answer(parsed: dict[str, Any], **_: Any) -> None:
        errors = [{"Key": k, "Code": "AccessDenied", "Message": "Access Denied."} for k in kept]
        parsed["Errors"] = [*errors, *parsed.get("Errors", ())]

    hooks = {"before-parameter-build": take_out, "after-call": answer}
    for name, hook in hooks.items():
        events.register(f"{name}.s3.DeleteObjects", hook)
    try:
        yield
    finally:
        for name, hook in hooks.items():
            events.unregister(f"{name}.s3.DeleteObjects", hook)
