"""The one settings object. Units are in the names; nothing else reads the environment.

Sources, the first that has a value wins: ``WAYBILL_*`` variables (``__`` between levels), the file
``stack.env`` in the state folder (written by the embedded stack), the defaults below.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from waybill.nearest_name import nearest
from waybill.settings.secrets import require_no_login, require_url
from waybill.settings.secrets import secret_values as secret_values

ENV_FILE_NAME = "stack.env"
MAIL_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/^_`{|}~-]{1,64}@[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
"""One address and nothing else: no space, line end, comma, bracket, or start of an encoded word."""


Address = Annotated[str, AfterValidator(require_no_login)]
"""An address that messages show."""


_WRITTEN_AS: dict[Any, str] = {
    tuple: 'a JSON list, as in ["a", "b"] or []',
    dict: 'a JSON object, as in {"a": 1} or {}',
}


class Section(BaseModel):
    """Frozen; a name that there is not is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_plain_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Say what a list or an object is to look like, also where the variable is empty."""
        kind = get_origin(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, str) and kind in _WRITTEN_AS:
            found = "is empty" if not value.strip() else "is plain text"
            raise ValueError(f"{found}: it must be {_WRITTEN_AS[kind]}, or not be set at all")
        return value


def require_teams(given: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return what has teams.

    Raises:
        ValueError: something has none: nobody could use it.
    """
    if empty := sorted(name for name, teams in given.items() if not teams):
        raise ValueError(f"{empty[0]!r} names no team: name some, or leave it out")
    return given


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


class KafkaSettings(Section):
    """The log between ingestion and processing."""

    bootstrap_servers: Address = "127.0.0.1:9092"
    topic_partitions: int = Field(2, ge=1)
    """Partitions of a topic when it is created. More of them later: `waybill topics grow`."""
    max_topic_partitions: int = Field(0, ge=0, le=10_000)
    """Most partitions that the coordinator gives a topic whose tasks do not keep up, while its
    cluster has cores for more. 0, or as many as it has: it only says which topic needs them, and
    `waybill topics grow` gives them."""
    replication_factor: int = Field(1, ge=1)
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How brokers are reached: `SSL` encrypts, and proves who a broker is; `SASL_…` logs in."""
    ssl_ca_file: Path | None = None
    """Certificates (PEM) of who vouches for the brokers. Empty, with none in `ssl_ca_pem`: those
    that the system trusts."""
    ssl_ca_pem: str = ""
    """The same as text; for a place that has no files."""
    ssl_certificate_file: Path | None = None
    """Certificate (PEM, with those between it and its CA) that shows a broker who we are."""
    ssl_certificate_pem: str = ""
    """The same as text."""
    ssl_private_key_file: Path | None = None
    """Its private key: PKCS #8 in PEM, as Java reads no other. With a password only if
    `ssl_private_key_password` has it."""
    ssl_private_key_pem: SecretStr | None = None
    """The same as text."""
    ssl_private_key_password: SecretStr | None = None
    """Password of the private key."""
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = ""
    """How to log in where `security_protocol` begins with `SASL_`. `PLAIN` sends the password: only
    with `SASL_SSL`, as `OAUTHBEARER`."""
    sasl_username: str = ""
    """Whom to log in as; of `OAUTHBEARER`: the client's id."""
    sasl_password: SecretStr | None = None
    """Password; of `OAUTHBEARER`: the client's secret."""
    sasl_token_url: Address | None = None
    """Of `OAUTHBEARER`: where the identity provider gives tokens (OIDC, client credentials)."""
    sasl_scope: str = ""
    """Of `OAUTHBEARER`: the scope to ask for."""

    @property
    def encrypts(self) -> bool:
        """Tell whether brokers are reached by TLS."""
        return self.security_protocol.endswith("SSL")

    @model_validator(mode="after")
    def _refuse_half_security(self) -> Self:
        """Refuse what would be left out in silence, or tell the password to the network."""
        if problem := next(self._problems(), None):
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield what does not fit together; shows no value that is secret."""
        for name in _PEMS:
            if getattr(self, f"ssl_{name}_file") and _text(getattr(self, f"ssl_{name}_pem")):
                yield f"ssl_{name}_file and ssl_{name}_pem are both set: take one of them away"
        if not self.encrypts and any(self._tls()):
            yield (
                f"security_protocol {self.security_protocol} uses no certificates, and ssl_… is"
                " set: make it SSL or SASL_SSL"
            )
        has_certificate = bool(self.ssl_certificate_file or self.ssl_certificate_pem)
        if has_certificate != bool(self.ssl_private_key_file or _text(self.ssl_private_key_pem)):
            yield "a certificate needs its private key, and a key its certificate: set both"
        if _text(self.ssl_private_key_password) and not has_certificate:
            yield "ssl_private_key_password is of a private key, and none is set"
        yield from self._login_problems()

    def _tls(self) -> Iterator[bool]:
        for name in _PEMS:
            yield getattr(self, f"ssl_{name}_file") is not None
            yield bool(_text(getattr(self, f"ssl_{name}_pem")))

    def _login_problems(self) -> Iterator[str]:
        mechanism, logs_in = self.sasl_mechanism, self.security_protocol.startswith("SASL")
        login = (self.sasl_username, _text(self.sasl_password))
        if logs_in and not mechanism:
            yield f"security_protocol {self.security_protocol} needs sasl_mechanism"
        if not logs_in and (mechanism or any(login)):
            yield (
                f"security_protocol {self.security_protocol} logs nobody in, and sasl_… is set:"
                " make it SASL_SSL"
            )
        if mechanism and not all(login):
            yield f"sasl_mechanism {mechanism} needs sasl_username and sasl_password"
        if mechanism in {"PLAIN", "OAUTHBEARER"} and not self.encrypts:
            yield f"sasl_mechanism {mechanism} tells its secret to the network: take SASL_SSL"
        if (mechanism == "OAUTHBEARER") != bool(self.sasl_token_url):
            yield "sasl_mechanism OAUTHBEARER needs sasl_token_url, and nothing else uses it"
        if self.sasl_token_url and not _hides(self.sasl_token_url):
            yield "sasl_token_url tells the client's secret to the network: it must be https://…"
        if any(ord(c) < _FIRST_PRINTED for text in (*login, self.sasl_scope) for c in text):
            yield "sasl_username, sasl_password and sasl_scope must hold no control characters"


_PEMS = ("ca", "certificate", "private_key")
_FIRST_PRINTED = 32


def _hides(url: str) -> bool:
    """Tell whether what is asked by an address is read by nobody else."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (parts.scheme == "https" or parts.hostname in _OWN_MACHINE)


