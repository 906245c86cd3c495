"""A broker that has just started, or was cut off, may name no broker at all: not even itself.

librdkafka's ``describe_cluster`` ends the process on such an answer. No real broker gives it at a
moment of our choice, so a server that speaks just enough of Kafka's protocol does.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from waybill.errors import RetryError
from waybill.settings import KafkaSettings
from waybill.storage import open_log
from waybill.waiting import waiting

API_VERSIONS, METADATA = 18, 3
UNSUPPORTED_VERSION = 35
CHILD = """
from waybill.errors import RetryError
from waybill.settings import KafkaSettings
from waybill.storage import open_log
log = open_log(KafkaSettings(bootstrap_servers={address!r}))
try:
    print(log.cluster_id())
except RetryError as error:
    print("RetryError:", error)
"""


class _Broker(socketserver.StreamRequestHandler):
    """Answers with itself as the one broker ``full`` times, then with none."""

    server: Any

    def handle(self) -> None:
        while head := self.rfile.read(4):
            request = self.rfile.read(*struct.unpack(">i", head))
            key, version, correlation = struct.unpack_from(">hhi", request)
            body = self._versions(version) if key == API_VERSIONS else self._metadata()
            self.wfile.write(struct.pack(">ii", 4 + len(body), correlation) + body)

    def _versions(self, version: int) -> bytes:
        error = UNSUPPORTED_VERSION if version else 0
        return struct.pack(">hi6h", error, 2, METADATA, 2, 2, API_VERSIONS, 0, 0)

    def _metadata(self) -> bytes:
        self.server.full -= 1
        host, port = self.server.server_address
        own = struct.pack(">ih9sih", 1, len(host), host.encode(), port, -1)
        brokers = struct.pack(">i", 1) + own if self.server.full >= 0 else struct.pack(">i", 0)
        cluster = struct.pack(">h7s", 7, b"cluster")
        return brokers + cluster + struct.pack(">ii", 1, 0)  # its controller; no topics


@contextmanager
def broker(full: int) -> Iterator[str]:
    """Run the server; yield its address."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Broker) as server:
        server.daemon_threads = True
        server.full = full  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        yield f"{host!s}:{port}"
        server.shutdown()


@pytest.mark.parametrize(("full", "said"), [(1, "RetryError: no Kafka broker"), (99, "cluster")])
def test_a_broker_that_names_no_broker_does_not_end_the_process(full: int, said: str) -> None:
    with broker(full) as address:
        child = subprocess.run(
            [sys.executable, "-c", CHILD.format(address=address)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith(said)


def test_a_frozen_broker_is_waited_for_as_long_as_said_whatever_the_command_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        log = open_log(KafkaSettings(bootstrap_servers=f"127.0.0.1:{frozen.getsockname()[1]}"))
        began = time.monotonic()
        with waiting(600, lambda _line: None), pytest.raises(RetryError):
            log.wait_until_up(limit_s=2.0)
        assert time.monotonic() - began < 300
