"""As much of S3 as a task needs, in this process: objects are put and read, over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

MISSING = b"<Error><Code>NoSuchKey</Code><Message>there is none</Message></Error>"


class ObjectServer(ThreadingHTTPServer):
    """``objects``: by path, ``/bucket/key``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Puts and gets."""

    server: ObjectServer
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Keep an object; its ETag is the MD5."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[self.path.partition("?")[0]] = body
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        self._answer(200, b"", ETag=f'"{digest}"')

    def do_GET(self) -> None:
        """Return an object."""
        body = self.server.objects.get(self.path.partition("?")[0])
        if body is None:
            self._answer(404, MISSING)
        else:
            self._answer(200, body, ETag='"etag"')

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Serve for as long as the block takes."""
    with ObjectServer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
