"""A schema registry with Confluent's API, on loopback, that can be told to misbehave."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from waybill.egress import EgressGuard
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.kafka_topics.schema_registry import SchemaRegistry
from waybill.settings import EgressSettings

NOT_FOUND = {"error_code": 40403, "message": "Schema not found"}


class SchemaServer:
    """Answers what was registered; ``answer`` (status, body, headers) replaces every answer."""

    def __init__(self) -> None:
        self.schemas: dict[str, dict] = {}
        self.answer: tuple[int, bytes, dict[str, str]] | None = None
        self.asked: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append((self.path, self.headers.get("Authorization")))
                status, body, headers = server.answer or server.found(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def add(self, schema_id, text, kind="AVRO", *, references=(), subject=None, version=1):
        """Register a schema; ``references`` are (name, subject, version)."""
        names = ("name", "subject", "version")
        given = [dict(zip(names, one, strict=True)) for one in references]
        found = {"schema": text, "schemaType": kind, "references": given}
        self.schemas[f"schemas/ids/{schema_id}"] = found
        self.schemas[f"schemas/guids/{schema_id}"] = found
        if subject is not None:
            self.schemas[f"subjects/{subject}/versions/{version}"] = found
            self.schemas[f"schemas/ids/{schema_id}/subjects"] = [subject]

    def found(self, path):
        answer = self.schemas.get(unquote(urlsplit(path).path).strip("/"))
        body = json.dumps(NOT_FOUND if answer is None else answer).encode()
        return (404 if answer is None else 200), body, {}

    def connection(self, **fields):
        given = {"host": "127.0.0.1", "port": self.port} | fields
        return Connection("shop_registry", "http", **given)

    def registry(self, **fields):
        guard = EgressGuard(EgressSettings(allowed_hosts=(f"127.0.0.1:{self.port}",)))
        return SchemaRegistry(self.connection(**fields), guard)


def serialized(file: FileDescriptorProto) -> str:
    """Return a Protobuf file as registries give it."""
    return base64.b64encode(file.SerializeToString()).decode()


def orders_file() -> FileDescriptorProto:
    """Return a file with a message that has a field of each kind."""
    known = "google.protobuf"
    file = FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    names = ("timestamp", "struct", "wrappers")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in names)
    status = file.enum_type.add(name="Status")
    status.value.add(name="NEW", number=0)
    order = file.message_type.add(name="Order")
    order.oneof_decl.add(name="paid")
    entry = order.nested_type.add(name="SharesEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, "INT64")
    _field(entry, "value", 2, "DOUBLE")
    _field(order, "id", 1, "INT64")
    _field(order, "big", 2, "UINT64")
    _field(order, "at", 3, "MESSAGE", f"{known}.Timestamp")
    _field(order, "extra", 4, "MESSAGE", f"{known}.Struct")
    _field(order, "count", 5, "MESSAGE", f"{known}.Int64Value")
    _field(order, "card", 6, "STRING").oneof_index = 0
    _field(order, "cash", 7, "BYTES").oneof_index = 0
    _field(order, "share", 8, "FLOAT")
    _field(order, "status", 9, "ENUM", "shop.Status")
    _field(order, "shares", 10, "MESSAGE", "shop.Order.SharesEntry", repeated=True)
    _field(order, "child", 11, "MESSAGE", "shop.Order")
    _field(order, "lines", 12, "MESSAGE", "shop.Order", repeated=True)
    return file


def _field(message, name, number, kind, of="", *, repeated=False):
    field = message.field.add(name=name, number=number)
    field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind}")
    label = "REPEATED" if repeated else "OPTIONAL"
    field.label = FieldDescriptorProto.Label.Value(f"LABEL_{label}")
    if of:
        field.type_name = f".{of}"
    return field
