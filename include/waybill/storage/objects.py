"""The object store: a thin, typed face over botocore's S3 client with our errors.

Retries: botocore's "standard" mode retries connection faults and throttling by itself; what is left
surfaces as RetryError, so that a caller decides whether to wait (``waiting``) or to give up.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any, Protocol

from waybill.errors import (
    AwayError,
    InputError,
    NotDeletedError,
    RetryError,
    ThrottledError,
    WaybillError,
)
from waybill.settings import S3Settings
from waybill.waiting import answered

_DELETE_MOST = 1000
_MOST_REASONS = 1000
"""Objects that a deletion keeps the reasons of."""
PROBE_KEY = "_waybill/probe"
"""Written and read to find out whether the store answers."""
_NOT_FOUND = {"NoSuchKey", "404", "NotFound"}
_NO_KEY = {"KeyTooLongError", "InvalidURI", "InvalidObjectName", "XMinioInvalidObjectName"}
"""What stores answer to a key that no object can have."""
_LONGEST_KEY_BYTES = 1024
_BEYOND = {"InvalidRange", "416"}
_ANOTHER = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
_DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403", "NoSuchBucket"}

_SLOWER = {"SlowDown", "503", "429", "TooManyRequests", "TooManyRequestsException"}
_SLOWER |= {"Throttling", "ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable"}


class ObjectShorterError(WaybillError):
    """The object ends before the bytes that were asked for."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} ends before the bytes that were asked for")
        self.key = key


class ObjectMissingError(WaybillError):
    """The object is not there."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} is not in the store")
        self.key = key


class _AnotherError(WaybillError):
    """The object is not the one that was expected."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing."""

    key: str
    size: int
    """Bytes."""
    modified: datetime


