"""The audit log's seals: whatever is changed behind one is found and named, and nothing else."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from tests.support.emptied import without_triggers
from typer.testing import CliRunner

from waybill.access import AuditReport, AuditSealer, AuditVerifier, audit_seals, write_audit
from waybill.access.audit_seals import Seal, SealObjects, StoredSeal
from waybill.cli import app
from waybill.errors import InputError, NotFoundError, RetryError, StopError
from waybill.settings import AccessSettings, Settings, TrackerSettings
from waybill.storage import AdvisoryLock, ObjectStore, TrackerStore, deployment_of, open_objects

pytestmark = pytest.mark.serves
KEY = "a key of the tests"


class KilledError(BaseException):
    """Stands for a SIGKILL."""


class SealedLog:
    """An audit log that is written, sealed, verified, and tampered with by its owner."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tracker = TrackerStore(settings.tracker)
        self.tracker.migrate()
        self.objects = open_objects(settings.s3)
        self.store = SealObjects(self.objects, deployment_of(self.tracker))

    def write(self, count: int = 1, who: str = "ann", **detail: object) -> None:
        for _ in range(count):
            with self.tracker.transaction() as connection:
                write_audit(connection, who=who, action="hold", target="orders", **detail)

    def seal(
        self,
        *,
        key: str = "",
        objects: ObjectStore | None = None,
        wait_s: float = 20,
        pause_s: float = 0,
    ) -> list[Seal]:
        used = objects or self.objects
        sealer = AuditSealer(self.tracker, used, signing_key=key, wait_s=wait_s)
        return list(sealer.run(pause_s=pause_s).seals)

    def sql(self, statement: str, **values: Any) -> list[Any]:
        with self.tracker.transaction() as connection:
            found = connection.execute(text(statement), values)
            return list(found) if found.returns_rows else []

    def tamper(self, statement: str) -> None:
        self.sql(without_triggers(statement))

    def rewrite(self, number: int, change: Callable[[bytes], bytes]) -> None:
        key = self.store.key(number)
        self.objects.put(key, change(self.objects.get(key)))

    def verify(self, *, key: str = "", from_seal: int = 1, expected: str = "") -> AuditReport:
        verifier = AuditVerifier(self.tracker, self.objects, signing_key=key)
        return verifier.run(from_seal=from_seal, expected=expected)

    def found(self, *, key: str = "") -> list[tuple[str, int, int | None]]:
        return [(one.kind, one.seal, one.entry) for one in self.verify(key=key).findings]


@pytest.fixture
def log(postgres: Any, s3: Any) -> Iterator[SealedLog]:
    settings = Settings(
        _env_file=None, s3=s3.bucket("waybill"), tracker=TrackerSettings(dsn=postgres.tracker())
    )
    made = SealedLog(settings)
    yield made
    made.tracker.close()


@pytest.fixture
def sealed(log: SealedLog) -> SealedLog:
    """Three seals, of the entries 1 to 3, 4 to 6, and 7 to 9."""
    for _ in range(3):
        log.write(3, size=1, share=0.5)
        log.seal()
    assert log.found() == []
    return log


def test_entries_are_sealed_once_and_the_object_is_their_export(log):
    assert log.seal() == []
    log.write(2, who="ann \x00 \ud800 é", n=1, huge=10**400, deep=[{"a": [0.25, None, "x"]}])
    [seal] = log.seal()
    assert (seal.number, seal.after_number, seal.first_id, seal.last_id, seal.entries) == (
        1,
        0,
        1,
        2,
        2,
    )
    assert log.seal() == []
    log.write()
    assert log.seal(pause_s=900) == []
    report = log.verify()
    assert (report.found, report.seals, report.entries, report.unsealed) == (0, 1, 2, 1)
    assert report.notes == []
    stored = log.store.read(1)
    assert stored.seal == seal
    assert stored.is_whole
    assert stored.lines.decode().isascii()
    assert b'"action":"hold"' in stored.lines


