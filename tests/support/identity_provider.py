"""An identity provider (OIDC, client credentials): gives tokens to those who know a secret."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE = "waybill-tests"
CLIENT, SECRET = "waybill-client", 'of "the" client\\'


class IdentityProvider:
    """Runs on a free port while the block lasts; `url` of its tokens, `asked` counts requests."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        self.scopes: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"] or 0)
                given = parse_qs(self.rfile.read(length).decode())
                kind, _, login = self.headers.get("Authorization", "").partition(" ")
                known = kind == "Basic" and base64.b64decode(login).decode() == f"{CLIENT}:{SECRET}"
                provider.scopes += given.get("scope", [])
                answer = provider.token() if known else {"error": "invalid_client"}
                body = json.dumps(answer).encode()
                self.send_response(200 if known else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def token(self) -> dict[str, object]:
        """Return a token that holds for five minutes."""
        now = int(time.time())
        claims = {
            "sub": CLIENT,
            "aud": AUDIENCE,
            "iat": now - 5,
            "exp": now + 300,
            "scope": "kafka",
        }
        signed = jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": "tests"})
        return {"access_token": signed, "token_type": "Bearer", "expires_in": 300}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def public_keys(key: rsa.RSAPrivateKey) -> str:
    """Return what a broker checks tokens with (JWKS)."""
    own = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return json.dumps({"keys": [own | {"kid": "tests", "use": "sig", "alg": "RS256"}]})
