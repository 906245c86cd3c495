"""Apicurio Registry on loopback, by the API of Confluent's: a real schema registry.

Brought by hand, once, 110 MB, pinned in ``apicurio.lock``: ``mvn dependency:get`` of its archive, with
``-Dtransitive=false``, and a copy in ``.waybill/apicurio/packed``. (Ivy, which brings the other jars,
needs a POM, and not each mirror has one for it.) It keeps its schemas in memory.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

from tests.servers import CHECKOUT

from waybill.stack import jars
from waybill.stack.java import find_java

FOLDER = CHECKOUT / ".waybill" / "apicurio"
_LOCK = Path(__file__).with_name("apicurio.lock")
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
_WAIT_S = 900.0


def why_not() -> str | None:
    """Return why it cannot be started; None: it can."""
    missing = jars.missing(FOLDER, jars.locked(_LOCK))
    return f"{missing[0].file} is not in {FOLDER}: see {__name__}" if missing else None


class Apicurio:
    """One server; started when made.

    Args:
        home: an empty folder for the program and its log.
    """

    def __init__(self, home: Path) -> None:
        [locked] = jars.locked(_LOCK)
        self._home = home / "apicurio"
        with tarfile.open(FOLDER / locked.file) as archive:
            archive.extractall(self._home, filter="data")
        [self._program] = self._home.glob("*-runner.jar")
        with socket.socket() as line:
            line.bind(("127.0.0.1", 0))
            self._port = line.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        self._process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        """Start it anew, without a schema."""
        place = ("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}")
        command = [find_java().path, *_JVM, *place, "-jar", self._program]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._home)
        end = time.monotonic() + _WAIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError((self._home / "log").read_text()[-2000:])
            time.sleep(0.5)

    def stop(self) -> None:
        """End it; again changes nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def register(self, subject: str, schema: dict) -> int:
        """Register a schema; returns its id."""
        request = urllib.request.Request(
            f"{self.url}/subjects/{quote(subject, safe='')}/versions",
            json.dumps(schema).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["id"]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=60):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False
