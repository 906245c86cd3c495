"""A small client of Airflow's public REST API: unpause, trigger, follow runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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


class AirflowClient:
    """One signed-in user. Tokens are renewed when they run out.

    Args:
        settings: where Airflow is, and who signs in.
        tell: gets a line when Airflow does not answer and is waited for.
        patience_s: how long a call waits for an Airflow that is away.
    """

    def __init__(
        self,
        settings: AirflowSettings,
        tell: Callable[[str], None] = lambda _words: None,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._settings = settings
        self._tell = tell
        self._client = httpx.Client(base_url=settings.url, timeout=30.0)
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

    def unpause(self, dag_id: str) -> None:
        """Let a DAG's runs be scheduled."""
        self._call("PATCH", _path("dags", dag_id), {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Have no more runs of a DAG be scheduled."""
        self._call("PATCH", _path("dags", dag_id), {"is_paused": True})

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
    ) -> str:
        """Wait for a run's end and return its state; ``told`` hears when nothing can come of it.

        Raises:
            RetryError: it has not ended within ``limit_s``.
        """
        began = asked = time.monotonic()
        heard = ""
        while (state := self.run_state(dag_id, run_id)) not in END_STATES:
            now = time.monotonic()
            if now - began > limit_s:
                raise RetryError(f"run {run_id!r} of {dag_id!r} is {state} after {limit_s:.0f} s")
            if now - asked > _HEALTH_S:
                asked = now
                down = " and ".join(self.unhealthy())
                if down and down != heard:
                    told(
                        f"the run is {state}; Airflow's {down} gives no sign of life: the stack's "
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
        found: dict[str, Any] = answer.json()
        return found

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        deadline = time.monotonic() + self._patience_s
        told = False
        while True:
            try:
                headers = {"Authorization": f"Bearer {self._signed_in()}"}
                answer = self._client.request(method, path, json=body, headers=headers)
                if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    return answer
                words = f"{answer.status_code} {answer.text[:200]}"
            except httpx.TransportError as error:
                words = str(error)
            said = f"Airflow at {self._settings.url} does not answer: {words}"
            if time.monotonic() > deadline:
                raise AwayError(said, setting="WAYBILL_AIRFLOW__URL")
            if not told:
                told = True
                self._tell(f"waiting up to {self._patience_s:.0f} s: {said}")
            time.sleep(1.0)

    def _signed_in(self) -> str:
        if not self._token:
            password = self._settings.password
            secret = "" if password is None else password.get_secret_value()
            answer = self._client.post(
                "/auth/token", json={"username": self._settings.user, "password": secret}
            )
            if answer.is_client_error:
                raise InputError(
                    f"Airflow at {self._settings.url} refused user {self._settings.user!r}; check "
                    "WAYBILL_AIRFLOW__USER and WAYBILL_AIRFLOW__PASSWORD"
                )
            answer.raise_for_status()
            self._token = str(answer.json()["access_token"])
        return self._token


def _path(*parts: str) -> str:
    """Return a path of the API; what stands in a part stays in it.

    Raises:
        InputError: a part can be no name of Airflow's. Its server takes a quoted "/" for a "/".
    """
    for part in parts:
        if part in {"", ".", ".."} or "/" in part:
            raise InputError(f"Airflow has nothing by the name {part!r}")
    return "/".join(["/api/v2", *(quote(part, safe="") for part in parts)])
