"""Where thresholds come from: the settings, or a store that is watched for change.

A store holds one JSON object, ``{"ingestion": {"max_nodes": 8, …}, "spark": {…}}``; what it does
not name has its default (``Thresholds``). Consul is asked by blocking queries over plain HTTP: a
read returns as soon as the key changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from waybill.capacity.model import KINDS, NodeKind, Thresholds
from waybill.errors import AwayError, InputError

_LONGEST_BYTES = 100_000
_ANSWER_S = 10.0
_NO_KEY = 404


class ThresholdStore(Protocol):
    """Where thresholds are."""

    name: str
    """For people."""

    def read(self, wait_s: float = 0.0) -> object:
        """Return what is there, as JSON values; {}: nothing.

        Args:
            wait_s: so long to wait for another value than the one read last; a store that cannot
                tell of changes returns at once.

        Raises:
            AwayError: it does not answer.
            InputError: it refuses, or what is there is no JSON.
        """


class FixedThresholds:
    """Thresholds of the settings, which do not change."""

    name = "WAYBILL_CAPACITY__THRESHOLDS"

    def __init__(self, values: Mapping[str, Mapping[str, float]]) -> None:
        self._values = values

    def read(self, wait_s: float = 0.0) -> object:
        """Return them."""
        del wait_s
        return self._values


class VariableThresholds:
    """A Variable of Airflow.

    Args:
        variable: its name.
        ask: returns its text; None: there is none.
    """

    def __init__(self, variable: str, ask: Callable[[str], str | None]) -> None:
        self.name = f"Airflow's Variable {variable}"
        self._variable, self._ask = variable, ask

    def read(self, wait_s: float = 0.0) -> object:
        """Return it."""
        del wait_s
        text = self._ask(self._variable)
        return {} if text is None else _json(text, self.name)


class ConsulThresholds:
    """A key of Consul's KV store, by blocking queries.

    Args:
        url: of the agent.
        key: its path.
        token: of an ACL; "": none.
    """

    def __init__(self, url: str, key: str, token: str = "") -> None:
        from urllib.parse import quote

        self.name = f"Consul's key {key}"
        self._path = f"{url.rstrip('/')}/v1/kv/{quote(key.strip('/'))}"
        self._headers = {"X-Consul-Token": token} if token else {}
        self._index = 0

    def read(self, wait_s: float = 0.0) -> object:
        """Return the value, at the latest after ``wait_s``, and as soon as it is another one."""
        import httpx

        query: dict[str, str] = {"raw": "true"}
        if wait_s > 0 and self._index > 0:
            query |= {"index": str(self._index), "wait": f"{max(1, round(wait_s))}s"}
        timeout = httpx.Timeout(_ANSWER_S, read=wait_s * 17 / 16 + _ANSWER_S)
        try:
            with httpx.Client(headers=self._headers, timeout=timeout) as client:
                answer = client.get(self._path, params=query)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._away(str(error)) from error
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise self._away(f"{answer.status_code} {answer.text[:200]}")
        if answer.status_code not in {httpx.codes.OK, _NO_KEY}:
            raise InputError(
                f"{self.name} is refused: {answer.status_code} {answer.text[:200]}; see "
                "WAYBILL_CAPACITY__CONSUL_TOKEN"
            )
        index = answer.headers.get("X-Consul-Index", "")
        new = int(index) if index.isdecimal() else 0
        # an index that goes back, or is none, is begun anew, as Consul's documentation asks
        self._index = 0 if new < self._index else new
        return {} if answer.status_code == _NO_KEY else _json(answer.text, self.name)

    def _away(self, words: str) -> AwayError:
        return AwayError(
            f"{self.name} is not read: {words}", setting="WAYBILL_CAPACITY__CONSUL_URL"
        )


def parse(value: object, source: str) -> dict[NodeKind, Thresholds]:
    """Return the thresholds of each kind.

    Raises:
        InputError: what is wrong, and where.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{source} must be an object by kind of node, found {value!r:.60}")
    if unknown := sorted(str(name)[:60] for name in value if name not in KINDS):
        raise InputError(
            f"{source} has no kinds of nodes: {', '.join(unknown)}; kinds: {', '.join(KINDS)}"
        )
    found = {}
    for kind in KINDS:
        try:
            found[kind] = Thresholds.read(value.get(kind, {}))
        except InputError as error:
            raise InputError(f"{source}, {kind}: {error}") from error
    return found


def _json(text: str, source: str) -> Any:
    if len(text) > _LONGEST_BYTES:
        raise InputError(f"{source} has over {_LONGEST_BYTES:,} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is no JSON: {str(error)[:200]}") from error
