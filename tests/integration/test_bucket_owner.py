"""One deployment a bucket: the first claims it, no other writes to it or deletes from it."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.settings import Settings
from waybill.storage import bucket_owner, open_objects, open_owned_objects, open_tracker
from waybill.storage.bucket_owner import (
    OWNER_KEY,
    ForeignBucketError,
    check_owner,
    claim,
    deployment_id,
    read_owner,
    refuse_foreign_bucket,
)

pytestmark = pytest.mark.serves
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def ours(stack_settings: Settings, tmp_path: Path, monkeypatch) -> Settings:
    monkeypatch.setattr(bucket_owner, "_VERIFIED", set())
    made = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(made)
    return made


@pytest.fixture
def theirs(ours: Settings, postgres) -> Settings:
    """Settings of another deployment that was given the same bucket."""
    tracker = ours.tracker.model_copy(update={"dsn": SecretStr(postgres.database("theirs"))})
    made = ours.model_copy(update={"tracker": tracker})
    with open_tracker(made.tracker) as store:
        store.migrate()
    return made


def test_two_deployments_on_one_bucket_delete_nothing_of_each_other(ours, theirs):
    """Both have the same pipeline, so the same topic: garbage was decided by the topic's name."""
    store = open_owned_objects(ours)
    store.put("staged/2026/01/01/ours.wbs", b"ours")
    mine, other = deployment_id(ours.tracker), deployment_id(theirs.tracker)
    with pytest.raises(ForeignBucketError) as caught:
        services.migrate(theirs)
    for part in (mine, other, ours.s3.bucket, f"waybill bucket claim {mine}", "WAYBILL_S3__BUCKET"):
        assert part in str(caught.value)
    foreign = open_owned_objects(theirs)
    writes = {
        "put": lambda: foreign.put("parked/x", b"x"),
        "put_waiting": lambda: foreign.put_waiting("parked/x", b"x", limit_s=60),
        "swap": lambda: foreign.swap("parked/x", b"x", expected=None),
        "delete": lambda: foreign.delete(["staged/2026/01/01/ours.wbs"]),
        "refresh": lambda: services.refresh_tracker(theirs, grace_s=0),
        "clean_up": lambda: services.clean_up_parked_files(theirs, grace_s=0),
        "compact": lambda: services.compact_traces(theirs),
        "ingest": lambda: services.run_ingest(theirs, "orders"),
    }
    for write in writes.values():
        with pytest.raises(ForeignBucketError):
            write()
    keys = {item.key for item in open_objects(ours.s3).list("")}
    assert keys == {"staged/2026/01/01/ours.wbs", OWNER_KEY}
    assert store.get("staged/2026/01/01/ours.wbs") == b"ours"


def test_a_bucket_that_was_there_before_is_claimed_by_the_first_write(ours, theirs):
    """An older release left no marker."""
    plain = open_objects(ours.s3)
    plain.delete([OWNER_KEY])
    plain.put("staged/old.wbs", b"old")
    open_owned_objects(ours).put("staged/new.wbs", b"new")
    assert read_owner(plain).deployment == deployment_id(ours.tracker)
    with pytest.raises(ForeignBucketError):
        open_owned_objects(theirs).delete(["staged/old.wbs"])


def test_one_of_many_that_claim_a_bucket_at_once_wins(ours):
    open_objects(ours.s3).delete([OWNER_KEY])
    count = 12
    barrier = Barrier(count)

    def claimed(_: int) -> tuple[str, str]:
        mine, store = str(uuid.uuid4()), open_objects(ours.s3)
        barrier.wait()
        try:
            return mine, check_owner(store, mine).deployment
        except ForeignBucketError as error:
            return mine, re.search(r"belongs to deployment (\S+)", str(error)).group(1)

    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(claimed, range(count)))
    winner = read_owner(open_objects(ours.s3)).deployment
    assert {owner for _, owner in results} == {winner}
    assert winner in {mine for mine, _ in results}


def test_one_of_two_that_take_a_bucket_over_at_once_wins(ours):
    store = open_objects(ours.s3)
    before = read_owner(store)
    barrier = Barrier(2)

    def take(mine: str) -> bool:
        barrier.wait()
        return claim(open_objects(ours.s3), mine, expected=before)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(take, ("a", "b"))) == [False, True]
    assert read_owner(store).deployment in {"a", "b"}


