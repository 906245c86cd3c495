"""``stack.env``: what the running stack tells every later command and every Airflow task.

It holds each setting that differs from its default, with absolute paths: the addresses and keys of
the embedded services, and whatever else was set when ``waybill up`` was called, which therefore
stays in force until it is set otherwise or the file is gone (``waybill down --wipe``). Variables
win over the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_settings import DotEnvSettingsSource

from waybill.errors import InputError, NotFoundError
from waybill.settings import ENV_FILE_NAME, DestinationSettings, Settings
from waybill.stack import state_folder
from waybill.stack.airflow import USER
from waybill.stack.credentials import Credentials
from waybill.stack.postgres import Postgres

STARTED = Path("run", "settings")
"""Below ``home``: what `keep_started` writes; goes with ``down --wipe``."""
_APPLIED_AT_ONCE = "WAYBILL_COLLECTOR__EMBEDDED"
_DESTINATIONS = "WAYBILL_DESTINATIONS"
OWN_DESTINATION = "warehouse"
"""The one that `up` brings; its kind and dsn are the stack's own."""
_WAIT_S = 300.0
HEAD = "# Written by `waybill up`. Variables of the same name win.\n"


def resolve_paths(settings: Settings) -> Settings:
    """Make every path absolute; those that begin with ``.waybill`` lie in ``home``."""
    home = settings.home.absolute()

    def at(path: Path) -> Path:
        inside = not path.is_absolute() and path.parts[:1] == (".waybill",)
        return home.joinpath(*path.parts[1:]) if inside else path.absolute()

    spark, traces = settings.spark, settings.traces
    moved = {"jars_dir": at(spark.jars_dir), "work_dir": at(spark.work_dir)}
    return settings.model_copy(
        update={
            "home": home,
            "pipelines_dir": at(settings.pipelines_dir),
            "more_pipelines_dirs": tuple(map(at, settings.more_pipelines_dirs)),
            "dags_dir": at(settings.dags_dir),
            "wal": settings.wal.model_copy(update={"dir": at(settings.wal.dir)}),
            "spark": spark.model_copy(update=moved),
            "traces": traces.model_copy(update={"spool_dir": at(traces.spool_dir)}),
        }
    )


def embedded_settings(settings: Settings, keys: Credentials, postgres: Postgres) -> Settings:
    """Return the settings under which every room finds the embedded services.

    PostgreSQL has to run: its socket's place is asked.

    Raises:
        InputError: Kafka is to be reached in another way than the embedded broker can be.
    """
    stack = settings.stack
    s3 = {
        "endpoint_url": f"http://127.0.0.1:{stack.s3_port}",
        "access_key": SecretStr(keys.s3_access_key),
        "secret_key": SecretStr(keys.s3_secret_key),
    }
    airflow = {
        "url": f"http://127.0.0.1:{stack.airflow_port}",
        "user": USER,
        "password": SecretStr(keys.airflow_password),
    }
    if settings.kafka.security_protocol != "PLAINTEXT":
        raise InputError(
            f"WAYBILL_KAFKA__SECURITY_PROTOCOL is {settings.kafka.security_protocol}: the embedded"
            " broker listens on this machine's loopback alone, without TLS or logins. Take"
            " WAYBILL_KAFKA__SECURITY_PROTOCOL, …__SSL_… and …__SASL_… out of the environment"
        )
    kafka = {"bootstrap_servers": f"127.0.0.1:{stack.kafka_port}"}
    place = {"kind": "postgres", "dsn": SecretStr(postgres.dsn(OWN_DESTINATION))}
    set_before = settings.destinations.get(OWN_DESTINATION, DestinationSettings(**place))
    warehouse = set_before.model_copy(update=place)
    return resolve_paths(settings).model_copy(
        update={
            "kafka": settings.kafka.model_copy(update=kafka),
            "s3": settings.s3.model_copy(update=s3),
            "tracker": settings.tracker.model_copy(
                update={"dsn": SecretStr(postgres.dsn("waybill"))}
            ),
            "airflow": settings.airflow.model_copy(update=airflow),
            "destinations": {**settings.destinations, OWN_DESTINATION: warehouse},
        }
    )


def write(settings: Settings) -> Path:
    """Write ``<home>/stack.env``, mode 0600, whole or not at all.

    Raises:
        InputError: a value holds ``${``, which the file's readers would replace.
    """
    return _write(settings.home, variables(settings))


