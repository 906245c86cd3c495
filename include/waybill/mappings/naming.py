"""Names that a destination takes, from names that payloads have.

A name is ASCII: small letters, digits and ``_``. ``userId`` becomes ``user_id``, ``Größe`` becomes
``grosse``; characters that no rule spells become one ``_``. What is left without a letter or digit
is named by its hash. The parts of a path are named each, and joined by ``__``.

Two fields that would get one name are told apart by a hash of the field's own name, never by the
order in which they were met: the same fields get the same names in every process.

Names that an engine keeps for itself, in small letters, as its documentation lists them.

Waybill quotes every name, so that words of SQL are names like others; here stands what quoting does
not free: system columns, hidden columns, and words that are refused all the same.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from waybill.mappings.flattening import decode_path

_POSTGRES = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_CHANGE_FEED = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})

RESERVED: Mapping[str, frozenset[str]] = {
    # PostgreSQL, "System Columns"
    "postgres": _POSTGRES,
    # DuckDB, "Rowid Pseudocolumn"
    "duckdb": frozenset({"rowid"}),
    # Delta Lake, "Change data feed"; Spark's hidden column of files
    "delta": _CHANGE_FEED | {"_metadata"},
    # Iceberg's reserved field ids, and the change log's columns
    "iceberg": frozenset(
        {
            "_file",
            "_pos",
            "_deleted",
            "_spec_id",
            "_partition",
            "_row_id",
            "_last_updated_sequence_number",
            "_change_type",
            "_change_ordinal",
            "_commit_snapshot_id",
        }
    ),
    # Snowflake, "Reserved & limited keywords": what cannot be a column's name, or be read as one
    "snowflake": frozenset(
        {
            "constraint",
            "current_date",
            "current_time",
            "current_timestamp",
            "current_user",
            "localtime",
            "localtimestamp",
            "case",
            "cast",
            "false",
            "true",
            "try_cast",
            "when",
        }
    ),
    # Redshift keeps PostgreSQL's of its time, and two of its own
    "redshift": _POSTGRES | {"oid", "deletexid", "insertxid"},
    "databricks": _CHANGE_FEED | {"_metadata"},
    # ClickHouse, "Virtual columns" of MergeTree and Merge
    "clickhouse": frozenset(
        {
            "_part",
            "_part_index",
            "_part_starting_offset",
            "_part_uuid",
            "_part_offset",
            "_part_data_version",
            "_partition_id",
            "_partition_value",
            "_sample_factor",
            "_block_number",
            "_block_offset",
            "_disk_name",
            "_row_exists",
            "_table",
            "_database",
        }
    ),
}

RESERVED_PREFIXES: Mapping[str, tuple[str, ...]] = {
    # BigQuery, "Column names"; _change_ belongs to its change data capture
    "bigquery": (
        "_table_",
        "_file_",
        "_partition",
        "_row_timestamp",
        "__root__",
        "_colidentifier",
        "_change_",
    ),
}


_PREFIX = "_waybill_"
_HASH_LETTERS = 8
_JOINT = "__"
_SPELLED = str.maketrans({"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"}) | (
    str.maketrans({"ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ł": "l", "Ł": "L", "\u0131": "i"})
)
"""Letters of the Latin alphabet that have no accent to take off."""
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ODD = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class NameRules:
    """What names of tables and columns a kind of destination takes."""

    longest: int
    """In bytes of UTF-8."""
    folds: bool
    """Names that differ only in case are one name."""
    reserved: frozenset[str] = frozenset()
    """Names, in small letters, that are taken: system columns, words that cannot be quoted."""
    most_columns: int = 1_000
    """Columns that a table may have."""
    reserved_prefixes: tuple[str, ...] = ()
    """In small letters: what no name begins with, beside Waybill's own."""

    def same(self, name: str) -> str:
        """Return what two names have in common that are one name here."""
        return name.casefold() if self.folds else name

    def takes(self, name: str) -> bool:
        """Tell whether a name is one that may be given to a field."""
        small = name.lower()
        return (
            0 < len(name.encode("utf-8", "surrogatepass")) <= self.longest
            and small not in self.reserved
            and not small.startswith((_PREFIX, *self.reserved_prefixes))
        )


def _rules(kind: str, longest: int, *, folds: bool, most_columns: int = 1_000) -> NameRules:
    return NameRules(
        longest,
        folds,
        reserved=RESERVED.get(kind, frozenset()),
        most_columns=most_columns,
        reserved_prefixes=RESERVED_PREFIXES.get(kind, ()),
    )


