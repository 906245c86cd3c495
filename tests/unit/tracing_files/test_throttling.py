"""What a store answers that asks for fewer requests, and what becomes of it here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from waybill.errors import RetryError, ThrottledError
from waybill.settings import S3Settings
from waybill.storage import open_objects

XML = "<?xml version='1.0'?><Error><Code>{}</Code><Message>no more</Message></Error>"


class _Refusing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # answers `Expect: 100-continue`, which the client waits for
    answer = (503, XML.format("SlowDown"))

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "slower"),
    [
        (503, XML.format("SlowDown"), True),
        (503, "", True),
        (429, "", True),
        (429, XML.format("TooManyRequests"), True),
        (500, XML.format("InternalError"), False),
    ],
)
def test_a_store_that_asks_for_fewer_requests_is_told_from_one_that_is_broken(
    url: str, monkeypatch, status: int, body: str, slower: bool
) -> None:
    monkeypatch.setattr(_Refusing, "answer", (status, body))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    store = open_objects(S3Settings(endpoint_url=url, access_key="a", secret_key=XML))
    with pytest.raises(RetryError) as raised:
        store.put("key", b"body")
    assert isinstance(raised.value, ThrottledError) is slower
