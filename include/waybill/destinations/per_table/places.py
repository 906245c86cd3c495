"""Folders of tables: names as they are where they are harmless, all else in hex."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from waybill.errors import InputError

_HARMLESS = re.compile(r"[A-Za-z0-9_-]")


def folder_of(name: str) -> str:
    """Return the folder of a schema or table; no two names have the same one.

    Letters, digits, ``_`` and ``-`` stay; another character is ``~`` and its UTF-8 in hex.
    """
    return "".join(
        c if _HARMLESS.fullmatch(c) else "".join(f"~{byte:02x}" for byte in c.encode())
        for c in name
    )


def is_remote(dsn: str) -> bool:
    """Say whether a dsn is a bucket's."""
    return dsn.startswith(("s3://", "s3a://"))


def remove_folder(uri: str, options: dict[str, str]) -> None:
    """Delete a folder and all that is in it, on a disk or in a bucket."""
    if not is_remote(uri):
        shutil.rmtree(Path(uri), ignore_errors=True)
        return
    import boto3
    from botocore.config import Config

    settings: dict[str, Any] = {
        "config": Config(
            connect_timeout=5, read_timeout=60, retries={"mode": "standard", "max_attempts": 4}
        ),
        "endpoint_url": options.get("AWS_ENDPOINT_URL"),
        "region_name": options.get("AWS_REGION"),
        "aws_access_key_id": options.get("AWS_ACCESS_KEY_ID"),
        "aws_secret_access_key": options.get("AWS_SECRET_ACCESS_KEY"),
    }
    bucket, _, prefix = uri.partition("://")[2].partition("/")
    found = boto3.resource("s3", **settings).Bucket(bucket)
    found.objects.filter(Prefix=f"{prefix}/").delete()


def root_of(name: str, dsn: str) -> tuple[str, bool]:
    """Return the place without a slash at its end, and whether it is a bucket.

    Raises:
        InputError: the dsn is neither a folder nor a bucket.
    """
    if is_remote(dsn):
        bucket = dsn.partition("://")[2].partition("/")[0]
        if not bucket:
            raise InputError(f"destination {name!r}: dsn must look like s3://bucket/folder")
        return "s3://" + dsn.partition("://")[2].rstrip("/"), True
    path = dsn.removeprefix("file://")
    if "://" in path or not path:
        raise InputError(
            f"destination {name!r}: dsn must be a folder or look like s3://bucket/folder"
        )
    return str(Path(path).absolute()), False
