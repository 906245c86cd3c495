"""A small client of Airflow's public REST API: unpause, trigger, follow runs; renew DAGs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from waybill.errors import AwayError, InputError, RetryError
from waybill.settings import AirflowSettings

_PATIENCE_S = 60.0
_HEALTH_S = 10.0
_PAGE = 100
"""Airflow gives no more at once, unless it is told to."""
END_STATES = frozenset({"success", "failed"})
_ASK_AGAIN_S = 3.0
"""The DAG processor drops a request for a file that it is just parsing."""


@dataclass(frozen=True, slots=True)
class RenewedDag:
    """How far Airflow is with a DAG that it was asked to make anew."""

    exists: bool
    is_current: bool
    """Whether it was made since it was asked for."""
    interval_s: int
    """How often its file is parsed without being asked for."""
    is_paused: bool = False


class AirflowClient:
    """One signed-in user. Tokens are renewed when they run out.

    Args:
        settings: where Airflow is, and who signs in.
        tell: gets a line when Airflow does not answer and is waited for.
        patience_s: how long a call waits for an Airflow that is away.
        timeout_s: of one request.
    """

    def __init__(
        self,
        settings: AirflowSettings,
        tell: Callable[[str], None] = lambda _words: None,
        *,
        patience_s: float = _PATIENCE_S,
        timeout_s: float = 30.0,
    ) -> None:
        self._patience_s = patience_s
        self._settings = settings
        self._tell = tell
        self._client = httpx.Client(base_url=settings.url, timeout=timeout_s)
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def wait_for_dags(self, ids: set[str], *, limit_s: float) -> None:
        """Wait until the DAG processor has read these DAGs.

        Raises:
            RetryError: it has not within ``limit_s``; says which are missing.
        """
        deadline = time.monotonic() + limit_s
        while missing := ids - self._dag_ids():
            if time.monotonic() > deadline:
                errors = self._call("GET", _path("importErrors")).get("import_errors", [])
                words = "; ".join(f"{e['filename']}: {e['stack_trace'][-300:]}" for e in errors)
                raise RetryError(f"Airflow does not know {sorted(missing)}. {words}")
            time.sleep(1.0)

    def renew_dag(self, folder: str, dag_id: str, *, limit_s: float, absent_s: float) -> RenewedDag:
        """Have the DAG of a declaration made anew, and wait until it is.

        Args:
            folder: of the declaration, by name.
            dag_id: of its DAG.
            limit_s: longest wait.
            absent_s: longest wait while there is no such DAG.

        Raises:
            InputError: Airflow refused, or has no plugin of Waybill.
            AwayError: it does not answer.
        """
        asked = self._ask_parse(folder)
        since = datetime.fromisoformat(asked["asked_at"])
        began = asked_at = time.monotonic()
        while True:
            dag = self._call("GET", _path("dags", dag_id), fine=(httpx.codes.NOT_FOUND,))
            exists = bool(dag) and not dag["is_stale"]
            is_current = exists and _is_parsed_since(dag, since)
            now = time.monotonic()
            if is_current or now - began >= (limit_s if exists else absent_s):
                interval_s, is_paused = int(asked["interval_s"]), exists and bool(dag["is_paused"])
                return RenewedDag(exists, is_current, interval_s, is_paused)
            if now - asked_at > _ASK_AGAIN_S:
                asked_at = now
                self._ask_parse(folder)
            time.sleep(0.25)

    def _ask_parse(self, folder: str) -> dict[str, Any]:
        path = _path("declarations", folder, "parse", root="/waybill/api")
        return self._call("POST", path, {})

    def unpause(self, dag_id: str) -> None:
        """Let a DAG's runs be scheduled."""
        self._call("PATCH", _path("dags", dag_id), {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Have no more runs of a DAG be scheduled."""
        self._call("PATCH", _path("dags", dag_id), {"is_paused": True})

    def is_paused(self, dag_id: str) -> bool | None:
        """Return whether a DAG's runs wait; None: there is no such DAG."""
        dag = self._call("GET", _path("dags", dag_id), fine=(httpx.codes.NOT_FOUND,))
        return bool(dag["is_paused"]) if dag and not dag["is_stale"] else None

    def listed_dag(self, dag_id: str) -> dict[str, Any] | None:
        """Return what a list of DAGs says of one; None: there is none, or none any more.

        Cost: less than to ask for it by its id, for which Airflow reads all of it.
        """
        named = self._dags(f"dag_id_pattern={quote(dag_id, safe='')}")
        return next((dag for dag in named if dag["dag_id"] == dag_id), None)

    def newest_run(self, dag_id: str, states: Sequence[str] = ()) -> dict[str, Any] | None:
        """Return the newest run of a DAG that is in one of these states, or in any; None: none."""
        wanted = {"dag_ids": [dag_id], "page_limit": 1, "order_by": "-run_after"}
        body = wanted | ({"states": list(states)} if states else {})
        found = self._call("POST", _path("dags", "~", "dagRuns", "list"), body)["dag_runs"]
        return found[0] if found else None

    def count_runs(self, dag_id: str, states: Sequence[str]) -> int:
        """Return how many runs of a DAG are in one of these states."""
        body = {"dag_ids": [dag_id], "page_limit": 1, "states": list(states)}
        path = _path("dags", "~", "dagRuns", "list")
        return int(self._call("POST", path, body)["total_entries"])

    def paused_upkeep(self) -> list[str]:
        """Return Waybill's DAGs that are paused, but for those that move data in and on.

        Nor those that only run a job of upkeep by hand.
        """
        query = "paused=true&tags=maintenance&tags=replay&tags_match_mode=any"
        return sorted(
            dag["dag_id"]
            for dag in self._dags(query)
            if (tags := {tag["name"] for tag in dag["tags"]}) >= {"waybill"}
            and "by-hand" not in tags
        )

    def pools(self) -> set[str]:
        """Return the names of Waybill's pools that are there."""
        answer = self._call("GET", f"{_path('pools')}?pool_name_pattern=waybill_%25&limit={_PAGE}")
        return {pool["name"] for pool in answer["pools"]}

    def pool_slots(self, pool: str) -> tuple[int, int]:
        """Return (slots of a pool, slots of tasks that run or are about to)."""
        found = self._call("GET", _path("pools", pool))
        return int(found["slots"]), int(found["running_slots"]) + int(found["queued_slots"])

    def set_pool_slots(self, pool: str, slots: int) -> None:
        """Give a pool so many slots; what else it has stays."""
        kept = self._call("GET", _path("pools", pool))["include_deferred"]  # Airflow asks for it
        body = {"name": pool, "slots": slots, "include_deferred": kept}
        mask = "update_mask=slots&update_mask=include_deferred"
        self._call("PATCH", f"{_path('pools', pool)}?{mask}", body)

    def share_slots(self) -> dict[str, int]:
        """Have Waybill's plugin share the slots of ingestion among teams; returns what it said."""
        path = _path("ingest-slots", "share", root="/waybill/api")
        return {name: int(value) for name, value in self._call("POST", path, {}).items()}

    def variable(self, key: str) -> str | None:
        """Return the text of a Variable; ``None``: there is none."""
        found = self._call("GET", _path("variables", key), fine=(httpx.codes.NOT_FOUND,))
        value = found.get("value")
        return None if value is None else str(value)

    def task_instances(self, query: str, *, most: int) -> tuple[list[dict[str, Any]], int]:
        """Return the first task instances of all DAGs that a query string names, and how many."""
        found: list[dict[str, Any]] = []
        path = _path("dags", "~", "dagRuns", "~", "taskInstances")
        while True:
            page = f"limit={min(_PAGE, most)}&offset={len(found)}"
            answer = self._call("GET", f"{path}?{page}&{query}")
            found += answer["task_instances"]
            total = int(answer["total_entries"])
            if not answer["task_instances"] or len(found) >= min(total, most):
                return found, total

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any]) -> str:
        """Start a run; one with this id that exists already is kept. Returns the run id."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self._call("POST", _path("dags", dag_id, "dagRuns"), body, fine=(409,))
        return run_id

    def unhealthy(self) -> list[str]:
        """Return which of Airflow's components gave no sign of life of late."""
        parts = self._call("GET", _path("monitor", "health")).items()
        return [name.replace("_", " ") for name, part in parts if part["status"] == "unhealthy"]

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return a run's state: queued, running, success or failed."""
        return str(self._call("GET", _path("dags", dag_id, "dagRuns", run_id))["state"])

    def left(self, dag_id: str, run_id: str, task_id: str, key: str) -> Any:
        """Return what a task of a run left under a key; ``None``: nothing."""
        run = ("dags", dag_id, "dagRuns", run_id)
        path = _path(*run, "taskInstances", task_id, "xcomEntries", key)
        return self._call("GET", path, fine=(httpx.codes.NOT_FOUND,)).get("value")

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the newest 100 runs of a DAG."""
        path = _path("dags", dag_id, "dagRuns")
        answer = self._call("GET", f"{path}?limit={_PAGE}&order_by=-run_after")
        found: list[dict[str, Any]] = answer["dag_runs"]
        return found

    def follow(
        self,
        dag_id: str,
        run_id: str,
        *,
        limit_s: float,
        told: Callable[[str], None] = lambda _words: None,
        seen: Callable[[str], None] = lambda _state: None,
    ) -> str:
        """Wait for a run's end and return its state; ``told`` hears when nothing can come of it.

        ``seen`` gets each state that is met on the way, some twice a second.

        Raises:
            RetryError: it has not ended within ``limit_s``.
        """
        began = asked = time.monotonic()
        heard = ""
        while (state := self.run_state(dag_id, run_id)) not in END_STATES:
            now = time.monotonic()
            seen(state)
            if now - began > limit_s:
                raise RetryError(f"run {run_id!r} of {dag_id!r} is {state} after {limit_s:.0f} s")
            if now - asked > _HEALTH_S:
                asked = now
                down = " and ".join(self.unhealthy())
                if down and down != heard:
                    told(
                        f"the run is {state}; no sign of life from Airflow's {down}: the stack's "
                        "supervisor, or `waybill up`, starts it again, and the run goes on"
                    )
                heard = down
            time.sleep(0.5)
        return state

    def _dag_ids(self) -> set[str]:
        return {dag["dag_id"] for dag in self._dags()}

    def _dags(self, query: str = "") -> Iterator[dict[str, Any]]:
        """Yield all DAGs that a query string names, whatever Airflow gives at once."""
        seen = 0
        while True:
            page = f"limit={_PAGE}&offset={seen}&order_by=dag_id"
            answer = self._call("GET", f"{_path('dags')}?{page}&{query}")
            yield from answer["dags"]
            seen += len(answer["dags"])
            if not answer["dags"] or seen >= answer["total_entries"]:
                return

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        fine: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        answer = self._send(method, path, body)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._token = ""
            answer = self._send(method, path, body)
        if answer.status_code in fine:
            return {}
        if answer.is_error:
            raise InputError(f"Airflow refused {method} {path}: {answer.status_code} {answer.text}")
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            found = answer.raise_for_status().json()
        except (ValueError, httpx.HTTPStatusError):
            found = None
        if not isinstance(found, dict):
            raise InputError(
                f"what answers at {self._settings.url} is no Airflow: {answer.status_code}, "
                f"{answer.text[:80]!r}; check WAYBILL_AIRFLOW__URL"
            )
        return found

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        deadline = time.monotonic() + self._patience_s
        told = False
        while True:
            try:
                answer = self._signed_in()
                if answer is None:
                    headers = {"Authorization": f"Bearer {self._token}"}
                    answer = self._client.request(method, path, json=body, headers=headers)
                if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    return answer
                words = f"{answer.status_code} {answer.text[:200]}"
            except httpx.TransportError as error:
                words = str(error) or type(error).__name__
            said = f"Airflow at {self._settings.url} does not answer: {words}"
            if time.monotonic() > deadline:
                raise AwayError(said, setting="WAYBILL_AIRFLOW__URL")
            if not told:
                told = True
                self._tell(f"waiting up to {self._patience_s:.0f} s: {said}")
            time.sleep(1.0)

    def _signed_in(self) -> httpx.Response | None:
        """Have a token; return the answer that brought none because the server failed."""
        if self._token:
            return None
        password = self._settings.password
        secret = "" if password is None else password.get_secret_value()
        answer = self._client.post(
            "/auth/token", json={"username": self._settings.user, "password": secret}
        )
        if answer.is_server_error:
            return answer
        if answer.is_client_error:
            raise InputError(
                f"Airflow at {self._settings.url} refused user {self._settings.user!r}; check "
                "WAYBILL_AIRFLOW__USER and WAYBILL_AIRFLOW__PASSWORD"
            )
        self._token = str(self._read(answer).get("access_token", ""))
        return None


def _is_parsed_since(dag: dict[str, Any], since: datetime) -> bool:
    """Tell whether the parse that a DAG comes from began at a time, or later."""
    if dag["last_parsed_time"] is None:
        return False
    ended = datetime.fromisoformat(dag["last_parsed_time"])
    return ended - timedelta(seconds=dag["last_parse_duration"] or 0.0) >= since


def _path(*parts: str, root: str = "/api/v2") -> str:
    """Return a path of the API; what stands in a part stays in it.

    Raises:
        InputError: a part can be no name of Airflow's. Its server takes a quoted "/" for a "/".
    """
    for part in parts:
        if part in {"", ".", ".."} or "/" in part or not _is_text(part):
            raise InputError(f"Airflow has nothing by the name {part!r}")
    return "/".join([root, *(quote(part, safe="") for part in parts)])


def _is_text(name: str) -> bool:
    """Tell whether a name has a form in UTF-8; one of a file may have none."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