def test_a_log_of_many_entries_is_sealed_in_parts(log, monkeypatch):
    monkeypatch.setattr(audit_seals, "SEAL_ENTRIES", 10)
    monkeypatch.setattr("waybill.access.audit_entries.PAGE_ENTRIES", 4)
    log.write(25)
    assert [(one.first_id, one.last_id) for one in log.seal(pause_s=900)] == [
        (1, 10), (11, 20)
    ]  # fmt: skip
    assert [(one.first_id, one.last_id) for one in log.seal()] == [(21, 25)]
    assert log.found() == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM audit_log WHERE id = 5", ("entry_removed", 2, 5)),
        ("UPDATE audit_log SET who = 'bob' WHERE id = 5", ("entry_altered", 2, 5)),
        ("UPDATE audit_log SET action = 'release' WHERE id = 5", ("entry_altered", 2, 5)),
        ("UPDATE audit_log SET target = 'x' WHERE id = 5", ("entry_altered", 2, 5)),
        ("UPDATE audit_log SET at = at + interval '1 us' WHERE id = 5", ("entry_altered", 2, 5)),
        ("UPDATE audit_log SET at = 'infinity' WHERE id = 5", ("entry_altered", 2, 5)),
        ("UPDATE audit_log SET at = '4000-01-01 BC' WHERE id = 5", ("entry_altered", 2, 5)),
        ("UPDATE audit_log SET detail = '{}' WHERE id = 5", ("entry_altered", 2, 5)),
        (
            """UPDATE audit_log SET detail = '{"size": 1.0, "share": 0.5}' WHERE id = 5""",
            ("entry_altered", 2, 5),
        ),
        (
            "UPDATE audit_log SET detail = CAST(repeat('[', 5000) || repeat(']', 5000) AS jsonb) "
            "WHERE id = 5",
            ("entry_altered", 2, 5),
        ),
        (
            "UPDATE audit_log SET detail = CAST('1' || repeat('0', 9000) AS jsonb) WHERE id = 5",
            ("entry_altered", 2, 5),
        ),
        (
            "INSERT INTO audit_log (id, who, action, target) VALUES (-3, 'eve', 'x', 'y')",
            ("entry_added", 1, -3),
        ),
        ("DELETE FROM audit_seals WHERE number = 2", ("seal_removed", 2, None)),
        ("DELETE FROM audit_seals WHERE number = 1", ("seal_removed", 1, None)),
        ("UPDATE audit_seals SET entries = 2 WHERE number = 2", ("seal_altered", 2, None)),
        ("UPDATE audit_seals SET last_id = 5 WHERE number = 2", ("seal_altered", 2, None)),
        ("UPDATE audit_seals SET sealed_at = 'infinity' WHERE number = 3", ("seal_altered", 3, None)),
        ("UPDATE audit_seals SET chain_sha256 = '' WHERE number = 2", ("seal_altered", 2, None)),
        ("UPDATE audit_seals SET entries_sha256 = 'x' WHERE number = 3", ("seal_altered", 3, None)),
        ("UPDATE audit_seals SET after_number = 0 WHERE number = 2", ("seal_altered", 2, None)),
    ],
)  # fmt: skip
def test_what_the_owner_of_the_tracker_changes_is_found_and_named(sealed, statement, found):
    sealed.tamper(statement)
    assert sealed.found() == [found]


def test_entries_that_changed_places_are_found(sealed):
    sealed.tamper(
        "UPDATE audit_log SET id = -1 WHERE id = 5; UPDATE audit_log SET id = 5 WHERE id = 6; "
        "UPDATE audit_log SET id = 6 WHERE id = -1"
    )
    assert sealed.found() == [("entry_altered", 2, 5), ("entry_altered", 2, 6)]


def test_an_entry_at_an_id_that_was_rolled_back_is_found(log):
    log.write()
    with pytest.raises(ZeroDivisionError), log.tracker.transaction() as connection:
        write_audit(connection, who="ann", action="hold", target="orders")
        raise ZeroDivisionError
    log.seal()
    log.write()
    log.seal()
    assert log.found() == []
    log.tamper("INSERT INTO audit_log (id, who, action, target) VALUES (2, 'eve', 'x', 'y')")
    assert log.found() == [("entry_added", 2, 2)]


def test_an_object_that_is_gone_or_changed_is_found(sealed):
    body = sealed.objects.get(sealed.store.key(2))
    sealed.objects.delete([sealed.store.key(2)])
    assert sealed.found() == [("object_missing", 2, None)]
    sealed.tamper("UPDATE audit_log SET who = 'bob' WHERE id = 5")
    assert sealed.found() == [("object_missing", 2, None), ("entries_differ", 2, None)]
    sealed.tamper("UPDATE audit_log SET who = 'ann' WHERE id = 5")
    for damaged in (
        body[:-5],
        body + b"x\n",
        b"",
        b"[" * 9_000,
        b"{}\n",
        body.replace(b"ann", b"bob"),
    ):
        sealed.objects.put(sealed.store.key(2), damaged)
        assert sealed.found() == [("object_altered", 2, None)]
    sealed.objects.put(sealed.store.key(2), body)
    assert sealed.found() == []


