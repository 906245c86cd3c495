"""What may and may not be configured; the public surface; the lock."""

import os
import subprocess
import sys

import pytest

from waybill.errors import InputError, RetryError
from waybill.producer import LosslessProducer, ProducerBusyError, WalFullError
from waybill.producer.client import (
    consumer_config,
    pack_stamp,
    producer_config,
    read_stamp,
    stamp_prefix,
)
from waybill.producer.forks import DirectoryLock
from waybill.producer.lossless import _folder_name
from waybill.settings import WalSettings

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


def test_what_may_pass_later_says_so():
    assert issubclass(ProducerBusyError, RetryError)
    assert issubclass(WalFullError, RetryError)


@pytest.mark.parametrize(
    "bad",
    [
        {"acks": 1},
        {"request.required.acks": "0"},
        {"enable.idempotence": False},
        {"transactional.id": "x"},
        {"delivery.report.only.error": True},
        {"bootstrap.servers": ""},
    ],
)
def test_a_setting_that_breaks_the_guarantee_is_refused(bad):
    with pytest.raises(InputError):
        producer_config({**SERVERS, **bad}, WalSettings())


def test_the_guarantee_s_settings_are_set_and_the_caller_s_are_kept():
    given = {**SERVERS, "acks": "-1", "enable.idempotence": "true", "linger.ms": 7}
    config = producer_config(given, WalSettings(max_in_flight=123))
    assert config["acks"] == "all"
    assert config["enable.idempotence"] is True
    assert config["message.timeout.ms"] == 0
    assert config["queue.buffering.max.messages"] == 123
    assert config["linger.ms"] == 7


def test_the_reader_takes_addresses_and_credentials_and_nothing_of_producing():
    given = {**SERVERS, "sasl.username": "u", "acks": "all", "linger.ms": 7, "batch.size": 1}
    config = consumer_config(given, b"i" * 16)
    assert config["sasl.username"] == "u"
    assert not {"acks", "linger.ms", "batch.size"} & config.keys()


def test_a_stamp_comes_back_and_foreign_bytes_are_none():
    assert read_stamp(pack_stamp(stamp_prefix(b"i" * 16, 7), 2**40)) == (b"i" * 16, 7, 2**40)
    for foreign in (b"", b"x" * 27, b"x" * 29, None, "text"):
        assert read_stamp(foreign) is None


@pytest.mark.parametrize("name", ["a", "../../etc", ".", "..", "a/b", "nul\0", "é" * 30, "😀"])
def test_any_name_is_one_folder_below_the_directory(name, tmp_path):
    path = tmp_path / _folder_name(name)
    path.mkdir()
    assert path.parent.resolve() == tmp_path.resolve()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_a_name_that_cannot_be_a_folder_is_refused(name, tmp_path):
    with pytest.raises(InputError):
        LosslessProducer(WalSettings(dir=tmp_path), SERVERS, name=name)


def test_a_second_opening_is_told_who_holds_the_log(tmp_path):
    lock = DirectoryLock(tmp_path)
    with pytest.raises(ProducerBusyError, match=str(os.getpid())) as caught:
        DirectoryLock(tmp_path)
    assert caught.value.pid == os.getpid()
    lock.release()
    DirectoryLock(tmp_path).release()


def test_the_lock_ends_with_its_process(tmp_path):
    code = (
        "import sys, os, pathlib; from waybill.producer.forks import DirectoryLock;"
        "lock = DirectoryLock(pathlib.Path(sys.argv[1])); print(os.getpid(), flush=True);"
        "sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    with pytest.raises(ProducerBusyError, match=f"process {child.pid}"):
        DirectoryLock(tmp_path)
    child.kill()
    child.wait(300)
    DirectoryLock(tmp_path).release()


@pytest.mark.parametrize(
    "bad",
    [
        {"topic": ""},
        {"topic": "t\0"},
        {"topic": "\ud800"},
        {"topic": "t", "headers": {"\ud800": b""}},
        {"topic": "t", "headers": {"h": "\ud800"}},
        {"topic": "t", "value": 5.0},
        {"topic": "t", "key": 5},
        {"topic": "t", "value": ["x"]},
        {"topic": "t", "headers": {"h": 5}},
    ],
)
def test_what_is_no_message_is_refused_before_the_log(tmp_path, bad):
    quiet = {**SERVERS, "log_level": 0}
    with LosslessProducer(WalSettings(dir=tmp_path), quiet, name="p") as producer:
        with pytest.raises((InputError, TypeError)):
            producer.produce(**bad)
        assert producer.stats.appended == 0
        assert producer.flush(0) == 0