_OWN_MACHINE = ("127.0.0.1", "::1", "localhost")


def _text(value: str | SecretStr | None) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value or ""


class S3Settings(Section):
    """The object store for staged, parked and trace objects."""

    endpoint_url: Annotated[str | None, AfterValidator(require_no_login)] = None
    """None: the provider's own. Embedded: the loopback server."""
    bucket: str = "waybill"
    region: str = "us-east-1"
    connection_id: str = ""
    """Airflow's connection of type `aws` that gives its tasks, triggers and pages the keys, and
    where it names them region and address. Empty: the keys below, else the usual AWS chain."""
    access_key: SecretStr | None = None
    """None: the usual AWS credential chain."""
    secret_key: SecretStr | None = None


class TrackerSettings(Section):
    """The SQL store of the books: PostgreSQL."""

    dsn: Annotated[SecretStr, AfterValidator(require_url)] = SecretStr(
        "postgresql://127.0.0.1:5432/waybill"
    )
    pool_size: int = Field(4, ge=1)
    connect_timeout_s: int = Field(10, ge=1)
    """Longest that a connection may take to be made, for each address of the server."""
    tcp_user_timeout_s: int = Field(30, ge=5)
    """A TCP connection ends when the other side acknowledges nothing for this long."""
    keepalive_idle_s: int = Field(15, ge=1)
    """An idle TCP connection is probed after this time, then every 5 s; three probes without an
    answer end it."""
    lock_timeout_s: int = Field(30, ge=1)
    """Longest wait for a lock. More than `idle_in_transaction_timeout_s`: whoever waits for a
    frozen process then gets its lock instead of an error."""
    statement_timeout_s: int = Field(300, ge=10)
    """Longest that one statement may take."""
    long_statement_timeout_s: int = Field(14_400, ge=60)
    """The same for migrations, discards and their undoing, folding, `refresh_tracker`, and what
    reads whole tables."""
    idle_in_transaction_timeout_s: int = Field(20, ge=5)
    """A transaction in which nothing happens for this long is ended by the server: so long a frozen
    process can hold its locks."""
    long_idle_in_transaction_timeout_s: int = Field(900, ge=60)
    """The same for transactions that hold no row others wait for, and read Kafka or the object
    store beside the tracker: an audit's round, a refresh."""


