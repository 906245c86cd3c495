"""Who gives nodes: one protocol, whatever is behind it.

A call says how many nodes there are to be, not how many more: repeated after a death in between it
adds none twice. Removing a node that is gone already changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Protocol

from waybill.errors import AwayError, InputError

_LOG = logging.getLogger(__name__)
_REFUSED = frozenset({
    "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "ValidationError",
    "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken", "AuthFailure",
})  # fmt: skip
_GOING = frozenset({"Terminating", "Terminating:Wait", "Terminating:Proceed", "Terminated"})


class NodeBackend(Protocol):
    """Gives nodes of one kind, and takes them back. A node's name is what it reports under."""

    name: str
    """For people."""
    acts: bool
    """It gives and takes nodes; else it only says so, and no node drains for it."""

    def nodes(self) -> Collection[str] | None:
        """Return the names of the nodes that it has, also those that start; None: it has none.

        Raises:
            AwayError: it does not answer.
            InputError: it refuses.
        """

    def resize(self, total: int) -> None:
        """Have so many nodes; never called with fewer than it has.

        Raises:
            AwayError: it does not answer.
            InputError: it refuses.
        """

    def remove(self, node: str) -> None:
        """End a node that is drained; raises as ``resize``."""


class DryRunNodes:
    """Says what it would do, in the log, and gives nothing."""

    name = "dry run"
    acts = False

    def nodes(self) -> Collection[str] | None:
        """Return None: whoever reports is there."""
        return None

    def resize(self, total: int) -> None:
        """Say it."""
        _LOG.info("dry run: %d nodes would be asked for", total)

    def remove(self, node: str) -> None:
        """Say it."""
        _LOG.info("dry run: node %s is drained and would be ended", node)


class AutoScalingNodes:
    """An Auto Scaling group of AWS. A node's name is its instance id.

    Args:
        group: its name.
        client: boto3's, of ``autoscaling``.
    """

    acts = True

    def __init__(self, group: str, client: Any) -> None:
        self.name = f"Auto Scaling group {group}"
        self._group, self._client = group, client

    def nodes(self) -> Collection[str] | None:
        """Return the instances that are not on their way out."""
        return [
            one["InstanceId"]
            for one in self._describe()["Instances"]
            if one["LifecycleState"] not in _GOING
        ]

    def resize(self, total: int) -> None:
        """Set the desired capacity; the group's own MaxSize holds."""
        group = self._describe()
        if total > group["MaxSize"]:
            raise InputError(f"{self.name} has MaxSize {group['MaxSize']}, and {total} are needed")
        if total > group["DesiredCapacity"]:
            self._call(
                "set_desired_capacity",
                AutoScalingGroupName=self._group,
                DesiredCapacity=total,
                HonorCooldown=False,
            )

    def remove(self, node: str) -> None:
        """End this instance, and have the group want one less."""
        if node in (self.nodes() or ()):
            self._call(
                "terminate_instance_in_auto_scaling_group",
                InstanceId=node,
                ShouldDecrementDesiredCapacity=True,
            )

    def _describe(self) -> dict[str, Any]:
        answer = self._call("describe_auto_scaling_groups", AutoScalingGroupNames=[self._group])
        groups: list[dict[str, Any]] = answer["AutoScalingGroups"]
        if not groups:
            raise InputError(f"there is no {self.name} in this account and region")
        return groups[0]

    def _call(self, method: str, **given: Any) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            answer: dict[str, Any] = getattr(self._client, method)(**given)
        except NoCredentialsError as error:
            raise InputError(f"{self.name}: AWS has no credentials: {error}") from error
        except ClientError as error:
            words = f"{self.name}: AWS refused {method}: {error}"
            if error.response.get("Error", {}).get("Code") in _REFUSED:
                raise InputError(words) from error
            raise AwayError(words, setting="AWS_ENDPOINT_URL") from error
        except BotoCoreError as error:
            words = f"{self.name} does not answer: {error}"
            raise AwayError(words, setting="AWS_ENDPOINT_URL") from error
        return answer


__all__ = ["AutoScalingNodes", "DryRunNodes", "NodeBackend"]
