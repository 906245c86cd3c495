"""Sources of the contract suite: one for each kind of connector.

A kind is a class made with (folder, request): ``request.getfixturevalue`` gives the real server that
it needs. It holds rows of ``id`` (the key), ``seq`` (rises with each write) and ``name``. A new kind
is added to ``KINDS``.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sqlite3
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import SecretStr

from waybill.ingestion.connectors import Connections, Connector, open_connector
from waybill.pipelines import Column, EventDeclaration, Source, TableSpec
from waybill.settings import Settings, SourceSettings

Row = dict[str, Any]


def declared(key: str = "id") -> EventDeclaration:
    columns = (
        Column(name=key, type="int64"),
        Column(name="seq", type="int64"),
        Column(name="name", type="string"),
    )
    table = TableSpec(schema_name="s", name="t", columns=columns, key=(key,))
    return EventDeclaration(name="e", key=(key,), table=table)


class SourceOfRows(ABC):
    """One source, empty at first."""

    grows: ClassVar[bool] = True
    """Rows that are added come behind those that were read."""
    breaks: ClassVar[bool] = False
    """It can hold a record that is no row."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder

    @abstractmethod
    def add(self, rows: list[Row]) -> None:
        """Add rows, all with the same fields."""

    def add_broken(self) -> None:
        """Add the row 1, a broken record, and the row 3; asked of those that ``breaks`` only."""
        raise AssertionError(f"{type(self).__name__} holds no broken record")

    def place_of(self, index: int) -> str:
        """Return the end of the place of a row of the first file, or table."""
        return f"line {index + 2}"

    @abstractmethod
    def declaration(self) -> dict[str, Any]:
        """Return the source of a pipeline's declaration."""

    def secrets(self) -> dict[str, SecretStr]:
        """Return the connections that the declaration names, by name."""
        return {}

    def connections(self) -> Connections:
        return Connections(self.secrets())

    def open(self, page_rows: int = 1000, *, key: str = "id") -> Connector:
        source = Source(event="e", page_rows=page_rows, **self.declaration())
        return open_connector(
            source,
            self.folder,
            events={"e": declared(key)},
            connections=self.connections(),
            settings=self.settings(),
        )

    def settings(self) -> Settings:
        return Settings()


class DltFunction(SourceOfRows):
    """Rows of a file, a row an item, in ascending order of ``seq``."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        (folder / "rows.jsonl").write_text("")
        (folder / "listed.py").write_text(LISTED)

    def add(self, rows: list[Row]) -> None:
        with (self.folder / "rows.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def place_of(self, index: int) -> str:
        return f"resource e, record {index + 1} of the run"

    def declaration(self) -> dict[str, Any]:
        arguments = {"path": str(self.folder / "rows.jsonl")}
        options = {"resource": "listed:e", "arguments": arguments}
        return {"connector": "dlt", "options": options}


LISTED = """
import json
import dlt

@dlt.resource
def e(path, seq=dlt.sources.incremental("seq", row_order="asc")):
    with open(path) as file:
        for row in map(json.loads, file):
            if seq.start_value is None or row["seq"] >= seq.start_value:
                yield row
"""


class SingerTap(DltFunction):
    """A tap over the same file, with a STATE after each row."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        (folder / "tap.py").write_text(TAP)

    def place_of(self, index: int) -> str:
        return f"stream e, line {2 * index + 2} of the tap"

    def declaration(self) -> dict[str, Any]:
        config = {"path": str(self.folder / "rows.jsonl")}
        return {
            "connector": "singer",
            "options": {"tap": "rows", "config": config, "discover": False},
        }

    def settings(self) -> Settings:
        taps = {"rows": (sys.executable, str(self.folder / "tap.py"))}
        return Settings(sources=SourceSettings(taps=taps))


