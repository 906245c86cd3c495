"""A MariaDB of Debian's packages, unpacked below ``.waybill``: no root, no network, a socket alone.

Its data goes with the session; the packages (30 MB) are kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pymysql
import pytest

HOME = Path(__file__).parents[2] / ".waybill" / "mariadb"
PACKAGES = ("mariadb-server-core", "libaio1", "libnuma1", "liburing2")
USER, PASSWORD = "ann", "p@ss:w/rd"
_USERS = f"""
FLUSH PRIVILEGES;
CREATE USER '{USER}'@'localhost' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'localhost';
"""


def unpacked() -> Path:
    """Return the folder with the server; skips the test where there are no packages."""
    root = HOME / "root"
    if not root.is_dir():
        if shutil.which("apt-get") is None:
            pytest.skip("MariaDB's packages come by apt-get, which is not here")
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=HOME, check=True)
        for file in HOME.glob("*.deb"):
            subprocess.run(["dpkg", "-x", file.name, "unpacking"], cwd=HOME, check=True)
        (HOME / "unpacking").rename(root)
    return root


class MariaDb:
    """One server; ``socket`` is where it listens."""

    def __init__(self) -> None:
        root = unpacked()
        self.folder = Path(tempfile.mkdtemp(prefix="mariadb"))
        self.socket = self.folder / "s"
        libraries = [str(path) for path in root.glob("**/lib/x86_64-linux-gnu")]
        self._environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
        self._command = [
            str(root / "usr/sbin/mariadbd"), "--no-defaults", f"--datadir={self.folder / 'data'}",
            f"--lc-messages-dir={root / 'usr/share/mysql'}", "--skip-networking",
            f"--socket={self.socket}", f"--pid-file={self.folder / 'pid'}",
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]  # fmt: skip
        (self.folder / "data").mkdir()
        scripts = root / "usr/share/mysql"
        names = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
        tables = "".join((scripts / name).read_text() for name in names)
        text = f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}{_USERS}"  # a statement a line
        subprocess.run(
            [*self._command, "--bootstrap"],
            input=text.encode(), env=self._environment, check=True, capture_output=True,
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, with the data that it has; return when it answers."""
        self._server = subprocess.Popen(
            self._command, env=self._environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait()

    def halt(self, *, killed: bool = False) -> None:
        """End it, and keep its data; ``killed``: by SIGKILL."""
        if killed:
            self._server.kill()
        else:
            self._server.terminate()
        self._server.wait(300)

    def _wait(self) -> None:
        until = time.monotonic() + 600
        while time.monotonic() < until:
            try:
                self.connect().close()
            except pymysql.OperationalError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError("MariaDB does not answer")

    def connect(self, database: str | None = None) -> pymysql.Connection:
        return pymysql.connect(
            user=USER, password=PASSWORD, unix_socket=str(self.socket), database=database,
            autocommit=True,
        )  # fmt: skip

    def database(self) -> str:
        """Make a database; return its name."""
        name = f"source_{time.time_ns():x}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return name

    def stop(self) -> None:
        """End it, and delete its data."""
        self.halt()
        shutil.rmtree(self.folder)
