"""When the supervisor starts what, on services that are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from waybill.stack import processes, state_folder, supervisor
from waybill.stack.service import ServiceError
from waybill.stack.supervisor import Restarts, Supervisor, read_state, write_state


@dataclass
class Stub:
    """What the supervisor asks of a service."""

    name: str
    after: tuple[str, ...] = ()
    lives: bool = False
    answers: bool = True
    fails: bool = False
    stays: bool = True
    ill: bool = False
    hanging_after_s: float = 15.0
    child: None = None
    starts: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=lambda: [0.0])

    def running(self) -> object | None:
        return self if self.lives else None

    def healthy(self) -> bool:
        return self.lives and self.answers

    def hangs(self) -> bool:
        return self.ill

    def start(self) -> bool:
        self.starts.append(self.clock[0])
        if self.fails:
            raise ServiceError(f"{self.name} did not answer\nits log")
        self.lives = self.stays
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    return now


def watching(home: Path, clock, *services: Stub) -> Supervisor:
    for one in services:
        one.clock = clock
    (home / "run").mkdir(exist_ok=True)
    write_state(home / "run", {one.name: Restarts() for one in services})
    made = Supervisor(home)
    made._supervised = lambda: services
    return made


def look(watcher: Supervisor, home: Path, clock, seconds: int) -> None:
    for _ in range(seconds):
        watcher.look(read_state(home / "run"))
        clock[0] += 1


def test_what_dies_again_and_again_is_started_with_longer_and_longer_waits(tmp_path, clock):
    dying = Stub("kafka", stays=False)
    look(watching(tmp_path, clock, dying), tmp_path, clock, 200)
    waits = [later - now for now, later in zip(dying.starts, dying.starts[1:], strict=False)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    told = read_state(tmp_path / "run")["kafka"]
    assert told.restarts == len(dying.starts)
    assert told.last_exit.endswith("exit code not seen")


def test_two_minutes_of_life_begin_the_waits_anew(tmp_path, clock):
    one = Stub("kafka")
    watcher = watching(tmp_path, clock, one)
    for _ in range(3):
        look(watcher, tmp_path, clock, 130)
        one.lives = False
    began = clock[0]
    look(watcher, tmp_path, clock, 1)
    assert one.starts[-1] == began


def test_what_did_not_come_up_is_said_and_others_are_watched_on(tmp_path, clock):
    ill, other = Stub("kafka", fails=True), Stub("s3")
    look(watching(tmp_path, clock, ill, other), tmp_path, clock, 1)
    state = read_state(tmp_path / "run")
    assert state["kafka"].problem == "kafka did not answer"
    assert (other.lives, state["s3"].problem) == (True, "")


def test_a_service_waits_for_what_it_stands_on(tmp_path, clock):
    base, above = Stub("postgres", lives=True, answers=False), Stub("api", after=("postgres",))
    watcher = watching(tmp_path, clock, base, above)
    look(watcher, tmp_path, clock, 3)
    assert (base.starts, above.starts) == ([], []), "PostgreSQL recovers: it is left alone"
    base.answers = True
    look(watcher, tmp_path, clock, 1)
    assert above.lives


def test_nothing_is_started_while_another_command_is_at_work(tmp_path, clock, monkeypatch):
    dead = Stub("kafka")
    watcher = watching(tmp_path, clock, dead)
    with state_folder.exclusive(tmp_path / "run" / ".lock"):
        monkeypatch.setattr(state_folder.time, "monotonic", iter(range(10_000)).__next__)
        watcher.look(read_state(tmp_path / "run"))
    assert dead.starts == []


def test_nothing_is_started_once_down_has_taken_the_list_away(tmp_path, clock):
    dead = Stub("kafka")
    watcher = watching(tmp_path, clock, dead)
    state = read_state(tmp_path / "run")
    supervisor.state_file(tmp_path / "run").unlink()
    watcher.look(state)
    watcher.run()  # ends by itself
    assert dead.starts == []


def test_a_list_that_cannot_be_read_supervises_nothing(tmp_path):
    (tmp_path / "run").mkdir()
    supervisor.state_file(tmp_path / "run").write_text('{"kafka": 3}')
    assert read_state(tmp_path / "run") is None


def test_a_service_that_hangs_for_long_is_started_anew_and_a_short_illness_is_not(tmp_path, clock):
    one = Stub("airflow-scheduler", lives=True, ill=True)
    watcher = watching(tmp_path, clock, one)
    look(watcher, tmp_path, clock, 10)
    one.ill = False
    look(watcher, tmp_path, clock, 20)
    assert one.starts == []
    one.ill, began = True, clock[0]
    look(watcher, tmp_path, clock, 30)
    assert 15 <= one.starts[0] - began <= 30
    assert "gave no sign" in read_state(tmp_path / "run")["airflow-scheduler"].last_exit


def test_a_supervisor_that_is_begun_anew_has_the_environment_of_who_began_it(tmp_path, monkeypatch):
    def seen() -> tuple[int, str]:
        record = processes.read_record(tmp_path / "run" / f"{supervisor.NAME}.json")
        return record.pid, record.process().environ()["TOKEN_OF_A_SENDER"]

    state_folder.make_private(tmp_path, ["run", "logs"])
    try:
        monkeypatch.setenv("TOKEN_OF_A_SENDER", "old")
        assert supervisor.begin(tmp_path, ["collector"])
        first, _ = seen()
        monkeypatch.setenv("TOKEN_OF_A_SENDER", "new")
        assert not supervisor.begin(tmp_path, ["collector"])
        assert seen() == (first, "old")
        assert supervisor.begin(tmp_path, ["collector"], anew=True)
        second, token = seen()
        assert (token, psutil.pid_exists(first), second != first) == ("new", False, True)
        assert set(read_state(tmp_path / "run")) == {"collector"}
    finally:
        supervisor.end(tmp_path)