def kept_destinations(home: Path) -> dict[str, DestinationSettings]:
    """Return the destinations that ``stack.env`` names; variables of this process are not asked."""
    return _destinations(_read(home))


@contextmanager
def changed_destinations(home: Path) -> Iterator[dict[str, DestinationSettings]]:
    """Give the destinations that ``stack.env`` names; as the caller leaves them they are written.

    No `up`, and no other change, runs meanwhile. Nothing is written where the caller raises.

    Raises:
        InputError: as `write`; or the file is another user's, who could not read it any more.
        NotFoundError: there is no such file: the stack was wiped.
        RetryError: an `up` takes over five minutes.
    """
    path = home / ENV_FILE_NAME
    with state_folder.exclusive(home / "run" / ".lock", timeout_s=_WAIT_S):
        if not path.exists():
            raise NotFoundError(f"there is no {path}: no embedded stack was started here")
        if path.stat().st_uid != os.geteuid():
            raise InputError(f"{path} is another user's: start this as that user")
        kept = _read(home)
        there = _destinations(kept)
        before = kept.get(_DESTINATIONS, "{}")
        yield there
        after = _text(there)
        _write(home, {**kept, _DESTINATIONS: after})
        _note_applied(home, _DESTINATIONS, before, after)


def refuse_unkeepable(destinations: Mapping[str, DestinationSettings]) -> None:
    """Refuse destinations that `changed_destinations` could not write.

    Raises:
        InputError: as `write`.
    """
    _quoted(_DESTINATIONS, _text(destinations))


def _read(home: Path) -> dict[str, str]:
    read = DotEnvSettingsSource(Settings, env_file=home / ENV_FILE_NAME).env_vars
    return {name.upper(): value for name, value in read.items() if value is not None}


def _destinations(kept: Mapping[str, str]) -> dict[str, DestinationSettings]:
    given = json.loads(kept.get(_DESTINATIONS, "{}"))
    return {name: DestinationSettings.model_validate(one) for name, one in given.items()}


def _write(home: Path, values: Mapping[str, str]) -> Path:
    path = home / ENV_FILE_NAME
    lines = [f"{name}={_quoted(name, value)}\n" for name, value in values.items()]
    state_folder.write_private(path, HEAD + "".join(lines))
    return path


def variables(settings: Settings) -> dict[str, str]:
    """Return ``WAYBILL_*`` names and values of what is not the default; secrets are plain."""
    found: dict[str, str] = {}
    for name, field in type(settings).model_fields.items():
        value, default = getattr(settings, name), field.default
        if isinstance(value, BaseModel):
            for part, deep in value:
                if deep != getattr(default, part):
                    found[f"WAYBILL_{name}__{part}".upper()] = _text(deep)
        elif value != default:
            found[f"WAYBILL_{name}".upper()] = _text(value)
    return found


def keep_started(settings: Settings) -> None:
    """Write under which settings the stack was started: names and digests, no values."""
    state_folder.write_private(settings.home / STARTED, json.dumps(_digests(settings)))


def not_applied(settings: Settings) -> list[str]:
    """Return the names of settings that are not those under which the stack was started.

    Whether the collector runs is none of them: `up` starts and ends it. Empty where an older
    release started the stack.
    """
    try:
        before = json.loads((settings.home / STARTED).read_text())
    except (FileNotFoundError, ValueError):
        return []
    now = _digests(settings)
    names = sorted({*before, *now} - {_APPLIED_AT_ONCE})
    return [name for name in names if before.get(name) != now.get(name)]


def _note_applied(home: Path, name: str, before: str, after: str) -> None:
    """Write that what runs has a setting's new value, where it had the one before."""
    try:
        digests = json.loads((home / STARTED).read_text())
    except (FileNotFoundError, ValueError):
        return
    if digests.get(name) == _digest(before):
        state_folder.write_private(home / STARTED, json.dumps({**digests, name: _digest(after)}))


def _digests(settings: Settings) -> dict[str, str]:
    return {name: _digest(value) for name, value in variables(settings).items()}


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _text(value: object) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return str(value)
        case BaseModel():
            return {name: _plain(deep) for name, deep in value}
        case dict():
            return {name: _plain(deep) for name, deep in value.items()}
        case list() | tuple():
            return [_plain(deep) for deep in value]
        case _:
            return value


def _quoted(name: str, value: str) -> str:
    if "${" in value or "\n" in value:
        raise InputError(
            f"{name} cannot be kept in {ENV_FILE_NAME}: its value holds `${{` or a new line"
        )
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
