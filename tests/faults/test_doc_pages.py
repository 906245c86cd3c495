"""The pages for beginners, block by block, in one shell of a fresh checkout, with the whole stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests import servers
from tests.support.doc_blocks import SHELLS, Block, blocks
from tests.support.doc_shell import DocShell
from tests.support.fresh_checkout import copy_checkout, psql_folder, stack_variables

from waybill.stack import free_port

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
]
PAGES = ("README.md", "docs/tour.md", "docs/first-rows.md")
"""In this order: each block that can run, of each, in one shell."""


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A copy of the checkout, with its packages and without anything that ran."""
    home = servers.new_home()
    folder = copy_checkout(home)
    yield folder
    servers.end_home(folder / ".waybill")
    servers.end_home(home)


def test_what_beginners_paste_ends_with_their_rows(checkout: Path) -> None:
    port, source = free_port(), free_port()
    env = stack_variables(checkout) | {"WAYBILL_COLLECTOR__PORT": str(port)}
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
