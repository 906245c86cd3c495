"""Every client of a server has limits: none of them waits for ever.

The product's sources are walked for calls that make a client. Each must be known here by a rule
that says what its limits are; a new client without limits, or of a library that no rule knows,
fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url

from waybill.destinations.adapters.delta.lake import storage_options
from waybill.destinations.adapters.iceberg.lake import catalog_uri, io_properties
from waybill.destinations.adapters.postgres import session as postgres_destination
from waybill.destinations.adapters.snowflake import session as snowflake
from waybill.destinations.drivers import Address
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.kafka_topics.declaration import client_config as source_config
from waybill.ingestion.connectors.postgres_cdc import declaration as postgres_source
from waybill.producer.client import consumer_config, producer_config
from waybill.settings import KafkaSettings, S3Settings, TrackerSettings, WalSettings
from waybill.storage import objects
from waybill.storage.log import client_config
from waybill.storage.tracker import engine as tracker_engine

ROOT = Path(__file__).parents[2]
PLACES = ("include/waybill", "plugins", "spark_jobs", "dags")
NOT_USED = {
    "aiohttp", "asyncpg", "ftplib", "grpc", "http.client", "imaplib", "kafka", "paramiko", "psycopg2",
    "pymongo", "redis", "socketserver", "telnetlib", "trino", "websockets", "xmlrpc",
}  # fmt: skip
"""Libraries with clients that no rule is known for: whoever imports one writes its rule."""


@dataclass(frozen=True)
class Made:
    """One call that makes a client."""

    path: str
    line: int
    what: str
    keywords: frozenset[str]
    unpacked: frozenset[str]
    around: str
    """The source of the function it stands in."""
    source: str
    """The source of the module."""

    def has(self, *names: str) -> bool:
        return set(names) <= self.keywords


def with_(*names: str) -> Callable[[Made], bool]:
    """Return a rule: the call has these keywords."""
    return lambda made: made.has(*names)


def of_boto(made: Made) -> bool:
    limits = ("Config(", "connect_timeout=", "read_timeout=")
    return all(word in made.around for word in limits)


def of_psycopg(made: Made) -> bool:
    if made.path.endswith("postgres_cdc/source_database.py"):
        return "conninfo(connection)" in made.around  # see below
    if made.path.endswith("destinations/queries.py"):
        return "{**LIMITS, **conninfo_to_dict(dsn)}" in made.around
    return made.has("connect_timeout", "options") or bool(made.unpacked & {"LIMITS", "_LIMITS"})


def of_kafka(made: Made) -> bool:
    return made.path in KAFKA_CONFIGS or "socket.connection.setup.timeout.ms" in made.around


def of_duckdb(made: Made) -> bool:
    return "httpfs" not in made.source or "SET http_timeout" in made.source


def of_bigquery(made: Made) -> bool:
    """The client has no limit of its own: each of its calls has."""
    calls = [node for node in ast.walk(ast.parse(made.source)) if isinstance(node, ast.Call)]
    asks = {"query", "result", "get_job", "get_table", "load_table_from_file"}
    found = [
        {keyword.arg for keyword in call.keywords}
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in asks
        and ast.unparse(call.func.value) in ("job", "self.connection")
    ]
    return len(found) >= len(asks) and all("timeout" in keywords for keywords in found)


def elsewhere(_made: Made) -> bool:
    """Its limits are in values that a test below looks at."""
    return True


RULES: dict[str, Callable[[Made], bool]] = {
    "sqlalchemy.create_engine": with_("connect_args"),
    "psycopg.connect": of_psycopg,
    "adbc_driver_postgresql.dbapi.connect": elsewhere,
    "boto3.client": of_boto,
    "boto3.resource": of_boto,
    "botocore.session.Session": elsewhere,
    "boto3.Session": lambda made: "get_credentials" in made.around,  # asks for a second at most
    "confluent_kafka.Consumer": of_kafka,
    "confluent_kafka.Producer": of_kafka,
    "confluent_kafka.admin.AdminClient": of_kafka,
    "httpx.Client": with_("timeout"),
    "httpx.AsyncClient": with_("timeout"),
    "httpx.stream": with_("timeout"),
    "urllib.request.urlopen": with_("timeout"),
    "smtplib.SMTP": with_("timeout"),
    "smtplib.SMTP_SSL": with_("timeout"),
    "pyathena.connect": of_boto,
    "duckdb.connect": of_duckdb,
    "deltalake.DeltaTable": elsewhere,
    "deltalake.write_deltalake": elsewhere,
    "pyiceberg.catalog.sql.SqlCatalog": elsewhere,
    "redshift_connector.connect": with_("timeout", "tcp_keepalive"),
    "databricks.sql.connect": with_("_socket_timeout", "session_configuration"),
    "snowflake.connector.connect": elsewhere,
    "clickhouse_connect.get_client": with_("connect_timeout", "send_receive_timeout", "settings"),
    # its own loop asks with limits
    "psycopg.pq.PGconn.connect": lambda made: made.path.endswith("postgres_cdc/replication.py"),
    "google.cloud.bigquery.Client": of_bigquery,
    "google.cloud.bigquery.Client.from_service_account_json": of_bigquery,
    "requests.Session": lambda made: "GuardedAdapter(" in made.around,  # it has limits of its own
    # connected by the guard with its caller's limit; bound only; or the inherited end of a pair, whose other end is a process of ours
    "socket.socket": lambda made: (
        made.keywords == {"fileno"}
        or "settimeout(timeout_s)" in made.around
        or ("bind(" in made.around and ".connect" not in made.around)
    ),
}
NO_CLIENTS = {
    "httpx": {"ASGITransport", "Timeout"},
    "psycopg": {"adapters.types.get", "sql.SQL", "sql.Identifier"},
    "boto3": set[str](),
    "confluent_kafka": {
        "KafkaException",
        "Message",
        "TopicPartition",
        "TopicCollection",
        "admin.NewTopic",
        "admin.AclBinding",
        "admin.AclBindingFilter",
    },
    "smtplib": set[str](),
    "pyathena": set[str](),
    "adbc_driver_postgresql": set[str](),
    "adbc_driver_manager": set[str](),
    "redshift_connector": set[str](),
    "clickhouse_connect": set[str](),
    "pyiceberg.catalog": set[str](),
    "urllib.request": set[str](),
    "requests": set[str](),
    "urllib3": set[str](),
}
"""Of these libraries every call is a client's, but these."""
KAFKA_CONFIGS: dict[str, Callable[[], dict[str, object]]] = {
    "include/waybill/storage/log.py": lambda: client_config(KafkaSettings()),
    "include/waybill/storage/kafka_acls.py": lambda: client_config(KafkaSettings()),
    "include/waybill/storage/range_reader.py": lambda: client_config(KafkaSettings()),
    "include/waybill/producer/components.py": lambda: producer_config(
        {"bootstrap.servers": "h:1"}, WalSettings()
    ),
    "include/waybill/ingestion/connectors/kafka_topics/log.py": lambda: source_config(
        Connection("k", "kafka", host="h", port=1)
    ),
    "include/waybill/producer/tail.py": lambda: consumer_config({"bootstrap.servers": "h:1"}, b""),
}


