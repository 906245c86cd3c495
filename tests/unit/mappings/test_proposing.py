"""Key, version and columns proposed from events."""

from __future__ import annotations

import pytest
from tests.support.mapped import RULES, declared, types

from waybill.errors import InputError
from waybill.mappings.proposals import key_names, propose, propose_key, propose_version


@pytest.mark.parametrize(
    ("payloads", "key"),
    [
        ([{"a": 1, "id": 1}, {"a": 2, "id": 2}], ("id",)),
        ([{"a": 1, "orderId": 1}, {"a": 2, "orderId": 2}], ("orderId",)),
        ([{"n": 1, "ID": None}, {"n": 2, "ID": 2}], ("n",)),
        ([{"n": 1}, {"n": 2, "id": 1}], ("n",)),
        ([{"price": 1.5, "n": 1}, {"price": 2.5, "n": 1}], ()),
        ([{"j": {"a": 1}}, {"j": {"a": 2}}], ()),
        ([{"n": n % 2, "at": f"2013-01-0{1 + n // 2}"} for n in range(4)], ("at", "n")),
        ([{"n": 1}, {"n": 1}], ()),
        ([], ()),
    ],
)
def test_a_key_is_never_null_and_tells_events_apart(payloads, key):
    assert propose_key(payloads, "order") == key


def test_a_key_is_a_field_of_the_source():
    payloads = [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
    assert propose_key(payloads, "order", among={"n"}) == ("n",)


@pytest.mark.parametrize(
    ("payload", "version"),
    [
        ({"id": 1, "version": 3, "updatedAt": "2013-01-31T00:00:00Z"}, "updatedAt"),
        ({"id": 1, "lsn": 3}, "lsn"),
        ({"id": 1, "version": "1.0"}, None),
        ({"id": 1, "version": None}, None),
        ({"id": 1}, None),
    ],
)
def test_a_version_is_proposed_by_its_name_and_type(payload, version):
    assert propose_version([payload]) == version


def test_a_declaration_is_proposed_whole():
    payloads = [{"userId": n, "b": {"c": 1.5}, "tags": ["x"]} for n in range(3)]
    base = declared("strict", nested="flatten", arrays="child")
    found = propose(base, payloads, key_names(("userId",), payloads, RULES), RULES)
    assert types(found) == {"user_id": "int64", "b__c": "decimal(18,2)"}
    assert (found.key, found.table.key, found.policy) == (("userId",), ("user_id",), "strict")
    assert not found.table.columns[0].nullable
    assert [child.name for child in found.table.children] == ["orders__tags"]


def test_key_columns_are_named_beside_all_fields():
    payloads = [{"userId": 1, "user_id": 2}]
    assert key_names(("userId",), payloads, RULES) == {"userId": "user_id_ntfscikp"}


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ([{"k": 1}, {"k": None}], r"key field 'k' is missing or null in 1 of 2 events"),
        ([{"k": {}}], r"key field 'k' holds json; choose another"),
    ],
)
def test_what_can_be_no_key_is_refused(payloads, words):
    with pytest.raises(InputError, match=words):
        propose(declared(), payloads, {"k": "k"}, RULES)


def test_what_a_declaration_cannot_name_is_left_to_events():
    payloads = [{"id": 1, "": 2, "items": [{"a": 1}, 5]}]
    found = propose(declared(arrays="child"), payloads, {"id": "id"}, RULES)
    assert types(found) == {"id": "int64"}
    assert [c.name for c in found.table.children[0].columns] == ["a"]


def test_nothing_is_proposed_inside_of_what_a_json_column_takes_whole():
    payloads = [{"id": 1, "a": 1}, {"id": 2, "a": "x"}, {"id": 3, "a": {"b": {"c": 1}, "d": [1]}}]
    base = declared(nested="flatten", arrays="child")
    found = propose(base, payloads, {"id": "id"}, RULES)
    assert types(found) == {"id": "int64", "a": "json"}
    assert found.table.children == ()
    apart = propose(base, [{"id": 1, "a": 1}, {"id": 2, "a": {"b": 1}}], {"id": "id"}, RULES)
    assert types(apart) == {"id": "int64", "a": "int64", "a__b": "int64"}
