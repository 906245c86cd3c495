"""What an enhancer asks the page of its Spark worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from waybill.errors import RetryError
from waybill.services.spark_nodes import spark_worker
from waybill.settings import CapacitySettings, Settings


@pytest.fixture
def page() -> Iterator[ThreadingHTTPServer]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/json/" else 404)
            self.end_headers()
            self.wfile.write(self.server.said)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def worker(page):
    url = f"http://127.0.0.1:{page.server_address[1]}/"
    return spark_worker(Settings(capacity=CapacitySettings(spark_worker_url=url, cores=4)))


def test_the_cores_that_executors_have_are_those_that_run(page):
    page.said = json.dumps({"cores": 4, "coresused": 3, "executors": [{"id": 0}]}).encode()
    assert worker(page).read() == (4, 3)
    page.said = json.dumps({"cores": 4, "coresused": 0, "executors": []}).encode()
    assert worker(page).read() == (4, 0)


@pytest.mark.parametrize("said", [b"<html>", b"[]", b"{}", b'{"coresused": null}'])
def test_another_page_is_said_to_be_no_spark_worker(page, said):
    page.said = said
    with pytest.raises(RetryError, match="is no Spark worker"):
        worker(page).read()


def test_a_worker_that_is_away_is_waited_for(page):
    asked = worker(page)
    page.shutdown()
    page.server_close()
    with pytest.raises(RetryError, match="does not answer"):
        asked.read()
