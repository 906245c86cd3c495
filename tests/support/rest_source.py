"""A server of a REST source: pages, a token, and answers that are not the wanted ones at first."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 4


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


@contextmanager
def serving(source: RestSource) -> Iterator[RestSource]:
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
