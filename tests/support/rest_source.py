"""A server of a REST source: pages, a token, and answers that are not the wanted ones at first."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

PAGE = 4


class Answering(Protocol):
    """What ``serving`` serves."""

    port: int

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and body of the answer to a GET."""
        ...


Served = TypeVar("Served", bound=Answering)


@dataclass
class RestSource:
    """Rows behind ``/orders``, and what the next requests are answered instead."""

    rows: list[dict[str, Any]]
    token: str = "secret-token-1"
    instead: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """(status, headers), one for each of the next requests."""
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], Any]:
        self.asked.append(path)
        if self.instead:
            status, headers = self.instead.pop(0)
            return status, headers, {"error": "not now"}
        if authorization != f"Bearer {self.token}":
            return 401, {}, {"error": f"no such token: {authorization}"}
        url = urlsplit(path)
        query = parse_qs(url.query)
        since = int(query.get("since", ["0"])[0])
        rows = sorted((row for row in self.rows if row["seq"] >= since), key=lambda row: row["seq"])
        start = int(query.get("start", ["0"])[0])
        more = start + PAGE < len(rows)
        at = f"{self.url}orders?since={since}&start={start + PAGE}"
        return 200, {}, {"data": rows[start : start + PAGE], "next": at if more else None}


@dataclass
class NumberedPages:
    """Rows in pages that are asked for by ``?page=``, counted from ``base``."""

    rows: list[dict[str, Any]]
    base: int = 1
    says_page: bool = True
    """Each answer says beside the number of pages which page it is."""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], Any]:
        query = parse_qs(urlsplit(path).query)
        page = int(query.get("page", [str(self.base)])[0])
        start = (page - self.base) * PAGE
        meta = {"total_pages": -(-len(self.rows) // PAGE)}
        if self.says_page:
            meta["current_page"] = page
        return 200, {}, {"data": self.rows[start : start + PAGE], "meta": meta}


@dataclass
class RowsSince:
    """Rows whose ``at`` is no less than ``?since=``, in the order of these texts, in one answer."""

    rows: list[dict[str, Any]]
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], Any]:
        since = parse_qs(urlsplit(path).query).get("since", [""])[0]
        self.asked.append(since)
        rows = sorted((row for row in self.rows if row["at"] >= since), key=lambda row: row["at"])
        return 200, {}, {"data": rows}


@contextmanager
def serving(source: Served) -> Iterator[Served]:
    """Serve a source on its port of loopback; 0: on a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            status, headers, body = source.answer(self.path, given)
            content = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", source.port), Handler) as server:
        source.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield source
        finally:
            server.shutdown()
            thread.join()