_RULES: Mapping[str, NameRules] = {
    # PostgreSQL takes 1,600 columns; its MERGE has those of table and stage in a list of 1,664
    "postgres": _rules("postgres", 63, folds=False, most_columns=800),
    "duckdb": _rules("duckdb", 255, folds=True),
    "delta": _rules("delta", 255, folds=True),
    "iceberg": _rules("iceberg", 255, folds=True),
    "snowflake": _rules("snowflake", 255, folds=False),
    "bigquery": _rules("bigquery", 300, folds=True),
    # Redshift takes 1,600 columns as well
    "redshift": _rules("redshift", 127, folds=True, most_columns=1_500),
    "databricks": _rules("databricks", 255, folds=True),
    "clickhouse": _rules("clickhouse", 206, folds=False),
}
_CAREFUL = NameRules(
    min(rules.longest for rules in _RULES.values()),
    folds=True,
    reserved=frozenset().union(*RESERVED.values()),
    most_columns=min(rules.most_columns for rules in _RULES.values()),
    reserved_prefixes=tuple(sorted({one for some in RESERVED_PREFIXES.values() for one in some})),
)
"""What all engines that are known here take."""


def rules_of(kind: str) -> NameRules:
    """Return the rules of a kind of destination, as settings name it.

    Of a kind that another package brings nothing is known: names are such as all others take.
    """
    return _RULES.get(kind, _CAREFUL)


def plain_name(source: str, *, path: bool = False) -> str:
    """Return a field's name in snake case; "" when nothing of it can be spelled.

    Args:
        source: the field's name, or with ``path`` an encoded path.
        path: its parts are named each, and joined by ``__``.
    """
    if not path:
        return _snake(source)
    parts = [_snake(part) for part in decode_path(source)]
    return _JOINT.join(part for part in parts if part) if all(parts) else ""


def _snake(text: str) -> str:
    bare = "".join(
        letter
        for letter in unicodedata.normalize("NFKD", text.translate(_SPELLED))
        if not unicodedata.combining(letter)
    )
    name = _ODD.sub("_", _HUMPS.sub("_", bare).lower()).rstrip("_")
    if not name.strip("_"):
        return ""
    if not bare.startswith("_"):
        name = name.lstrip("_")
    return f"_{name}" if name[0].isdigit() else name


def name_fields(
    sources: Iterable[str],
    taken: Mapping[str, str],
    rules: NameRules,
    *,
    paths: bool = False,
    wishes: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return a name for each field, in the order given; those named before keep theirs.

    Fields whose plain name is their own come first, then all by their bytes; a name that is taken
    gets ``_`` and letters of a hash of the field.

    Args:
        sources: payload fields.
        taken: all names ever given in this table, by field.
        rules: of the destination.
        paths: the fields are encoded paths.
        wishes: names for some fields that are better than the plain ones; safe ones.

    Cost: about 20 µs a field.
    """
    wanted = list(dict.fromkeys(sources))
    names = {source: taken[source] for source in wanted if source in taken}
    used = {rules.same(name) for name in taken.values()}
    plain = {one: plain_name(one, path=paths) for one in wanted if one not in names}
    plain |= {one: name for one, name in (wishes or {}).items() if one in plain}
    for source in sorted(plain, key=lambda one: (plain[one] != one, _bytes(one))):
        name = next(
            one
            for one in _candidates(source, plain[source], rules)
            if rules.takes(one) and rules.same(one) not in used
        )
        used.add(rules.same(name))
        names[source] = name
    return {source: names[source] for source in wanted}


def table_name(
    parent: str,
    source: str,
    taken: Iterable[str],
    rules: NameRules,
    *,
    path: bool = False,
) -> str:
    """Return a child table's name, ``<parent>__<field>``, that none of ``taken`` is.

    Args:
        parent: the parent's table, as it is declared.
        source: the field with the array.
        taken: names of other tables of the schema.
        rules: of the destination.
        path: the field is an encoded path.
    """
    used = {rules.same(name) for name in taken} | {rules.same(parent)}
    plain = plain_name(source, path=path)
    joined = f"{parent}{_JOINT}{plain}" if plain else ""
    return next(
        one
        for one in _candidates(source, joined, rules, bare=f"{parent}{_JOINT}items")
        if rules.takes(one) and rules.same(one) not in used
    )


def _candidates(source: str, plain: str, rules: NameRules, bare: str = "field") -> Iterator[str]:
    """Yield the names that a field may get, the best first, without end."""
    kept = (_PREFIX, *rules.reserved_prefixes)
    if f"{plain}_".startswith(kept):
        plain = plain.lstrip("_")
    if plain and len(plain.encode()) <= rules.longest:
        yield plain
    for letters in _hashes(source):
        room = rules.longest - len(letters) - 1
        yield f"{_cut(plain or bare, room)}_{letters}"


def _hashes(source: str) -> Iterator[str]:
    """Yield 8 letters of the field's hash, then 9, 10, …; then of the hash's own."""
    digest = _bytes(source)
    while True:
        digest = hashlib.sha256(digest).digest()
        letters = base64.b32encode(digest).decode().rstrip("=").lower()
        for length in range(_HASH_LETTERS, len(letters) // 2):
            yield letters[:length]


def _cut(name: str, most_bytes: int) -> str:
    cut = name.encode()[:most_bytes].decode(errors="ignore")
    return cut.rstrip("_") or "field"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
