"""The ASGI application: one worker of the collector.

POST /v1/<pipeline>           records of a pipeline
POST /v1/<pipeline>/<event>   the same, where the declaration says ``event_name: path``
GET  /healthz                 200: the process answers
GET  /readyz                  200: it knows what is deployed, and no log waits to be recovered
GET  /metrics                 counters of this process, for Prometheus
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import unquote

import orjson

from waybill.collector.authentication import Headers, NobodysAuthenticator
from waybill.collector.body import BodyLimits, Record, read_records
from waybill.collector.catalog import Catalog, Entry
from waybill.collector.intake import Ack, Intake, Stores, Submission
from waybill.collector.metrics import CollectorMetrics
from waybill.collector.records import CollectedEvent
from waybill.collector.refusal import Refusal
from waybill.collector.workers import Slot, left_logs, take_free_slot, take_slot
from waybill.deployment import pipeline_of
from waybill.errors import ParkError, RetryError, WaybillError
from waybill.events import payload_key
from waybill.pipelines import Pipeline
from waybill.settings import CollectorSettings
from waybill.storage import LARGEST_MESSAGE_BYTES

_LOG = logging.getLogger(__name__)
_ACCESS = logging.getLogger("waybill.collector.access")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")
_JSON = (b"content-type", b"application/json")
_RETRY_AFTER_S = 5
_OPEN_AGAIN_S = 1.0
_SLOT_WAIT_S = 30.0
_PATH_PARTS = (3, 4)
_REFUSED_AFTER_S = 0.1
"""401 comes so long after the body: how long it took to find the wrong says nothing."""
_CLOSING = frozenset({400, 401, 405, 408, 413, 431, 503})
"""Answers after which the connection is closed: what follows on it may be a body's rest."""


@dataclass(slots=True)
class Answer:
    """What a request gets."""

    status: int
    body: Any
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    records: int = 0
    pipeline: str = "-"


