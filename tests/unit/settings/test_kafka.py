"""Settings of Kafka's transport and login: half of them is an error, never a connection without."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from waybill.settings import KafkaSettings

LOGIN = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "carol",
    "sasl_password": "hers",
}
CERTIFICATE = {"ssl_certificate_pem": "c", "ssl_private_key_pem": "k"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ssl_ca_file": "/ca.pem"}, "security_protocol PLAINTEXT uses no certificates"),
        ({"ssl_ca_pem": "ca"}, "make it SSL or SASL_SSL"),
        ({"sasl_mechanism": "PLAIN"}, "logs nobody in"),
        ({"sasl_password": "hers"}, "logs nobody in"),
        ({"security_protocol": "SSL", "sasl_username": "carol"}, "make it SASL_SSL"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        (LOGIN | {"sasl_password": ""}, "needs sasl_username and sasl_password"),
        (LOGIN | {"sasl_username": ""}, "needs sasl_username and sasl_password"),
        (LOGIN | {"sasl_mechanism": "PLAIN", "security_protocol": "SASL_PLAINTEXT"}, "SASL_SSL"),
        (LOGIN | {"sasl_mechanism": "OAUTHBEARER"}, "needs sasl_token_url"),
        (LOGIN | {"sasl_token_url": "https://h/token"}, "nothing else uses it"),
        (
            LOGIN | {"sasl_mechanism": "OAUTHBEARER", "sasl_token_url": "http://h/token"},
            "must be https",
        ),
        (LOGIN | {"sasl_mechanism": "OAUTHBEARER", "sasl_token_url": ""}, "needs sasl_token_url"),
        (LOGIN | {"sasl_username": 'carol\n"; evil'}, "no control characters"),
        ({"security_protocol": "SSL", "ssl_certificate_pem": "c"}, "needs its private key"),
        ({"security_protocol": "SSL", "ssl_private_key_file": "/key.pem"}, "needs its private key"),
        ({"security_protocol": "SSL", "ssl_private_key_password": "p"}, "of a private key"),
        ({"security_protocol": "SSL", "ssl_ca_pem": "c", "ssl_ca_file": "/c"}, "both set"),
        ({"security_protocol": "TLS"}, "SASL_SSL"),
        (LOGIN | {"sasl_mechanism": "GSSAPI"}, "OAUTHBEARER"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_no_secret_is_shown(
    given: dict[str, str], why: str
) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        KafkaSettings(**given)
    assert "hers" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"security_protocol": "SSL"},
        {"security_protocol": "SSL", **CERTIFICATE},
        LOGIN,
        LOGIN | CERTIFICATE,
        LOGIN | {"security_protocol": "SASL_PLAINTEXT"},
        LOGIN | {"sasl_mechanism": "OAUTHBEARER", "sasl_token_url": "https://h/token"},
    ],
)
def test_what_fits_is_taken_and_shows_no_secret(given: dict[str, str]) -> None:
    made = KafkaSettings(**given)
    assert "hers" not in repr(made)
    assert made.ssl_private_key_pem is None or isinstance(made.ssl_private_key_pem, SecretStr)
