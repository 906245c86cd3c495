"""The state folder is its owner's alone."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from waybill.errors import InputError
from waybill.stack import state_folder

NOBODY = 65534
PRIVATE = 0o710 if os.geteuid() == 0 else 0o700
"""Root's PostgreSQL is another user of root's group, and has to pass."""


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_a_new_state_folder_is_its_owners_alone(tmp_path: Path) -> None:
    state_folder.make_private(tmp_path / "a" / "home")
    assert mode(tmp_path / "a" / "home") == PRIVATE


def test_a_state_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    state_folder.make_private(tmp_path)
    assert mode(tmp_path) == PRIVATE
    assert tmp_path.stat().st_gid == os.getegid()


def test_a_folder_of_somebody_else_is_refused_with_what_to_do(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(InputError, match="belongs to another user.*WAYBILL_HOME"):
        state_folder.make_private(tmp_path)


def test_the_folders_in_it_are_closed_and_one_that_is_missing_is_passed_over(
    tmp_path: Path,
) -> None:
    (tmp_path / "logs").mkdir(mode=0o755)
    (tmp_path / "jars").mkdir(mode=0o755)
    state_folder.make_private(tmp_path, ["logs", "kafka"])
    assert mode(tmp_path / "logs") == 0o700
    assert mode(tmp_path / "jars") == 0o755
    assert not (tmp_path / "kafka").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_nobody_else_reads_what_lies_in_it() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed as well
        Path(folder).chmod(0o755)
        events = Path(folder, "home", "events")
        events.parent.mkdir()
        events.write_text("private")
        events.chmod(0o644)
        assert _read_as_nobody(events).stdout == b"private"
        state_folder.make_private(events.parent)
        assert b"Permission denied" in _read_as_nobody(events).stderr


def _read_as_nobody(path: Path) -> subprocess.CompletedProcess[bytes]:
    command = ["cat", str(path)]
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False
    )
