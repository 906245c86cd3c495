"""A gate before a server: shut, it is away."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

_PIECE = 65_536


class Gate:
    """Passes TCP connections on to a server's Unix socket while it is open.

    Attributes:
        port: where to connect to, on loopback.
    """

    def __init__(self, socket_file: str) -> None:
        self._server = socket_file
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.port = 0
        self.open()

    def open(self) -> None:
        """Let connections through, at the same port as before."""
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self.port))
            self.port, self._listener = listener.getsockname()[1], listener
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        """Break all connections, and refuse new ones."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._break()

    def _break(self) -> None:
        with self._lock:
            found, self._open = self._open, set()
        for one in found:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), client, server:
            server.connect(self._server)
            with self._lock:
                self._open |= {client, server}
            self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as chosen:
            for one in (client, server):
                chosen.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in chosen.select():
                    data = key.fileobj.recv(_PIECE)  # type: ignore[union-attr]
                    if not data:
                        return
                    (server if key.fileobj is client else client).sendall(data)


@contextlib.contextmanager
def opened_gate(socket_file: str) -> Iterator[Gate]:
    """Shut it for good at the end."""
    gate = Gate(socket_file)
    try:
        yield gate
    finally:
        gate.shut()
