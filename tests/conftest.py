"""Fixtures with the real servers: `postgres`, `kafka`, `s3`, and `stack_settings` over them.

A server starts when the first test asks for it. A test that stops one starts it again; should it
have failed before that, the next test finds it started again all the same.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest

# How long an example takes says how busy the machine is, not whether the claim holds. Each commit
# is tried with the same examples; `make campaigns` looks for new ones (HYPOTHESIS_PROFILE=search).
_PATIENT: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("commit", **_PATIENT, derandomize=True)
hypothesis.settings.register_profile("search", **_PATIENT, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "commit"))

# No test may read the developer's own settings, nor write to their state folder; and tests that
# run pytest read its words, which options of this run would change.
for _name in [name for name in os.environ if name.startswith("WAYBILL_")]:
    del os.environ[_name]
os.environ.pop("PYTEST_ADDOPTS", None)

from tests import servers  # noqa: E402
from tests.support import class_data, rewritten  # noqa: E402
from tests.support.airflow_metadata import AirflowMetadata  # noqa: E402

from waybill.settings import Settings  # noqa: E402

# Java that lives for seconds: compiled once and quickly, collected by one thread; half the CPU. It
# measures nothing for others twenty times a second.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_ARCHIVE = None
if os.environ.setdefault("JAVA_TOOL_OPTIONS", _JAVA) == _JAVA:
    _ARCHIVE = class_data.archive(servers.JARS)


_BEGAN_S = time.monotonic()
_COUNTED = ("passed", "failed", "error", "skipped")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--figures``: campaigns end with a line of JSON."""
    parser.addoption(
        "--figures", action="store_true", help="end with a line of JSON: how many passed, …"
    )


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the figures, if they are asked for."""
    if config.option.figures:
        stats = terminalreporter.stats
        counts = {name: len(stats.get(name, ())) for name in _COUNTED}
        wrong = [report.nodeid for name in ("failed", "error") for report in stats.get(name, ())]
        seconds = round(time.monotonic() - _BEGAN_S, 1)
        figures = {**counts, "exit": int(exitstatus), "wrong": wrong, "seconds": seconds}
        terminalreporter.write_line("")
        terminalreporter.write_line(json.dumps(figures))


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM end a session as Ctrl-C does: with its servers."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would break the ending off
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    rewritten.leave_out("waybill")
    if _starts_workers(config):
        rewritten.rewrite(config, servers.CHECKOUT / "tests")
    with_servers = "not serves" not in config.option.markexpr
    if _starts_workers(config) and with_servers and _ARCHIVE is not None:
        _MAKING.extend(class_data.start_making(servers.JARS))


_MAKING: list[subprocess.Popen[bytes]] = []
"""What makes the class-data archives, at a checkout's first run."""