class Collector:
    """One worker; an ASGI application.

    Args:
        stores: what it stands on.
        settings: limits and times.
        catalog: what is deployed.
    """

    def __init__(self, stores: Stores, settings: CollectorSettings, catalog: Catalog) -> None:
        self._stores = stores
        self._settings = settings
        self._catalog = catalog
        self._nobody = NobodysAuthenticator()
        self._limits = BodyLimits(settings.inflated_bytes, settings.records)
        self._room = Room(max(settings.held_bytes, settings.body_bytes + settings.inflated_bytes))
        self._metrics = CollectorMetrics()
        self._slot: Slot | None = None
        self._intakes: dict[str, asyncio.Task[Intake]] = {}
        self._failed_at: dict[str, float] = {}
        self._emptied: set[tuple[int, str]] = set()
        self._recovered = self._stopping = False
        self._watching: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the start and the stop of the process."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    # Start and stop

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except WaybillError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def start(self) -> None:
        """Take a slot; look what is deployed, and recover logs, in the background.

        Raises:
            RetryError: there are as many workers already.
        """
        directory, workers = self._stores.wal.dir, self._settings.workers
        self._slot = await _in_thread(
            lambda: take_free_slot(directory, workers, limit_s=_SLOT_WAIT_S)
        )
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Settle and close the logs, for as long as the settings allow; the next start goes on."""
        self._stopping = True
        if self._watching is not None:
            self._watching.cancel()
        opened = [task.result() for task in self._intakes.values() if _is_open(task)]
        closed = [_in_thread(partial(one.close, self._settings.stop_s)) for one in opened]
        for done in await asyncio.gather(*closed, return_exceptions=True):
            if done is not True:
                _LOG.warning("a log was not settled: the next start goes on with it (%s)", done)
        if self._slot is not None:
            self._slot.release()

    async def _watch(self) -> None:
        while True:
            try:
                await _in_thread(self._catalog.refresh)
                self._recovered |= await self._recover()
            except WaybillError as error:
                _LOG.warning("the collector looks again: %s", error)
            except Exception:  # noqa: BLE001 - or it would never look again
                _LOG.exception("the collector looks again")
            wait_s = self._settings.recheck_s if self._recovered else _OPEN_AGAIN_S
            await asyncio.sleep(wait_s)

    @property
    def _own_slot(self) -> Slot:
        if self._slot is None:
            raise RuntimeError("the collector has no slot yet: start it")
        return self._slot

    async def _recover(self) -> bool:
        """Open the logs that dead workers left, or that broke; tell whether all are in order.

        At each look: an event that was answered for does not wait for the next request, or start.
        """
        own, whole = self._own_slot, True
        for number, pipeline_id in left_logs(self._stores.wal.dir):
            try:
                if number == own.number:
                    await self._open_left(pipeline_id)
                elif (
                    number >= self._settings.workers
                    and (number, pipeline_id) not in self._emptied
                    and await _in_thread(partial(self._empty, number, pipeline_id))
                ):
                    self._emptied.add((number, pipeline_id))
            except WaybillError as error:
                _LOG.warning("log of %s, slot %d, is not recovered: %s", pipeline_id, number, error)
                whole = False
            except Exception:  # noqa: BLE001 - one log's failure is not that of the others
                _LOG.exception("log of %s, slot %d, is not recovered", pipeline_id, number)
                whole = False
        return whole

    async def _open_left(self, pipeline_id: str) -> None:
        task = self._intakes.get(pipeline_id)
        if task is not None and not task.done():
            await asyncio.shield(task)
        if task is not None and _is_open(task) and task.result().error is None:
            return
        pipeline = await _in_thread(lambda: pipeline_of(self._stores.tracker, pipeline_id))
        await asyncio.shield(self._opening(pipeline))

    def _empty(self, number: int, pipeline_id: str) -> bool:
        """Recover a log of a slot that no worker has, and close it; False: a process has it."""
        slot = take_slot(self._stores.wal.dir, number)
        if slot is None:
            return False
        try:
            pipeline = pipeline_of(self._stores.tracker, pipeline_id)
            name = slot.log_name(pipeline_id)
            intake = Intake(self._stores, self._settings, pipeline, name).open()
            if not intake.close(self._settings.stop_s):
                raise RetryError("it is not settled yet")
        finally:
            slot.release()
        return True

    # Logs

    def _opening(self, pipeline: Pipeline) -> asyncio.Task[Intake]:
        """Return what opens a pipeline's log, or has opened it."""
        task = self._intakes.get(pipeline.id)
        if task is not None and not self._is_stale(task, pipeline):
            return task
        old = task.result() if task is not None and _is_open(task) else None
        task = asyncio.create_task(self._open(pipeline, old))
        self._intakes[pipeline.id] = task
        return task

    def _is_stale(self, task: asyncio.Task[Intake], pipeline: Pipeline) -> bool:
        if not task.done():
            return False
        if not _is_open(task):
            since = time.monotonic() - self._failed_at.get(pipeline.id, 0.0)
            return since > _OPEN_AGAIN_S
        intake = task.result()
        return intake.error is not None or intake.pipeline.version != pipeline.version

    async def _open(self, pipeline: Pipeline, old: Intake | None) -> Intake:
        name = self._own_slot.log_name(pipeline.id)

        def work() -> Intake:
            remembers = None
            if old is not None:
                old.close(self._settings.answer_s)
                # of a log that broke the disk may have less than was appended
                remembers = old.remembers if old.error is None else None
            return Intake(self._stores, self._settings, pipeline, name, remembers).open()

        try:
            return await _in_thread(work)
        except BaseException as error:
            self._failed_at[pipeline.id] = time.monotonic()
            _LOG.error("the log of %s cannot be opened: %s", pipeline.id, error)
            raise

    async def _intake(self, entry: Entry) -> Intake:
        """Return a pipeline's open log.

        Raises:
            Refusal: 503.
        """
        task = self._opening(entry.pipeline)
        try:
            async with asyncio.timeout(self._settings.answer_s):
                return await asyncio.shield(task)
        except TimeoutError:
            raise _away("log_opening", "its log is being recovered") from None
        except WaybillError:
            raise _away("log_unavailable", "its log cannot be opened now") from None

    # Requests

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        try:
            answer = await self._answer(scope, receive)
        except Refusal as refusal:
            answer = _refused(refusal)
        except asyncio.CancelledError:
            raise
        except _GoneError:
            return
        except Exception:  # noqa: BLE001 - one request's failure is not that of the others
            _LOG.exception("a request failed")
            answer = _refused(Refusal(500, "internal", "the collector failed; send again"))
        took_s = time.perf_counter() - began
        if scope["path"].startswith("/v1/"):
            self._metrics.answered(answer.status, took_s)
            client = scope.get("client") or ("-", 0)
            _ACCESS.info(
                "%s /v1/%s %d records=%d ms=%.1f from=%s",
                *(scope["method"][:10], answer.pipeline, answer.status, answer.records),
                *(took_s * 1000, client[0]),
            )
        body = answer.body if isinstance(answer.body, bytes) else orjson.dumps(answer.body)
        headers = [*(answer.headers or [_JSON]), (b"content-length", str(len(body)).encode())]
        if answer.status in _CLOSING:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path = scope["path"]
        if path == "/healthz":
            return Answer(200, {"status": "ok"})
        if path == "/readyz":
            return self._ready()
        if path == "/metrics":
            return Answer(200, self._metrics.page(), [(b"content-type", self._metrics.TYPE)])
        raw = scope.get("raw_path") or path.encode()
        parts = raw.decode("latin-1").split("/")
        if len(parts) not in _PATH_PARTS or parts[1] != "v1" or not parts[2]:
            raise Refusal(404, "not_found", "POST /v1/<pipeline>")
        if scope["method"] != "POST":
            raise Refusal(405, "method", "POST /v1/<pipeline>")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > (
            self._settings.header_bytes
        ):
            raise Refusal(431, "too_large", "the head of the request is too long")
        names = [unquote(part) for part in parts[2:]]
        return await self._collect(names, _headers(scope["headers"]), receive)

    def _ready(self) -> Answer:
        problems = []
        if not self._catalog.looked:
            problems.append("the tracker has not answered yet")
        if not self._recovered:
            problems.append("logs wait to be recovered")
        if self._stopping:
            problems.append("it is stopping")
        status = 503 if problems else 200
        return Answer(status, {"ready": not problems, "problems": problems})

    async def _collect(self, names: list[str], headers: Headers, receive: Receive) -> Answer:
        with self._room.share() as hold:
            return await self._collect_held(names, headers, receive, hold)

    async def _collect_held(
        self, names: list[str], headers: Headers, receive: Receive, hold: Callable[[int], None]
    ) -> Answer:
        body = await self._body(headers, receive, hold)
        came_s = time.monotonic()
        if not self._catalog.looked:
            raise _away("starting", "the collector does not know yet what is deployed")
        entry = self._catalog.entry(names[0])
        authenticator = self._nobody if entry is None else entry.authenticator
        if not authenticator.passes(headers, body) or entry is None:
            await asyncio.sleep(came_s + _REFUSED_AFTER_S - time.monotonic())
            raise Refusal(401, "unauthorized", "no such pipeline, or not its secret")
        path_name = names[1] if len(names) > 1 else ""
        if entry.records.named_by_path() != bool(path_name):
            wanted = "/v1/<pipeline>" + ("/<event>" if entry.records.named_by_path() else "")
            raise Refusal(404, "not_found", f"this pipeline takes POST {wanted}")
        records = read_records(headers, body, self._limits)
        wait_s = entry.limit.take(len(records))
        if wait_s:
            said = "the pipeline has its limit of events a second"
            raise Refusal(429, "rate_limit", said, retry_after_s=wait_s)
        outcomes, events = _events(entry, records, headers, path_name)
        hold(sum(len(event.content) for event in events))
        known = await self._take(entry, events) if events else []
        answer = _outcome(outcomes, known)
        answer.pipeline, answer.records = entry.pipeline.name, len(records)
        new = len(events) - sum(known)
        self._metrics.events(new, sum(known), len(records) - len(events))
        return answer

    async def _body(self, headers: Headers, receive: Receive, hold: Callable[[int], None]) -> bytes:
        most = self._settings.body_bytes
        too_large = Refusal(413, "too_large", f"a body has at most {most} bytes")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.request_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    hold(len(parts[-1]))
                    if not message.get("more_body"):
                        return b"".join(parts) if len(parts) > 1 else parts[0]
        except TimeoutError:
            raise Refusal(408, "slow", "the body did not come in time") from None

    async def _take(self, entry: Entry, events: list[CollectedEvent]) -> list[bool]:
        """Have events on disk, or in Kafka; return for each whether it had come before.

        Raises:
            Refusal: 503; some of them may be taken all the same.
        """
        intake = await self._intake(entry)
        events = await self._with_large(entry, events)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not future.done():
                future.set_result(None)

        def done(_submission: Submission) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell)

        submission = Submission(events, Ack(entry.source.ack), done)
        try:
            intake.submit(submission)
            async with asyncio.timeout(self._settings.answer_s):
                await future
        except RetryError:
            raise _away("busy", "too much waits for the disk") from None
        except TimeoutError:
            place = "the disk" if entry.source.ack == "wal" else "Kafka"
            raise _away("not_acknowledged", f"{place} did not answer in time") from None
        if submission.error is not None:
            raise _away("not_taken", "the log is full, or a server is away for too long")
        return submission.known

    async def _with_large(self, entry: Entry, events: list[CollectedEvent]) -> list[CollectedEvent]:
        """Store payloads that are too large to travel."""
        large = [n for n, one in enumerate(events) if len(one.content) > LARGEST_MESSAGE_BYTES]
        for number in large:
            key = payload_key(entry.pipeline.id, uuid.uuid4().hex)
            put = partial(self._stores.objects.put, key, events[number].content)
            try:
                await _in_thread(put)
            except RetryError:
                raise _away("store_away", "the object store does not answer") from None
            events[number] = events[number]._replace(data_ref=key)
        return events


