"""The bucket where rows wait for Redshift's COPY."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from waybill.destinations.warehouses.errors import WarehouseError

_TRANSIENT = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout"})


class StagingBucket:
    """Objects under one bucket, written and deleted.

    Args:
        region: of the bucket; None: as the environment says.
    """

    def __init__(self, region: str | None) -> None:
        import boto3
        from botocore.config import Config

        limits = Config(
            connect_timeout=5, read_timeout=60, retries={"mode": "standard", "max_attempts": 4}
        )
        self._client = boto3.client("s3", region_name=region, config=limits)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object."""
        with _translating():
            self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object."""
        with _translating():
            self._client.delete_object(Bucket=bucket, Key=key)


@contextmanager
def _translating() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _TRANSIENT:
            raise WarehouseError(f"the staging bucket: {error}", away=True) from error
        raise WarehouseError(f"the staging bucket: {error}", "s3") from error
    except BotoCoreError as error:
        raise WarehouseError(f"the staging bucket: {error}", away=True) from error
