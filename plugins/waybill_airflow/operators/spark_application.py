"""Run a Spark application of a virtual cluster outside the task's lifetime, and supervise it.

Who may end what
- The application outlives its supervisor: a task that is killed, timed out, marked success or
  failed, cleared, or whose worker dies leaves it running (``on_kill`` does not touch it). The next
  supervisor, a retry or the task of the next DAG run, finds it by the library's registry.
- Stopping needs a clear request: the Airflow variable ``waybill_stream_<virtual cluster>`` set to
  ``stop``. It is read at most twice a minute; the supervisor then stops the application, keeps it
  stopped, and starts it again when the variable says ``run`` or is gone.
- A supervisor ends by itself after its ``shift`` and succeeds, so that logs, code and workers
  change hands; ``execution_timeout`` should be longer, and only meets a supervisor that hangs.

One application, not two
- ``submit_job`` looks before it starts, and nothing is started while the state is unknown.
- Each DAG allows one run; ``stream_default`` one such task across runs, too.
- What is left, a crash between start and registration, is fenced by the application's lease.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseOperator, ResumableJobMixin, Variable
from airflow.sdk.exceptions import AirflowException

from waybill.back_off import BackOff
from waybill_airflow.failures import read_settings
from waybill_airflow.supervision import RESTARTS, Supervisor

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from waybill.settings import Settings
    from waybill_airflow.supervision import Status

Kind = Literal["processing", "loading"]
REQUESTS = ("run", "stop")
_REQUEST_MAX_AGE_S = 30.0
_NAP_S = 1.0
"""Longest sleep in one piece: a kill waits five seconds before it becomes SIGKILL."""


@dataclass(frozen=True)
class _SparkApplication:
    """The library's application of one kind and cluster, as a supervisor sees it."""

    settings: Settings
    kind: Kind
    cluster: str

    def start(self) -> int:
        from waybill.services import start_application

        return start_application(self.settings, self.kind, self.cluster)

    def status(self) -> Status:
        from waybill.services import application_status

        return application_status(self.settings, self.kind, self.cluster)

    def stop(self) -> None:
        from waybill.services import stop_application

        stop_application(self.settings, self.kind, self.cluster)

    def last_words(self) -> str:
        from waybill.services import application_last_words

        return application_last_words(self.settings, self.kind, self.cluster)


class SparkApplicationOperator(ResumableJobMixin, BaseOperator):
    """Keep the processing or loading application of a virtual cluster running.

    :param kind: ``processing`` (sources' events to staged objects) or ``loading`` (those to the
        destinations).
    :param virtual_cluster: which group of teams it serves.
    :param shift: how long one task supervises; ``None``: until it is ended.
    :param poll_s: seconds between two looks at the application.
    :param back_off: waits before restarts; the default restarts for ever.
    :raises waybill.errors.InputError: it cannot be started as things are, e.g. no Java. Unlike
        elsewhere the task is retried: the cause can be mended while Airflow runs.
    :raises AirflowException: the task was told to end; the application runs on.
    :returns: ``{"kind", "virtual_cluster", "pid", "starts"}`` at the end of the shift; ``pid`` is
        ``None`` when it was stopped on request.
    """

    external_id_key = "spark_application_pid"

    def __init__(
        self,
        *,
        kind: Kind,
        virtual_cluster: str = "default",
        shift: timedelta | None = timedelta(hours=6),
        poll_s: float = 5.0,
        back_off: BackOff | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind: Kind = kind
        self.virtual_cluster = virtual_cluster
        self.shift = shift
        self.poll_s = poll_s
        self.back_off = back_off or RESTARTS
        self._ending = False
        self._request = "run"
        self._request_read_at: float | None = None
        self._supervisor: Supervisor | None = None

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Supervise for one shift, and return what runs then."""
        result: dict[str, JsonValue] = self.execute_resumable(context)
        return result

    def submit_job(self, context: Context) -> JsonValue:
        """Start the application unless it runs; return its process id, 0 when none runs yet."""
        supervisor = self._open_supervisor(context)
        supervisor.look(time.monotonic())
        return supervisor.pid or 0

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """Return RUNNING, DEAD, or UNKNOWN when the library could not tell."""
        from waybill.errors import RetryError

        try:
            status = self._application().status()
        except RetryError as error:
            self.log.warning("not known whether pid %s runs: %s", external_id, error)
            return "UNKNOWN"
        return "RUNNING" if status.running else "DEAD"

    def is_job_active(self, status: str) -> bool:
        """Return True unless it is certainly dead: then nothing is started before it is known."""
        return status != "DEAD"

    def is_job_succeeded(self, status: str) -> bool:
        """Return False: a streaming application has no successful end."""
        return False

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> dict[str, JsonValue]:
        """Watch, and restart, until the shift is over.

        :raises AirflowException: the task was told to end.
        """
        supervisor = self._supervisor or self._open_supervisor(context)
        started = time.monotonic()
        self.log.info("supervising %s of cluster %s", self.kind, self.virtual_cluster)
        while not self._ending and not self._shift_is_over(started):
            supervisor.look(time.monotonic())
            self._sleep(self.poll_s)
        if self._ending:
            raise AirflowException(
                f"told to end: {self.kind} of cluster {self.virtual_cluster} is left running as "
                f"pid {supervisor.pid}, and the next supervisor finds it"
            )
        return self.get_job_result(external_id, context)

    def get_job_result(self, external_id: JsonValue, context: Context) -> dict[str, JsonValue]:
        """Return what runs at the end of the shift; a restart has changed the process id."""
        supervisor = self._supervisor
        return {
            "kind": self.kind,
            "virtual_cluster": self.virtual_cluster,
            "pid": supervisor.pid if supervisor else external_id,
            "starts": supervisor.starts if supervisor else 0,
        }

    def on_kill(self) -> None:
        """End the watch soon; the application is detached on purpose.

        Called inside a signal handler, so it only leaves a mark.
        """
        self._ending = True

    def _application(self) -> _SparkApplication:
        return _SparkApplication(read_settings(), self.kind, self.virtual_cluster)

    def _open_supervisor(self, context: Context) -> Supervisor:
        store = context.get("task_state_store")

        def remember(pid: int) -> None:
            if store is not None:
                store.set(self.external_id_key, pid)

        self._supervisor = Supervisor(
            self._application(),
            wanted=self._is_wanted,
            journal=self.log,
            on_start=remember,
            back_off=self.back_off,
        )
        return self._supervisor

    def _is_wanted(self) -> bool:
        now = time.monotonic()
        if self._request_read_at is None or now - self._request_read_at >= _REQUEST_MAX_AGE_S:
            self._request, self._request_read_at = self._read_request(), now
        return self._request == "run"

    def _read_request(self) -> str:
        name = f"waybill_stream_{self.virtual_cluster}"
        request = str(Variable.get(name, default="run")).strip().lower()
        if request in REQUESTS:
            return request
        self.log.error(
            "variable %s is %r, allowed are run and stop; going on with %s",
            name,
            request,
            self._request,
        )
        return self._request

    def _shift_is_over(self, started: float) -> bool:
        return self.shift is not None and time.monotonic() - started >= self.shift.total_seconds()

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._ending and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_S))
