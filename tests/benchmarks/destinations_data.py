"""The rows that ``make bench-destinations`` loads: 15 columns, keys that are met and keys that are new."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.destinations import Commit, Rows
from waybill.pipelines import Column, TableSpec

_COLUMNS = (
    ("id", "int64"),
    ("code", "string"),
    ("customer", "string"),
    ("email", "string"),
    ("note", "string"),
    ("quantity", "int32"),
    ("points", "int64"),
    ("stock", "int64"),
    ("price", "decimal(18,2)"),
    ("tax", "decimal(12,4)"),
    ("created_at", "timestamp"),
    ("changed_at", "timestamp"),
    ("active", "bool"),
    ("day", "date"),
    ("weight", "float64"),
)
_ROWS_A_BATCH = 65_536
_MINUTE = 29_450_000
_BEGAN_US = 1_780_000_000_000_000
_WORDS = pa.array([f"{a}{b}" for a in "abcdefghij" for b in ("lder", "spen", "irch", "edar", "lm")])


def spec_of(name: str) -> TableSpec:
    """Return the table's declaration."""
    columns = tuple(Column(name=n, type=t, nullable=n != "id") for n, t in _COLUMNS)
    return TableSpec(schema_name="shop", name=name, columns=columns, key=("id",))


def base_ids(first: int, rows: int) -> np.ndarray:
    """Return the keys that a table is filled with, in order."""
    return np.arange(first, first + rows)


def upsert_ids(turn: int, rows: int, *, filled: int, share: float, seed: int) -> np.ndarray:
    """Return keys of which a share is in the table, the others new, mixed; other ones each turn."""
    rng = np.random.default_rng(seed + turn)
    met = rng.choice(filled, size=int(rows * share), replace=False)
    new = 1_000_000_000 + turn * 10_000_000 + np.arange(rows - len(met))
    ids = np.concatenate([met, new])
    rng.shuffle(ids)
    return ids


def data_of(ids: np.ndarray, *, turn: int, seed: int) -> pa.Table:
    """Return rows of the table's own columns."""
    rng = np.random.default_rng([seed, turn])
    rows = len(ids)
    keys = pa.array(ids)
    text = pc.cast(keys, pa.string())
    words = _WORDS.take(pa.array(rng.integers(0, len(_WORDS), rows)))
    created = pa.array(_BEGAN_US + ids % 10_000_000 * 1000, pa.timestamp("us", tz="UTC"))
    changed = pa.array(_BEGAN_US + rng.integers(0, 10**12, rows), pa.timestamp("us", tz="UTC"))
    arrays = [
        keys,
        pc.binary_join_element_wise("sku", pc.utf8_lpad(text, 10, "0"), "-"),
        words,
        pc.binary_join_element_wise(words, text, "@shop.example"),
        pc.binary_join_element_wise("order", words, "for", text, "with care", " "),
        pa.array(rng.integers(1, 100, rows), pa.int32()),
        pa.array(rng.integers(0, 10**9, rows)),
        pa.array(rng.integers(0, 10**6, rows)),
        _decimals(rng.integers(100, 10**7, rows), 18, 2),
        _decimals(rng.integers(100, 10**7, rows), 12, 4),
        created,
        changed,
        pa.array(rng.integers(0, 2, rows) == 1),
        pa.array((20_600 + ids % 365).astype(np.int32), pa.date32()),
        pa.array(rng.random(rows)),
    ]
    return pa.table(arrays, names=[name for name, _ in _COLUMNS])


def _decimals(units: np.ndarray, digits: int, behind: int) -> pa.Array:
    """Return whole numbers of the last place as decimals, exactly."""
    low = units.astype(np.int64)
    pairs = np.column_stack([low, np.where(low < 0, -1, 0)]).astype(np.int64)
    buffer = pa.py_buffer(np.ascontiguousarray(pairs).tobytes())
    return pa.Array.from_buffers(pa.decimal128(digits, behind), len(low), [None, buffer])


def write(file: Path, ids: np.ndarray, *, turn: int, seed: int) -> None:
    """Write rows to a file, compressed as staged objects are."""
    data = data_of(ids, turn=turn, seed=seed)
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    with pa.ipc.new_file(file, data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=_ROWS_A_BATCH)


def commit_of(number: int, spec: TableSpec, data: pa.Table, *, version: int) -> Commit:
    """Return rows as a committed micro-batch holds them."""
    rows = data.num_rows
    key = pc.cast(data["id"], pa.string())
    system = {
        "_waybill_id": pc.utf8_lpad(key, 32, "0"),
        "_waybill_key": pc.binary_join_element_wise("[", key, "]", ""),
        "_waybill_source_version": pa.repeat(pa.scalar(version, pa.int64()), rows),
        "_waybill_intake_version": pa.array(np.arange(rows) + version * 10**9),
        "_waybill_intake_minute": pa.array((_MINUTE + np.arange(rows) // 100_000).astype(np.int32)),
        "_waybill_op": pa.repeat(pa.scalar("upsert"), rows),
        "_waybill_replayed": pa.repeat(pa.scalar(value=False), rows),
        "_waybill_replay": pa.nulls(rows, pa.string()),
        "_waybill_attempt": pa.repeat(pa.scalar(0, pa.int32()), rows),
    }
    table = data
    for name, values in system.items():
        table = table.append_column(name, values)
    return Commit(number, (Rows("bench-shop", "item", spec, table),))
