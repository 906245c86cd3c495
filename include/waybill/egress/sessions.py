"""HTTP by requests and urllib3, through the guard.

Each connection of a pool is made by the guard, so each redirect to another place is judged; TLS
checks the certificate for the host's name, as ever. No proxy is used: it would resolve names
itself.
"""

from __future__ import annotations

import socket
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from waybill.egress.guard import EgressGuard
from waybill.errors import InputError

CONNECT_S, READ_S = 10.0, 60.0
"""Limits of a request that names none."""


class GuardedPoolManager(PoolManager):
    """A pool manager of urllib3 whose connections are made by a guard."""

    def __init__(self, guard: EgressGuard, **settings: Any) -> None:
        super().__init__(**settings)
        self.pool_classes_by_scheme = _pools(guard)


class GuardedAdapter(HTTPAdapter):
    """An adapter of requests whose connections are made by a guard; mount it for both schemes."""

    def __init__(self, guard: EgressGuard, **settings: Any) -> None:
        self._guard = guard
        super().__init__(**settings)

    def init_poolmanager(
        self, connections: int, maxsize: int, *rest: bool, **pool_kwargs: Any
    ) -> None:
        """Make the pool manager; see requests."""
        if rest:
            pool_kwargs["block"] = rest[0]
        self.poolmanager = GuardedPoolManager(
            self._guard, num_pools=connections, maxsize=maxsize, **pool_kwargs
        )

    def proxy_manager_for(self, *_: Any, **__: Any) -> Any:
        """Refuse a proxy.

        Raises:
            InputError: always.
        """
        raise InputError(
            "a request of a source would go through a proxy, which resolves names itself; sources"
            " connect directly: unset HTTP_PROXY and HTTPS_PROXY, or name the host in NO_PROXY"
        )

    def send(self, request: Any, *positional: Any, **settings: Any) -> requests.Response:
        """Send a request; one without limits gets ours."""
        if not positional and settings.get("timeout") is None:
            settings["timeout"] = (CONNECT_S, READ_S)
        return super().send(request, *positional, **settings)


def guarded_session(guard: EgressGuard) -> requests.Session:
    """Return a session of requests; it takes nothing from the environment."""
    session = requests.Session()
    session.trust_env = False
    for scheme in ("http://", "https://"):
        session.mount(scheme, GuardedAdapter(guard))
    return session


def _pools(guard: EgressGuard) -> dict[str, Any]:
    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _connected(guard, self)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _connected(guard, self)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def _connected(guard: EgressGuard, connection: HTTPConnection) -> socket.socket:
    """Return a connection, or urllib3's own error why there is none."""
    host, port = connection.host, connection.port or connection.default_port
    timeout = connection.timeout
    try:
        return guard.connect(
            host,
            port,
            timeout_s=timeout if isinstance(timeout, int | float) else None,
            source_address=connection.source_address,
            options=connection.socket_options or (),
        )
    except socket.gaierror as error:
        raise NameResolutionError(host, connection, error) from error
    except TimeoutError as error:
        raise ConnectTimeoutError(connection, f"{host!r} did not answer in time") from error
    except OSError as error:
        raise NewConnectionError(connection, f"no connection to {host!r}: {error}") from error