TAP = """
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
path = json.load(open(given["--config"]))["path"]
done = json.load(open(given["--state"]))["done"] if "--state" in given else 0
properties = {"id": {}, "seq": {}, "name": {}}
schema = {"type": "SCHEMA", "stream": "e", "schema": {"properties": properties}, "key_properties": ["id"]}
print(json.dumps(schema))
for number, line in enumerate(open(path), 1):
    if number <= done:
        continue
    print('{"type":"RECORD","stream":"e","record":' + line.rstrip() + "}")
    print(json.dumps({"type": "STATE", "value": {"done": number}}))
"""


def csv_text(rows: list[Row], *, header: bool) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


class CsvFile(SourceOfRows):
    grows = False
    breaks = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.rows: list[Row] = []
        (folder / "x.csv").write_text("id,seq,name\n")

    def add(self, rows: list[Row]) -> None:
        self.rows += rows
        (self.folder / "x.csv").write_text(csv_text(self.rows, header=True))

    def add_broken(self) -> None:
        (self.folder / "x.csv").write_text("id,seq,name\n1,1,one\n2,2\n3,3,three\n")

    def declaration(self) -> dict[str, Any]:
        return {"connector": "csv", "path": "x.csv"}


class Files(SourceOfRows):
    """A file for each call of ``add``."""

    ending: ClassVar[str] = ".csv"
    breaks = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.numbers = itertools.count(1)
        (folder / "in").mkdir()

    def put(self, name: str, content: bytes) -> None:
        (self.folder / "in" / name).write_bytes(content)

    def packed(self, rows: list[Row]) -> bytes:
        return csv_text(rows, header=True).encode()

    def add(self, rows: list[Row]) -> None:
        self.put(f"{next(self.numbers):05}{self.ending}", self.packed(rows))

    def add_broken(self) -> None:
        self.put(f"{next(self.numbers):05}{self.ending}", b"id,seq,name\n1,1,one\n2,2\n3,3,three\n")

    def declaration(self) -> dict[str, Any]:
        return {
            "connector": "files",
            "options": {"path": f"in/*{self.ending}", "settle_s": 0},
        }


class JsonLines(Files):
    ending = ".jsonl.gz"

    def place_of(self, index: int) -> str:
        return f"line {index + 1}"

    def packed(self, rows: list[Row]) -> bytes:
        return gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows), 1)

    def add_broken(self) -> None:
        lines = b'{"id":1,"seq":1,"name":"one"}\n{"id":2,\n{"id":3,"seq":3,"name":"three"}\n'
        self.put(f"{next(self.numbers):05}{self.ending}", gzip.compress(lines))


class PackedCsv(Files):
    ending = ".csv.zst"

    def packed(self, rows: list[Row]) -> bytes:
        return zstandard.compress(super().packed(rows))

    def add_broken(self) -> None:
        text = b"id,seq,name\n1,1,one\n2,2\n3,3,three\n"
        self.put(f"{next(self.numbers):05}{self.ending}", zstandard.compress(text))


class Parquet(Files):
    ending = ".parquet"
    breaks = False
    place_of = JsonLines.place_of

    def packed(self, rows: list[Row]) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=700)
        return sink.getvalue().to_pybytes()


