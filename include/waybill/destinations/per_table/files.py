"""Tables that are files, as those of Delta and Iceberg: their folders, and files written anew.

Folders have the names of tables where these are harmless; all else is in hex. Of files that hold
changed keys, rows that nothing changes pass through as they are: copy-on-write. Cost: of the files
read, a batch at a time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.destinations.batch import key_values
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.per_table.table import DELETE, OP, SOFT_DELETE, TOUCH, UPSERT, Changes
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
    bucket_of_tables = boto3.resource("s3", **settings).Bucket(bucket)
    bucket_of_tables.objects.filter(Prefix=f"{prefix}/").delete()


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


_AT, _N = "_waybill_place", "_waybill_n"
_VERSIONS = [name for name, _ in KEPT_COLUMNS[:-1]]
_SET_BY = {TOUCH: frozenset(_VERSIONS), SOFT_DELETE: frozenset([*_VERSIONS, DELETED_AT])}


def rewritten(
    old: Iterable[pa.RecordBatch], changes: Changes, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the rows of files without those that are changed, and those that change in part.

    Rows that are put there whole, and are the table's whole width, are in ``added``.

    Args:
        old: their rows, with all columns of the table.
        changes: of which only rows that are met count.
        schema: of the table.
    """
    rows = changes.rows.select(list(changes.key)).take(pa.array(changes.met))
    numbered = _numbered(rows, changes.key, _N)
    partial = None if _is_whole(changes, schema) else changes.rows.take(pa.array(changes.met))
    for batch in old:
        table = pa.Table.from_batches([batch])
        keys = _numbered(table, changes.key, _AT)
        names = keys.column_names[:-1]
        pairs = keys.join(numbered, keys=names, join_type="inner")
        if not pairs.num_rows:
            yield table
            continue
        kept = np.ones(table.num_rows, np.bool_)
        kept[pairs[_AT].to_numpy()] = False
        yield table.filter(pa.array(kept))
        if partial is not None:
            yield _changed(table.take(pairs[_AT]), partial.take(pairs[_N]), schema)


def added(changes: Changes, schema: pa.Schema) -> pa.Table:
    """Return the rows that are put there whole: new ones, and where they are whole the others."""
    new = np.asarray(pc.equal(changes.rows[OP], UPSERT), np.bool_)
    if not _is_whole(changes, schema):
        new[changes.met] = False
    rows = changes.rows if new.all() else changes.rows.filter(pa.array(new))
    return complete(rows, schema)


def _is_whole(changes: Changes, schema: pa.Schema) -> bool:
    """Say whether changed rows need nothing of the old ones."""
    partly = pc.is_in(changes.rows[OP], pa.array([TOUCH, SOFT_DELETE]))
    return set(schema.names) <= set(changes.rows.column_names) and not pc.any(partly).as_py()


def _numbered(rows: pa.Table, key: Sequence[str], name: str) -> pa.Table:
    """Return the key's columns, under names that Arrow does not read as paths, and the places.

    Arrow joins bytes: a file may have -0.0, from an older release or somebody else.
    """
    columns = [key_values(rows[part]) for part in key]
    positions = pa.array(np.arange(rows.num_rows))
    return pa.table([*columns, positions], names=[*(f"k{i}" for i in range(len(key))), name])


def _changed(old: pa.Table, new: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return old rows with what the new ones set; deleted ones are left out."""
    stays = pc.not_equal(new[OP], DELETE)
    old, new = old.filter(stays), new.filter(stays)
    ops = new[OP]
    columns = []
    for item in schema:
        column = old[item.name]
        if item.name in new.column_names:
            sets = pc.equal(ops, UPSERT)
            for op, names in _SET_BY.items():
                if item.name in names:
                    sets = pc.or_(sets, pc.equal(ops, op))
            column = pc.if_else(sets, new[item.name].cast(item.type), column.cast(item.type))
        columns.append(column)
    return pa.table(columns, schema=plainly(schema))


def packed(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield rows in tables of about ``size`` bytes; none without rows."""
    waiting: list[pa.Table] = []
    total = 0
    for table in tables:
        step = max(1, table.num_rows * size // max(1, table.nbytes))
        for at in range(0, table.num_rows, step):
            part = table.slice(at, step)
            waiting.append(part)
            total += part.nbytes
            if total >= size:
                yield pa.concat_tables(waiting)
                waiting, total = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def complete(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of the schema, in its order, with its types."""
    arrays = []
    for item in schema:
        if item.name in rows.column_names:
            column = rows[item.name]
            arrays.append(column if column.type == item.type else column.cast(item.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, item.type))
    return pa.table(arrays, schema=plainly(schema))


def plainly(schema: pa.Schema) -> pa.Schema:
    """Return names and types alone: whether nulls are allowed is looked at elsewhere."""
    return pa.schema([pa.field(item.name, item.type) for item in schema])
