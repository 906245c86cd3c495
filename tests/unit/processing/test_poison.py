"""The poison corpus through the stages, into a parked object and out of it again, byte for byte."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from tests.support import poison
from tests.support.memory_objects import MemoryObjects
from tests.unit.processing.made import PASSES, chained, check_books, chunk, event, pipeline

from waybill.errors import InputError, ParkError
from waybill.events import decode, encode, payload_bytes
from waybill.parking import PackedObject, Packer, ParkedEvent, new_key, read_segment, storable
from waybill.parking.exporting import KINDS, contents
from waybill.processing import Chain, ChainResult, Plan
from waybill.processing.spark.task_output import TaskOutput
from waybill.replay.messages import encode_again, message_again, returning
from waybill.storage import ObjectMissingError

RAISES = "def transform(event):\n    raise ValueError(repr(event.data)[:300])\n"
RAISES_NAME = """
from waybill.errors import ParkError

def transform(event):
    raise ParkError(event.data["code"], event.data["code"], where=event.data["code"])
"""
KEY = re.compile(r"parked/\d{4}/\d\d/\d\d/[0-9a-f-]{36}\.jsonl\.zst")


def run(
    messages: Sequence[bytes], code: str = RAISES, bodies: dict[str, bytes] | None = None
) -> ChainResult:
    def fetch(key: str) -> bytes:
        if bodies is None or key not in bodies:
            raise ObjectMissingError(key)
        return bodies[key]

    chain = Chain({"p1": Plan(pipeline(code))}, fetch=fetch)
    chain.process(chunk(messages))
    check_books(chain.result)
    return chain.result


def packed(result: ChainResult) -> PackedObject:
    output = TaskOutput(topic="t", batch_id="batch", known=(), traced=False)
    output.take(replace(result, failures=list(result.failures)))
    return output._packer.finish()


def read(found: PackedObject) -> list[ParkedEvent]:
    """Return the events of an object in the order of their offsets; none may be there twice."""
    events = []
    for segment in found.segments:
        frame = found.body[segment.position : segment.position + segment.length]
        events += list(read_segment(frame, sha256=segment.sha256))
    events.sort(key=lambda parked: parked.kafka_offset)
    assert len({parked.kafka_offset for parked in events}) == len(events)
    return events


def check_returns(parked: ParkedEvent) -> None:
    """What a replay sends holds the same payload; what is no event is refused in words."""
    try:
        came = decode(parked.value)
    except ParkError:
        with pytest.raises(InputError, match="not a Waybill event"):
            returning(parked, replay_id="r1")
        with pytest.raises(InputError, match="not a Waybill event"):
            message_again(parked, replay_id="r1")
        return
    sent = encode_again(returning(parked, replay_id="r1"), parked.value)
    again = decode(sent)
    found = again.id, again.key.encode(), sent, again.intake_minute
    assert message_again(parked, replay_id="r1") == found
    own = payload_bytes(parked.value)
    assert own is None or payload_bytes(sent) == own
    assert (again.id, again.key, again.name) == (came.id, came.key, came.name)
    assert (again.data, again.data_ref) == (came.data, came.data_ref)
    assert (again.attempt, again.replay_id) == (min(parked.attempt + 1, 2**31 - 1), "r1")


def test_the_corpus_is_large_and_the_same_each_time() -> None:
    messages = poison.messages()
    assert len(poison.NAMES) + len(poison.TEXTS) + len(poison.RAW) >= 300
    assert len(set(poison.NAMES)) == len(poison.NAMES)
    assert messages == poison.messages()
    assert len(set(messages)) > 200


def test_every_message_is_parked_once_and_comes_back_byte_for_byte() -> None:
    messages = poison.messages()
    found = packed(run(messages))
    assert [parked.value for parked in read(found)] == messages
    assert sum(segment.count for segment in found.segments) == len(messages)


def test_what_a_replay_sends_holds_the_same_payload() -> None:
    for parked in read(packed(run(poison.messages()))):
        check_returns(parked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_download_gives_every_byte_back(kind: str) -> None:
    messages = poison.messages()
    body = b"".join(contents(kind, read(packed(run(messages)))))
    assert downloaded(kind, body) == messages


def downloaded(kind: str, body: bytes) -> list[bytes]:
    if kind == ".csv":
        limit = csv.field_size_limit(10**9)
        try:
            rows: list[dict[str, Any]] = list(
                csv.DictReader(io.StringIO(body.decode(), newline=""))
            )
        finally:
            csv.field_size_limit(limit)
        for row in rows:
            assert not re.match(r"[\s\ufeff]*[=+\-@\uff1d]", row["event"])
        return [
            base64.b64decode(row["event_base64"]) if row["event_base64"] else row["event"].encode()
            for row in rows
        ]
    if kind == ".jsonl.zst":
        body = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)).read()
    return [ParkedEvent.from_line(line).value for line in body.split(b"\n")[:-1]]


def test_what_passes_the_transformation_is_parked_once_or_staged() -> None:
    messages = poison.messages()
    result = run(messages, PASSES)
    ended = [failure.offset for failure in result.failures]
    for mapped in result.mapped.values():
        ended += mapped.offsets
    assert sorted(ended) == list(range(len(messages)))
    for parked in read(packed(result)):
        if parked.stage == "transformation":
            assert parked.value == messages[parked.kafka_offset]
        check_returns(parked)


def test_names_everywhere_on_the_wire_stay_apart_and_never_reach_a_key() -> None:
    messages = [value for name in poison.NAMES for value in poison.named(name).values()]
    result = run(messages)
    found = packed(result)
    events = read(found)
    assert [parked.value for parked in events] == messages
    failures = sorted(result.failures, key=lambda failure: failure.offset)
    for parked, failure in zip(events, failures, strict=True):
        assert (parked.pipeline_id, parked.event_name) == (failure.pipeline_id, failure.event_name)
    names = {parked.event_name for parked in events}
    assert len({storable(name) for name in names}) == len(names) > 80
    for segment in found.segments:
        for name in segment.partition:
            name.encode()
            assert "\0" not in name
            assert len(name.encode()) <= 512
    assert KEY.fullmatch(new_key())


def test_names_are_storable_and_two_stay_two() -> None:
    stored = [storable(name) for name in poison.NAMES]
    assert len(set(stored)) == len(poison.NAMES)
    assert all(len(name.encode()) <= 512 and "\0" not in name for name in stored)


def test_error_types_that_user_code_makes_up_are_one_known_type() -> None:
    names = [name for name in poison.NAMES if name != "unknown"]
    sent = [encode(event(n, {"id": n, "code": name})) for n, name in enumerate(names)]
    result = run(sent, RAISES_NAME)
    assert {failure.fault.code for failure in result.failures} == {"unexpected_error"}
    events = read(packed(result))
    assert [parked.value for parked in events] == sent
    for parked, name in zip(events, names, strict=True):
        assert parked.message.startswith(name[:900])
        assert len(parked.message.encode("utf-8", "surrogatepass")) <= 4096


LIES = {
    "__class__": "__class__ = property(lambda self: 1 / 0)",
    "__traceback__": "__traceback__ = property(lambda self: 1 / 0)",
    "leaves": "def __str__(self): raise SystemExit(3)",
    "endless": "def __str__(self): return str(self)",
    "long": "def __str__(self): return 'x' * 5_000_000",
    "surrogates": "def __str__(self): return chr(0xd800) * 5_000",
    "bytes": "def __str__(self): return b'x'",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("base", ["Exception", "ParkError", "BaseException"])
def test_an_exception_whose_class_lies_parks_its_event_only(lie: str, base: str) -> None:
    code = f"from waybill.errors import ParkError\nclass Odd({base}):\n    {lie}\n"
    code += "    def __init__(self): self.code = self.message = self.where = self\n"
    code += "def transform(event):\n    if event.data['id'] == 2: raise Odd()\n    return event\n"
    result = chained(pipeline(code), [event(1), event(2), event(3)])
    [failure] = result.failures
    assert failure.offset == 1
    assert len(failure.fault.message) < 5000
    assert result.staged.rows == 2
    [parked] = read(packed(result))
    assert parked.value == encode(event(2))


def test_a_name_that_a_metaclass_hides_is_found() -> None:
    code = "class Meta(type):\n    __name__ = property(lambda self: 1 / 0)\n"
    code += "class Odd(Exception, metaclass=Meta): pass\n"
    code += "def fails(): raise Odd('x')\n"
    code += "fails.__code__ = fails.__code__.replace(co_name=chr(0xd800))\n"
    code += "def transform(event): fails()\n"
    [failure] = chained(pipeline(code), [event(1)]).failures
    assert failure.fault.message == "Odd: x"
    assert failure.fault.where.endswith("in \ud800")
    assert failure.fault.stack_hash


def test_a_first_pass_that_says_it_enters_later_is_no_event() -> None:
    for stage in ("mapping", "destination"):
        [failure] = run([encode(event(1, stage=stage))]).failures
        assert (failure.pipeline_id, failure.fault.code) == ("unknown", "envelope_invalid")
        assert failure.fault.where == "stage"


def test_bombs_are_never_unpacked_and_huge_payloads_come_back() -> None:
    """The heavy ones: 50 MB payloads behind claim checks, and objects that unpack to 64 MiB."""
    bombs = {f"payloads/p1/{name}": body for name, body in poison.bombs().items()}
    bodies = {**{f"payloads/p1/{name}": b for name, b in poison.huge().items()}, **bombs}
    sent = [poison.without_data(dataref=key) for key in bodies]
    result = run(sent, RAISES, bodies)
    assert [parked.value for parked in read(packed(result))] == sent
    codes = {failure.fault.where: failure.fault.code for failure in result.failures}
    assert {codes[key] for key in bombs} == {"envelope_invalid"}
    inline = list(poison.huge().values())
    packer = Packer()
    for number, value in enumerate(inline):
        one = next(iter(read(packed(run([b""])))))
        one.value, one.kafka_offset = value, number
        packer.add(one)
    found = packer.finish()
    assert [parked.value for parked in read(found)] == inline


def test_a_payload_too_large_to_travel_goes_back_as_a_claim_check() -> None:
    class Waiting(MemoryObjects):
        def put_waiting(self, key: str, body: bytes, *, limit_s: float) -> str:
            return self.put(key, body)

    objects: Any = Waiting()
    came = poison.message(b'{"id":1,"n":"%s"}' % (b"x" * 2_000_000), stage="mapping")
    parked = read(packed(run([b""])))[0]
    parked.value, parked.stage = came, "mapping"
    sent = encode_again(returning(parked, replay_id="r1"), came, objects=objects)
    assert len(sent) < 1000
    [(key, body)] = objects.bodies.items()
    assert (decode(sent).data_ref, body) == (key, payload_bytes(came))
    assert re.fullmatch(r"payloads/p1/r1-[0-9a-f]{64}", key)
    small = poison.message(b"{}", stage="mapping")
    assert encode_again(decode(small), small, objects=objects)[-11:] == b',"data":{}}'[-11:]
    assert len(objects.bodies) == 1
