"""The settings of Waybill, from a connection of type ``waybill``, or from the environment.

==================================  ================================================================
of the connection                   what it sets
==================================  ================================================================
host, port, schema, login,          ``WAYBILL_TRACKER__DSN``; without a host the fields say nothing
password
extra, ``{"WAYBILL_…": value}``     the settings of these names, as docs/settings.md lists them, but
                                    for ``WAYBILL_ACCESS``
==================================  ================================================================

What the connection does not name comes from the process's own ``WAYBILL_*``. DAG files read those
alone: parsing asks no connection.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret, redact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Connection
    from pydantic import ValidationError

    from waybill.settings import Settings

DEFAULT_CONNECTION = "waybill_default"
"""The one that may be missing."""
_DSN = "WAYBILL_TRACKER__DSN"
_ACCESS = "WAYBILL_ACCESS"
"""Of the environment alone: who edits connections would else give themselves any permission."""
_TRACKER_FIELDS = "host, port, schema, login, password"
_GIVEN: dict[str, str] = {}
"""Which field of which connection gave a setting, as last read in this process."""


class WaybillHook(BaseHook):
    """The library, opened from a connection of Airflow.

    :param waybill_conn_id: a connection of type ``waybill``; ``None``: as the setting
        ``WAYBILL_AIRFLOW__CONNECTION_ID`` says. Only ``waybill_default`` may be missing: then the
        environment alone is read.
    """

    conn_name_attr = "waybill_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "waybill"
    hook_name = "Waybill"

    def __init__(self, waybill_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.waybill_conn_id = waybill_conn_id

    def get_conn(self) -> Settings:
        """Return the settings; every secret in them is masked in logs from here on.

        :raises waybill.errors.InputError: the connection is not there, is of another type, or one
            of its fields is wrong: named, as is the connection.
        :raises pydantic.ValidationError: the environment is wrong.
        """
        from waybill.settings import secret_values

        settings = self._given()
        if settings.s3.connection_id:
            settings = _with_aws_keys(settings)
        for secret in secret_values(settings):
            _mask(secret)
        return settings

    def aws_connection_id(self) -> str | None:
        """Return the connection of AWS that the settings name; ``None``: the usual AWS chain.

        :raises: as ``get_conn``, or ``waybill.errors.InputError``: keys of AWS are in the settings
            themselves, where the amazon provider does not find them.
        """
        from waybill.errors import InputError

        s3 = self._given().s3
        if s3.access_key and s3.endpoint_url is None:
            raise InputError(
                "WAYBILL_S3__ACCESS_KEY holds keys of AWS: give them to a connection of type aws, "
                "and name it in WAYBILL_S3__CONNECTION_ID"
            )
        return s3.connection_id or None

    def _given(self) -> Settings:
        """Return the settings without the keys that a connection of AWS gives."""
        from waybill.settings import Settings

        settings = Settings()
        name = self.waybill_conn_id or settings.airflow.connection_id
        connection = _read_connection(name)
        return settings if connection is None else _settings_of(name, connection)

    def test_connection(self) -> tuple[bool, str]:
        """Ask the tracker, Kafka and the object store; say what was reached, and what was not."""
        from pydantic import ValidationError

        from waybill.errors import InputError
        from waybill.services import ask_servers

        try:
            answers = ask_servers(self.get_conn())
        except (InputError, ValidationError) as error:
            return False, str(error)
        found = "; ".join(f"{one.name}: {named(one.found)}" for one in answers)
        return all(one.ok for one in answers), found


def named(message: str) -> str:
    """Return an error's message; with the connection's field, where that gave a setting it names.

    >>> named("tracker: password authentication failed; check WAYBILL_TRACKER__DSN")
    "…; check WAYBILL_TRACKER__DSN (connection 'waybill_default': host, port, …, password)"
    """
    fields = sorted({field for name, field in _GIVEN.items() if name in message})
    return f"{message} ({'; '.join(fields)})" if fields else message


_secrets: set[str] = set()
"""Those that were masked by this process."""
_SHORTEST = 5
"""Characters of the shortest secret that is masked, as in Airflow."""


def _mask(secret: str) -> None:
    if len(secret) >= _SHORTEST:
        _secrets.add(secret)
    mask_secret(secret)


def redacted(text: str) -> str:
    """Return a text in which secrets are masked, the longest first.

    Airflow's masker tries them in no order: of one that begins with another it may leave the rest.
    """
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return str(redact(text))


def connection_text(name: str) -> str | None:
    """Return a source's connection as JSON, in Airflow's form; None: Airflow has none of this name.

    Its secrets are masked in logs from here on.
    """
    try:
        found = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        return None
    fields = ("conn_type", "host", "port", "login", "password", "schema")
    given = {field: getattr(found, field) for field in fields}
    for secret in [found.password, *map(str, found.extra_dejson.values())]:
        if secret:
            _mask(secret)
    return json.dumps({**given, "extra": found.extra_dejson})


def _read_connection(name: str) -> Connection | None:
    from waybill.errors import InputError

    try:
        return BaseHook.get_connection(name)
    except AirflowNotFoundException as error:
        if name == DEFAULT_CONNECTION:
            return None
        raise InputError(
            f"there is no connection {name!r} (WAYBILL_AIRFLOW__CONNECTION_ID); make one of type "
            f"waybill, or leave {DEFAULT_CONNECTION!r} for the environment"
        ) from error


def _settings_of(name: str, connection: Connection) -> Settings:
    from pydantic import ValidationError

    from waybill.errors import InputError
    from waybill.settings import Settings

    if connection.conn_type != WaybillHook.conn_type:
        raise InputError(f"connection {name!r} is of type {connection.conn_type!r}, not 'waybill'")
    variables = dict(_variables(name, connection))
    given = {key: f"connection {name!r}: extra" for key in variables}
    if connection.host:
        given[_DSN] = f"connection {name!r}: {_TRACKER_FIELDS}"
    try:
        settings = Settings.overridden(variables)
    except ValidationError as error:
        raise InputError("; ".join(_problems(given, error))) from None
    except ValueError as error:
        raise InputError(f"connection {name!r}: extra: {error}") from None
    _GIVEN.clear()
    _GIVEN.update(given)
    return settings


def _variables(name: str, connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield names and texts of settings, as the environment would have them."""
    from waybill.errors import InputError

    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise InputError(f"connection {name!r}: extra must be a JSON object of WAYBILL_… settings")
    given = {key.upper(): value for key, value in extra.items() if value not in (None, "")}
    for key, value in given.items():
        _check_name(name, key)
        yield key, value if isinstance(value, str) else json.dumps(value)
    if connection.host and _DSN in given:
        raise InputError(f"connection {name!r}: both its host and {_DSN} in its extra are set")
    if connection.host:
        yield _DSN, _dsn(connection)
    elif connection.login or connection.password:
        raise InputError(f"connection {name!r}: host is empty, but there is a login or password")