def test_a_seal_that_was_made_anew_in_tracker_and_store_does_not_fit_those_behind_it(sealed):
    sealed.tamper("UPDATE audit_log SET who = 'bob' WHERE id = 5")
    stored = sealed.store.read(2)
    forged = forge(stored, stored.lines.replace(b'"who":"ann"', b'"who":"bob"', 2))
    sealed.tamper("UPDATE audit_log SET who = 'bob' WHERE id = 4")
    sealed.objects.put(sealed.store.key(2), forged.to_bytes())
    sealed.tamper(
        f"UPDATE audit_seals SET entries_sha256 = '{forged.seal.entries_sha256}', "
        f"chain_sha256 = '{forged.seal.chain_sha256}' WHERE number = 2"
    )
    assert sealed.found() == [("chain_broken", 3, None)]


def test_the_tracker_alone_made_anew_is_found_with_each_entry(sealed):
    stored = sealed.store.read(3)
    forged = forge(stored, stored.lines.replace(b'"who":"ann"', b'"who":"bob"'))
    sealed.tamper("UPDATE audit_log SET who = 'bob' WHERE id >= 7")
    sealed.tamper(
        f"UPDATE audit_seals SET entries_sha256 = '{forged.seal.entries_sha256}', "
        f"chain_sha256 = '{forged.seal.chain_sha256}' WHERE number = 3"
    )
    assert sealed.found() == [
        ("seal_altered", 3, None), *[("entry_altered", 3, number) for number in (7, 8, 9)]
    ]  # fmt: skip


def test_hostile_lines_of_a_whole_object_stop_no_verification(sealed):
    lines = (
        b'{"id":"x"}\n{"id":1e999999999}\n'
        + b"[" * 9_000
        + b'\n{"a":1e99999999999999999999,"id":5,"who":{"\\u001b":1}}\n'
    )
    forged = forge(sealed.store.read(2), lines)
    sealed.objects.put(sealed.store.key(2), forged.to_bytes())
    assert {kind for kind, _, _ in sealed.found()} == {"object_altered"}
    forged = forge(replace(forged, seal=replace(forged.seal, entries=4)), lines)
    sealed.objects.put(sealed.store.key(2), forged.to_bytes())
    assert sealed.found()[:2] == [("seal_altered", 2, None), ("entry_added", 2, 4)]


def forge(stored: StoredSeal, lines: bytes) -> StoredSeal:
    """Return a whole seal of other entries."""
    seal = replace(stored.seal, entries_sha256=hashlib.sha256(lines).hexdigest())
    chain = seal.chained(stored.previous_sha256)
    return StoredSeal(replace(seal, chain_sha256=chain), stored.previous_sha256, lines)


def test_a_log_that_was_emptied_is_found(sealed):
    sealed.tamper("TRUNCATE audit_log, audit_seals")
    report = sealed.verify()
    assert [one.kind for one in report.findings] == ["store_has_more"]
    assert "seals 1 to 3: only in the store, with 9 entries of which the tracker has 0" in (
        report.findings[0].words
    )


def test_seals_removed_at_the_end_are_found_and_made_again_of_the_store(sealed):
    sealed.tamper("DELETE FROM audit_seals WHERE number >= 2")
    assert sealed.found() == [("seal_removed", 2, None), ("seal_removed", 3, None)]
    assert [seal.number for seal in sealed.seal()] == [2, 3]
    assert sealed.found() == []


def test_a_tracker_put_back_to_an_older_point_is_told_and_its_seals_go_behind_the_stores(sealed):
    sealed.tamper("DELETE FROM audit_seals WHERE number >= 2")
    sealed.tamper("DELETE FROM audit_log WHERE id >= 4")
    sealed.sql("SELECT setval('audit_log_id_seq', 3)")
    [finding] = sealed.verify().findings
    assert (finding.kind, finding.seal) == ("store_has_more", 2)
    assert "restored to an older point, or entries were removed" in finding.words
    sealed.write(2, who="joe")
    before = {number: sealed.objects.get(sealed.store.key(number)) for number in (1, 2, 3)}
    [seal] = sealed.seal()
    assert (seal.number, seal.after_number, seal.first_id, seal.last_id) == (4, 1, 4, 5)
    assert before == {number: sealed.objects.get(sealed.store.key(number)) for number in (1, 2, 3)}
    assert sealed.found() == [("store_has_more", 2, None)]
    sealed.write()
    assert [seal.number for seal in sealed.seal()] == [5]
    assert sealed.found() == [("store_has_more", 2, None)]
    assert sealed.verify(from_seal=4).found == 0
    sealed.tamper("UPDATE audit_log SET who = 'bob' WHERE id = 4")
    assert sealed.found() == [("store_has_more", 2, None), ("entry_altered", 4, 4)]
    assert sealed.verify(from_seal=5).found == 0
    with pytest.raises(NotFoundError, match="no seal 3"):
        sealed.verify(from_seal=3)