class Room:
    """What requests of one worker may hold in memory together, whoever sends them.

    Args:
        most_bytes: of bodies as they came, and of payloads that wait.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    @contextlib.contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield what takes bytes for one request; it gets them back at the end.

        What it yields raises Refusal, 503, where there is no room.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self._left:
                raise _away("busy", "too much is being sent at once")
            self._left -= size
            taken += size

        try:
            yield take
        finally:
            self._left += taken


class _GoneError(Exception):
    """The client has gone."""


async def _in_thread(work: Callable[[], T]) -> T:
    """Do work in a thread of its own, which does not hold the process up when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 - the caller gets it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, daemon=True, name="collector-work").start()
    return await future


def _is_open(task: asyncio.Task[Intake]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
    found: dict[bytes, bytes] = {}
    for name, value in pairs:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def _away(code: str, message: str) -> Refusal:
    said = f"{message}; send it again, with the same event ids"
    return Refusal(503, code, said, retry_after_s=_RETRY_AFTER_S)


def _refused(refusal: Refusal) -> Answer:
    headers = [_JSON]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(refusal.retry_after_s).encode()))
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append((b"allow", b"POST"))
    error = {"code": refusal.code, "message": refusal.message}
    return Answer(refusal.status, {"error": error}, headers)


Problem = dict[str, str]
Outcome = CollectedEvent | Problem


