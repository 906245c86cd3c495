"""TLS before a server that has none: what a client sees of it is the certificate."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from typing import Self

from tests.support.certificates import Authority


class TlsFront:
    """Listens on a free port while the block lasts; passes all on to ``host:port``.

    Args:
        authority: vouches for it.
        folder: for the files of its certificate.
        server: behind it.
        address: that its certificate names.
    """

    def __init__(
        self, authority: Authority, folder: Path, server: str, address: str = "127.0.0.1"
    ) -> None:
        own = authority.identity("front", address)
        (folder / "front.pem").write_text(own.key + own.certificate)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "front.pem")
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context), self._loop
        ).result(60)
        self.port = listening.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._server.rpartition(":")
        with contextlib.suppress(OSError):
            behind, before = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_pass_on(reader, before), _pass_on(behind, writer))


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    sink.close()
