"""Sends batches to a collector, in a process of its own: ``python -m tests.benchmarks.collector_load``.

Arguments: port, token, seconds, requests a second (0: as many as are answered), connections, events of
a request. Prints one JSON object: events answered with 202, others, seconds, latencies in ms.

The rate is kept whatever the answers take: a request's latency runs from when it was due.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

BODIES = 64
"""Different ones; each event of them has a number of its own."""


def requests(token: str, events: int) -> list[bytes]:
    """Return whole requests of about 250 bytes an event."""
    made = []
    for first in range(BODIES):
        batch = [
            {
                "number": first * events + number,
                "amount": number * 3,
                "customer": f"customer {number}",
                "address": {"street": "1 Main Street", "city": "Springfield", "zip": "12345"},
                "items": [{"sku": f"sku-{number % 50}", "quantity": 2, "price": 19.99}],
                "note": "leave it at the door, please",
            }
            for number in range(events)
        ]
        body = json.dumps(batch).encode()
        head = (
            f"POST /v1/hooks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


class Load:
    """The connections, and what was answered."""

    def __init__(self, port: int, seconds: float, per_s: float, made: list[bytes]) -> None:
        self.port, self.seconds, self.per_s, self.made = port, seconds, per_s, made
        self.answered = self.others = self.next = 0
        self.latencies: list[float] = []
        self.began = 0.0

    async def run(self, connections: int) -> None:
        """Send for the time given."""
        opened = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(connections)]
        self.began = time.perf_counter()
        await asyncio.gather(*(self._send(*one) for one in opened))

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            number = self.next
            self.next += 1
            due = self.began + number / self.per_s if self.per_s else time.perf_counter()
            if due - self.began > self.seconds:
                break
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            writer.write(self.made[number % BODIES])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if head.startswith(b"HTTP/1.1 202"):
                self.answered += 1
                self.latencies.append((time.perf_counter() - due) * 1000)
            else:
                self.others += 1
        writer.close()


def main() -> None:
    port, token, seconds, per_s, connections, events = sys.argv[1:]
    load = Load(int(port), float(seconds), float(per_s), requests(token, int(events)))
    asyncio.run(load.run(int(connections)))
    took = time.perf_counter() - load.began
    found = sorted(load.latencies) or [0.0]
    report = {
        "events": load.answered * int(events),
        "others": load.others,
        "seconds": took,
        "p50_ms": found[len(found) // 2],
        "p99_ms": found[int(len(found) * 0.99)],
        "max_ms": found[-1],
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