def _events(
    entry: Entry, records: list[Record], headers: Headers, path_name: str
) -> tuple[list[Outcome], list[CollectedEvent]]:
    """Return what each record is, and those that are events.

    Raises:
        Refusal: 422; the request as a whole lacks a header.
    """
    reader = entry.records
    try:
        name = None
        if any(record.name is None and record.problem is None for record in records):
            name = reader.request_name(headers, path_name)
        request_id = reader.request_id(headers, len(records))
    except ParkError as error:
        raise Refusal(422, error.code, error.message) from None
    several = len(records) > 1
    outcomes: list[Outcome] = []
    events: list[CollectedEvent] = []
    for number, record in enumerate(records):
        if record.problem is not None:
            outcomes.append({"code": record.problem[0], "message": record.problem[1]})
            continue
        try:
            event = reader.read(record, name, request_id, number if several else None)
        except ParkError as error:
            problem = {"code": error.code, "message": error.message}
            outcomes.append(problem | ({"field": error.where} if error.where else {}))
            continue
        outcomes.append(event)
        events.append(event)
    return outcomes, events


def _outcome(outcomes: list[Outcome], known: list[bool]) -> Answer:
    """Return the answer: 202, or 207 where some records are none, or 422 where all are."""
    duplicates = sum(known)
    rejected = len(outcomes) - len(known)
    body: dict[str, Any] = {
        "accepted": len(known) - duplicates,
        "duplicates": duplicates,
        "rejected": rejected,
    }
    if not rejected:
        body["ids"] = [one.id for one in outcomes if isinstance(one, CollectedEvent)]
        return Answer(202, body)
    body["records"] = [
        {"status": 202, "id": one.id}
        if isinstance(one, CollectedEvent)
        else {"status": 422, "error": one}
        for one in outcomes
    ]
    return Answer(207 if known else 422, body)