_LIBRARIES = {name.partition(".")[0] for name in (*RULES, *NO_CLIENTS)}


def clients(path: str, source: str) -> Iterator[Made]:
    """Yield what a module makes of the libraries that the rules name."""
    if not any(library in source for library in _LIBRARIES):
        return  # it imports none of them; to parse it takes longer
    tree = ast.parse(source)
    names = _names(tree)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        what = _resolved(node.func, names)
        if what is None or not (what in RULES or _is_unknown(what)):
            continue
        around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
        yield Made(
            path,
            node.lineno,
            what,
            frozenset(k.arg for k in node.keywords if k.arg),
            frozenset(ast.unparse(k.value) for k in node.keywords if k.arg is None),
            ast.unparse(around[-1]) if around else source,
            source,
        )


def _is_unknown(what: str) -> bool:
    for library, harmless in NO_CLIENTS.items():
        rest = what.removeprefix(f"{library}.")
        if rest != what and rest not in harmless and not rest.rpartition(".")[2].endswith("Error"):
            return rest[0].isupper() or rest.rpartition(".")[2] in {
                "client", "connect", "resource", "get", "post", "put", "request", "stream",
                "urlopen", "urlretrieve", "get_client", "load_catalog",
            }  # fmt: skip
    return False


def _names(tree: ast.AST) -> dict[str, str]:
    """Return what a module's names stand for: imports, and what ``driver("…")`` returned."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                names[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            module = _driver(node.value)
            if module:
                names[node.targets[0].id] = module
    return names


def _driver(node: ast.expr) -> str | None:
    is_driver = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "driver"
        and isinstance(node.args[0], ast.Constant)
    )
    return str(node.args[0].value) if is_driver else None


def _resolved(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _driver(node.value) or _resolved(node.value, names)
        return None if base is None else f"{base}.{node.attr}"
    return None


def modules() -> Iterator[tuple[str, str]]:
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


@cache
def all_clients() -> list[Made]:
    """Return every client that is made, once a session: it takes seconds."""
    return [made for path, source in modules() for made in clients(path, source)]


def test_each_client_has_its_limits():
    wrong = []
    for made in all_clients():
        at, rule = f"{made.path}:{made.line}: {made.what}", RULES.get(made.what)
        if rule is None:
            wrong.append(f"{at}: write its rule, or if it is no client name it in NO_CLIENTS")
        elif not rule(made):
            wrong.append(f"{at} is made without limits")
    assert not wrong


def test_the_object_stores_client_has_its_limits():
    config = objects._client(S3Settings(bucket="b")).meta.config
    assert (config.connect_timeout, config.read_timeout) == (5, 60)
    assert config.retries["total_max_attempts"] == 5


def test_every_rule_is_of_a_client_that_is_made():
    assert RULES.keys() == {made.what for made in all_clients()}


def _and_parents(name: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    parts = name.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


def test_no_other_library_with_clients_is_imported():
    found = {
        f"{path}: {name}"
        for path, source in modules()
        if any(name.partition(".")[0] in source for name in NOT_USED)
        for name in _names(ast.parse(source)).values()
        if not NOT_USED.isdisjoint(_and_parents(name))
    }
    assert not found, "write the rule of its limits"


@pytest.mark.parametrize(
    "source",
    [
        "import httpx\nhttpx.Client(base_url='x')",
        "from httpx import get\nget('x')",
        "import boto3\nboto3.client('s3')",
        "def f():\n    from confluent_kafka import Consumer as C\n    C({'bootstrap.servers': 'x'})",
        "import psycopg\npsycopg.connect('x', autocommit=True)",
        "import sqlalchemy\nsqlalchemy.create_engine('x')",
        "from urllib.request import urlopen\nurlopen('x')",
        "x = driver('redshift_connector', 'p', 'k')\nx.connect(host='h')",
    ],
)
def test_a_new_client_without_limits_is_found(source):
    [made] = clients("new.py", source)
    rule = RULES.get(made.what)
    assert rule is None or not rule(made)


@pytest.mark.parametrize("path", KAFKA_CONFIGS)
def test_kafka_clients_give_up_on_a_silent_broker(path):
    config = KAFKA_CONFIGS[path]()
    for name in ("socket.timeout.ms", "socket.connection.setup.timeout.ms"):
        assert 0 < config[name] <= 60_000
    assert config["socket.keepalive.enable"] is True


def test_the_tracker_has_limits_which_its_dsn_may_change():
    url = make_url("postgresql://h/d?connect_timeout=3&options=-csearch_path%3Da")
    limits = tracker_engine._limits(TrackerSettings(), url)
    assert "connect_timeout" not in limits
    assert limits["keepalives"] == 1
    assert limits["tcp_user_timeout"] == 30_000
    options = str(limits["options"])
    assert options.endswith("-csearch_path=a")
    for name in (
        "tcp_user_timeout",
        "lock_timeout",
        "statement_timeout",
        "idle_in_transaction_session_timeout",
    ):
        assert f"-c {name}=" in options


def test_a_postgres_destination_has_limits():
    given = conninfo_to_dict(postgres_destination._conninfo("postgresql://h/d", "w"))
    assert postgres_destination.LIMITS.items() <= given.items()
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        assert f"'{name}'" in postgres_destination._OPENING


def test_a_postgres_source_has_limits():
    given = conninfo_to_dict(postgres_source.conninfo(Connection("p", "postgres", host="h")))
    assert int(given["connect_timeout"]) > 0
    assert int(given["tcp_user_timeout"]) > 0
    assert "statement_timeout=" in str(given["options"])


def test_lakes_have_limits():
    s3 = S3Settings()
    assert {"connect_timeout", "timeout"} <= storage_options(s3).keys()
    assert {"s3.connect-timeout", "s3.request-timeout"} <= io_properties(s3).keys()
    uri = catalog_uri("w", "s3://b/x", "postgresql://u:p%40@h/d?connect_timeout=3")
    query = make_url(uri).query
    assert postgres_destination.LIMITS.keys() <= query.keys()
    assert query["connect_timeout"] == "3"
    assert "statement_timeout" in query["options"]
    assert "u:p%40@h" in uri


def test_snowflake_has_limits():
    address = Address("u", "p", "account", None, ("db",), {"warehouse": "w"})
    given = snowflake._arguments(address, "w")
    assert {"login_timeout", "network_timeout", "socket_timeout"} <= given.keys()


OTHER_SERVERS = re.compile(r"(^|\.)_?(objects|log|client|sink|producer|httpx)\.\w+$|^time\.sleep$")
"""How calls of the object store, Kafka and the like look in the sources."""
ASKED_ON_PURPOSE = {
    "include/waybill/topics/generations.py": ["log.ends_now(info, limit_s=_ENDS_S)"]
}
"""The end of a generation is where Kafka's log ends while nobody may open a log for it (ADR 20): one
request, two seconds at most."""


def asked_inside_transactions(source: str) -> list[str]:
    """Return calls of other servers inside short transactions of the tracker."""
    found: list[str] = []
    if not ("transaction" in source or "books" in source):
        return found  # no `with` of it opens one; to parse it takes longer
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With) and any(map(_is_short_transaction, node.items)):
            calls = [n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Call)]
            found += [ast.unparse(c) for c in calls if OTHER_SERVERS.search(ast.unparse(c.func))]
    return found


def _is_short_transaction(item: ast.withitem) -> bool:
    said = ast.unparse(item.context_expr)
    return bool(re.search(r"tracker\.transaction\(|books\(\)", said)) and "long_idle" not in said


@pytest.mark.parametrize("place", ["include/waybill", "plugins"])
def test_nothing_slow_is_asked_inside_a_transaction_that_may_hold_rows(place):
    found = {
        path: calls
        for path, source in modules()
        if path.startswith(place) and (calls := asked_inside_transactions(source))
    }
    assert found == {p: calls for p, calls in ASKED_ON_PURPOSE.items() if p.startswith(place)}


def test_a_store_that_is_asked_inside_a_transaction_is_found():
    body = "\n    self._objects.put(key, body)\n"
    assert asked_inside_transactions(f"with tracker.transaction() as c:{body}")
    assert asked_inside_transactions(f"with self._tracker.transaction(long_statements=True):{body}")
    assert not asked_inside_transactions(f"with tracker.transaction(long_idle=True):{body}")