class Objects(Files):
    """In a bucket of the session's S3."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        server = request.getfixturevalue("s3")
        self.bucket = server.bucket("files")
        self.client = server.client()

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket.bucket, Key=f"in/{name}", Body=content)

    def declaration(self) -> dict[str, Any]:
        path = f"s3://{self.bucket.bucket}/in/*{self.ending}"
        return {
            "connector": "files",
            "connection": "store",
            "options": {"path": path, "settle_s": 0},
        }

    def secrets(self) -> dict[str, SecretStr]:
        found = {
            "conn_type": "aws",
            "login": self.bucket.access_key and self.bucket.access_key.get_secret_value(),
            "password": self.bucket.secret_key and self.bucket.secret_key.get_secret_value(),
            "extra": {"endpoint_url": self.bucket.endpoint_url},
        }
        return {"store": SecretStr(json.dumps(found))}


class ParquetObjects(Objects):
    ending = ".parquet"
    breaks = False
    packed = Parquet.packed
    place_of = JsonLines.place_of


class SqliteTable(SourceOfRows):
    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.database = sqlite3.connect(folder / "shop.db")
        self.run(
            'CREATE TABLE "or""ders" (id integer PRIMARY KEY, seq integer NOT NULL, name text)'
        )

    def run(self, statement: str, rows: list[tuple[Any, ...]] | None = None) -> None:
        if rows is None:
            self.database.execute(statement)
        else:
            self.database.executemany(statement, rows)
        self.database.commit()

    mark = "?"

    def place_of(self, index: int) -> str:
        return f'table or"ders, {{"seq":{index},"id":{index}}}'

    def add(self, rows: list[Row]) -> None:
        names = list(rows[0])
        for name in names[3:]:
            self.run(f'ALTER TABLE "or""ders" ADD COLUMN {name} text')
        marks = ", ".join([self.mark] * len(names))
        values = [tuple(row.values()) for row in rows]
        self.run(f'INSERT INTO "or""ders" ({", ".join(names)}) VALUES ({marks})', values)

    def declaration(self) -> dict[str, Any]:
        options = {"file": "shop.db", "table": 'or"ders', "cursor": "seq"}
        return {"connector": "sql", "options": options}


class PostgresTable(SqliteTable):
    mark = "%s"

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder
        self.dsn = request.getfixturevalue("postgres").database("source")
        self.run('CREATE TABLE "or""ders" (id bigint PRIMARY KEY, seq bigint NOT NULL, name text)')

    def run(self, statement: str, rows: list[tuple[Any, ...]] | None = None) -> None:
        with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
            if rows is None:
                cursor.execute(statement)
            else:
                cursor.executemany(statement, rows)

    def declaration(self) -> dict[str, Any]:
        options = {"table": 'or"ders', "cursor": "seq"}
        return {"connector": "sql", "connection": "shop", "options": options}

    def secrets(self) -> dict[str, SecretStr]:
        return {"shop": SecretStr(self.dsn)}


class MysqlTable(SqliteTable):
    mark = "%s"

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder
        self.server = request.getfixturevalue("mariadb")
        self.name = self.server.database()
        self.run('CREATE TABLE `or"ders` (id bigint PRIMARY KEY, seq bigint NOT NULL, name text)')

    def run(self, statement: str, rows: list[tuple[Any, ...]] | None = None) -> None:
        statement = statement.replace('"or""ders"', '`or"ders`')
        with self.server.connect(self.name) as connection, connection.cursor() as cursor:
            if rows is None:
                cursor.execute(statement)
            else:
                cursor.executemany(statement, rows)

    def declaration(self) -> dict[str, Any]:
        options = {"table": 'or"ders', "cursor": "seq"}
        return {"connector": "sql", "connection": "shop", "options": options}

    def secrets(self) -> dict[str, SecretStr]:
        return {"shop": SecretStr(mysql_connection(self.server, self.name))}


def mysql_connection(server: Any, database: str) -> str:
    found = {
        "conn_type": "mysql",
        "login": "ann",
        "password": "p@ss:w/rd",
        "schema": database,
        "extra": {"unix_socket": str(server.socket)},
    }
    return json.dumps(found)


KINDS: dict[str, type[SourceOfRows]] = {
    "csv": CsvFile,
    "files: csv": Files,
    "files: csv.zst": PackedCsv,
    "files: jsonl.gz": JsonLines,
    "files: parquet": Parquet,
    "sql: sqlite": SqliteTable,
}
KINDS_IN_PROCESSES: dict[str, type[SourceOfRows]] = {"dlt": DltFunction, "singer": SingerTap}
"""Each reading starts one: they are part of the campaigns."""
KINDS_ON_SERVERS: dict[str, type[SourceOfRows]] = {
    "files: s3": Objects,
    "files: s3, parquet": ParquetObjects,
    "sql: postgres": PostgresTable,
}
KINDS_OF_CAMPAIGNS: dict[str, type[SourceOfRows]] = {"sql: mysql": MysqlTable}
"""Their servers are fetched."""
