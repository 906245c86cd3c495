"""What executors know of the settings: what their tasks need, by name, and nothing else.

The driver sends it inside of each task, in memory. So an executor needs no settings of its own, and
holds no way into the tracker or Airflow: `SENT` is all that there is; a task that loads gets
`SENT_TO_LOADS`, and the one destination that it loads.

A worker refuses what is not meant for it (`refuse_mismatch`), before it reads or writes anything:
it runs another version of Waybill than the driver, or its own environment says otherwise about a
setting that was sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, SecretStr, ValidationError

import waybill
from waybill.errors import InputError, StopError
from waybill.settings import (
    DestinationSettings,
    KafkaSettings,
    ParkingSettings,
    S3Settings,
    SandboxSettings,
    Settings,
    SparkSettings,
    TraceSettings,
)
from waybill.storage import with_files_read

SENT: Mapping[str, tuple[type[BaseModel], tuple[str, ...]]] = {
    "kafka": (
        KafkaSettings,
        (
            "bootstrap_servers",
            "security_protocol",
            "ssl_ca_pem",
            "ssl_certificate_pem",
            "ssl_private_key_pem",
            "ssl_private_key_password",
            "sasl_mechanism",
            "sasl_username",
            "sasl_password",
            "sasl_token_url",
            "sasl_scope",
        ),
    ),
    "s3": (S3Settings, ("endpoint_url", "bucket", "region", "access_key", "secret_key")),
    "sandbox": (SandboxSettings, ("shared_by", "memory_mb", "file_mb", "readable", "strict")),
    "spark": (SparkSettings, ("event_timeout_s",)),
    "traces": (TraceSettings, ("enabled", "spool_dir", "disk_threshold_bytes")),
    "parking": (
        ParkingSettings,
        ("transient_attempts", "transient_backoff_s", "transient_budget_s"),
    ),
}
"""By section: its model, and the settings of it that are sent; beside them only kinds of
destinations, and the deployment's id."""

SENT_TO_LOADS = ("s3", "traces")
"""Sections of it that a task gets which loads."""
_OF_DESTINATION = ("kind", "dsn", "options")
"""What it gets of the destination."""
_FOLDERS = ("delta", "iceberg")
"""Kinds whose address may be a folder; another process has another one to begin at."""


def is_sent(variable: str) -> bool:
    """Tell whether a variable of the environment is of settings that are sent, or of a section."""
    section, _, name = variable.upper().removeprefix("WAYBILL_").partition("__")
    names = next((names for one, (_, names) in SENT.items() if one.upper() == section), ())
    return bool(names) and (not name or name.lower() in names)


class SettingsMismatchError(InputError):
    """A worker was sent settings that are not for it."""


