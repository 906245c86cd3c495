"""Whether the servers that Waybill stands on answer, and as what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from sqlalchemy import text

from waybill.errors import WaybillError
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What one server said."""

    name: str
    """``tracker``, ``Kafka`` or ``object store``."""
    ok: bool
    found: str
    """What was reached, where; or why it was not."""


def ask_servers(settings: Settings) -> list[ServerAnswer]:
    """Ask tracker, Kafka and object store once each; nothing is written. Cost: up to 30 s."""
    asked: dict[str, Callable[[Settings], str]] = {
        "tracker": _tracker,
        "Kafka": _kafka,
        "object store": _objects,
    }
    return [_answer(name, ask, settings) for name, ask in asked.items()]


def _answer(name: str, ask: Callable[[Settings], str], settings: Settings) -> ServerAnswer:
    try:
        return ServerAnswer(name, ok=True, found=ask(settings))
    except WaybillError as error:
        return ServerAnswer(name, ok=False, found=str(error))


def _tracker(settings: Settings) -> str:
    query = text("SELECT current_setting('server_version'), current_database(), current_user")
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        version, database, user = connection.execute(query).one()
    where = urlsplit(settings.tracker.dsn.get_secret_value()).hostname or "a local socket"
    return f"PostgreSQL {version.split()[0]} at {where}, database {database} as {user}"


def _kafka(settings: Settings) -> str:
    cluster = open_log(settings.kafka).cluster_id()
    return f"cluster {cluster} at {settings.kafka.bootstrap_servers}"


def _objects(settings: Settings) -> str:
    next(iter(open_objects(settings.s3).list("traces/")), None)
    return f"bucket {settings.s3.bucket} at {settings.s3.endpoint_url or 'AWS'}"


__all__ = ["ServerAnswer", "ask_servers"]
