from __future__ import annotations

import os
import socket

import pytest

from waybill.errors import InputError
from waybill.settings import StackSettings
from waybill.stack import ports


@pytest.fixture
def listening():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_in_use_names_the_port_its_holder_and_the_setting(listening: int) -> None:
    with pytest.raises(InputError) as error:
        ports.require_free({"kafka_port": listening})
    words = str(error.value)
    assert f"port {listening} is in use by pid {os.getpid()}" in words
    assert "WAYBILL_STACK__KAFKA_PORT=<port>" in words
    assert "--free-ports" in words


def test_the_grpc_port_beside_an_s3_port_is_checked_too(listening: int) -> None:
    if listening <= ports.GRPC_OFFSET + 1024:
        pytest.skip("the system gave a low port")
    with pytest.raises(InputError, match=rf"port {listening} \(opened beside"):
        ports.require_free({"s3_master_port": listening - ports.GRPC_OFFSET})


def test_only_a_busy_port_is_moved(listening: int) -> None:
    random = ports.with_random_ports(StackSettings())
    moved = ports.with_free_ports(random.model_copy(update={"kafka_port": listening}))
    assert moved.kafka_port != listening
    assert moved.model_copy(update={"kafka_port": 1}) == random.model_copy(update={"kafka_port": 1})


def test_a_kept_port_stays_although_it_is_in_use(listening: int) -> None:
    stack = ports.with_random_ports(StackSettings()).model_copy(update={"kafka_port": listening})
    assert ports.with_free_ports(stack, keep=["kafka_port"]).kafka_port == listening


def test_random_ports_never_meet_each_other_or_a_grpc_port() -> None:
    for _ in range(20):
        chosen = ports.port_settings(ports.with_random_ports(StackSettings()))
        opened = [p for name, port in chosen.items() for p in ports.needed(name, port)]
        assert len(set(opened)) == len(opened)
        assert max(opened) < 32_768, "may be taken by an outgoing connection"
