"""``make record``: a benchmark's figures and a note, whatever characters are in it."""

import json
import os
import shutil
import subprocess

import pytest
from tests.servers import CHECKOUT

NOTES = (
    "quiet; after the packages were cut anew, beside nothing",
    """it's "quoted" `date` $(date) $HOME \\ # & > x | y * {a,b}""",
)


@pytest.mark.parametrize("note", NOTES)
def test_a_note_is_kept_as_it_was_given(tmp_path, note):
    page = tmp_path / "tests" / "support" / "performance_page.py"
    page.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / "tests" / "support" / "performance_page.py", page)
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    (tmp_path / ".venv").symlink_to(CHECKOUT / ".venv")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.jsonl").touch()
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a", "--allow-empty"],
        cwd=tmp_path,
        check=True,
    )
    made = subprocess.run(
        [
            "make",
            "--old-file=venv",
            "record",
            "BENCH=bench-processing",
            f"NOTE={note}".replace("$", "$$"),
        ],
        cwd=tmp_path,
        input='a table\n{"vs_identity": 0.5}\n',
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MAKEFLAGS": ""},
    )
    assert made.returncode == 0, made.stderr
    row = json.loads((tmp_path / "docs" / "performance.jsonl").read_text())
    assert (row["note"], row["figures"]) == (note, {"vs_identity": 0.5})
    lines = (tmp_path / "docs" / "performance.md").read_text().splitlines()
    shown = next(line for line in lines if "0.5" in line)
    assert shown.replace("\\|", "").count("|") == 5, shown
