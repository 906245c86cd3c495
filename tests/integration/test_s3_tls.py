"""The object store by TLS: whoever nobody trusted vouches for is not talked to, at each client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests import servers
from tests.support.certificates import Authority
from tests.support.tls_front import TlsFront

from waybill.settings import S3Settings
from waybill.storage import open_objects
from waybill.tracing.duckdb_traces import connected

pytestmark = pytest.mark.serves
BODY = b"id\n1\n"


def by_boto3(settings: S3Settings) -> bytes:
    return open_objects(settings).get("tls/body.csv")


def by_duckdb(settings: S3Settings) -> bytes:
    place = f"s3://{settings.bucket}/tls/body.csv"
    [(text,)] = connected(settings).execute(f"SELECT content FROM read_text('{place}')").fetchall()
    return str(text).encode()


CLIENTS = pytest.mark.parametrize("read", [by_boto3, by_duckdb])


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Who is trusted."""
    made = Authority.made("of the store")
    (tmp_path / "trusted.pem").write_text(made.certificate)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "trusted.pem"))
    return made


@pytest.fixture
def store(s3: servers.S3Server) -> S3Settings:
    """A bucket with an object, without TLS."""
    settings = s3.bucket("tls")
    open_objects(settings).put("tls/body.csv", BODY)
    return settings


def behind(front: TlsFront, store: S3Settings) -> S3Settings:
    return store.model_copy(update={"endpoint_url": f"https://127.0.0.1:{front.port}"})


@CLIENTS
def test_a_store_that_somebody_trusted_vouches_for_is_read(
    read: Callable[[S3Settings], bytes], store: S3Settings, authority: Authority, tmp_path: Path
) -> None:
    with TlsFront(authority, tmp_path, urlsplit(store.endpoint_url or "").netloc) as front:
        assert read(behind(front, store)) == BODY


@CLIENTS
@pytest.mark.parametrize("wrong", ["authority", "address", "none trusted"])
def test_any_other_is_not(
    read: Callable[[S3Settings], bytes],
    wrong: str,
    store: S3Settings,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vouches = Authority.made("of the store") if wrong == "authority" else authority
    address = "127.0.0.9" if wrong == "address" else "127.0.0.1"
    if wrong == "none trusted":  # but those that everybody trusts
        monkeypatch.delenv("AWS_CA_BUNDLE")
    netloc = urlsplit(store.endpoint_url or "").netloc
    with (
        TlsFront(vouches, tmp_path, netloc, address) as front,
        pytest.raises(Exception, match=r"(?i)certificate|ssl|IP address mismatch"),
    ):
        read(behind(front, store))
