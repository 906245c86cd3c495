"""Who may send: bearer tokens, and signatures as GitHub, Stripe and Standard Webhooks make them.

Signatures are over the body as it is sent (compressed, if it is). Secrets are compared in constant
time. A secret may be two, with a space or a line's end between, while it is being changed.

  bearer    ``Authorization: Bearer <secret>``
  github    ``X-Hub-Signature-256: sha256=<hex>`` of the body
  stripe    ``Stripe-Signature: t=<time>,v1=<hex>`` of ``<time>.<body>``
  standard  ``webhook-signature: v1,<base64>`` of ``<webhook-id>.<webhook-timestamp>.<body>``; the
            secret is ``whsec_<base64>``
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote, urlsplit

import orjson

from waybill.errors import InputError
from waybill.ingestion.connectors import HttpSource

Headers = Mapping[bytes, bytes]
"""Names in small letters; what came twice is joined with ", "."""
_LEAST_SECRET_BYTES = 8
_STANDARD_PREFIX = "whsec_"


def find_secret(reference: str, environment: Mapping[str, str] = os.environ) -> list[bytes]:
    """Return the secrets that a reference leads to: one, or two while it is being changed.

    Args:
        reference: ``env:<variable>``, or ``connection:<name>``: the password of the connection that
            ``AIRFLOW_CONN_<NAME>`` holds, as a URI or as JSON.
        environment: where they are.

    Raises:
        InputError: there is none, or it is too short to be one. Says no part of it.
    """
    kind, _, name = reference.partition(":")
    variable = name if kind == "env" else f"AIRFLOW_CONN_{name.upper()}"
    text = environment.get(variable, "")
    if kind == "connection" and text:
        text = _password(text, variable)
    found = [one.encode() for one in text.split()]
    if not found:
        raise InputError(f"source.options.secret: {variable} holds no secret for {reference}")
    if min(map(len, found)) < _LEAST_SECRET_BYTES:
        raise InputError(
            f"source.options.secret: {variable} holds a secret of less than {_LEAST_SECRET_BYTES}"
            " characters"
        )
    return found


def _password(text: str, variable: str) -> str:
    try:
        if text.lstrip().startswith("{"):
            return str(orjson.loads(text).get("password") or "")
        return unquote(urlsplit(text).password or "")
    except (ValueError, AttributeError):
        raise InputError(f"{variable} is neither a URI nor a JSON object") from None


class Authenticator:
    """Checks requests for one pipeline.

    Args:
        source: the scheme, and how far a signature's time may be off.
        secrets: of which one must fit.
        now: seconds since 1970.

    Raises:
        InputError: a secret is not of the scheme's form.
    """

    def __init__(
        self, source: HttpSource, secrets: Sequence[bytes], *, now: Callable[[], float] = time.time
    ) -> None:
        self.scheme = source.auth
        self._tolerance_s = source.tolerance_s
        self._now = now
        self._keys = [_key(source.auth, secret) for secret in secrets]

    @property
    def needs_body(self) -> bool:
        """Tell whether the body is signed."""
        return self.scheme != "bearer"

    def passes(self, headers: Headers, body: bytes) -> bool:
        """Tell whether a request may be taken. Cost: 1 µs a KB of body for each secret."""
        if self.scheme == "bearer":
            return self._bearer(headers)
        if self.scheme == "github":
            return self._github(headers, body)
        if self.scheme == "stripe":
            return self._stripe(headers, body)
        return self._standard(headers, body)

    def _bearer(self, headers: Headers) -> bool:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip()
        fits = [hmac.compare_digest(given, key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(fits)

    def _github(self, headers: Headers, body: bytes) -> bool:
        given = headers.get(b"x-hub-signature-256", b"")
        return any(
            hmac.compare_digest(b"sha256=" + digest.hex().encode(), given)
            for digest in self._digests(body)
        )

    def _stripe(self, headers: Headers, body: bytes) -> bool:
        parts = [
            part.strip().partition(b"=")
            for part in headers.get(b"stripe-signature", b"").split(b",")
        ]
        times = [value for name, _, value in parts if name == b"t"]
        given = [value for name, _, value in parts if name == b"v1"]
        if len(times) != 1 or not self._is_fresh(times[0]):
            return False
        hexes = [digest.hex().encode() for digest in self._digests(times[0] + b"." + body)]
        return any([hmac.compare_digest(one, own) for one in given for own in hexes])

    def _standard(self, headers: Headers, body: bytes) -> bool:
        moment = headers.get(b"webhook-timestamp", b"")
        own_id = headers.get(b"webhook-id", b"")
        if not own_id or not self._is_fresh(moment):
            return False
        signed = own_id + b"." + moment + b"." + body
        own = [b"v1," + base64.b64encode(digest) for digest in self._digests(signed)]
        given = headers.get(b"webhook-signature", b"").split()
        return any([hmac.compare_digest(one, digest) for one in given for digest in own])

    def _digests(self, signed: bytes) -> list[bytes]:
        return [hmac.digest(key, signed, hashlib.sha256) for key in self._keys]

    def _is_fresh(self, text: bytes) -> bool:
        if not text.isdigit() or len(text) > len("99999999999"):
            return False
        return abs(self._now() - int(text)) <= self._tolerance_s


def _key(scheme: str, secret: bytes) -> bytes:
    if scheme != "standard":
        return secret
    text = secret.decode().removeprefix(_STANDARD_PREFIX)
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _LEAST_SECRET_BYTES:
        raise InputError(
            "source.options.secret: a secret of Standard Webhooks is whsec_ and base64 of at least"
            f" {_LEAST_SECRET_BYTES} bytes"
        )
    return key


class NobodysAuthenticator:
    """For pipelines that there are not: refuses as slowly as one would that there is."""

    needs_body = False

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def passes(self, headers: Headers, body: bytes) -> bool:
        """Return False."""
        given = headers.get(b"authorization", b"")
        hmac.compare_digest(hmac.digest(self._key, body, hashlib.sha256), given)
        return False
