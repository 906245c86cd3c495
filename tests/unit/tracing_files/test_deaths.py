"""The shipper killed at each of its changes: to the disk, the books, the store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.processes import start_server
from tests.unit.tracing_files.acts import BODY, fail, recover, ship_and_forget
from tests.unit.tracing_files.dying import deaths, lives
from tests.unit.tracing_files.names_of_dead import name_of_dead

from waybill.tracing.files import FRAMES, appended_spool, ask_for_retry


def _spool_with_everything(directory: Path) -> set[str]:
    """Three finished files, two of them in the books, of which one failed and is asked for; one of
    a dead process with a torn tail, one torn from its first byte. Return the ids of those with
    records.
    """
    spool = appended_spool(directory, FRAMES)
    finished = {spool.store(BODY).stem for _ in range(2)}
    failed = min(finished)
    lives(fail, directory, failed)
    cut, torn = name_of_dead(), name_of_dead()
    (directory / f"{cut}.open").write_bytes(BODY + b"torn")
    (directory / f"{torn}.open").write_bytes(b"\x09")
    finished.add(spool.store(BODY).stem)
    ask_for_retry(directory, failed, who="ann", why="mended")
    return {*finished, cut}


@pytest.mark.slow
def test_a_shipper_killed_at_any_line_loses_nothing_and_stores_nothing_twice(
    tmp_path: Path,
) -> None:
    start_server()
    ready = tmp_path / "ready"
    expected = _spool_with_everything(ready)
    now, store_dir = tmp_path / "now", tmp_path / "store"
    seen = 0
    shutil.copytree(ready, now)
    for number, when in deaths(ship_and_forget, now, store_dir):
        seen += 1
        lives(recover, now, store_dir, expected, f"{number}-{when}")
        shutil.rmtree(now)
        shutil.rmtree(store_dir)
        shutil.copytree(ready, now)
    assert seen > 30
