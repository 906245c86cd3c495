"""A proxy before the real S3 server that answers errors of its own for chosen keys."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class S3Proxy(ThreadingHTTPServer):
    """Passes requests on; ``errors``: end of a key to (status, code), for GET and HEAD."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = urlsplit(endpoint).netloc
        self.errors: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Proxy

    def __getattr__(self, name: str) -> Callable[[], None]:
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._get if name in {"do_GET", "do_HEAD"} else self._pass_on

    def _get(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        for end, (status, code) in self.server.errors.items():
            if path.endswith(end):
                body = f"<Error><Code>{code}</Code><Message>by the test</Message></Error>"
                self._answer(status, body.encode(), {"Content-Type": "application/xml"})
                return
        self._pass_on()

    def _pass_on(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size) if size else None
        connection = http.client.HTTPConnection(self.server.server, timeout=120)
        with contextlib.closing(connection):
            try:
                connection.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():  # the host is part of the signature
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
            except OSError:
                self.close_connection = True
                return
            self._answer(answer.status, content, dict(answer.getheaders()))

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        size = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def proxied(endpoint: str) -> Iterator[S3Proxy]:
    """Serve until the end of the block."""
    proxy = S3Proxy(endpoint)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