class SourceSettings(Section):
    """What sources may reach beside packages and the pipelines' own folders."""

    roots: tuple[Path, ...] = ()
    """A JSON list of absolute folders: every pipeline may read every file below them."""
    team_roots: dict[str, tuple[Path, ...]] = Field(default={})
    """Folders that only pipelines of a team may read, beside `roots`: a JSON object, as in `{"crm":
    ["/data/crm"]}`. None lies within one that others may read."""
    connections: dict[str, SecretStr] = Field(default={})
    """Connections by name, which declarations name as `source.connection`: a URI
    (`postgres://user:password@host:5432/shop`) or JSON, in Airflow's form. One of this name in
    Airflow, or in `AIRFLOW_CONN_<NAME>`, is taken where there is none here, if its extra names the
    pipeline: `waybill_pipelines`."""
    connection_teams: dict[str, tuple[str, ...]] = Field(default={})
    """Teams whose pipelines may use a connection of `connections`: a JSON object, as in `{"crm_db":
    ["crm"]}`. One that is not named here is for all."""

    taps: dict[str, tuple[str, ...]] = Field(default={})
    """Singer taps that pipelines may run: a JSON object of names and commands, as in `{"jsonl":
    ["/opt/taps/jsonl/bin/tap-jsonl"]}`. A tap runs as this user, and connects to what it wants;
    its files are closed but for its own, the pipeline's folder and `roots`."""
    quiet_s: float = Field(900.0, ge=1)
    """A source that runs as a process of its own (dlt, Singer) and gives nothing for this long is
    ended; the next run goes on."""

    @field_validator("taps")
    @classmethod
    def _refuse_no_program(cls, taps: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if wrong := sorted(name for name, one in taps.items() if not one or one[0][:1] != "/"):
            raise ValueError(f"{wrong[0]!r} needs a command that begins with an absolute path")
        return taps

    @field_validator("roots")
    @classmethod
    def _refuse_relative(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        if relative := [str(root) for root in roots if not root.is_absolute()]:
            raise ValueError(
                f"each must be an absolute folder (it begins with /); found {relative}"
            )
        return roots

    @model_validator(mode="after")
    def _refuse_open_folders(self) -> Self:
        """Refuse a team's folder that others may read, or that holds one which they may."""
        places: dict[Path, set[str]] = {root: {"*"} for root in map(_real, self.roots)}
        for team, roots in self.team_roots.items():
            self._refuse_relative(roots)
            for root in map(_real, roots):
                places.setdefault(root, set()).add(team)
        for root, teams in places.items():
            for other in (one for one in places if one.is_relative_to(root)):
                if places[other] != teams or ("*" in teams and teams != {"*"}):
                    raise ValueError(
                        f"{other} lies within {root}, which others may read: give teams folders"
                        " beside each other, and name none of them in roots"
                    )
        return self

    @field_validator("connection_teams")
    @classmethod
    def _refuse_nobody(cls, given: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return require_teams({name.casefold(): teams for name, teams in given.items()})

    @model_validator(mode="after")
    def _refuse_unknown_connections(self) -> Self:
        """Refuse a name that closes nothing."""
        known = {name.casefold() for name in self.connections}
        if wrong := sorted(self.connection_teams.keys() - known):
            raise ValueError(
                f"connection_teams names {wrong[0]!r}, which is none of connections:"
                f" {', '.join(sorted(known)) or 'there are none'}"
            )
        return self

    def roots_of(self, team: str) -> tuple[Path, ...]:
        """Return the folders that pipelines of a team may read."""
        return (*self.roots, *self.team_roots.get(team, ()))

    def is_for(self, connection: str, team: str) -> bool:
        """Tell whether pipelines of a team may use a connection of the settings."""
        return team in self.connection_teams.get(connection.casefold(), (team,))

    def connections_of(self, team: str) -> dict[str, SecretStr]:
        """Return the connections that pipelines of a team may use."""
        return {name: uri for name, uri in self.connections.items() if self.is_for(name, team)}


class EgressSettings(Section):
    """Where sources may connect to, beside the public internet."""

    allowed_hosts: tuple[str, ...] = ()
    """A JSON list of hosts inside of your own network, as declarations write them, each with or
    without a port: `["crm.internal:8443", "10.0.0.7"]`. Sources of every pipeline reach them,
    whatever addresses they have."""
    allowed_networks: tuple[str, ...] = ()
    """A JSON list of networks, as in `["10.20.0.0/16", "fd00:20::/32"]`. Private, loopback,
    link-local, reserved and multicast addresses are closed to sources otherwise."""

    @field_validator("allowed_networks")
    @classmethod
    def _refuse_no_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for text in networks:
            ipaddress.ip_network(text)
        return networks


class WalSettings(Section):
    """Local write-ahead log of the producer."""

    dir: Path = Path(".waybill/wal")
    node: str = ""
    """Name of this node, for people: `waybill logs list` shows it. Empty: its host name."""
    segment_bytes: int = Field(64 * 1024**2, ge=64 * 1024)
    """Size a segment is pre-allocated to. Default 64 MiB, at least 64 KiB."""
    durability: Literal["process", "group", "each"] = "process"
    """process: survives kill -9. group: fdatasync every group_commit_ms. each: every append."""
    group_commit_ms: int = Field(5, ge=0)
    checkpoint_interval_ms: int = Field(5000, ge=10)
    retry_interval_ms: int = Field(1000, ge=10)
    max_in_flight: int = Field(100_000, ge=1)
    disk_threshold_bytes: int = Field(20 * 1024**3, ge=1024**2)
    disk_floor_bytes: int = Field(256 * 1024**2, ge=0)
    """Free space that is left untouched; below it appends wait or raise WalFullError."""
    when_full: Literal["wait", "raise"] = "wait"


class SparkSettings(Section):
    """The Spark applications that carry the data."""

    master: str = "local[2,4]"
    connection_id: str = ""
    """Airflow's connection of Spark by which applications are submitted (`spark-submit`): to a
    standalone cluster in client mode, to YARN or Kubernetes in cluster mode. Empty: they are
    processes of this host, with `WAYBILL_SPARK__MASTER`."""
    jobs_uri: str = ""
    """Where a cluster finds the files of `spark_jobs` in cluster mode, as in
    `local:///opt/waybill/spark_jobs`; empty: they are uploaded."""
    driver_host: str = "127.0.0.1"
    """Address the driver listens on and executors reach it at; on a cluster its host's name."""
    driver_memory: str = "1g"
    processing_max_cores: int = Field(2, ge=1)
    """Most cores of a Spark cluster that the application `processing` takes; without a limit the
    first application takes all, and the other waits for ever. `local[n]` takes n."""
    loading_max_cores: int = Field(2, ge=1)
    """Most cores of a Spark cluster that the application `loading` takes."""
    jars_dir: Path = Path(".waybill/jars/spark")
    max_events_per_batch: int = Field(200_000, ge=1)
    """Most events one micro-batch takes, of all its topics; workers hold 1 to 3 KB for each."""
    topics_per_query: int = Field(50, ge=1)
    """Most topics that one streaming query reads; few topics are spread over four queries where
    there are four cores or more. Each query has an equal share of the cores while others have work
    too; the topics of one share its batches by what waits in them."""
    trigger_ms: int = Field(500, ge=0)
    idle_trigger_ms: int = Field(2_000, ge=0)
    """The same for a query, and a destination, to which nothing came for a minute; at most
    `trigger_ms`: no other."""
    event_timeout_s: float = Field(30.0, gt=0)
    """Longest time user code may take for one event before the event is parked."""
    work_dir: Path = Path(".waybill/spark")


class SandboxSettings(Section):
    """Processes that run user code: what they share, and what one may use."""

    shared_by: Literal["team", "pipeline"] = "team"
    """Who has a process together. `pipeline`: one each, for teams whose pipelines do not trust each
    other."""
    memory_mb: int = Field(1024, ge=64)
    """Private memory of one process, in MiB; beyond it the code meets a `MemoryError`."""
    file_mb: int = Field(64, ge=1)
    """Files that one process may write, all together, in MiB."""
    readable: tuple[Path, ...] = ()
    """Files and folders that user code may read, as a JSON list: look-up tables, certificates. All
    else but Python and the system's libraries is closed."""
    strict: bool = False
    """Start no user code where the machine lacks a part of the confinement (`waybill doctor`)."""


class TraceSettings(Section):
    """Event traces: local files, shipped to the object store as Parquet."""

    spool_dir: Path = Path(".waybill/traces")
    buckets: int | None = Field(None, ge=1, le=999)
    """Only for a store that has no traces yet: 128 when it is not set."""
    compact_after_s: float = Field(120.0, ge=60)
    """Shipped objects younger than this are left to the next compaction."""
    compacted_kept_s: float = Field(600.0, ge=600)
    """How long objects are kept after their compaction, for those who still read them."""
    roll_s: float = Field(5.0, gt=0)
    """Longest a finished local file waits before it is shipped."""
    roll_bytes: int = Field(64 * 1024**2, ge=1024)
    disk_threshold_bytes: int = Field(5 * 1024**3, ge=1024**2)
    enabled: bool = True
    backend: Literal["duckdb", "athena"] = "duckdb"
    athena_database: str = "waybill"
    athena_workgroup: str = "primary"
    athena_results: str = ""
    """s3:// folder for Athena's results; empty: the workgroup's own."""
    keep_questions_days: float = Field(30.0, gt=0)
    """How long the tracker keeps questions about events, and their answers."""


ConnectionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
"""As declarations name connections."""


def source_pool(connection: str) -> str:
    """Return the name of Airflow's pool of the runs that read by a connection."""
    return f"waybill_source_{connection}"


class AirflowSettings(Section):
    """Where the Airflow REST API is, for the CLI; which DAGs are on from the beginning."""

    url: Address = "http://127.0.0.1:8080"
    user: str = "admin"
    password: SecretStr | None = None
    connection_id: str = "waybill_default"
    """Airflow's connection of type `waybill` whose settings win over the environment, in its tasks,
    triggers and pages. Without `waybill_default` the environment alone is read; another one that is
    named here must be there."""
    ingest_slots: int = Field(16, ge=1)
    """Slots of Airflow's pool `waybill_ingest`: ingest runs at once, over all pipelines. `waybill
    up` makes it, and sizes it anew when this setting changes; compose makes it only."""
    replay_slots: int = Field(4, ge=1)
    """The same for `waybill_replay`: replays and dry runs at once."""
    source_slots: dict[ConnectionName, Annotated[int, Field(ge=1, le=10_000)]] = Field(default={})
    """A JSON object of connections and numbers, as in `{"shop_db": 2}`: no more ingest runs than
    that read by the connection at once, over all pipelines; one that reads a table's ranges by
    several connections counts as so many runs. They take slots of Airflow's pool
    `waybill_source_<connection>` and none of `waybill_ingest`; `waybill up` and compose make it,
    as that one. The services that parse DAGs need the setting, in their environment."""
    kafka_wait_s: float = Field(20.0, ge=1, le=3600)
    """Seconds for which an ingest run holds its slot while Kafka takes nothing, or the log has no
    room. Then it waits without one, and goes on at the same page."""
    keep_runs_days: float | None = Field(None, ge=7)
    """How long Airflow keeps runs of Waybill's DAGs, with their tasks, results and entries of its
    event log. The DAG `clean_up_runs` deletes older ones each day by `airflow db clean`, which
    deletes those that still run as well: a replay may run for three days. Empty: as long as you
    keep all others."""
    database_connection_id: str = "airflow_db"
    """Airflow's connection (`postgres` or `mysql`) to Airflow's own database, for `clean_up_runs`:
    tasks have no other way there."""
    unpaused_dags: Literal["upkeep", "all", "none"] = "upkeep"
    """DAGs that run from the moment Airflow first sees them. `upkeep`: all but those that move data
    in (`ingest_…`) and on (`stream_…`), which somebody unpauses; `all`; `none`: as Airflow's own
    `dags_are_paused_at_creation` says. A DAG that Airflow knows already stays as it is."""


class CapacitySettings(Section):
    """What this node can do at once, and how nodes follow the work: `waybill capacity`."""

    node_kind: Literal["ingestion", "spark"] = "ingestion"
    """Of this node, whose name is `WAYBILL_WAL__NODE`, or its host's."""
    workers: int = Field(0, ge=0, le=10_000)
    """Capacity of an ingestion node: tasks that it runs at once. 0: as
    `WAYBILL_AIRFLOW__INGEST_SLOTS`."""
    cores: int = Field(0, ge=0, le=10_000)
    """Capacity of a Spark node. 0: the machine's."""
    consumers: int = Field(0, ge=0, le=100_000)
    """Capacity of a Spark node beside its cores: consumers (topics that are processed) that it
    serves. 0, on any node: only cores count."""
    max_workers: int = Field(64, ge=1, le=10_000)
    """To so many `waybill capacity enhance` goes where tasks wait for a network or a disk."""
    look_s: float = Field(10.0, ge=1, le=60)
    """How often it looks."""
    executor: Literal["local", "celery"] = "local"
    """How it adds and takes workers: by the slots of Airflow's pool `pool`, or by `pool_grow` and
    `pool_shrink` of this node's Celery worker."""
    pool: str = "waybill_ingest"
    """Airflow's pool of the tasks that capacity follows."""
    celery_broker: SecretStr | None = None
    """Address of Celery's broker, as Airflow's `AIRFLOW__CELERY__BROKER_URL`."""
    celery_worker: str = ""
    """Name of this node's worker; empty: `celery@` and the host name."""
    celery_queues: tuple[str, ...] = ("default",)
    """A JSON list: the queues that it takes tasks from; it leaves them when the node drains."""
    store: Literal["settings", "airflow", "consul"] = "settings"
    """Where thresholds are: `thresholds` below, Airflow's Variable `variable`, or Consul's key
    `consul_key`, which is watched for change."""
    thresholds: dict[str, dict[str, float]] = {}
    """JSON by kind of node: see [Capacity](capacity.md#thresholds)."""
    variable: str = "waybill_capacity"
    consul_url: Address = ""
    consul_key: str = "waybill/capacity"
    consul_token: SecretStr | None = None
    ingestion_group: str = ""
    """Auto Scaling group of AWS that gives ingestion nodes, whose names are instance ids. Empty:
    a dry run, which only says what would be done."""
    loopback: tuple[Literal["ingestion", "spark"], ...] = ()
    """A JSON list: kinds of nodes that are processes of the machine on which the infra coordinator
    runs. `ingestion` are Celery workers, `spark` are workers of the standalone master
    `WAYBILL_SPARK__MASTER`."""
    celery_command: tuple[str, ...] = ()
    """A JSON list: the command of a Celery worker on loopback, with `{node}`, `{workers}` and
    `{queues}` in its words. Empty: `airflow celery worker`."""
    spark_worker_memory: str = Field("2g", pattern=r"^[1-9][0-9]{0,5}[mg]$")
    """That a Spark worker on loopback offers to executors."""
    spark_worker_url: Address = "http://127.0.0.1:8081"
    """Page of this node's Spark worker: its enhancer asks it which cores are in use. Those on
    loopback have pages of their own, and are found without it."""


class CollectorSettings(Section):
    """The HTTP collector: `waybill collector`."""

    host: str = "127.0.0.1"
    """Address it listens on. Behind a proxy that ends TLS, loopback is enough."""
    port: int = Field(28090, ge=0, le=65535)
    """0: one that is free; its log says which."""
    workers: int = Field(1, ge=1, le=64)
    """Processes. Each has write-ahead logs of its own."""
    body_bytes: int = Field(10 * 1024**2, ge=1024)
    """Longest body of a request as it is sent."""
    inflated_bytes: int = Field(50 * 1024**2, ge=1024)
    """Longest body once it is decompressed."""
    held_bytes: int = Field(256 * 1024**2, ge=1024)
    """Most that all requests of one worker hold in memory, of bodies and of payloads that wait;
    further ones get 503. Whoever reaches the port can fill it, secret or not."""
    records: int = Field(10_000, ge=1)
    """Most records of one request."""
    header_bytes: int = Field(32 * 1024, ge=1024)
    """Longest head of a request."""
    connections: int = Field(1000, ge=1)
    """Most connections of one worker; further ones get 503."""
    request_s: float = Field(30.0, gt=0)
    """Longest that a client may take to send a request."""
    answer_s: float = Field(10.0, gt=0)
    """Longest that a request waits for the disk, or Kafka; then it gets 503, and may send again."""
    events_per_s: int = Field(0, ge=0)
    """Most events of a pipeline that a worker takes a second, where its declaration has no
    `events_per_s`; 0: as many as come."""
    queued_events: int = Field(50_000, ge=1)
    """Most events of a pipeline that wait for the disk in one worker; further ones get 503."""
    page_s: float = Field(1.0, gt=0)
    """Events taken within this time are one page: counted and traced together."""
    remembered_ids: int = Field(100_000, ge=0)
    """Event ids that came with requests and are remembered for each pipeline: one that comes again
    is answered, and not sent again."""
    recheck_s: float = Field(5.0, gt=0)
    """Time between two looks at which pipelines are deployed."""
    stop_s: float = Field(30.0, ge=0)
    """Longest that a stop waits for Kafka and the tracker; the next start does the rest."""
    embedded: bool = False
    """Whether `waybill up` starts it too."""


class StackSettings(Section):
    """Ports and sizes of the embedded stack; all on loopback.

    The four of S3 also open the ports 10,000 above: these too must be below 32,768, where a machine
    takes ports for its own connections, or one of those may hold it when S3 starts.
    """

    kafka_port: int = Field(29092, ge=1, le=65535)
    kafka_controller_port: int = Field(29093, ge=1, le=65535)
    kafka_heap_mb: int = Field(512, ge=128)
    s3_port: int = Field(18333, ge=1, le=55535)
    s3_master_port: int = Field(18334, ge=1, le=55535)
    s3_volume_port: int = Field(18335, ge=1, le=55535)
    s3_filer_port: int = Field(18336, ge=1, le=55535)
    airflow_port: int = Field(28080, ge=1, le=65535)


class ParkingSettings(Section):
    """Parked files and their clean-up."""

    clean_up_grace_s: float = Field(3600.0, ge=0)
    """An object whose segments are all replayed or discarded is kept this long."""
    garbage_grace_s: float = Field(3600.0, ge=0)
    """An object that no row names is deleted when it is older than this."""
    rewrite_below: float = Field(0.25, ge=0, le=1)
    """What is parked in an object moves to a new one when it is less than this share of it."""
    rewrite_from_bytes: int = Field(1024**2, ge=0)
    """Only objects of at least this size are rewritten."""
    transient_attempts: int = Field(3, ge=1, le=20)
    """Runs of a transformation for an event that meets a transient error, the first included."""
    transient_backoff_s: float = Field(0.2, ge=0)
    """Wait before the second run; twice as long before each later one."""
    transient_budget_s: float = Field(5.0, ge=0)
    """Longest that one task waits and runs again for all events of a topic; then they park at
    once."""
    storm_share: float = Field(0.5, ge=0, le=1)
    """A pipeline is held when more than this share of a batch's events would park for one cause;
    0: never."""
    storm_min_events: int = Field(1000, ge=1)
    """Fewer first-pass events of a pipeline in a batch are no storm, whatever becomes of them."""
    canary_threshold: float = Field(0.05, ge=0, le=1)
    """A replay with a canary stops when more than this share of a step's events park again."""
    canary_wait_s: float = Field(600.0, gt=0)
    """Longest that a step of a canary is waited for; then the task fails, and its retry goes on."""
    probe_pass_rate: float = Field(0.9, gt=0, le=1)
    """A held pipeline is released when at least this share of a sample of its held events pass."""


class RetentionSettings(Section):
    """How long what is no longer needed day by day is kept."""

    staged_days: float = Field(7.0, ge=0)
    """How long staged objects are kept after they were loaded: a destination that is put back to an
    older point is loaded again from them."""
    log_days: float = Field(7.0, ge=0)
    """How long records stay in Kafka after the commit that holds them, once it is loaded; not less
    than ``staged_days``. A topic's newest records stay however old they are."""
    payloads_days: float = Field(30.0, ge=0)
    """How long objects under ``payloads/`` are kept at least; not less than ``log_days``."""
    source_keys_days: float = Field(30.0, ge=0)
    """How long the keys of a table's rows are kept (``deletes: compare``) that no deployed pipeline
    compares with any more."""
    traces_days: float = Field(90.0, ge=1)
    """How long shipped traces are kept, by the hour of their events."""
    books_days: float = Field(90.0, ge=1)
    """How long the tracker keeps the rows of what is over: batches that are loaded, counts that are
    folded into minutes and totals, staged and parked objects that are deleted, replays that are
    done, holds that were released. Not less than any of the others, which ask these rows."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for shorter, longer in (
            ("staged_days", "log_days"),
            ("log_days", "payloads_days"),
            ("payloads_days", "books_days"),
            ("traces_days", "books_days"),
        ):
            least, given = getattr(self, shorter), getattr(self, longer)
            if given < least:
                raise ValueError(
                    f"WAYBILL_RETENTION__{longer.upper()} is {given:g}, less than "
                    f"WAYBILL_RETENTION__{shorter.upper()} ({least:g}): set it to {least:g} or more"
                )
        return self


class NoticeSettings(Section):
    """How owners are told of what is parked, held, damaged or replayed: by each of these."""

    log: bool = True
    """Write each message to the log, and so to the log of the Airflow task."""
    webhook_url: SecretStr | None = None
    """Address that gets each message as JSON with a `text`, as Slack's webhooks take it."""
    webhook_secret: SecretStr | None = None
    """Signs the body: header `X-Waybill-Signature`, HMAC-SHA-256 over time, a dot and the body."""
    webhook_timeout_s: float = Field(10.0, gt=0)
    """Longest that connecting, sending or answering may take, each."""
    smtp_host: str | None = None
    """Mail server; owners with a mail address get their messages by it."""
    smtp_port: int = Field(587, ge=1, le=65535)
    smtp_tls: Literal["starttls", "implicit", "none"] = "starttls"
    """How the connection is encrypted; the server's certificate is checked."""
    smtp_ca_file: Path | None = None
    """Certificates to trust; empty: the system's."""
    smtp_user: str | None = None
    """User of the mail server; empty: no login."""
    smtp_password: SecretStr | None = None
    """Password of that user."""
    smtp_from: str | None = None
    """Address that mails come from; needed with a mail server."""
    smtp_timeout_s: float = Field(10.0, gt=0)
    """Longest that the mail server may take for one answer."""
    fallback_to: str | None = None
    """Mail address for owners without one, for pipelines that nobody declared, and for failed tasks
    that are of no one pipeline."""
    error_messages: bool = True
    """`false`: leave out error messages, which can hold values of events."""
    personal_messages: bool = False
    """`true`: send error messages also of pipelines that declare personal fields, and of those that
    nobody deployed; `false`: such a message is replaced by words that say so."""
    digest_interval_s: float = Field(86_400.0, gt=0)
    """Time between two digests of a pipeline."""
    retry_first_s: float = Field(60.0, ge=0)
    """Wait after a message failed; twice as long after each further failure."""
    retry_longest_s: float = Field(3600.0, ge=0)
    """Longest such wait."""
    stuck_after_s: float = Field(3600.0, ge=0)
    """A message that could not be sent for this long fails the Airflow task that sends."""
    keep_sent_days: float = Field(30.0, ge=0)
    """How long the tracker keeps what was sent."""

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        url = self.webhook_url
        if url is not None and not url.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("webhook_url must start with https:// or http://")
        if self.smtp_host and not self.smtp_from:
            raise ValueError("smtp_host is set: smtp_from must say where mails come from")
        for name in ("smtp_from", "fallback_to"):
            given = getattr(self, name)
            if given is not None and not MAIL_ADDRESS.fullmatch(given):
                raise ValueError(f"{name} must be one mail address such as data@example.org")
        return self


Permission = Literal["view", "replay", "discard", "download", "personal"]
PERMISSIONS: tuple[Permission, ...] = ("view", "replay", "discard", "download", "personal")


class Grant(Section):
    """What some people may do with the parked events of some teams."""

    who: str = Field(min_length=1)
    """A user's name in Airflow; ``role:admin``: all with that role there; ``*``: all signed in."""
    teams: Literal["*"] | tuple[str, ...]
    """``*``: every team, and partitions of pipelines that nobody deployed."""
    permissions: tuple[Permission, ...] = Field(min_length=1)


WaitingStage = Literal["ingestion", "transformation", "destination"]


class AuditSettings(Section):
    """The auditor, how much one round reads and waits; the eager checks, what they tell."""

    log_records: int = Field(200_000, ge=0)
    """Records of a topic that wait for processing are read up to this number, to know of each which
    minute it is of; beyond it a minute is judged once processing has passed it."""
    unloaded_batches: int = Field(2_000, ge=0)
    """The same for committed batches that wait for a destination."""
    minutes: int = Field(100_000, ge=1)
    """Most (pipeline, event name, minute) that one round looks at, shared evenly among pipelines
    with more; what changed comes first."""
    compare_ids: bool = True
    """Compare the ids in traces also of minutes whose numbers balance, so that an event lost and
    another doubled are found; off: ids are read only of breaches."""
    compare_within_s: float = Field(86_400.0, ge=0)
    """Minutes in balance that are older than this are not compared by their ids."""
    naming_patience_s: float = Field(900.0, ge=0)
    """When the traces of a minute are not all in after this time, the stages that have theirs are
    named."""
    naming_budget_s: float = Field(40.0, gt=0)
    """After this time a run of the audit reads the traces of no further minute."""
    named_ids: int = Field(1_000, ge=1)
    """Ids kept of each breach; the rest is counted."""
    quiet_after_s: float = Field(1200.0, ge=600)
    """Shorter silences of a pipeline are never told, whatever is usual for it."""
    late_ingestion_s: float = Field(1800.0, gt=0)
    """A scheduled run that has not ended so long after it was due is late."""
    late_transformation_s: float = Field(600.0, gt=0)
    """Longest that an event should wait in the log before it is processed."""
    late_destination_s: float = Field(900.0, gt=0)
    """Longest that mapped rows should wait before they are loaded."""
    late_of_pipelines: dict[str, dict[WaitingStage, float]] = Field(default={})
    """Other objectives for some pipelines, in seconds: `{"orders": {"destination": 60}}`."""
    log_unseen_s: float = Field(600.0, ge=60)
    """A write-ahead log of ingestion that holds events and was not seen for so long is told."""
    parked_jump_share: float = Field(0.05, gt=0, le=1)
    """Share of a pipeline's newest events that parks, below which nothing is told."""
    parked_jump_times: float = Field(3.0, ge=1)
    """Multiple of the usual share below which nothing is told."""
    parked_jump_events: int = Field(50, ge=1)
    """Quarters of an hour with fewer events say nothing about shares."""
    drift_every_s: float = Field(600.0, ge=60)
    """Time between two looks at how many rows a destination's table has."""
    drift_small_rows: int = Field(5_000_000, ge=0)
    """Tables with more rows, as the server estimates, are not counted at each look."""
    drift_exact_every_s: float = Field(86_400.0, ge=60)
    """Time between two counts of such a large table; it is counted at once when the estimate is
    far from what loads put there."""


class AccessSettings(Section):
    """Who may do what with parked events in Airflow's pages and the REST API; the audit log."""

    grants: tuple[Grant, ...] = (Grant(who="role:admin", teams="*", permissions=PERMISSIONS),)
    """A JSON list of `{"who", "teams", "permissions"}`; what is in no grant is refused. See
    [REST API](api.md#access)."""
    kafka_principal: str = ""
    """Which principal of Kafka Waybill is, as `User:waybill`, for its access rules."""
    kafka_principals: dict[str, tuple[str, ...]] = Field(default={})
    """Principals of Kafka that may write to a team's topics: a JSON object, as in `{"crm":
    ["User:crm-app"]}`. `waybill access kafka-acls` makes the rules."""
    audit_signing_secret: SecretStr | None = None
    """Signs the [seals of the audit log](operations.md#the-audit-log), so that who can write to
    tracker and bucket, but does not have it, cannot sign one. Empty: they are not signed."""

    @field_validator("audit_signing_secret")
    @classmethod
    def _refuse_short(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and 0 < len(key.get_secret_value()) < _SHORTEST_KEY:
            raise ValueError(f"it needs {_SHORTEST_KEY} characters at least: it could be guessed")
        return key


_SHORTEST_KEY = 16

BUILT_IN_KINDS = (
    "postgres",
    "duckdb",
    "delta",
    "iceberg",
    "snowflake",
    "bigquery",
    "redshift",
    "databricks",
    "clickhouse",
)
ENTRY_POINTS = "waybill.destinations"
"""Group under which other packages bring kinds of destinations."""


def brought_kinds() -> dict[str, EntryPoint]:
    """Return the kinds that installed packages bring. Cost: a look at each installed package."""
    return {one.name: one for one in entry_points(group=ENTRY_POINTS)}


class DestinationSettings(Section):
    """How to reach one destination; pipelines name it."""

    kind: str = "postgres"
    """One of ``BUILT_IN_KINDS``, or one that an installed package brings."""
    dsn: SecretStr
    """postgres: a libpq URL; duckdb: a file; delta, iceberg: a folder or ``s3://…``; the others:
    a URL of their own form (docs/destinations.md)."""
    options: dict[str, SecretStr] = Field(default={})
    """What a kind needs beside its dsn, such as ``catalog`` for iceberg."""
    max_rows: int = Field(1_000_000, ge=1)
    """Rows that a load takes at most; a commit is never cut."""
    max_bytes: int = Field(512 * 1024**2, ge=1024)
    """Bytes of rows in memory, uncompressed, that a load takes at most; a commit is never cut."""
    min_rows: int = Field(0, ge=0)
    """A load waits for so many rows (or ``max_bytes``),"""
    max_wait_s: float = Field(0.0, ge=0)
    """but no longer than this after its first commit; the two go together, 0: it never waits."""
    park_after_s: float | None = Field(None, gt=0)
    """What waits is parked when the destination took nothing for so long; null: it waits."""
    compare_every_s: float | None = Field(60.0, ge=10)
    """While nothing is to be loaded, the destination's own books are compared so often, so that
    one which was put back to an older point is seen; null: only when it is opened, and by loads.
    One that is paid by the time it is awake may like null."""
    teams: tuple[str, ...] = ()
    """Teams whose pipelines may load into it: a JSON list. Empty: all."""
    schema_teams: dict[str, tuple[str, ...]] = Field(default={})
    """Teams whose pipelines may write a schema: a JSON object, as in `{"sales": ["shop"]}`. One
    that is not named is for all who may load into the destination."""
    table_teams: dict[str, tuple[str, ...]] = Field(default={})
    """Teams whose pipelines may write a table: a JSON object, as in `{"sales.orders": ["shop",
    "web"]}`. One that is not named is the team's whose pipeline was deployed first."""
    loaded_by: Literal["driver", "executors"] | None = None
    """Which processes of the application `loading` read its rows and write them: the `driver`, or
    Spark's `executors`, which must reach it as the driver does. null: executors where Spark has its
    own, unless it is one that only the driver may reach: a file or folder on its disk, a server on
    its own host, credentials or certificates of its own."""

    @field_validator("schema_teams", "table_teams")
    @classmethod
    def _refuse_nobody(cls, given: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return require_teams(given)

    @field_validator("table_teams")
    @classmethod
    def _refuse_no_schema(cls, given: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if wrong := next((name for name in given if not all(name.partition(".")[::2])), None):
            raise ValueError(f"{wrong!r} must be a schema and a table: <schema>.<table>")
        return given

    @field_validator("kind")
    @classmethod
    def _check_kind(cls, kind: str) -> str:
        if kind not in BUILT_IN_KINDS and kind not in brought_kinds():
            known = ", ".join((*BUILT_IN_KINDS, *sorted(brought_kinds())))
            raise ValueError(f"there is no such kind of destination; there are {known}")
        return kind

    @model_validator(mode="after")
    def _check_dsn(self) -> Self:
        if self.kind == "postgres" and "://" in self.dsn.get_secret_value():
            require_url(self.dsn)
        return self

    @model_validator(mode="after")
    def _check_waiting(self) -> Self:
        if bool(self.min_rows) != bool(self.max_wait_s):
            given, other = (
                ("min_rows", "max_wait_s") if self.min_rows else ("max_wait_s", "min_rows")
            )
            raise ValueError(f"{given} says nothing without {other}: set both, or neither")
        if self.min_rows > self.max_rows:
            raise ValueError(f"min_rows {self.min_rows} is more than max_rows {self.max_rows}")
        return self


class Settings(BaseSettings):
    """Read once per process; frozen afterwards."""

    model_config = SettingsConfigDict(
        env_prefix="WAYBILL_",
        env_nested_delimiter="__",
        env_file_encoding="utf-8",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # what was given may be a password, or stand beside one
    )

    home: Path = Path(".waybill")
    """State folder of the embedded stack: data, logs, pids."""
    pipelines_dir: Path = Path("include/pipelines")
    more_pipelines_dirs: tuple[Path, ...] = ()
    """A JSON list of further folders of declarations, whose pipelines have DAGs as well; of two of
    one name that of the first folder counts. `waybill demo --sources` names one."""
    dags_dir: Path = Path("dags")
    kafka: KafkaSettings = KafkaSettings()
    s3: S3Settings = S3Settings()
    tracker: TrackerSettings = TrackerSettings()
    sources: SourceSettings = SourceSettings()
    egress: EgressSettings = EgressSettings()
    wal: WalSettings = WalSettings()
    spark: SparkSettings = SparkSettings()
    sandbox: SandboxSettings = SandboxSettings()
    traces: TraceSettings = TraceSettings()
    parking: ParkingSettings = ParkingSettings()
    retention: RetentionSettings = RetentionSettings()
    notices: NoticeSettings = NoticeSettings()
    audit: AuditSettings = AuditSettings()
    destinations: dict[str, DestinationSettings] = {}
    airflow: AirflowSettings = AirflowSettings()
    access: AccessSettings = AccessSettings()
    capacity: CapacitySettings = CapacitySettings()
    collector: CollectorSettings = CollectorSettings()
    stack: StackSettings = StackSettings()

    def __init__(self, **values: Any) -> None:
        if "_env_file" not in values:
            home = Path(values.get("home") or os.environ.get("WAYBILL_HOME") or ".waybill")
            values["_env_file"] = home / ENV_FILE_NAME
        super().__init__(**values)

    @classmethod
    def overridden(cls, variables: Mapping[str, str]) -> Self:
        """Return the settings of this process, with other values for some variables.

        Args:
            variables: names and texts as the environment has them; they win over it.

        Raises:
            ValueError: a name is no setting; a value is not allowed (pydantic's ValidationError).
        """
        if unknown := [problem for name in sorted(variables) if (problem := _unknown(name))]:
            raise ValueError("\n".join(unknown))
        source = EnvSettingsSource(cls)
        source.env_vars = {name.lower(): value for name, value in variables.items()}
        return cls(**source())

    def to_env(self) -> dict[str, str]:
        """Return the settings as ``WAYBILL_*`` variables, secrets included, for a child process."""
        plain = _revealed(self.model_dump(mode="python"))
        return {
            f"WAYBILL_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in plain.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_names(cls, values: Any) -> Any:
        """Fail on a misspelt ``WAYBILL_*`` name; pydantic-settings would ignore or not place it."""
        names = (name for name in os.environ if name.startswith("WAYBILL_"))
        if unknown := [problem for name in sorted(names) if (problem := _unknown(name))]:
            raise ValueError("\n".join(unknown))
        return values


_MOVED = {
    "WAYBILL_SPARK__MAX_LOAD_ROWS": "each destination has its own max_rows",
    "WAYBILL_SPARK__MAX_LOAD_BYTES": "each destination has its own max_bytes",
}


def _unknown(name: str) -> str:
    """Return what is wrong with a variable that is no setting; "" for one that is."""
    known = {f"WAYBILL_{field.upper()}" for field in Settings.model_fields}
    for section, field in Settings.model_fields.items():
        parts = getattr(field.annotation, "model_fields", ())
        known.update(f"WAYBILL_{section}__{part}".upper() for part in parts)
    prefix, _, rest = name.upper().partition("WAYBILL_DESTINATIONS__")
    if not prefix and rest:
        place = f"WAYBILL_DESTINATIONS__{rest.partition('__')[0]}"
        known |= {place, *(f"{place}__{part}".upper() for part in DestinationSettings.model_fields)}
    connection = name.upper().partition("WAYBILL_SOURCES__CONNECTIONS__")
    if name.upper() in known or (not connection[0] and connection[2]):
        return ""
    if moved := _MOVED.get(name.upper()):
        return f"{name} is no longer a setting: {moved}"
    near = nearest(name, sorted(known))
    return f"unknown setting {name}; " + (
        f"did you mean {near}?" if near else "docs/settings.md lists all"
    )


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value.resolve())
    if isinstance(value, tuple):
        return [_revealed(item) for item in value]
    if isinstance(value, dict):
        return {name: _revealed(item) for name, item in value.items() if item is not None}
    return value
