"""Sources connect to open addresses only, however an address is written and whoever answers."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3
from pydantic import ValidationError

from waybill.egress import (
    EgressGuard,
    ForbiddenAddressError,
    GuardedPoolManager,
    guarded_session,
)
from waybill.errors import InputError
from waybill.settings import EgressSettings

CLOSED = EgressSettings()


class Names:
    """A resolver with answers of its own, the last of which it repeats."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = answers
        self.asked = 0

    def __call__(self, host: str, port: int, *_: object) -> list[tuple[object, ...]]:
        self.asked += 1
        given = self.answers[host.replace(".", "_")]
        addresses = given.pop(0) if len(given) > 1 else given[0]
        return [_entry(address, port) for address in addresses]


def _entry(address: str, port: int) -> tuple[object, ...]:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.paths = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "127.9.9.9", "0.0.0.1",
        "169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.2.1",
        "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1",
        "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::10.0.0.1",
        "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001:db8::1", "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_addresses_that_are_not_of_the_public_internet_are_closed(address):
    assert not EgressGuard(CLOSED).is_open(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.15.0.1", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"],
)
def test_addresses_of_the_public_internet_are_open(address):
    assert EgressGuard(CLOSED).is_open(address)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "localhost"]
)
def test_however_loopback_is_written_it_is_closed(server, host):
    with pytest.raises(ForbiddenAddressError, match="WAYBILL_EGRESS__ALLOWED_HOSTS"):
        guarded_session(EgressGuard(CLOSED)).get(f"http://{host}:{server.server_port}/")
    assert server.paths == []


def test_the_address_that_is_judged_is_the_one_that_is_connected_to(server):
    """A name that is public when it is judged, and loopback when it is asked again."""
    names = Names(rebinds_test=[["203.0.113.7"], ["127.0.0.1"]])
    guard = EgressGuard(EgressSettings(allowed_networks=("203.0.113.0/24",)), names)
    with pytest.raises(OSError, match=r"."):
        guard.connect("rebinds.test", server.server_port, timeout_s=0.2)
    assert names.asked == 1
    with pytest.raises(ForbiddenAddressError, match="127.0.0.1"):
        guard.connect("rebinds.test", server.server_port, timeout_s=0.2)
    assert server.paths == []


def test_of_a_name_with_several_addresses_only_the_open_ones_are_connected_to():
    names = Names(both_test=[["10.0.0.1", "8.8.8.8", "::1", "2606:4700::1"]])
    found = EgressGuard(CLOSED, names).addresses("both.test", 443)
    assert [entry[4][0] for entry in found] == ["8.8.8.8", "2606:4700::1"]


def test_a_redirect_to_a_closed_address_is_refused(server):
    port = server.server_port
    names = Names(api_test=[["127.0.0.1"]], inside_test=[["127.0.0.1"]])
    guard = EgressGuard(EgressSettings(allowed_hosts=("api.test",)), names)
    session = guarded_session(guard)
    assert session.get(f"http://api.test:{port}/to?http://api.test:{port}/x").text == "here"
    with pytest.raises(ForbiddenAddressError, match=r"inside\.test"):
        session.get(f"http://api.test:{port}/to?http://inside.test:{port}/secret")
    assert "/secret" not in server.paths


def test_urllib3_follows_no_redirect_to_a_closed_address(server):
    port = server.server_port
    names = Names(api_test=[["127.0.0.1"]], inside_test=[["127.0.0.1"]])
    guard = EgressGuard(EgressSettings(allowed_hosts=(f"api.test:{port}",)), names)
    pools = GuardedPoolManager(guard)
    limits = urllib3.Timeout(connect=60, read=60)
    assert pools.request("GET", f"http://api.test:{port}/", timeout=limits).data == b"here"
    with pytest.raises(ForbiddenAddressError):
        pools.request("GET", f"http://api.test:{port}/to?http://inside.test:{port}/s")


def test_a_host_is_opened_at_its_port_alone_where_one_is_named(server):
    guard = EgressGuard(EgressSettings(allowed_hosts=("LOCALHOST.:1", "[::1]:2", "fd00::1")))
    assert guard.is_named("localhost", 1)
    assert guard.is_named("[::1]", 2)
    assert guard.is_named("fd00::1", 3)
    assert not guard.is_named("::1", 1)
    with pytest.raises(ForbiddenAddressError):
        guarded_session(guard).get(f"http://localhost:{server.server_port}/")


def test_no_proxy_resolves_names_instead(server):
    session = guarded_session(EgressGuard(CLOSED))
    session.proxies = {"http": f"http://127.0.0.1:{server.server_port}"}
    with pytest.raises(InputError, match="proxy"):
        session.get("http://example.com/")
    assert server.paths == []


def test_a_silent_server_ends_a_request_that_has_no_limit_of_its_own(monkeypatch):
    from waybill.egress import sessions

    monkeypatch.setattr(sessions, "READ_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        session = guarded_session(EgressGuard(EgressSettings(allowed_hosts=(host,))))
        with pytest.raises(OSError, match="timed out"):
            session.get(f"http://{host}/")


def test_what_is_no_network_is_refused_with_the_settings():
    with pytest.raises(ValidationError, match=r"10\.0\.0\.1/8"):
        EgressSettings(allowed_networks=("10.0.0.1/8",))


_GUARDED = """
import http.client, socket, sys, urllib.request
from waybill.egress import EgressGuard, guard_process
from waybill.settings import EgressSettings
port = int(sys.argv[1])
guard_process(EgressGuard(EgressSettings(allowed_hosts=(f"localhost:{port}",))))
assert urllib.request.urlopen(f"http://localhost:{port}/", timeout=60).read() == b"here"

def connect():
    import _socket
    _socket.socket(socket.AF_INET, socket.SOCK_STREAM).connect(("127.0.0.1", other))

def datagram():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))

def by_name():
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).connect(("localhost", other))

def by_http():
    http.client.HTTPConnection("127.0.0.1", other, timeout=60).request("GET", "/")

with socket.create_server(("127.0.0.1", 0)) as listening:
    other = listening.getsockname()[1]
    for attempt in (connect, datagram, by_name, by_http):
        try:
            attempt()
        except Exception as error:
            print(attempt.__name__, type(error).__name__)
"""


def test_a_guarded_process_is_held_whatever_client_it_brings(server):
    command = [sys.executable, "-c", _GUARDED, str(server.server_port)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    attempts = ("connect", "datagram", "by_name", "by_http")
    assert done.stdout.split("\n")[:-1] == [f"{name} ForbiddenAddressError" for name in attempts]
