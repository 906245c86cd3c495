"""Whose the bucket is, and taking it over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waybill.errors import InputError
from waybill.settings import Settings
from waybill.storage import (
    BucketOwner,
    claim,
    deployment_id,
    open_objects,
    open_tracker,
    read_owner,
)

if TYPE_CHECKING:
    from waybill.access import Decision


@dataclass(frozen=True, slots=True)
class BucketReport:
    """A bucket, its owner, and who asks."""

    bucket: str
    server: str
    deployment: str
    """Id of this deployment."""
    owner: BucketOwner | None
    """None: the bucket is nobody's yet; the first that writes claims it."""

    @property
    def is_ours(self) -> bool:
        """Tell whether this deployment writes to it."""
        return self.owner is not None and self.owner.deployment == self.deployment

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "bucket": self.bucket,
            "server": self.server,
            "deployment": self.deployment,
            "owner": None if self.owner is None else self.owner.to_json(),
            "ours": self.is_ours,
        }


def bucket_owner(settings: Settings) -> BucketReport:
    """Return whose the bucket of these settings is. Claims nothing."""
    s3 = settings.s3
    server = s3.endpoint_url or f"AWS {s3.region}"
    owner = read_owner(open_objects(s3))
    return BucketReport(s3.bucket, server, deployment_id(settings.tracker), owner)


def claim_bucket(settings: Settings, owner: str | None, decision: Decision) -> BucketReport:
    """Make the bucket this deployment's; processes of the other may write until they end.

    Args:
        settings: of this deployment.
        owner: id of the deployment that it is taken from; None: it is nobody's.
        decision: who takes it, and why: for the audit log.

    Raises:
        InputError: it is not, or no longer, the named deployment's.
    """
    from waybill.access import write_audit

    why = decision.require_why()
    now = bucket_owner(settings)
    if now.is_ours:
        return now
    present = None if now.owner is None else now.owner.deployment
    if present != owner:
        raise InputError(
            f"bucket {now.bucket!r} is {_whose(present)}, not {_whose(owner)}; "
            "see `waybill bucket show`"
        )
    if not claim(open_objects(settings.s3), now.deployment, expected=now.owner):
        raise InputError(
            f"bucket {now.bucket!r} was claimed by somebody else meanwhile; "
            "see `waybill bucket show`"
        )
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        target = f"bucket {now.bucket}"
        write_audit(
            connection, who=decision.who, action="claim_bucket", target=target,
            taken_from=present, reason=why, server=now.server,
        )  # fmt: skip
    return bucket_owner(settings)


def _whose(deployment: str | None) -> str:
    return "nobody's" if deployment is None else f"deployment {deployment}'s"
