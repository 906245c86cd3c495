"""A pipeline whose events come over HTTP, and a collector that takes them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.support import children
from tests.support.orders import team_of
from tests.support.warm_python import WarmPopen

from waybill import services
from waybill.events import decode
from waybill.pipelines import topic_name
from waybill.settings import Settings
from waybill.stack import free_port
from waybill.storage import open_log

BEARER = "a-token-of-tests"
VARIABLE = "TEST_COLLECTOR_SECRET"
DECLARATION = """
id: test-hooks
name: hooks
team: {team}
owner: shop@example.com
source:
  connector: http
  event: order
  options:
    auth: {auth}
    secret: env:{variable}
{options}
events:
  order:
    key: [number]
    version: null
    table: orders
    policy: ignore
    columns: {{number: int64, amount: int64, delivery: string}}
  refund:
    key: [number]
    version: null
    table: refunds
    columns: {{number: int64, amount: int64, delivery: string}}
transformation: transformation.py
destination: {{name: warehouse, schema: shop}}
"""
CODE = "def transform(event):\n    return event\n"
COMMAND = """
import runpy, sys
sys.argv[1:] = ["collector"]
runpy.run_module("waybill.cli", run_name="__main__", alter_sys=True)
"""
STARTS = """
from waybill.services import run_collector
from waybill.settings import Settings
{patch}
run_collector(Settings())
"""


def write_hooks(folder: Path, *, auth: str = "bearer", **options: object) -> Path:
    """Write the pipeline into ``folder / "hooks"`` and return that folder."""
    home = folder / "hooks"
    home.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"    {name}: {value}" for name, value in options.items())
    text = DECLARATION.format(team=team_of(folder), auth=auth, variable=VARIABLE, options=lines)
    (home / "pipeline.yaml").write_text(text)
    (home / "transformation.py").write_text(CODE)
    return home


def deployed(
    settings: Settings, folder: Path, *, auth: str = "bearer", **options: object
) -> Settings:
    """Deploy the pipeline; return the settings of a collector on a port of its own."""
    home = write_hooks(folder / "pipelines", auth=auth, **options)
    # A machine that is busy with other tests is no server that is away.
    times = {"recheck_s": 0.5, "answer_s": 60.0, "stop_s": 60.0}
    own = settings.collector.model_copy(update={"port": free_port(), **times})
    made = settings.model_copy(update={"pipelines_dir": folder / "pipelines", "collector": own})
    services.migrate(made)
    services.run_deploy(made, home, who="test")
    return made


def deployed_with_ids(settings: Settings, folder: Path) -> Settings:
    """Deploy the pipeline with ``delivery`` as an event's id, as a `Sender` gives it; short pages."""
    made = deployed(settings, folder, event_id="field:delivery")
    own = made.collector.model_copy(update={"page_s": 0.3})
    return made.model_copy(update={"collector": own})


@dataclass
class RunningCollector:
    """A collector in a process of its own."""

    settings: Settings
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self.settings.collector.port}"

    def post(self, content: Any, path: str = "/v1/hooks", **headers: str) -> httpx.Response:
        """Send one request with the token; objects as JSON."""
        sent = {"authorization": f"Bearer {BEARER}", "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"content": content} if isinstance(content, bytes) else {"json": content}
        return httpx.post(self.url + path, headers=sent, timeout=300, **given)

    def words(self) -> str:
        """Return what it logged."""
        return self.log.read_text("utf-8", "replace")

    def wait_until_ready(self) -> None:
        """Wait until it has recovered its logs."""

        def ready() -> bool:
            assert self.process.poll() is None, self.words()
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(self.url + "/readyz", timeout=30).status_code == 200
            return False

        children.wait_until(ready, limit_s=600, what=f"the collector is ready: {self.words()}")

    def kill(self) -> None:
        """SIGKILL it with its workers."""
        children.kill(self.process)

    def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(600)


@contextlib.contextmanager
def collector(
    settings: Settings, folder: Path, *, patch: str = "", ready: bool = True
) -> Iterator[RunningCollector]:
    """Run a collector; it is ready, or has begun at least."""
    path = folder / f"collector-{time.monotonic_ns()}.log"
    code = STARTS.format(patch=patch) if patch else COMMAND
    environment = children.environment(settings) | {VARIABLE: BEARER}
    with path.open("wb") as log:
        process = WarmPopen(code, environment, log)
    running = RunningCollector(settings, process, path)
    try:
        if ready:
            running.wait_until_ready()
        yield running
    finally:
        running.kill()


def in_kafka(settings: Settings) -> list[Any]:
    """Return the pipeline's events that Kafka has."""
    log = open_log(settings.kafka)
    name = topic_name(team_of(settings.pipelines_dir), "warehouse")
    if name not in log.topics():
        return []
    topic = log.describe(name)
    return [decode(value) for value in log.read(topic.name, log.watermarks(topic))]


class Sender:
    """Sends requests of ten events each, one after the other; keeps what was answered."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.answered: set[str] = set()
        self.sent: set[str] = set()
        self.repeated: Counter[str] = Counter()
        """How often each was sent beyond the first time: the answer to a request did not come."""
        self._batches = (
            [self._event(number) for number in range(first, first + 10)]
            for first in itertools.count(0, 10)
        )
        self._open: list[dict[str, Any]] | None = None

    def _event(self, number: int) -> dict[str, Any]:
        return {"number": number, "amount": number, "delivery": f"{self.prefix}{number}"}

    def send(self, running: RunningCollector, requests: int = 10_000) -> bool:
        """Send until a request fails; True: none did. What failed is sent first the next time."""
        for _ in range(requests):
            if self._open is not None:
                self.repeated.update(one["delivery"] for one in self._open)
            batch = self._open or next(self._batches)
            self._open = batch
            self.sent |= {one["delivery"] for one in batch}
            try:
                answer = running.post(batch)
            except httpx.TransportError:
                return False
            if answer.status_code == 503:
                return False
            assert answer.status_code == 202, answer.text
            self.answered |= set(answer.json()["ids"])
            self._open = None
        return True
