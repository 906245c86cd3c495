"""Whose bucket it is: one deployment (one tracker) writes to a bucket and deletes from it.

The object ``_waybill/owner.json`` names the deployment by the id that its tracker has from its
migration on, and keeps when it is restored. The first that opens a bucket without the object claims
it by a conditional PUT: of several, one wins. Everybody looks before the first write of a process,
and again before each deletion. A bucket of another deployment is refused.
"""

from __future__ import annotations

import getpass
import logging
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from waybill.errors import InputError, RetryError
from waybill.events import rfc3339
from waybill.settings import S3Settings, Settings, TrackerSettings
from waybill.storage.objects import ObjectMissingError, ObjectStore

if TYPE_CHECKING:  # executors know the deployment, and have nothing that asks the tracker
    from waybill.storage.tracker import TrackerStore

_LOG = logging.getLogger(__name__)
OWNER_KEY = "_waybill/owner.json"


@dataclass(frozen=True, slots=True)
class BucketOwner:
    """What the marker says."""

    deployment: str
    """Id of the deployment."""
    claimed_at: str
    """RFC 3339, UTC."""
    claimed_by: str
    """User and host."""
    etag: str = ""
    """Of the marker."""

    def to_json(self) -> dict[str, Any]:
        """Return the owner as JSON."""
        return {name: value for name, value in asdict(self).items() if name != "etag"}


class ForeignBucketError(InputError):
    """The bucket belongs to another deployment.

    Args:
        bucket: its name.
        owner: whose it is.
        mine: id of this deployment.
    """

    def __init__(self, bucket: str, owner: BucketOwner, mine: str) -> None:
        super().__init__(
            f"bucket {bucket!r} belongs to deployment {owner.deployment} (claimed "
            f"{owner.claimed_at} by {owner.claimed_by}), and this tracker is deployment {mine}: "
            "nothing is written to it or deleted from it. Give this deployment a bucket of its own "
            "(WAYBILL_S3__BUCKET) or the tracker that the bucket belongs to (WAYBILL_TRACKER__DSN)."
            " If the other deployment is gone for good, take the bucket over with "
            f"`waybill bucket claim {owner.deployment}`"
        )


def open_owned_objects(settings: Settings) -> ObjectStore:
    """Open the object store for a process that writes; nothing is sent yet.

    Its first write, and each deletion, raises ForeignBucketError where the bucket belongs to
    another deployment, and RetryError while the tracker or the store cannot be asked.
    """
    return ObjectStore(settings.s3, guard=partial(_guard, settings.tracker))


def open_objects_of(settings: S3Settings, deployment: str) -> ObjectStore:
    """Open the object store for a process that writes and knows whose the bucket must be.

    As `open_owned_objects`, without a tracker.
    """
    return ObjectStore(settings, guard=partial(_guard_known, deployment))


def refuse_foreign_bucket(settings: Settings) -> None:
    """Ask once more whose the bucket is, at the beginning of a run that writes or deletes.

    While the store or the tracker is away nothing is said: the first write asks again.

    Raises:
        ForeignBucketError: it is another deployment's.
    """
    try:
        check_owner(ObjectStore(settings.s3), deployment_id(settings.tracker))
    except RetryError as error:
        _LOG.warning("whose bucket %r is, is asked later: %s", settings.s3.bucket, error)


def deployment_id(settings: TrackerSettings) -> str:
    """Return the id of a tracker's deployment.

    Raises:
        RetryError: the tracker does not answer, or is not migrated.
    """
    from waybill.storage.tracker import open_tracker

    with open_tracker(settings) as tracker:
        return deployment_of(tracker)


def deployment_of(tracker: TrackerStore) -> str:
    """Return the id of an open tracker's deployment.

    Raises:
        RetryError: the tracker does not answer, or is not migrated.
    """
    from sqlalchemy import select

    from waybill.storage.tracker import deployment

    with tracker.transaction() as connection:
        found = connection.execute(select(deployment.c.id)).scalar()
    if found is None:
        raise InputError(
            "the tracker has lost the id of its deployment (table deployment is empty): restore "
            "the row from a backup"
        )
    return str(found)


_VERIFIED: set[tuple[str, TrackerSettings | str]] = set()
"""(bucket with its server, tracker or deployment): what this process has seen to belong
together."""


def _guard(tracker: TrackerSettings, store: ObjectStore, deletes: bool) -> None:  # noqa: FBT001
    if deletes or (store.address, tracker) not in _VERIFIED:
        check_owner(store, deployment_id(tracker))
        _VERIFIED.add((store.address, tracker))


def _guard_known(deployment: str, store: ObjectStore, deletes: bool) -> None:  # noqa: FBT001
    if deletes or (store.address, deployment) not in _VERIFIED:
        check_owner(store, deployment)
        _VERIFIED.add((store.address, deployment))


def check_owner(store: ObjectStore, mine: str) -> BucketOwner:
    """Return the owner of a bucket, which is this deployment; a bucket that is nobody's is claimed.

    Raises:
        ForeignBucketError: it is another's.
        InputError: the marker cannot be read or written.
        RetryError: the store does not answer.
    """
    owner = read_owner(store)
    if owner is None:
        claim(store, mine, expected=None)
        owner = read_owner(store)
    if owner is None:
        raise RetryError(f"bucket {store.bucket!r}: {OWNER_KEY!r} was deleted as it was written")
    if owner.deployment != mine:
        raise ForeignBucketError(store.bucket, owner, mine)
    return owner


def read_owner(store: ObjectStore) -> BucketOwner | None:
    """Return the owner that a bucket names; None: nobody.

    Raises:
        InputError: the marker is not what was written there.
    """
    try:
        body, etag = store.get_tagged(OWNER_KEY)
    except ObjectMissingError:
        return None
    try:
        content = orjson.loads(body)
        named = [content[name] for name in ("deployment", "claimed_at", "claimed_by")]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"bucket {store.bucket!r}: {OWNER_KEY!r} does not say whose it is ({error!r}); restore "
            "it from the bucket's backup, or delete it if the bucket is this deployment's"
        ) from error
    return BucketOwner(str(named[0]), str(named[1]), str(named[2]), etag)


def claim(store: ObjectStore, mine: str, *, expected: BucketOwner | None) -> bool:
    """Write this deployment into a bucket's marker; False: the marker is not what was expected.

    Args:
        store: the bucket.
        mine: id of this deployment.
        expected: the owner as it was read; None: there was none.
    """
    now = rfc3339(datetime.now(UTC).replace(microsecond=0))
    owner = BucketOwner(mine, now, f"{getpass.getuser()}@{socket.gethostname()}")
    body = orjson.dumps(owner.to_json(), option=orjson.OPT_INDENT_2)
    etag = None if expected is None else expected.etag
    return store.swap_unguarded(OWNER_KEY, body, expected=etag) is not None
