"""Which fields are personal: by event name, by stage, and of the key."""

from __future__ import annotations

import pytest
from tests.unit.processing.made import pipeline

from waybill.access.personal import ANY_EVENT, KEY, Personal, proposed_by
from waybill.events import HELD_ERROR
from waybill.parking import ParkedGroup

TIME = "2026-01-01T00:00:00Z"


def declared(personal=(), key=("id",), columns=(("id", "id"),)):
    table = {"columns": [{"name": name, "source": source} for name, source in columns]}
    return {"personal": list(personal), "key": list(key), "table": table}


def partition(event_name="a", stage="transformation", error_type="null_value"):
    names = dict.fromkeys(ParkedGroup.__slots__, 0) | {"pipeline_id": "p1"}
    names |= {"event_name": event_name, "stage": stage, "error_type": error_type}
    return ParkedGroup(**names)


@pytest.mark.parametrize(
    ("personal", "key", "columns", "is_personal"),
    [
        (["mail"], ["mail"], (), True),
        (["mail"], ["no", "mail"], (), True),
        (["mail"], ["no"], (), False),
        ([], ["mail"], (), False),
        (["who.mail"], ["who"], (), True),
        (["who"], ["who.mail"], (), True),
        (["who.mail"], ["who.no"], (), False),
        (["who"], ["whose"], (), False),
        (["mail"], ["address"], (("address", "mail"),), True),
        (["address"], ["mail"], (("address", "mail"),), True),
    ],
)
def test_a_key_is_personal_where_a_field_of_it_is(personal, key, columns, is_personal):
    found = Personal([("p1", {"a": declared(personal, key, columns)})])
    assert (KEY in found.fields("p1", "a")) is is_personal
    assert (KEY in found.fields("p1", ANY_EVENT)) is is_personal


def test_what_is_made_of_an_event_keeps_its_key():
    events = {"a": declared(["mail"], ["mail"]), "child": declared()}
    assert Personal([("p1", events)]).fields("p1", "child") == (KEY,)
    events = {"a": declared([], ["mail"]), "child": declared(["mail"]), "other": declared()}
    found = Personal([("p1", events)])
    assert found.fields("p1", "child") == (KEY, "mail")
    assert found.fields("p1", "other") == ()


def test_what_was_personal_in_any_version_stays_so():
    versions = [("p1", {"a": declared(["mail"], ["mail"])}), ("p1", {"a": declared(["name"])})]
    assert Personal(versions).fields("p1", "a") == (KEY, "mail", "name")
    assert Personal(versions).fields("p2", "a") is None


LEARNED = {
    "personal": [],
    "key": ["id"],
    "nested": "flatten",
    "table": {
        "columns": [
            {"name": "id", "source": "id"},
            {"name": "crew__email", "source": "crew.email"},
            {"name": "crew__home", "source": "crew.home"},
            {"name": "odd", "source": "a\\.b"},
        ],
        "children": [
            {
                "name": "legs",
                "source": "trip.legs",
                "columns": [
                    {"name": "pilot", "type": "string", "source": "who.name"},
                    {"name": "note", "type": "json", "source": "note"},
                ],
            },
            {
                "name": "codes",
                "source": "codes",
                "columns": [{"name": "value", "type": "string", "source": ""}],
            },
        ],
    },
}


@pytest.mark.parametrize(
    ("personal", "also"),
    [
        ("crew.email", {"crew__email"}),
        ("crew", {"crew__email", "crew__home"}),
        ("crew.home.street", {"crew__home.street"}),
        ("a.b", {"odd"}),
        ("trip.legs", {"_waybill_items_legs.pilot", "_waybill_items_legs.note"}),
        ("trip.legs.who", {"_waybill_items_legs.pilot"}),
        ("trip.legs.note.text", {"_waybill_items_legs.note.text"}),
        ("codes", {"_waybill_items_codes.value"}),
        ("cre", set()),
    ],
)
def test_what_is_personal_is_so_in_the_columns_that_were_learned_of_it(personal, also):
    """Rows that a destination refused are parked by column."""
    found = Personal([("p1", {"a": {**LEARNED, "personal": [personal]}})])
    assert set(found.fields("p1", "a")) == {personal} | also


def test_a_json_column_under_another_name_hides_the_same_part_of_it():
    found = Personal([("p1", {"a": declared(["who.mail"], columns=(("person", "who"),))})])
    assert found.fields("p1", "a") == ("person.mail", "who.mail")


@pytest.mark.parametrize(
    ("stage", "error_type", "fields"),
    [
        ("transformation", "null_value", ()),
        ("ingestion", "source_row_malformed", ("mail",)),
        ("transformation", HELD_ERROR, ("mail",)),
        ("mapping", HELD_ERROR, ("mail",)),
    ],
)
def test_what_came_in_raw_may_become_any_event(stage, error_type, fields):
    found = Personal([("p1", {"a": declared(), "b": declared(["mail"])})])
    one = partition("a", stage, error_type)
    assert (found.of(one), found.are_in(one)) == (fields, fields != ())


def test_a_report_hides_what_either_version_declares():
    old, new = pipeline(), pipeline()
    [event] = old.events.values()
    hidden = event.model_copy(update={"personal": (event.key[0],)})
    old = old.model_copy(update={"events": {event.name: hidden}})
    assert Personal(proposed_by(new, [])).of(partition(event.name)) == ()
    assert Personal([*proposed_by(new, []), *proposed_by(old, [])]).of(partition(event.name)) == (
        KEY,
        event.key[0],
    )


def test_a_name_is_the_same_whatever_its_case_and_blanks():
    columns = (("id", "id"), ("mail", "E-Mail "), ("staff", "Crew"))
    found = Personal([("p1", {"a": declared(["e-mail", "crew.Email"], ["E-MAIL"], columns)})])
    assert set(found.fields("p1", "a")) >= {KEY, "e-mail", "mail", "crew.Email", "staff.email"}


def test_a_field_of_a_dotted_name_is_the_same_however_it_is_written():
    for written in ("contact.email", r"contact\.email"):
        event = declared([written], columns=[("id", "id"), ("mail", r"contact\.email")])
        fields = Personal([("p", {"a": event | {"nested": "flatten"}})]).fields("p", "a")
        assert {"contact.email", "mail"} <= set(fields)