class DyingStore:
    """A store whose process is killed behind a seal's object."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def swap(self, key: str, body: bytes, *, expected: str | None) -> str | None:
        if self._objects.swap(key, body, expected=expected) is None:
            return None
        raise KilledError


def test_a_sealer_that_is_killed_behind_the_object_is_completed_by_the_next(log):
    log.write(2)
    log.seal()
    log.write(2)
    with pytest.raises(KilledError):
        log.seal(objects=DyingStore(log.objects))
    log.write(1)
    report = log.verify()
    assert (report.found, report.seals, report.unsealed) == (0, 1, 3)
    assert ["seal 2 is in the store" in note for note in report.notes] == [True]
    assert [(seal.number, seal.last_id) for seal in log.seal()] == [(2, 4), (3, 5)]
    assert (log.found(), log.verify().notes) == ([], [])


def test_a_sealer_of_a_restored_tracker_that_is_killed_is_completed_too(sealed):
    sealed.tamper("DELETE FROM audit_seals WHERE number >= 2")
    sealed.tamper("DELETE FROM audit_log WHERE id >= 4")
    sealed.write(2)
    with pytest.raises(KilledError):
        sealed.seal(objects=DyingStore(sealed.objects))
    assert sealed.store.highest() == 4
    assert [(seal.number, seal.after_number) for seal in sealed.seal()] == [(4, 1)]
    assert sealed.found() == [("store_has_more", 2, None)]


def test_entries_changed_between_object_and_row_are_not_sealed_over(log):
    log.write(2)
    with pytest.raises(KilledError):
        log.seal(objects=DyingStore(log.objects))
    log.tamper("UPDATE audit_log SET who = 'bob' WHERE id = 2")
    assert log.found() == [("store_has_more", 1, None)]
    assert [(seal.number, seal.after_number) for seal in log.seal()] == [(2, 0)]
    assert log.found() == [("store_has_more", 1, None)]


def test_a_chain_that_was_made_anew_is_not_the_one_that_was_noted(sealed):
    noted = sealed.verify().newest
    assert noted.startswith("3:")
    assert sealed.verify(expected=noted).findings == []
    sealed.tamper("DELETE FROM audit_seals WHERE number >= 2")
    sealed.objects.delete([sealed.store.key(number) for number in (2, 3)])
    assert [one.kind for one in sealed.verify(expected=noted).findings] == ["head_differs"]
    sealed.tamper("UPDATE audit_log SET who = 'eve' WHERE id = 5")
    assert [seal.number for seal in sealed.seal()] == [2]
    sealed.write()
    sealed.seal()
    assert sealed.found() == [], "nothing inside of tracker and bucket tells"
    [finding] = sealed.verify(expected=noted).findings
    assert (finding.kind, finding.seal) == ("head_differs", 3)
    for wrong in ("3", f"{noted}0", "0:" + "a" * 64, "x"):
        with pytest.raises(InputError, match="<number>:<digest>"):
            sealed.verify(expected=wrong)


def test_entries_that_nobody_seals_are_found_after_an_hour(sealed):
    sealed.write()
    sealed.tamper("UPDATE audit_log SET at = now() - interval '59 min' WHERE id = 10")
    assert sealed.found() == []
    sealed.tamper("UPDATE audit_log SET at = now() - interval '61 min' WHERE id = 10")
    assert sealed.found() == [("not_sealed", 4, None)]


def planted(log: SealedLog, **changed: Any) -> None:
    """Put an object into the bucket as a sealer that died would have left it, but for a field."""
    with pytest.raises(KilledError):
        log.seal(objects=DyingStore(log.objects))
    stored = log.store.read(2)
    made = replace(stored, seal=replace(stored.seal, **changed))
    seal = replace(made.seal, chain_sha256=made.seal.chained(made.previous_sha256))
    log.objects.put(log.store.key(2), replace(made, seal=seal).to_bytes())


@pytest.mark.parametrize(
    "changed",
    [
        {"sealed_at": "x"},
        {"sealed_at": "2026-01-01T00:00:00Z"},
        {"first_id": 1},
        {"last_id": 7},
        {"last_id": -(2**63)},
        {"after_number": 0},
    ],
    ids=str,
)
def test_an_object_that_somebody_planted_is_not_taken_for_a_seal_of_ours(log, changed):
    log.write(2)
    log.seal()
    log.write(2)
    planted(log, **changed)
    [seal] = log.seal()
    assert (seal.number, seal.first_id, seal.last_id) == (3, 3, 4)
    assert log.seal() == []
    assert log.found()[0][:2] == ("store_has_more", 2)


def test_an_object_that_is_far_too_large_is_not_read(log, monkeypatch):
    log.write()
    log.seal()
    monkeypatch.setattr("waybill.access.audit_seals._LARGEST_OBJECT", 10)
    assert [one.kind for one in log.verify().findings] == ["object_altered"]


def test_no_seal_follows_an_object_that_is_none(log):
    log.objects.put(log.store.key(1), b"{}\n")
    log.write()
    with pytest.raises(StopError, match=r"no whole seal.*waybill audit-log verify"):
        log.seal()
    assert [one.kind for one in log.verify().findings] == ["object_altered", "store_has_more"]


def test_a_late_entry_with_a_lower_id_is_in_the_seal(log):
    """A transaction drew an id first and commits last: the sealer waits for it."""
    with ThreadPoolExecutor() as pool:
        with log.tracker.transaction() as late:
            write_audit(late, who="late", action="hold", target="orders")
            log.write(who="early")
            sealing = pool.submit(log.seal)
            time.sleep(1.0)
            assert not sealing.done()
            log.write(who="not held up")
        sealed = [(seal.first_id, seal.last_id, seal.entries) for seal in sealing.result(30)]
    assert sealed == [(1, 2, 2), (3, 3, 1)]
    assert (log.found(), log.verify().unsealed) == ([], 0)


def test_a_writer_that_stays_open_is_told_and_nothing_is_sealed(log):
    with log.tracker.transaction() as late:
        write_audit(late, who="late", action="hold", target="orders")
        log.write()
        with pytest.raises(RetryError, match="1 transactions of the tracker"):
            log.seal(wait_s=0.5)
    assert (log.store.highest(), log.found(), log.verify().unsealed) == (0, [], 2)


def test_writers_sealers_and_verifications_at_once_find_nothing(log, monkeypatch):
    monkeypatch.setattr(audit_seals, "SEAL_ENTRIES", 7)
    ended = Event()

    def write(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(30):
            with log.tracker.transaction() as connection, connection.begin_nested() as inner:
                write_audit(connection, who="ann", action="hold", target="orders")
                time.sleep(dice.random() / 50)
                if dice.random() < 0.3:
                    inner.rollback()

    def seal() -> None:
        while not ended.is_set():
            with TrackerStore(log.settings.tracker) as tracker:
                AuditSealer(tracker, log.objects, signing_key="", wait_s=20).run()

    def verify() -> list[Any]:
        found: list[Any] = []
        while not ended.is_set():
            with TrackerStore(log.settings.tracker) as tracker:
                found += AuditVerifier(tracker, log.objects, signing_key="").run().findings
        return found

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(work) for work in (seal, seal, verify)]
        for writing in [pool.submit(write, seed) for seed in range(3)]:
            writing.result(120)
        ended.set()
        results = [other.result(120) for other in others]
    assert results[2] == []
    log.seal()
    report = log.verify()
    assert (report.findings, report.unsealed, report.notes) == ([], 0, [])
    assert report.entries == log.sql("SELECT count(*) FROM audit_log")[0][0]
    numbers = [number for (number,) in log.sql("SELECT number FROM audit_seals ORDER BY 1")]
    assert numbers == list(range(1, len(numbers) + 1))


def test_an_entry_with_the_last_id_that_there_is_stops_nothing(sealed):
    statement = "INSERT INTO audit_log (id, who, action, target) VALUES (:id, 'eve', 'x', 'y')"
    sealed.sql(statement, id=2**63 - 1)
    assert [seal.last_id for seal in sealed.seal()] == [2**63 - 1]
    assert (sealed.found(), sealed.seal(), sealed.verify().unsealed) == ([], [], 0)
    sealed.write()
    assert sealed.found() == [("entry_added", 4, 10)]
    stored = sealed.store.read(4)
    far = replace(stored, seal=replace(stored.seal, last_id=10**30))
    sealed.objects.put(sealed.store.key(4), forge(far, stored.lines).to_bytes())
    assert sealed.found() == [("object_altered", 4, None), ("entries_differ", 4, None)]


def test_of_two_sealers_at_once_one_seals(log):
    log.write(3)
    start = Barrier(4)

    def seal(_: int) -> Any:
        with TrackerStore(log.settings.tracker) as tracker:
            start.wait(30)
            return AuditSealer(tracker, log.objects, signing_key="", wait_s=20).run()

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(seal, range(4)))
    assert sum(len(report.seals) for report in reports) == 1
    assert log.found() == []
    with log.tracker.transaction() as connection:
        assert AdvisoryLock.AUDIT_SEAL.try_take(connection)
        with TrackerStore(log.settings.tracker) as tracker:
            report = AuditSealer(tracker, log.objects, signing_key="", wait_s=20).run()
    assert report.busy


def test_signatures_are_of_the_key(log):
    log.write()
    log.seal()
    assert log.found(key=KEY) == [("not_signed", 1, None)]
    log.write()
    log.seal(key=KEY)
    assert log.found(key=KEY) == []  # a signature is of the chain, so of all before it
    assert log.found(key="another") == [("signature_wrong", 2, None)]
    assert "not checked" in log.verify().notes[0]
    log.tamper("UPDATE audit_seals SET signature = '' WHERE number = 2")
    assert log.found(key=KEY) == [("seal_altered", 2, None), ("not_signed", 1, None)]


@pytest.mark.parametrize("table", ["audit_log", "audit_seals"])
@pytest.mark.parametrize(
    "statement", ["UPDATE {} SET {} = {}", "DELETE FROM {}", "TRUNCATE {}"], ids=lambda one: one[:6]
)  # fmt: skip
def test_the_tables_take_new_rows_only(log, table, statement):
    column = "id" if table == "audit_log" else "number"
    with pytest.raises(ProgrammingError, match=f"of {table} is refused"):
        log.sql(statement.format(table, column, column))


@pytest.fixture
def command(sealed: SealedLog, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    access = AccessSettings(audit_signing_secret=SecretStr(KEY))
    for name, value in sealed.settings.model_copy(update={"access": access}).to_env().items():
        monkeypatch.setenv(name, value)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["audit-log", *words], env={"COLUMNS": "80"})
        return done.exit_code, done.output

    return run


def test_the_commands_in_eighty_columns(sealed, command):
    code, said = command("verify")
    assert (code, "seals 1 to 3: not signed" in said) == (2, True)
    assert command("seal") == (0, "No entry is new since the last seal.\n")
    sealed.write()
    assert command("seal") == (0, "1 seal made, of 1 entry.\n")
    code, said = command("verify")
    told = "audit log: nothing was changed; checked 4 seals and 10 entries; 0 not sealed yet"
    newest = sealed.verify().newest
    assert (code, said) == (0, f"{told}\nnewest seal: {newest}\n")
    assert command("verify", "--expect", newest)[0] == 0
    assert command("verify", "--expect", f"4:{'0' * 64}")[0] == 2
    assert command("verify", "--expect", "newest")[0] == 1
    sealed.tamper(
        "UPDATE audit_log SET who = E'eve\\x1b[31m' || repeat('x', 400), target = E'a\\nb' WHERE id = 5"
    )
    sealed.tamper("DELETE FROM audit_log WHERE id = 1")
    sealed.tamper(
        "INSERT INTO audit_log (id, who, action, target) VALUES (-1, E'\\x1b[2J', 'x', E'\\u202e')"
    )
    code, said = command("verify")
    assert code == 2
    assert all(one.isprintable() for one in said.splitlines())
    assert max(map(len, said.splitlines())) <= 80
    words = " ".join(said.split())
    assert "entry 5: altered: target, who; sealed was:" in words
    assert "entry 1: removed: " in words
    assert r"entry -1: added behind seal 1: " in words
    assert "audit log: 3 findings; checked 4 seals and 10 entries; 0 not sealed yet" in words
    code, said = command("verify", "--json")
    assert (code, '"found":3' in said.replace(" ", "")) == (2, True)
    assert command("verify", "--from-seal", "3")[0] == 0
    assert command("verify", "--from-seal", "9")[0] == 3
