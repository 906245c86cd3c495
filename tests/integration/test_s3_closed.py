"""The S3 port, with its keys, is the only way to an object: the ports behind it let nobody in."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tests import servers

from waybill.stack import certificates

pytestmark = pytest.mark.serves
BODY = b"parked: ann@example.org " * 2000
GRPC_OFFSET = 10_000
HTTP = ("s3_filer_port", "s3_master_port", "s3_volume_port")


@pytest.fixture
def parked(s3: servers.S3Server) -> str:
    bucket = s3.bucket("closed").bucket
    s3.client().put_object(Bucket=bucket, Key="parked/2026/x.jsonl.zst", Body=BODY)
    return bucket


def asked(port: int, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    content = b"overwritten" if method in ("PUT", "POST") else None
    connection.request(method, path, body=content)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def file_ids(s3: servers.S3Server) -> Iterator[str]:
    """Yield where the volume server has the object: what a guest might guess, or have seen once."""
    for file in (s3.service.home / "s3" / "data").glob("closed-*.idx"):
        volume = file.stem.rpartition("_")[2]
        index = file.read_bytes()
        for at in range(0, len(index) - 15, 16):
            key = int.from_bytes(index[at : at + 8], "big")
            cookie_at = int.from_bytes(index[at + 8 : at + 12], "big") * 8
            content = file.with_suffix(".dat").read_bytes()
            cookie = content[cookie_at : cookie_at + 4].hex()
            yield f"/{volume},{key:x}{cookie}"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_nobody_gets_at_an_object_by_http(s3: servers.S3Server, parked: str, method: str) -> None:
    ports = s3.service.ports
    known = servers.wait_for(lambda: list(file_ids(s3)))
    paths = [f"/buckets/{parked}/parked/2026/x.jsonl.zst", f"/buckets/{parked}/", "/", *known]
    paths += ["/dir/assign", f"/col/delete?collection={parked}", "/submit", "/vol/status"]
    for name in HTTP:
        for path in paths:
            status, content = asked(ports[name], method, path)
            assert b"ann@example.org" not in content, (name, path)
            page = (name, path) == ("s3_master_port", "/")  # its version, and who leads
            assert page or status in (400, 401, 404, 405), (name, path, status, content)
    got = s3.client().get_object(Bucket=parked, Key="parked/2026/x.jsonl.zst")["Body"].read()
    assert got == BODY


def call(channel: grpc.Channel, method: str, request: bytes) -> Any:
    return channel.unary_unary(method)(request, timeout=120)


def text(number: int, value: str) -> bytes:
    """A protobuf field."""
    return bytes((number << 3 | 2, len(value))) + value.encode()


def test_grpc_answers_only_who_has_the_certificate(s3: servers.S3Server, parked: str) -> None:
    lookup = "/filer_pb.SeaweedFiler/LookupDirectoryEntry"
    request = text(1, f"/buckets/{parked}/parked/2026") + text(2, "x.jsonl.zst")
    for port in s3.service.ports.values():
        with (
            grpc.insecure_channel(f"127.0.0.1:{port + GRPC_OFFSET}") as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            call(channel, lookup, request)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE, port
    # the same call by who has it: so it is the certificate, and not the call
    folder = s3.service.home / "s3" / "tls"
    key = (folder / certificates.KEY).read_bytes()
    for chain, found in ((None, False), ((folder / certificates.CERTIFICATE).read_bytes(), True)):
        login = grpc.ssl_channel_credentials(
            (folder / certificates.AUTHORITY).read_bytes(), chain and key, chain
        )
        name = (("grpc.ssl_target_name_override", "waybill"),)
        address = f"127.0.0.1:{s3.service.ports['s3_filer_port'] + GRPC_OFFSET}"
        with grpc.secure_channel(address, login, name) as channel:
            if found:
                assert b"x.jsonl.zst" in call(channel, lookup, request)
                continue
            with pytest.raises(grpc.RpcError):
                call(channel, lookup, request)


def test_certificates_and_sockets_are_their_owners_only(s3: servers.S3Server) -> None:
    folder = s3.service.home / "s3" / "tls"
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    sockets = {
        Path(one.laddr)
        for one in psutil.Process(s3.pid).net_connections("unix")
        if one.laddr and not one.laddr.startswith("@")
    }
    assert len(sockets) >= 3
    for socket in sockets:
        assert socket.stat().st_mode & 0o077 == 0, socket