def test_a_bucket_that_was_taken_over_is_deleted_from_by_its_new_owner_only(ours, theirs):
    running = open_owned_objects(ours)
    running.put("staged/x.wbs", b"x")
    mine, other = deployment_id(ours.tracker), deployment_id(theirs.tracker)
    decision = Decision("ann", "the other is gone")
    for wrong in (None, other, "nobody"):
        with pytest.raises(InputError, match=f"is deployment {mine}'s"):
            services.claim_bucket(theirs, wrong, decision)
    report = services.claim_bucket(theirs, mine, decision)
    assert (report.is_ours, report.owner.deployment) == (True, other)
    with pytest.raises(ForeignBucketError):  # though this process has seen that it was its own
        running.delete(["staged/x.wbs"])
    open_owned_objects(theirs).delete(["staged/x.wbs"])
    with open_tracker(theirs.tracker) as tracker, tracker.transaction() as connection:
        rows = connection.exec_driver_sql("SELECT who, action, target, detail FROM audit_log")
        [(who, action, target, detail)] = rows.fetchall()
    assert (who, action, target) == ("ann", "claim_bucket", f"bucket {ours.s3.bucket}")
    assert (detail["taken_from"], detail["reason"]) == (mine, "the other is gone")


def test_a_restored_tracker_keeps_its_id(ours):
    before = deployment_id(ours.tracker)
    services.migrate(ours)
    assert deployment_id(ours.tracker) == before
    with open_tracker(ours.tracker) as tracker, pytest.raises(Exception, match="deployment"):
        with tracker.transaction() as connection:
            connection.exec_driver_sql("INSERT INTO deployment (id) VALUES (gen_random_uuid())")


def test_a_marker_that_says_nothing_is_refused(ours):
    store = open_objects(ours.s3)
    for body in (b"", b"[]", b"{}", b"\xff", b'{"deployment": 1}'):
        store.put(OWNER_KEY, body)
        with pytest.raises(InputError, match="does not say whose it is"):
            refuse_foreign_bucket(ours)
        with pytest.raises(InputError, match="does not say whose it is"):
            open_owned_objects(ours).delete(["x"])


def test_a_store_that_is_away_is_asked_at_the_first_write(ours, s3):
    s3.stop()
    refuse_foreign_bucket(ours)
    store = open_owned_objects(ours)
    with pytest.raises(RetryError):
        store.put("staged/x.wbs", b"x")
    s3.start()
    store.put("staged/x.wbs", b"x")


def test_a_bucket_is_asked_once_a_process_for_writes(ours, monkeypatch):
    store = open_owned_objects(ours)
    store.put("staged/x.wbs", b"x")
    monkeypatch.setattr(bucket_owner, "check_owner", None)  # would fail
    open_owned_objects(ours).put("staged/y.wbs", b"y")


def test_the_command_shows_and_takes_over(ours, theirs, monkeypatch):
    mine, other = deployment_id(ours.tracker), deployment_id(theirs.tracker)
    for name, value in theirs.to_env().items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(app, ["bucket", "show"])
    assert (shown.exit_code, f"belongs to:      {mine}" in shown.output) == (2, True)
    assert max(map(len, shown.output.splitlines())) <= 80
    words = ["bucket", "claim", mine, "--why", "gone"]
    refused = CliRunner().invoke(app, words, input="n\n")
    assert refused.exit_code == 1
    assert read_owner(open_objects(ours.s3)).deployment == mine
    taken = CliRunner().invoke(app, [*words, "--yes", "--json"])
    assert (taken.exit_code, '"ours": true' in taken.output) == (0, True)
    assert read_owner(open_objects(ours.s3)).deployment == other
    assert CliRunner().invoke(app, ["bucket", "show"]).exit_code == 0


def test_whatever_the_project_opens_to_write_knows_its_owner():
    """``open_objects`` asks nobody: it is for the marker, making the bucket, and a look at it."""
    allowed = {
        "storage/objects.py",
        "storage/__init__.py",
        "services/bucket.py",
        "services/environment.py",
        "services/servers.py",
    }
    for folder in ("include/waybill", "dags", "plugins", "spark_jobs"):
        for path in (CHECKOUT / folder).rglob("*.py"):
            if re.search(r"\bopen_objects\(|\bObjectStore\(", path.read_text()):
                name = path.relative_to(CHECKOUT / folder).as_posix()
                assert name in {*allowed, "storage/bucket_owner.py"}, name