def _check_name(connection: str, key: str) -> None:
    """Refuse what is no setting, or not a connection's to say."""
    from waybill.errors import InputError

    if not key.startswith("WAYBILL_"):
        raise InputError(f"connection {connection!r}: extra: {key[:80]!r} is no setting of Waybill")
    if key.startswith(_ACCESS):
        raise InputError(
            f"connection {connection!r}: extra: {key[:80]!r} is read from the environment of the "
            "web server alone: take it out here, and set it there"
        )


def _dsn(connection: Connection) -> str:
    """Return the tracker's address; whatever its parts hold, they stay what they are."""
    login = quote(connection.login or "", safe="")
    if connection.password:
        login += f":{quote(connection.password, safe='')}"
    host = connection.host or ""
    host = f"[{host}]" if ":" in host else quote(host, safe="")
    return (
        f"postgresql://{login}{'@' if login else ''}{host}:{connection.port or 5432}/"
        f"{quote(connection.schema or 'waybill', safe='')}"
    )


def _with_aws_keys(settings: Settings) -> Settings:
    """Return the settings with keys, region and address of the object store by its connection.

    Keys that end are refused: a load, or an application that is started with them, outlives them.
    """
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from airflow.sdk.exceptions import AirflowException
    from botocore.exceptions import BotoCoreError, ClientError
    from pydantic import SecretStr

    from waybill.errors import InputError

    name, s3 = settings.s3.connection_id, settings.s3
    if s3.access_key or s3.secret_key:
        raise InputError(f"both WAYBILL_S3__CONNECTION_ID ({name!r}) and keys of S3 are set")
    try:
        BaseHook.get_connection(name)  # the provider would go on with the usual chain
        hook = AwsBaseHook(aws_conn_id=name, client_type="s3")
        keys = hook.get_credentials()
    except AirflowNotFoundException as error:
        raise InputError(f"there is no connection {name!r} (WAYBILL_S3__CONNECTION_ID)") from error
    except (AirflowException, BotoCoreError, ClientError, AttributeError, ValueError) as error:
        raise InputError(f"connection {name!r} of AWS gives no keys: {error}") from error
    if keys.token:
        raise InputError(
            f"connection {name!r} of AWS gives keys that end (a role, a session): give it a user's "
            "keys, or leave WAYBILL_S3__CONNECTION_ID empty and give the workers the role"
        )
    given = {
        "connection_id": "",  # what is started with these settings has the keys
        "access_key": SecretStr(keys.access_key),
        "secret_key": SecretStr(keys.secret_key),
        "region": hook.region_name or s3.region,
        "endpoint_url": hook.conn_config.get_service_endpoint_url("s3") or s3.endpoint_url,
    }
    return settings.model_copy(update={"s3": s3.model_copy(update=given)})


def _problems(given: dict[str, str], error: ValidationError) -> Iterator[str]:
    """Yield what is wrong, each with the field that it is in; values are not shown."""
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        setting = "__".join(("WAYBILL", *map(str, one["loc"]))).upper().replace("__", "_", 1)
        near = [key for key in given if f"{setting}__".startswith(f"{key}__")]
        near += [key for key in given if key.startswith(f"{setting}__")]
        place = given[near[0]] if near else "settings of this worker"
        yield f"{place}: {near[0] if near else setting}: {one['msg']}"


__all__ = ["DEFAULT_CONNECTION", "WaybillHook", "named"]