class ObjectStore:
    """One bucket. Safe for several threads; not across a fork (open it after).

    Args:
        settings: where it is.
        guard: called before each write, with the store and whether objects are deleted; raises
            where nothing is to be written. See ``bucket_owner``.
    """

    def __init__(
        self, settings: S3Settings, *, guard: Callable[[ObjectStore, bool], None] | None = None
    ) -> None:
        self.bucket = settings.bucket
        self.address = f"{settings.endpoint_url or settings.region}/{settings.bucket}"
        """The bucket with its server."""
        self._guard = guard
        self._settings = settings
        self._client: Any = None
        self._lock = threading.Lock()

    def put(self, key: str, body: bytes) -> str:
        """Store an object whole and return its ETag; the store checks the bytes by their MD5.

        Raises:
            RetryError: the store did not answer; whether the object is there is not known.
            InputError: no such bucket, or no right to write.
        """
        self._check(deletes=False)
        answer = self._call("put_object", key, **self._whole(key, body))
        return str(answer["ETag"]).strip('"')

    def put_waiting(self, key: str, body: bytes, *, limit_s: float) -> str:
        """Like ``put``, waiting with back-off while the store is away, up to ``limit_s``.

        Raises:
            RetryError: it stayed away for that long.
        """
        from tenacity import (
            Retrying,
            retry_if_exception_type,
            stop_after_delay,
            wait_random_exponential,
        )

        for attempt in Retrying(
            retry=retry_if_exception_type(RetryError),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            stop=stop_after_delay(limit_s),
            reraise=True,
        ):
            with attempt:
                etag = self.put(key, body)
        return etag

    def get(self, key: str, *, position: int | None = None, length: int | None = None) -> bytes:
        """Return an object's bytes, or ``length`` of them from ``position``.

        Raises:
            ObjectMissingError: there is no such object, or no object can have such a key.
            ObjectShorterError: it ends before ``position``.
            RetryError: the store did not answer.
        """
        if not _can_be(key):
            raise ObjectMissingError(key)
        extra: dict[str, Any] = {}
        if position is not None and length is not None:
            extra["Range"] = f"bytes={position}-{position + length - 1}"
        answer = self._call("get_object", key, Bucket=self.bucket, Key=key, **extra)
        try:
            return bytes(answer["Body"].read())
        except Exception as error:
            raise RetryError(f"reading {key!r} broke off: {error}") from error

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        """Return an object's bytes and its ETag; raises as ``get``."""
        answer = self._call("get_object", key, Bucket=self.bucket, Key=key)
        try:
            return bytes(answer["Body"].read()), str(answer["ETag"]).strip('"')
        except Exception as error:
            raise RetryError(f"reading {key!r} broke off: {error}") from error

    def swap(self, key: str, body: bytes, *, expected: str | None) -> str | None:
        """Store an object if the store has what is expected, and return its ETag; None: it has not.

        Args:
            key: of the object.
            body: its new bytes.
            expected: ETag of what is there; None: nothing is.

        Raises:
            RetryError: the store did not answer, or knows no conditional PUT; it may be stored.
        """
        self._check(deletes=False)
        return self.swap_unguarded(key, body, expected=expected)

    def swap_unguarded(self, key: str, body: bytes, *, expected: str | None) -> str | None:
        """Like ``swap``, of a bucket whoever's it is."""
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": f'"{expected}"'}
        try:
            answer = self._call("put_object", key, **self._whole(key, body), **condition)
        except (_AnotherError, ObjectMissingError):
            return None
        return str(answer["ETag"]).strip('"')

    def _whole(self, key: str, body: bytes) -> dict[str, Any]:
        """Return the arguments of a PUT; a bucket with object lock takes none without a digest."""
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        return {"Bucket": self.bucket, "Key": key, "Body": body, "ContentMD5": digest}

    def exists(self, key: str) -> bool:
        """Tell whether the object is there."""
        try:
            self._call("head_object", key, Bucket=self.bucket, Key=key)
        except ObjectMissingError:
            return False
        return True

    def answers(self) -> bool:
        """Tell whether an object can be stored and read back now. Cost: two requests."""
        try:
            self.put(PROBE_KEY, b"waybill")
            self.get(PROBE_KEY)
        except (RetryError, InputError, ObjectMissingError):
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix, in the store's order (not always sorted)."""
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", prefix, Bucket=self.bucket, Prefix=prefix, **token)
            for row in page.get("Contents", ()):
                yield ObjectInfo(row["Key"], int(row["Size"]), row["LastModified"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is not there is no error. Up to 1,000 keys a call to the store.

        Raises:
            NotDeletedError: some could not be deleted; all others are.
            RetryError: the store did not answer; call again with the same keys.
            InputError: no such bucket, or no right to delete.
        """
        if keys:
            self._check(deletes=True)
        reasons: dict[str, str] = {}
        for start in range(0, len(keys), _DELETE_MOST):
            reasons |= self._delete_at_once(keys[start : start + _DELETE_MOST])
        if reasons:
            raise NotDeletedError(reasons)

    def _delete_at_once(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete objects by one call; return {key: why} of those that could not be."""
        answer = self._call(
            "delete_objects",
            keys[0],
            Bucket=self.bucket,
            Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True},
        )
        reasons = {
            str(one.get("Key")): f"{one.get('Code')} {one.get('Message')}"
            for one in answer.get("Errors", ())
        }
        if reasons.keys() <= set(keys):
            return reasons
        return dict.fromkeys(keys, next(iter(reasons.values())))  # it does not say which

    def _check(self, *, deletes: bool) -> None:
        if self._guard is not None:
            self._guard(self, deletes)

    def ensure_bucket(self) -> None:
        """Create the bucket when it is missing."""
        try:
            self._call("head_bucket", self.bucket, Bucket=self.bucket)
        except (ObjectMissingError, InputError):
            self._call("create_bucket", self.bucket, Bucket=self.bucket)

    def _call(self, method: str, key: str, **arguments: Any) -> Any:
        if {"IfMatch", "IfNoneMatch"} & arguments.keys():  # it may be done when no answer comes
            return self._call_once(method, key, arguments)
        return answered(lambda: self._call_once(method, key, arguments))

    def _call_once(self, method: str, key: str, arguments: dict[str, Any]) -> Any:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        try:
            return getattr(self._opened_client(), method)(**arguments)
        except ClientError as error:
            raise _sorted_error(error.response, key, self.bucket) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise InputError(
                f"no keys for the object store: {error}; set WAYBILL_S3__ACCESS_KEY and "
                "WAYBILL_S3__SECRET_KEY, or AWS's own variables"
            ) from error
        except BotoCoreError as error:
            message = f"object store did not answer for {key!r}: {error}"
            raise AwayError(message, setting="WAYBILL_S3__ENDPOINT_URL") from error

    def _opened_client(self) -> Any:
        """Return the client; it is made for the first call, which most commands never do."""
        with self._lock:
            if self._client is None:
                self._client = _client(self._settings)
            return self._client


class Deleting(Protocol):
    """What a deletion needs of a store; ``ObjectStore`` is one."""

    def delete(self, keys: Sequence[str]) -> None:
        """As ``ObjectStore.delete``."""
        ...


class Deletion:
    """Deletes objects, some at a time, and tells at its end which could not be.

    So one object that is held, or that a policy keeps, keeps no other from going.

    Args:
        store: where they are.
    """

    def __init__(self, store: Deleting) -> None:
        self._store = store
        self._reasons: dict[str, str] = {}

    def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete objects, and return those that are gone.

        Raises:
            RetryError, InputError: as ``ObjectStore.delete``, where none could be asked for.
        """
        if not keys:
            return []
        try:
            self._store.delete(keys)
        except NotDeletedError as error:
            left = _MOST_REASONS - len(self._reasons)
            self._reasons |= dict(islice(error.reasons.items(), left))
            return [key for key in keys if key not in error.reasons]
        return list(keys)

    def end(self) -> None:
        """Raise NotDeletedError if some could not be deleted; call it once all else is done."""
        if self._reasons:
            raise NotDeletedError(self._reasons)


def _can_be(key: str) -> bool:
    """Tell whether an object may have such a key in every store: asked for what others named."""
    if not key or "\0" in key or {".", ".."} & set(key.replace("\\", "/").split("/")):
        return False
    try:
        return len(key.encode()) <= _LONGEST_KEY_BYTES
    except UnicodeEncodeError:
        return False


def _sorted_error(response: Any, key: str, bucket: str) -> WaybillError:
    code = str(response.get("Error", {}).get("Code", ""))
    message = str(response.get("Error", {}).get("Message", ""))
    if code in _NOT_FOUND | _NO_KEY:
        return ObjectMissingError(key)
    if code in _BEYOND:
        return ObjectShorterError(key)
    if code in _ANOTHER:
        return _AnotherError(f"object {key!r} is another: {code} {message}")
    if code in _DENIED:
        return InputError(
            f"object store refused {key!r} in bucket {bucket!r}: {code} {message}; "
            "check WAYBILL_S3__BUCKET, its keys and rights"
        )
    if code in _SLOWER:
        return ThrottledError(f"object store asks for fewer requests at {key!r}: {code} {message}")
    return RetryError(f"object store answered {code} for {key!r}: {message}")


@cache
def _session() -> Any:
    """Return the process's session: it keeps what it read of S3's model, 65 ms of CPU.

    Boto3's own, which adds resources and transfers, takes 0.1 s of CPU to import.
    """
    from botocore.session import Session

    return Session()


def _client(settings: S3Settings) -> Any:
    from botocore.config import Config

    secret = settings.secret_key.get_secret_value() if settings.secret_key else None
    access = settings.access_key.get_secret_value() if settings.access_key else None
    return _session().create_client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=Config(
            signature_version="s3v4",
            connect_timeout=5,
            read_timeout=60,
            retries={"mode": "standard", "max_attempts": 4},
            s3={"addressing_style": "path"} if settings.endpoint_url else {},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def open_objects(settings: S3Settings) -> ObjectStore:
    """Open the object store; nothing is sent yet."""
    return ObjectStore(settings)