@dataclass(frozen=True)
class ExecutorSettings:
    """Settings of the driver as tasks have them.

    Made by `of`. Secrets are hidden where it is shown; its pickle holds them.
    """

    values: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """By section and name, as `SENT` lists them; paths are absolute."""
    destination_kinds: Mapping[str, str]
    """By name; kinds say how columns may be named. Of a task that loads: its destination's."""
    deployment: str
    """Id of the deployment whose bucket it is."""
    destination: DestinationSettings | None = field(default=None, repr=False)
    """Of a task that loads: how to reach it; of nothing else."""
    fingerprint: str = field(default="", repr=False)
    """SHA-256 of all that, and of the version of Waybill; not to be shown: it is of secrets."""

    @classmethod
    def of(cls, settings: Settings, deployment: str, *, loads: str = "") -> Self:
        """Return what of the driver's settings its executors get.

        Args:
            settings: of the driver.
            deployment: its id.
            loads: the destination that the tasks load; empty: they load none.
        """
        sections = {section: getattr(settings, section) for section in SENT}
        sections["kafka"] = with_files_read(settings.kafka)
        values = {
            section: {name: _absolute(getattr(sections[section], name)) for name in names}
            for section, (_, names) in SENT.items()
            if not loads or section in SENT_TO_LOADS
        }
        kinds = {
            name: one.kind
            for name, one in settings.destinations.items()
            if not loads or name == loads
        }
        destination = None
        if loads:
            given = settings.destinations[loads]
            own = {name: getattr(given, name) for name in _OF_DESTINATION}
            if given.kind in _FOLDERS and "://" not in given.dsn.get_secret_value():
                own["dsn"] = SecretStr(str(Path(given.dsn.get_secret_value()).absolute()))
            destination = DestinationSettings(**own)
        made = cls(values, kinds, deployment, destination)
        return replace(made, fingerprint=made._digest())

    @property
    def s3(self) -> S3Settings:
        """Return where the object store is."""
        return S3Settings(**self.values["s3"])

    @property
    def kafka(self) -> KafkaSettings:
        """Return where the log is."""
        return KafkaSettings(**self.values["kafka"])

    @property
    def sandbox(self) -> SandboxSettings:
        """Return what processes of user code may use."""
        return SandboxSettings(**self.values["sandbox"])

    @property
    def loaded(self) -> tuple[str, DestinationSettings]:
        """Return the destination that a task loads: its name, and how to reach it.

        Raises:
            StopError: the task loads none.
        """
        if self.destination is None:
            raise StopError("a task that loads nothing was sent no destination")
        [name] = self.destination_kinds
        return name, self.destination

    @property
    def event_timeout_s(self) -> float:
        """Return the longest time that user code may take for one event."""
        return float(self.values["spark"]["event_timeout_s"])

    @property
    def traced(self) -> bool:
        """Tell whether traces are kept."""
        return bool(self.values["traces"]["enabled"])

    @property
    def spool(self) -> tuple[Path, int]:
        """Return the folder of trace files, and how many bytes it may hold."""
        traces = self.values["traces"]
        return traces["spool_dir"], traces["disk_threshold_bytes"]

    @property
    def transient(self) -> tuple[int, float, float]:
        """Return attempts of an event, the first wait and the budget of a task, in seconds."""
        parking = self.values["parking"]
        attempts, backoff_s, budget_s = (parking[name] for name in SENT["parking"][1])
        return attempts, backoff_s, budget_s

    def refuse_mismatch(self, environment: Mapping[str, str]) -> None:
        """Refuse what is not for this worker. Reads only variables of settings that were sent.

        Args:
            environment: of the worker.

        Raises:
            SettingsMismatchError: the worker runs another version than the driver, or its own
                environment has other values; names them, and shows none.
        """
        if self.fingerprint != self._digest():
            raise SettingsMismatchError(
                "the settings that the driver sent are not what this worker makes of them (by "
                f"their fingerprint; it runs Waybill {waybill.__version__}): driver and workers "
                "run different versions. Install the driver's version on the workers and start "
                "them again"
            )
        if others := sorted(self._others(environment)):
            raise SettingsMismatchError(
                f"this worker's environment has {', '.join(others)} with another value than the "
                "driver: it belongs to another deployment, or was started before the settings "
                "were changed. Executors get these from the driver: take WAYBILL_* out of the "
                "workers' environment, or give them the driver's values, and start them again"
            )

    def _digest(self) -> str:
        content = [waybill.__version__, self.values, self.destination_kinds, self.deployment]
        if self.destination is not None:
            content.append({n: getattr(self.destination, n) for n in _OF_DESTINATION})
        names = {s: list(names) for s, (_, names) in SENT.items() if s in self.values}
        text = json.dumps([names, content], default=_revealed, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _others(self, environment: Mapping[str, str]) -> Iterator[str]:
        """Yield the variables that say otherwise."""
        variables = {name.upper(): name for name in environment if name[:8].upper() == "WAYBILL_"}
        yield from self._other_destination(variables, environment)
        for section, (model, names) in SENT.items():
            if section not in self.values:
                continue
            prefix = f"WAYBILL_{section}".upper()
            whole = _parsed(environment[variables[prefix]]) if prefix in variables else None
            own = dict(whole) if isinstance(whole, dict) else {}
            for name in names:
                variable = f"{prefix}__{name}".upper()
                if variable in variables:
                    own[name] = environment[variables[variable]]
                if name not in own or name.endswith("_pem"):
                    continue  # of a file of the driver the text is sent; what is sent is used
                if not _same(model, name, own[name], self.values[section]):
                    yield variable if variable in variables else f"{prefix} ({name})"

    def _other_destination(
        self, variables: Mapping[str, str], environment: Mapping[str, str]
    ) -> Iterator[str]:
        """Yield the variables that have another kind or address for the destination."""
        if self.destination is None:
            return
        [name] = self.destination_kinds
        whole = "WAYBILL_DESTINATIONS"
        given = _parsed(environment[variables[whole]]) if whole in variables else None
        own = given.get(name) if isinstance(given, dict) else None
        for part in ("kind", "dsn"):
            variable, sent = f"{whole}__{name}__{part}".upper(), getattr(self.destination, part)
            found = own.get(part) if isinstance(own, dict) else None
            if variable in variables:
                found = environment[variables[variable]]
            if found is not None and not self._is_same(part, found, _revealed(sent)):
                yield variable if variable in variables else f"{whole} ({name}, {part})"

    def _is_same(self, part: str, found: Any, sent: str) -> bool:
        """Tell whether a worker's own text of a destination says what was sent.

        Of a relative folder the end is compared: a worker begins in another folder than the driver.
        """
        if found == sent:
            return True
        [kind] = self.destination_kinds.values()
        if part != "dsn" or kind not in _FOLDERS or not isinstance(found, str) or "://" in found:
            return False
        given, whole = Path(found).parts, Path(sent).parts
        return not Path(found).is_absolute() and whole[len(whole) - len(given) :] == given


def _absolute(value: Any) -> Any:
    if isinstance(value, Path):
        return value.absolute()
    return tuple(map(_absolute, value)) if isinstance(value, tuple) else value


def _revealed(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _same(model: type[BaseModel], name: str, given: Any, all_sent: Mapping[str, Any]) -> bool:
    """Tell whether a worker's own value of a setting is the one that was sent."""
    sent = all_sent[name]
    value = _parsed(given) if isinstance(sent, tuple) and isinstance(given, str) else given
    try:
        found = getattr(model.model_validate({**all_sent, name: value}), name)
    except ValidationError:
        return False
    return bool(_absolute(found) == sent) or (isinstance(found, Path) and found.resolve() == sent)
