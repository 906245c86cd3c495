from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from waybill.errors import InputError, NotFoundError
from waybill.settings import DestinationSettings, S3Settings, Settings, StackSettings
from waybill.stack import Stack, credentials, environment


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def settings(home: Path, **values) -> Settings:
    return Settings(_env_file=None, home=home, **values)


def test_what_is_written_is_what_a_later_command_reads(tmp_path: Path, monkeypatch) -> None:
    awkward = 'it\'s a \\ "secret" # $HOME'
    written = environment.resolve_paths(
        settings(
            tmp_path,
            s3=S3Settings(access_key=SecretStr("AK"), secret_key=SecretStr(awkward)),
            stack=StackSettings(kafka_port=12345),
            destinations={"lake": DestinationSettings(dsn=SecretStr("postgresql://u:p'w@/x"))},
        )
    )
    path = environment.write(written)
    monkeypatch.chdir("/")
    assert Settings(home=tmp_path) == written
    assert mode(path) == 0o600


def test_paths_are_absolute_and_those_of_the_state_folder_follow_it(tmp_path: Path) -> None:
    found = environment.resolve_paths(settings(tmp_path / "elsewhere"))
    assert found.wal.dir == tmp_path / "elsewhere" / "wal"
    assert found.spark.jars_dir == tmp_path / "elsewhere" / "jars" / "spark"
    assert found.traces.spool_dir == tmp_path / "elsewhere" / "traces"
    assert found.dags_dir == Path.cwd() / "dags"


def test_further_folders_of_pipelines_are_absolute_and_read_again(tmp_path: Path) -> None:
    further = (Path("include/examples"), Path("/srv/more pipelines"))
    found = environment.resolve_paths(settings(tmp_path, more_pipelines_dirs=further))
    assert found.more_pipelines_dirs == (Path.cwd() / further[0], further[1])
    environment.write(found)
    assert Settings(home=tmp_path).more_pipelines_dirs == found.more_pipelines_dirs


def test_a_folder_that_was_chosen_is_not_moved(tmp_path: Path) -> None:
    chosen = settings(tmp_path).wal.model_copy(update={"dir": Path("/srv/wal")})
    assert environment.resolve_paths(settings(tmp_path, wal=chosen)).wal.dir == Path("/srv/wal")


def test_defaults_are_not_frozen_into_the_file(tmp_path: Path) -> None:
    names = environment.variables(environment.resolve_paths(settings(tmp_path)))
    assert "WAYBILL_WAL__SEGMENT_BYTES" not in names
    assert "WAYBILL_STACK__KAFKA_PORT" not in names


@pytest.mark.parametrize("value", ["a${HOME}b", "a\nb"])
def test_a_value_that_readers_would_change_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputError, match="WAYBILL_S3__BUCKET"):
        environment.write(settings(tmp_path, s3=S3Settings(bucket=value)))
    assert not (tmp_path / "stack.env").exists()


def test_credentials_are_drawn_once_and_private(tmp_path: Path) -> None:
    first = credentials.read_or_draw(tmp_path)
    assert credentials.read_or_draw(tmp_path) == first
    assert mode(tmp_path / credentials.FILE) == 0o600
    assert first.airflow_password not in repr(first)
    assert len(first.airflow_jwt_secret) >= 64
    assert credentials.read_or_draw(tmp_path / "other") != first


def test_looking_draws_and_writes_nothing(tmp_path: Path) -> None:
    credentials.read(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_credentials_file_is_named_but_does_not_stop_a_look(tmp_path: Path) -> None:
    (tmp_path / credentials.FILE).write_text("{")
    credentials.read(tmp_path)
    with pytest.raises(InputError, match=credentials.FILE):
        credentials.read_or_draw(tmp_path)


def test_settings_that_differ_from_those_of_the_start_are_named_without_values(
    tmp_path: Path,
) -> None:
    first = environment.resolve_paths(settings(tmp_path))
    assert environment.not_applied(first) == [], "an older release started it"
    environment.keep_started(first)
    assert environment.not_applied(first) == []
    s3 = S3Settings(access_key=SecretStr("AK"), secret_key=SecretStr("very-secret"))
    now = first.model_copy(update={"s3": s3})
    assert environment.not_applied(now) == ["WAYBILL_S3__ACCESS_KEY", "WAYBILL_S3__SECRET_KEY"]
    assert environment.not_applied(now) == environment.not_applied(now), "until it is started anew"
    environment.keep_started(now)
    assert environment.not_applied(first) == ["WAYBILL_S3__ACCESS_KEY", "WAYBILL_S3__SECRET_KEY"]
    kept = tmp_path / "run" / "settings"
    assert "very-secret" not in kept.read_text()
    assert mode(kept) == 0o600


def test_what_is_added_while_an_up_waits_is_kept_and_what_is_removed_does_not_come_back(
    tmp_path: Path,
) -> None:
    lake, dwh = (DestinationSettings(kind="duckdb", dsn=f"/{name}") for name in ("lake", "dwh"))
    first = settings(tmp_path, destinations={"lake": lake})
    environment.write(first)
    (tmp_path / "run").mkdir()
    waiting = Stack(first.model_copy(update={"destinations": {"lake": lake, "by_variable": dwh}}))
    with environment.changed_destinations(tmp_path) as there:
        del there["lake"]
        there["dwh"] = dwh
    assert waiting._with_changes().destinations == {"by_variable": dwh, "dwh": dwh}


def test_a_change_that_fails_writes_nothing(tmp_path: Path) -> None:
    path = environment.write(settings(tmp_path))
    (tmp_path / "run").mkdir()
    before = path.read_text()
    with pytest.raises(RuntimeError), environment.changed_destinations(tmp_path) as there:
        there["lake"] = DestinationSettings(kind="duckdb", dsn="/lake")
        raise RuntimeError
    assert path.read_text() == before


def test_the_stack_s_own_warehouse_keeps_what_else_was_set(tmp_path: Path) -> None:
    class Server:
        def dsn(self, database: str) -> str:
            return f"postgresql://postgres@/{database}"

    slow = DestinationSettings(dsn="postgresql://old@/x", min_rows=5, max_wait_s=9.0)
    keys = credentials.read_or_draw(tmp_path)
    found = environment.embedded_settings(
        settings(tmp_path, destinations={"warehouse": slow}), keys, Server()
    ).destinations["warehouse"]
    assert (found.min_rows, found.dsn.get_secret_value()) == (5, "postgresql://postgres@/warehouse")


def test_nothing_is_written_where_the_stack_was_wiped_meanwhile_or_is_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(NotFoundError), environment.changed_destinations(tmp_path):
        raise AssertionError
    path = environment.write(settings(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    with (
        pytest.raises(InputError, match="another user's"),
        environment.changed_destinations(tmp_path),
    ):
        raise AssertionError
