"""A pipeline's own tests: ``test_*.py`` in its folder, run by pytest in a process of its own.

They are a team's code, and whoever runs them may have the platform's settings in the environment:
these they are not given. They have files and network of who runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from waybill.errors import InputError

_SECRET = ("WAYBILL_", "AIRFLOW_", "AWS_")
"""How variables begin that hold the platform's settings, connections and keys."""


@dataclass(frozen=True, slots=True)
class OwnTests:
    """How a pipeline's own tests ended."""

    files: tuple[str, ...]
    exit_code: int
    """That of pytest; 0: all passed."""
    output: str
    """What pytest printed."""

    @property
    def summary(self) -> str:
        """Return pytest's last line, such as "2 passed in 0.12s"."""
        lines = [line.strip("= ") for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else f"pytest ended with exit code {self.exit_code}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "files": list(self.files),
            "ok": not self.exit_code,
            "summary": self.summary,
            "output": self.output,
        }


def run_own_tests(directory: Path) -> OwnTests | None:
    """Run a pipeline's own tests; None: it has none. Nothing is written beside them.

    Raises:
        InputError: pytest is not installed.
    """
    files = sorted(path for path in directory.glob("test_*.py") if path.is_file())
    if not files:
        return None
    if find_spec("pytest") is None:
        raise InputError(
            f"{files[0]} is run by pytest, which is not installed here: `pip install pytest` into "
            f"the environment of {sys.executable}"
        )
    run = subprocess.run(  # noqa: S603 - our own interpreter; the files are absolute
        [
            *(sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"),
            *(str(path.absolute()) for path in files),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        check=False,
    )
    names = tuple(path.name for path in files)
    return OwnTests(names, run.returncode, run.stdout.decode("utf-8", "replace"))


def _environment() -> dict[str, str]:
    kept = {n: value for n, value in os.environ.items() if not n.upper().startswith(_SECRET)}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"}
