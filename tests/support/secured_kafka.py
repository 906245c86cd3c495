"""The ways into the tests' broker that ask who one is: by certificate, and by login over TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import SecretStr
from tests.support import identity_provider
from tests.support.certificates import Authority

from waybill.settings import KafkaSettings
from waybill.stack import state_folder

USER, PASSWORD = "carol", 'se"c\\ret, of carol'
OTHER, OTHER_PASSWORD = "crm", "of-crm"
PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{plain},MUTUAL://127.0.0.1:{mutual},LOGIN://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},MUTUAL://127.0.0.1:{mutual},LOGIN://127.0.0.1:{login}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,MUTUAL:SSL,LOGIN:SASL_SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/authority.pem
listener.name.mutual.ssl.client.auth=required
listener.name.login.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.login.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required user_{user}="{password}" user_{other}="{other_password}";
listener.name.login.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;
listener.name.login.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;
listener.name.login.oauthbearer.sasl.jaas.config={modules}.oauthbearer.OAuthBearerLoginModule required;
listener.name.login.oauthbearer.sasl.server.callback.handler.class={modules}.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.login.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={keys}
listener.name.login.oauthbearer.sasl.oauthbearer.expected.audience={audience}
"""


@dataclass
class Doors:
    """What a broker needs to ask who one is, and its clients' settings."""

    folder: Path
    mutual: int
    """Port that asks for a certificate."""
    login: int
    """Port that asks for a login, over TLS."""
    authority: Authority = field(default_factory=lambda: Authority.made("tests"))

    @cached_property
    def provider_key(self) -> rsa.RSAPrivateKey:
        """What the identity provider signs with; the broker has its public half."""
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def keys_url(self) -> str:
        return (self.folder / "keys.json").absolute().as_uri()

    def properties(self, plain: int, controller: int) -> str:
        """Write the broker's certificate, and return the properties of its listeners."""
        broker = self.authority.identity("broker")
        state_folder.write_private(self.folder / "broker.pem", broker.key + broker.certificate)
        state_folder.write_private(self.folder / "authority.pem", self.authority.certificate)
        public = identity_provider.public_keys(self.provider_key)
        state_folder.write_private(self.folder / "keys.json", public)
        return PROPERTIES.format(
            plain=plain,
            mutual=self.mutual,
            login=self.login,
            controller=controller,
            folder=self.folder.absolute(),
            modules="org.apache.kafka.common.security",
            user=USER,
            other=OTHER,
            other_password=OTHER_PASSWORD,
            password=_escaped(_escaped(PASSWORD, '\\"'), "\\"),
            keys=self.keys_url,
            audience=identity_provider.AUDIENCE,
        )

    def by_certificate(self, **changed: object) -> KafkaSettings:
        """Return settings of a client whom the broker knows by its certificate."""
        own = self.authority.identity("carol")
        return KafkaSettings(**{
            "bootstrap_servers": f"127.0.0.1:{self.mutual}",
            "security_protocol": "SSL",
            "ssl_ca_pem": self.authority.certificate,
            "ssl_certificate_pem": own.certificate,
            "ssl_private_key_pem": SecretStr(own.key),
            **changed,
        })  # fmt: skip

    def by_login(self, mechanism: str, **changed: object) -> KafkaSettings:
        """Return settings of a client that logs in."""
        return KafkaSettings(**{
            "bootstrap_servers": f"127.0.0.1:{self.login}",
            "security_protocol": "SASL_SSL",
            "ssl_ca_pem": self.authority.certificate,
            "sasl_mechanism": mechanism,
            "sasl_username": USER,
            "sasl_password": SecretStr(PASSWORD),
            **changed,
        })  # fmt: skip


def add_user(plain_servers: str) -> None:
    """Have the broker know the user for SCRAM."""
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": plain_servers})
    for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        known = ScramCredentialInfo(kind, 4096)
        wanted = UserScramCredentialUpsertion(USER, known, PASSWORD.encode())
        admin.alter_user_scram_credentials([wanted])[USER].result(300)


def _escaped(text: str, characters: str) -> str:
    return "".join(f"\\{c}" if c in characters else c for c in text)
