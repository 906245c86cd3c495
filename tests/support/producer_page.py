"""The snippets of the producer's page, and how to run one as a user would: in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "producer.md"
SERVERS = "127.0.0.1:9092"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAID = re.compile(r"print\(.*\)  # (.+)$", re.MULTILINE)
BEGIN, *SNIPPETS = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
"""The lines that every example begins with, and the examples."""


def said(snippet: str) -> list[str]:
    """Return what the comments say that a snippet prints, sorted."""
    return sorted(_SAID.findall(snippet))


def run(snippet: str, servers: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a snippet with the page's first lines before it, in a folder of its own."""
    assert SERVERS in BEGIN
    return subprocess.run(
        [sys.executable, "-c", f"{BEGIN.replace(SERVERS, servers)}\n{snippet}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
