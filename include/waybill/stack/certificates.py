"""Certificates for servers that trust only each other: one authority, one certificate, one key.

Drawn anew for each start. The authority's own key is never stored, so nobody can have another
certificate of it: who is not given these files does not get in.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from waybill.stack import state_folder

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"
_VALID = timedelta(days=3650)
_CLOCKS = timedelta(days=1)
"""How far the clocks of those who check may be behind."""


def draw(folder: Path) -> None:
    """Write ``ca.pem``, ``certificate.pem`` and ``key.pem``, readable by their owner only.

    The certificate is good for servers and for clients. Cost: a millisecond.
    """
    authority, own = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    purposes = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    root = (
        _builder("waybill authority", authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        _builder("waybill", own.public_key())
        .add_extension(purposes, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("waybill")]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    key = own.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for name, content in (
        (AUTHORITY, root.public_bytes(encoding)),
        (CERTIFICATE, leaf.public_bytes(encoding)),
        (KEY, key),
    ):
        state_folder.write_private(folder / name, content.decode())


def _builder(name: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named("waybill authority"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + _VALID)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