def _starts_workers(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "numprocesses", None)) and not hasattr(config, "workerinput")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers of workers that were killed, as those of a session that is ended are."""
    if _starts_workers(config):
        servers.sweep()
    while _MAKING:
        if said := class_data.failure(_MAKING.pop()):
            print(f"a class-data archive could not be made: {said}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, long ones first; a worker has servers of its own.

    Tests of the page, of the REST API and of Airflow's old runs share one worker: each other one would
    have to make Airflow's metadata database, and to start its web server or to have it in its own
    process.
    """
    from xdist.scheduler import LoadFileScheduling

    class FilesOnce(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = str(super()._split_scope(nodeid))
            return "web server" if _needs_web_server(path) else path

    return FilesOnce(config, log) if config.option.dist == "loadfile" else None


@functools.cache
def _needs_web_server(path: str) -> bool:
    if path.startswith("tests/ui/") or path == "tests/integration/test_clean_up_runs.py":
        return True
    file = servers.CHECKOUT / path
    return path.startswith("tests/integration/") and "web_app" in file.read_text(encoding="utf-8")


_OURS = ("hypothesispytest", "xdist", "xdist.looponfail", "timeout", "anyio")
"""Plug-ins of these tests, which the pytest of a pipeline's own tests has no use for."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Look for no garbage while tests are collected: a fifth of what collecting costs.

    And start each pytest that tests run without plug-ins of ours: 0.25 s of CPU, not 0.55.
    """
    gc.disable()
    if not _starts_workers(session.config):  # of what starts them, they would inherit it
        os.environ["PYTEST_ADDOPTS"] = " ".join(f"-p no:{name}" for name in _OURS)


def pytest_collection_finish() -> None:
    """Leave what was collected, which stays to the end, out of each later search for garbage.

    And search less often than every 700 objects: a tenth of what the tests' own processes took.
    """
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no worker is left with it at the end.

    Files that wait for servers are mixed with files that only compute: who waits leaves the
    processor to another worker. The last tenth only computes.
    """
    first = ("tests/faults", "tests/ui")
    files = list(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
    waits = [file for file in files if file.startswith("tests/integration")]
    computes = [file for file in files if not file.startswith((*first, "tests/integration"))]
    places = {
        file: first.index(folder) - 2.0
        for folder in first
        for file in files
        if file.startswith(folder)
    }
    places |= {file: place / len(waits) for place, file in enumerate(waits)}
    places |= {file: 0.1 + place / len(computes) for place, file in enumerate(computes)}
    items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])


_DATABASES: list[servers.PostgresServer] = []
"""The session's PostgreSQL, once it is started."""


def pytest_runtest_setup() -> None:
    """Have Java use the class-data archive from the moment on when it is there."""
    if _ARCHIVE is not None and class_data.OPTION not in os.environ["JAVA_TOOL_OPTIONS"]:
        class_data.use(_ARCHIVE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Delete the databases of a file's tests behind its last one."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        for server in _DATABASES:
            server.drop_databases()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write lone surrogates, which some tests log on purpose, as escapes: xdist sends UTF-8."""
    report = yield
    report.sections = [(name, _escaped(text)) for name, text in report.sections]
    return report


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@pytest.fixture(scope="session")
def servers_home() -> Iterator[Path]:
    """The state folder of the session's servers."""
    servers.sweep()
    home = servers.new_home()
    yield home
    servers.end_home(home)


@pytest.fixture(scope="session")
def _postgres(servers_home: Path) -> Iterator[servers.PostgresServer]:
    folder = servers.in_memory()
    home = servers_home if folder is None else servers.new_home(folder)
    with servers.started(servers.start_postgres_without_fsync, home) as server:
        _DATABASES.append(server)
        yield server
    _DATABASES.clear()
    if home != servers_home:
        servers.end_home(home)


@pytest.fixture(scope="session")
def _kafka(servers_home: Path) -> Iterator[servers.KafkaServer]:
    with servers.started(servers.start_quiet_kafka, servers_home) as server:
        yield server


@pytest.fixture(scope="session")
def _s3(servers_home: Path) -> Iterator[servers.S3Server]:
    with servers.started(servers.start_s3, servers_home) as server:
        yield server


@pytest.fixture(scope="session")
def airflow_metadata(
    _postgres: servers.PostgresServer, servers_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowMetadata]:
    """Airflow's metadata database: ``.copy("name") -> dsn``; being made from now on.

    Workers share what one of them made.
    """
    home = servers_home / "airflow-original"
    home.mkdir(mode=0o755)
    own = tmp_path_factory.getbasetemp()  # of a worker: in a folder of the run
    made = AirflowMetadata(
        _postgres, home, own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    )
    yield made
    made.end()


@pytest.fixture(scope="session")
def web_application(
    airflow_metadata: AirflowMetadata, _postgres: servers.PostgresServer, servers_home: Path
) -> Iterator[Any]:
    """Airflow's web application in this process: see `tests.support.web_app`."""
    from tests.support.web_app import Application

    application = Application(airflow_metadata, _postgres, servers_home)
    yield application
    application.close()


@pytest.fixture(scope="session")
def web_lot(_postgres: servers.PostgresServer, _s3: servers.S3Server) -> Iterator[Any]:
    """The tracker and the bucket below the web application; each test finds them empty."""
    from tests.integration import parking_lot

    lot = parking_lot._open(_postgres.database("web", keep=True), _s3.bucket("web", keep=True))
    yield lot
    lot.tracker.close()


@pytest.fixture
def postgres(_postgres: servers.PostgresServer) -> servers.PostgresServer:
    """PostgreSQL: ``.database("name") -> dsn`` of a fresh database; stop(), start(), pid."""
    _postgres.ensure()
    return _postgres


@pytest.fixture
def kafka(_kafka: servers.KafkaServer) -> servers.KafkaServer:
    """Kafka: ``kafka.bootstrap_servers``; stop() and start() make an outage; pid."""
    _kafka.ensure()
    return _kafka


@pytest.fixture
def s3(_s3: servers.S3Server) -> Iterator[servers.S3Server]:
    """S3: ``.settings``, ``.bucket("name") -> S3Settings``, ``.client()``; stop(), start(), pid."""
    _s3.ensure()
    yield _s3
    _s3.ensure()
    _s3.drop_buckets()


@pytest.fixture
def stack_settings(
    postgres: servers.PostgresServer,
    kafka: servers.KafkaServer,
    s3: servers.S3Server,
    tmp_path: Path,
) -> Settings:
    """Settings over the three: fresh databases (tracker, warehouse), fresh bucket, tmp folders."""
    settings = servers.stack_settings(postgres, kafka, s3, tmp_path)
    wal = settings.wal.model_copy(update={"segment_bytes": 4 * 1024**2})  # fewer pages to make
    return settings.model_copy(update={"wal": wal})


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Any]:
    """MariaDB: ``.database() -> name``, ``.connect(name)``, ``.socket``; its packages are fetched."""
    from tests.support.mariadb import MariaDb

    server = MariaDb()
    yield server
    server.stop()
