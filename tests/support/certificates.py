"""Certificates of an authority that a test makes: who is vouched for, and who is not."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID = datetime.timedelta(days=2)


@dataclass(frozen=True)
class Identity:
    """A certificate and its private key, PEM; the key in PKCS #8."""

    certificate: str
    key: str


@dataclass(frozen=True)
class Authority:
    """Vouches for servers at 127.0.0.1, and for clients by their name."""

    certificate: str
    _own: x509.Certificate
    _key: ec.EllipticCurvePrivateKey

    @classmethod
    def made(cls, name: str) -> Self:
        """Make one that nobody trusts yet."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = _named(name, name, key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        certificate = own.sign(key, hashes.SHA256())
        return cls(_pem(certificate), certificate, key)

    def identity(self, name: str, address: str = "127.0.0.1", password: str = "") -> Identity:
        """Return one that this authority vouches for; its key is encrypted where a password is."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        where = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = _named(name, str(issuer), key).add_extension(where, critical=False)
        return Identity(_pem(made.sign(self._key, hashes.SHA256())), _key_pem(key, password))


def _named(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str) -> str:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()
