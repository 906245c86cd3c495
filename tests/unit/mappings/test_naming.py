"""Names of columns: safe for each destination, each field's own, the same in every process."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from waybill.mappings import encode_path, name_fields, plain_name, rules_of, table_name
from waybill.mappings.naming import RESERVED, RESERVED_PREFIXES
from waybill.settings import BUILT_IN_KINDS

SEED = 20_261_122
KINDS = (
    "postgres", "duckdb", "delta", "iceberg", "snowflake", "bigquery", "redshift", "databricks",
    "clickhouse",
)  # fmt: skip
SAFE = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
PIECES = [
    "id", "ID", "Id", "user", "User", "_", "__", ".", "\\", " ", "-", "$", '"', "'", ";", "\0",
    "\n", "\t", "é", "É", "e\u0301", "ß", "\u0131", "İ", "ﬁ", "ﷺ", "名", "前", "🙂", "\u200b",
    "\u202e", "\ud800", "\udfff", "0", "9", "٣", "drop table", "select", "ctid", "xmin", "rowid",
    "_file", "_table_", "_partition", "_metadata", "_waybill_", "_Waybill_id", "a" * 40, "界" * 50,
]  # fmt: skip


def hostile(number: int) -> list[str]:
    """Return that many different names; many are the same once they are made safe."""
    draw = random.Random(SEED)
    names = {"", *PIECES, *(piece.upper() for piece in PIECES)}
    while len(names) < number:
        names.add("".join(draw.choices(PIECES, k=draw.randint(1, 5))))
    return sorted(names, key=lambda name: name.encode("utf-8", "surrogatepass"))[:number]


NAMES = hostile(10_000)


def test_every_kind_of_destination_has_its_rules():
    assert set(KINDS) == set(BUILT_IN_KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_hostile_names_become_safe_ones_each_its_own(kind):
    print("seed", SEED)
    rules = rules_of(kind)
    found = name_fields(NAMES, {}, rules)
    assert list(found) == NAMES
    kept = ("_waybill_", *RESERVED_PREFIXES.get(kind, ()))
    wrong = [
        name
        for name in found.values()
        if not SAFE.fullmatch(name)
        or len(name) > rules.longest
        or name.startswith(kept)
        or name in RESERVED.get(kind, ())
    ]
    assert wrong == []
    assert len({name.casefold() for name in found.values()}) == len(NAMES)


def test_names_do_not_depend_on_order_or_on_being_asked_again():
    rules = rules_of("postgres")
    shuffled = NAMES.copy()
    random.Random(SEED).shuffle(shuffled)
    found = name_fields(NAMES, {}, rules)
    assert name_fields(shuffled, {}, rules) == found
    assert name_fields(shuffled, found, rules) == found
    # named a part at a time, what nobody contests is named the same
    plain = {name: plain_name(name).lstrip("_") for name in NAMES}
    times = Counter(plain.values())
    alone = [name for name in NAMES if plain[name] and times[plain[name]] == 1][:200]
    assert len(alone) == 200
    apart: dict[str, str] = {}
    for name in alone:
        apart |= name_fields([name], apart, rules)
    assert apart == {name: found[name] for name in alone}


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("userId", "user_id"),
        ("HTTPServer", "http_server"),
        ("XMLHttpRequest2Go", "xml_http_request2_go"),
        ("Größe", "grosse"),
        ("e\u0301tat", "etat"),
        ("price ($)", "price"),
        ("_id", "_id"),
        ("__typename", "_typename"),
        ("2nd", "_2nd"),
        ("select", "select"),
        ("a.b", "a_b"),
        ("", "field_4oymiquy"),
        ("名前", "field_p3bgfesb"),
        ("ctid", "ctid_uz3isf47"),
        ("_waybill_id", "waybill_id"),
        ("a" * 63, "a" * 63),
        ("a" * 70, "a" * 54 + "_npk6ka2i"),
    ],
)
def test_golden_names(field, name):
    assert name_fields([field], {}, rules_of("postgres")) == {field: name}


def test_the_field_of_that_very_name_keeps_it_and_the_others_get_their_hash():
    fields = ["USER_ID", "user id", "userId", "user_id", "user_id_ntfscikp"]
    assert name_fields(fields, {}, rules_of("postgres")) == {
        "USER_ID": "user_id_4w5zpulz",
        "user id": "user_id_tnk3igev",
        "userId": "user_id_ntfscikp7",  # eight letters are another field's own name
        "user_id": "user_id",
        "user_id_ntfscikp": "user_id_ntfscikp",
    }


def test_a_name_once_given_stays_whoever_comes_later():
    rules = rules_of("postgres")
    first = name_fields(["userId"], {}, rules)
    assert name_fields(["user_id", "userId"], first, rules) == {
        "user_id": "user_id_7coww2la",
        "userId": "user_id",
    }


def test_names_that_differ_in_case_are_one_where_the_destination_folds():
    taken = {"declared": "User_ID"}
    assert name_fields(["userId"], taken, rules_of("postgres")) == {"userId": "user_id"}
    assert name_fields(["userId"], taken, rules_of("duckdb")) == {"userId": "user_id_ntfscikp"}


def test_parts_of_a_path_are_joined_by_two_underscores():
    paths = [encode_path(parts) for parts in (("address", "zipCode"), ("a.b",), ("a", "b"))]
    found = name_fields(paths, {}, rules_of("postgres"), paths=True)
    assert list(found.values()) == ["address__zip_code", "a_b", "a__b"]


def test_prefixes_that_bigquery_keeps_are_not_given():
    found = name_fields(["_partition_day", "_TABLE_suffix"], {}, rules_of("bigquery"))
    assert list(found.values()) == ["partition_day", "table_suffix"]


def test_child_tables_are_named_by_parent_and_field():
    rules = rules_of("postgres")
    assert table_name("orders", "lineItems", [], rules) == "orders__line_items"
    taken = ["orders__line_items"]
    assert table_name("orders", "lineItems", taken, rules) == "orders__line_items_emkwxxyh"
    assert table_name("orders", "品", [], rules).startswith("orders__items_")
    long = table_name("o" * 63, "items", [], rules)
    assert len(long) == 63
    assert long != table_name("o" * 63, "tags", [], rules)
    assert len(table_name("é" * 31, "items", [], rules).encode()) <= 63
