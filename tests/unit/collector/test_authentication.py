"""Who may send to the collector."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.collector.authentication import Authenticator, NobodysAuthenticator, find_secret
from waybill.errors import InputError
from waybill.ingestion.connectors import HttpSource

SECRET = b"it is a secret"
NOW = 1_700_000_000


def authenticator(scheme: str, *secrets: bytes, now: float = NOW) -> Authenticator:
    source = HttpSource(event="e", auth=scheme, secret="env:X")
    return Authenticator(source, secrets or [SECRET], now=lambda: now)


def github(secret: bytes, body: bytes) -> dict[bytes, bytes]:
    digest = hmac.new(secret, body, hashlib.sha256).hexdigest()
    return {b"x-hub-signature-256": b"sha256=" + digest.encode()}


def stripe(secret: bytes, body: bytes, at: int = NOW) -> dict[bytes, bytes]:
    digest = hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
    return {b"stripe-signature": b"t=%d,v1=%s,v0=aa" % (at, digest.encode())}


def standard(key: bytes, body: bytes, at: int = NOW) -> dict[bytes, bytes]:
    digest = hmac.new(key, b"msg_1.%d." % at + body, hashlib.sha256).digest()
    signature = b"v1a,AAAA v1," + base64.b64encode(digest)
    times = {b"webhook-id": b"msg_1", b"webhook-timestamp": b"%d" % at}
    return times | {b"webhook-signature": signature}


def test_a_token_passes_and_no_other_does():
    bearer = authenticator("bearer")
    assert bearer.passes({b"authorization": b"Bearer " + SECRET}, b"")
    assert bearer.passes({b"authorization": b"bearer  " + SECRET}, b"")
    for wrong in (b"", b"Bearer", b"Bearer ", b"Basic " + SECRET, b"Bearer " + SECRET + b"x"):
        assert not bearer.passes({b"authorization": wrong}, b"")
    assert not bearer.passes({}, b"")


def test_the_examples_that_github_and_standard_webhooks_publish_pass():
    secret, body = b"It's a Secret to Everybody", b"Hello, World!"
    digest = b"757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert authenticator("github", secret).passes(
        {b"x-hub-signature-256": b"sha256=" + digest}, body
    )
    headers = {
        b"webhook-id": b"msg_p5jXN8AQM9LWM0D4loKWxJek",
        b"webhook-timestamp": b"1614265330",
        b"webhook-signature": b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    key = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    published = authenticator("standard", key, now=1_614_265_330)
    assert published.passes(headers, b'{"test": 2432232314}')


@given(body=st.binary(max_size=300), place=st.integers(0, 10_000))
def test_a_body_or_a_secret_that_differs_by_a_bit_does_not_pass(body: bytes, place: int):
    key = b"0123456789abcdef"
    whsec = b"whsec_" + base64.b64encode(key)
    other = bytearray(body + b".")
    other[place % len(other)] ^= 1 << (place % 8)
    for scheme, secret, headers in (
        ("github", SECRET, github(SECRET, body)),
        ("stripe", SECRET, stripe(SECRET, body)),
        ("standard", whsec, standard(key, body)),
    ):
        assert authenticator(scheme, secret).passes(headers, body)
        assert not authenticator(scheme, secret).passes(headers, bytes(other))


def test_two_secrets_pass_while_one_is_being_changed():
    for scheme in ("github", "stripe"):
        made = {"github": github, "stripe": stripe}[scheme]
        both = authenticator(scheme, b"the old secret", b"the new secret")
        assert both.passes(made(b"the old secret", b"x"), b"x")
        assert both.passes(made(b"the new secret", b"x"), b"x")
        assert not both.passes(made(b"a third secret", b"x"), b"x")


@pytest.mark.parametrize("off_s", [-301, 301])
def test_a_signature_from_another_time_does_not_pass(off_s: int):
    key = b"0123456789abcdef"
    whsec = b"whsec_" + base64.b64encode(key)
    assert not authenticator("stripe").passes(stripe(SECRET, b"x", NOW + off_s), b"x")
    assert not authenticator("standard", whsec).passes(standard(key, b"x", NOW + off_s), b"x")
    near = off_s - off_s // abs(off_s)
    assert authenticator("stripe").passes(stripe(SECRET, b"x", NOW + near), b"x")


@given(
    headers=st.dictionaries(
        st.sampled_from(
            [
                b"authorization",
                b"x-hub-signature-256",
                b"stripe-signature",
                b"webhook-id",
                b"webhook-timestamp",
                b"webhook-signature",
            ]
        ),
        st.binary(max_size=60) | st.just(b"t=1,t=2,v1=") | st.just(b"9" * 400),
    ),
    body=st.binary(max_size=50),
)
def test_whatever_headers_hold_nothing_passes_and_nothing_fails(headers, body):
    whsec = b"whsec_" + base64.b64encode(b"0123456789abcdef")
    for scheme in ("bearer", "github", "stripe"):
        assert not authenticator(scheme).passes(headers, body)
    assert not authenticator("standard", whsec).passes(headers, body)
    assert not NobodysAuthenticator().passes(headers, body)


def test_secrets_are_found_in_the_environment_and_in_connections():
    environment = {
        "HOOK": "old-secret-1 new-secret-2",
        "AIRFLOW_CONN_HOOKS": "http://user:pass%2Fword@host/",
        "AIRFLOW_CONN_JSON": '{"conn_type": "http", "password": "from the json".replace}',
        "AIRFLOW_CONN_RIGHT": '{"conn_type": "http", "password": "jsonpassword"}',
        "SHORT": "short",
    }
    assert find_secret("env:HOOK", environment) == [b"old-secret-1", b"new-secret-2"]
    assert find_secret("connection:hooks", environment) == [b"pass/word"]
    assert find_secret("connection:right", environment) == [b"jsonpassword"]
    for wrong in ("env:NONE", "connection:none", "env:SHORT", "connection:json"):
        with pytest.raises(InputError) as raised:
            find_secret(wrong, environment)
        assert not any(value in str(raised.value) for value in environment.values())


@pytest.mark.parametrize("secret", [b"whsec_", b"whsec_QQ==", b"whsec_QUJDREVGRw==", b"whsec_!!"])
def test_a_key_of_standard_webhooks_that_can_be_guessed_is_refused_and_not_repeated(secret):
    with pytest.raises(InputError, match="Standard Webhooks") as raised:
        authenticator("standard", secret)
    assert secret.removeprefix(b"whsec_") == b"" or secret.decode() not in str(raised.value)
