"""An Auto Scaling group that gives nodes, against moto's server on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from tests import servers

from waybill.capacity import AutoScalingNodes
from waybill.errors import AwayError, InputError

GROUP = "ingestion"
IMAGE = "ami-0123456789abcdef0"
_NO_IMAGES = {"MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}
"""The server has 1,300 images otherwise, made again behind each reset. No test asks what they are."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: Any) -> Iterator[str]:
    port = servers.random_ports().airflow_port
    log = (tmp_path_factory.mktemp("moto") / "moto.log").open("wb")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, **_NO_IMAGES}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 300
        while True:
            assert process.poll() is None, "moto's server ended"
            assert time.monotonic() < until
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/moto-api/data.json", timeout=30).is_success:
                    break
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(120)
        log.close()


def client(address: str) -> Any:
    return boto3.client(
        "autoscaling",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"max_attempts": 1}, connect_timeout=60, read_timeout=240),
    )


@pytest.fixture
def group(address: str) -> AutoScalingNodes:
    """A group of two instances, and at most five."""
    httpx.post(f"{address}/moto-api/reset", timeout=240).raise_for_status()
    scaling = client(address)
    scaling.create_launch_configuration(
        LaunchConfigurationName="node", ImageId=IMAGE, InstanceType="t3.micro"
    )
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        LaunchConfigurationName="node",
        MinSize=0,
        MaxSize=5,
        DesiredCapacity=2,
        AvailabilityZones=["us-east-1a"],
    )
    return AutoScalingNodes(GROUP, scaling)


def test_asking_twice_for_a_total_adds_its_nodes_once(group):
    before = set(group.nodes())
    assert len(before) == 2
    group.resize(4)
    group.resize(4)
    assert len(group.nodes()) == 4
    assert before < set(group.nodes())


def test_a_total_below_what_there_is_ends_nobody(group):
    before = set(group.nodes())
    group.resize(1)
    assert set(group.nodes()) == before


def test_exactly_the_node_that_drained_is_ended_and_none_comes_in_its_place(group):
    first, second = sorted(group.nodes())
    group.remove(first)
    assert list(group.nodes()) == [second]
    group.remove(first)
    assert list(group.nodes()) == [second], "again changes nothing"


def test_more_than_the_group_may_have_is_refused_with_its_limit(group):
    with pytest.raises(InputError, match="has MaxSize 5, and 6 are needed"):
        group.resize(6)


def test_a_group_that_there_is_not_and_an_aws_that_is_away_say_so(address, group):
    with pytest.raises(InputError, match="there is no Auto Scaling group absent"):
        AutoScalingNodes("absent", client(address)).nodes()
    with pytest.raises(AwayError, match="does not answer"):
        AutoScalingNodes(GROUP, client("http://127.0.0.1:1")).nodes()


def test_an_aws_that_refuses_is_told_apart_from_one_that_is_away(group, monkeypatch):
    from botocore.exceptions import ClientError

    def refused(**_: Any) -> None:
        answer = {"Error": {"Code": "AccessDenied", "Message": "not you"}}
        raise ClientError(answer, "SetDesiredCapacity")

    monkeypatch.setattr(group._client, "set_desired_capacity", refused)
    with pytest.raises(InputError, match="AWS refused set_desired_capacity: .*not you"):
        group.resize(3)
