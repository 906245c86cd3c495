"""Parts of a deployment go back to an older state, or are gone: the short form of the campaign."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.servers import CHECKOUT

pytestmark = [
    pytest.mark.serves,
    pytest.mark.slow,
    pytest.mark.campaign,
]


def test_after_settling_nothing_is_lost_doubled_older_or_unnoticed():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.rollback_campaign"],
        cwd=CHECKOUT,
        env={**os.environ, "QUICK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr[-4_000:])
    report = json.loads(done.stdout.strip().splitlines()[-1])
    wanted = {"rollbacks": 6, "lost": 0, "doubled": 0, "older_over_newer": 0, "unnoticed": 0}
    assert {name: report[name] for name in wanted} == wanted
    assert report["noticed_max_s"] <= 120
    assert done.returncode == 0
