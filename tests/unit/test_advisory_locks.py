"""Advisory locks: one table of names, one job a name."""

from __future__ import annotations

import re
from collections import Counter
from itertools import permutations
from pathlib import Path

from waybill.storage.advisory_locks import AdvisoryLock

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "include/waybill/storage/advisory_locks.py"
SOURCES = [
    path
    for folder in ("include", "plugins", "dags", "spark_jobs")
    for path in (ROOT / folder).rglob("*.py")
    if path != TABLE
]


def test_only_the_table_of_names_takes_advisory_locks():
    assert TABLE.exists()
    users = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"pg_\w*advisory", line, re.IGNORECASE)
    ]
    assert not users, "take advisory locks by a name of AdvisoryLock"


def test_each_lock_is_one_jobs():
    uses = Counter(
        name
        for path in SOURCES
        for name in re.findall(r"\bAdvisoryLock\.([A-Z_]+)", path.read_text(encoding="utf-8"))
    )
    assert uses == dict.fromkeys(AdvisoryLock.__members__, 1)


def test_no_scope_makes_one_lock_another():
    for one, other in permutations(AdvisoryLock, 2):
        assert not other.name_of().startswith(one.name_of() + " ")
    assert AdvisoryLock.DESTINATION_TABLE.sql("it's.t").count("'") == 4
