"""Personal fields: nothing of their values is left, wherever an event says them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.parked_orders import order, parked

from waybill.access.personal import KEY
from waybill.parking import ParkedEvent
from waybill.parking.masking import MASK, masked_event, masked_words, own_words


def made(value, message="", where="") -> ParkedEvent:
    event = parked(order(1, "shop"))
    event.value = value if isinstance(value, bytes) else json.dumps(value).encode()
    event.message, event.where = message, where
    return event


def wire(data, **more):
    return {"specversion": "1.0", "id": "e1", "subject": '["Ann"]', "data": data, **more}


def test_declared_fields_are_masked_in_rows_and_on_the_wire():
    row = {"name": "Ann", "age": 41, "n": 7}
    for value, inside in ((row, lambda v: v), (wire(row), lambda v: v["data"])):
        event, masked = masked_event(made(value), ("age", "name"))
        assert inside(json.loads(event.value)) == {"name": MASK, "age": MASK, "n": 7}
        assert masked == ("age", "name")
        if value is not row:  # the key quotes the name, and is not declared as personal itself
            assert json.loads(event.value)["subject"] == f'["{MASK}"]'
    assert json.loads(event.value)["id"] == "e1"


def test_fields_inside_others_and_inside_lists_are_reached():
    data = {"crew": [{"mail": "a@b.c", "no": 1}, {"mail": "d@e.f"}], "to": {"at": {"zip": "12345"}}}
    event, masked = masked_event(made(wire(data)), ("crew.mail", "to.at", "gone.away"))
    assert json.loads(event.value)["data"] == {
        "crew": [{"mail": MASK, "no": 1}, {"mail": MASK}],
        "to": {"at": MASK},
    }
    assert masked == ("crew.mail", "to.at")
    assert b"12345" not in event.value


def test_copies_of_a_value_in_other_fields_are_masked_and_all_else_stays():
    data = {
        "mail": "op9@stations.example",
        "phone": 4_155_550,
        "age": 41,
        "tags": ["OP9@stations.example", {"note": "ask op9@stations.example first"}],
        "called": 4_155_550,
        "floor": 41,
        "ratio": 0.5,
        "ok": True,
        "none": None,
    }
    for value, inside in ((data, lambda v: v), (wire(data), lambda v: v["data"])):
        event, masked = masked_event(made(value), ("mail", "phone", "age"))
        assert inside(json.loads(event.value)) == {
            **{"mail": MASK, "phone": MASK, "age": MASK, "called": MASK},
            "tags": [MASK, {"note": f"ask {MASK} first"}],
            **{"floor": 41, "ratio": 0.5, "ok": True, "none": None},
        }
        assert masked == ("age", "mail", "phone")


def test_what_else_is_in_a_key_with_a_personal_field_stays_in_the_payload():
    value = {"specversion": "1.0", "subject": '["north","Ann"]', "data": {"region": "north"}}
    event, _ = masked_event(made(value, "no north"), (KEY, "name"))
    assert json.loads(event.value)["data"] == {"region": "north"}
    assert event.message == f"no {MASK}"


def test_a_field_whose_own_name_has_a_dot_is_masked_too():
    event, _ = masked_event(made({"a.b": 5, "a": {"b": 6}}), ("a.b",))
    assert json.loads(event.value) == {"a.b": MASK, "a": {"b": MASK}}


def test_null_stays_null_as_it_is_what_many_errors_are_about():
    event, masked = masked_event(made({"name": None}), ("name",))
    assert json.loads(event.value) == {"name": None}
    assert masked == ()


@pytest.mark.parametrize(
    "message",
    [
        "no such customer: Ann-Marie O'Neil",
        'no such customer: "Ann-Marie O\'Neil"',
        "no such customer: 'ANN-MARIE O\\'NEIL'",
        "no such customer: ann-marie o'neil",
        "no such customer: 'Ann-Mar…",
        "no such customer: Ann-Mari",
        "41 is too young for Ann-Marie O'Neil (41)",
    ],
)
def test_messages_lose_the_values_they_quote(message):
    data = {"name": "Ann-Marie O'Neil", "age": 41}
    event, _ = masked_event(made(data, message, message), ("name", "age"))
    for text in (event.message, event.where):
        assert MASK in text
        assert "ann" not in text.casefold()
        assert "neil" not in text.casefold()
        assert "41" not in text


def test_all_errors_lose_the_values_they_quote():
    event = made({"name": "Berta"}, "Berta failed")
    event.errors = [{"error_type": "null_value", "message": "no berta", "where": "'Berta'"}]
    masked, _ = masked_event(event, ("name",))
    assert masked.errors == [
        {"error_type": "null_value", "message": f"no {MASK}", "where": f"'{MASK}'"}
    ]
    unread = made(b"{", "x")
    unread.errors = event.errors
    assert masked_event(unread, ("name",))[0].errors == []


def test_a_short_value_is_masked_as_a_word_only():
    event, _ = masked_event(made({"age": 4}, "line 14: 4 is not over 40"), ("age",))
    assert event.message == f"line 14: {MASK} is not over 40"


def test_values_inside_masked_objects_are_looked_for_too():
    data = {"who": {"names": ["Berta", {"last": "Example"}]}}
    event, _ = masked_event(made(data, "Berta Example failed"), ("who",))
    assert event.message == f"{MASK} {MASK} failed"


@pytest.mark.parametrize(
    "value", [b"\xff\xfe secret", b"{secret", b"secret", b"[" * 5000 + b"]" * 5000]
)
def test_what_cannot_be_searched_is_masked_whole(value):
    event, masked = masked_event(made(value, "secret!", "secret"), ("name",))
    assert (event.message, event.where, masked) == (MASK, MASK, ("*",))
    assert json.loads(event.value) == MASK


def test_a_payload_that_is_no_object_is_masked_whole():
    for data in ("Ann", 5, True):
        event, masked = masked_event(made(wire(data), f"{data} failed"), ("name",))
        assert json.loads(event.value)["data"] == MASK
        assert masked == ("*",)
    event, _ = masked_event(
        made({"specversion": "1.0", "id": "e1", "data_base64": "QW5u"}), ("name",)
    )
    assert json.loads(event.value)["data_base64"] == MASK


def test_when_nobody_knows_which_fields_are_personal_all_values_are_masked():
    event, masked = masked_event(made(wire({"a": "x1", "b": [{"c": 2.5}], "n": None}), "x1"), None)
    assert json.loads(event.value)["data"] == {"a": MASK, "b": [{"c": MASK}], "n": None}
    assert event.message == MASK
    assert set(masked) == {KEY, "a", "c"}


def test_without_declared_fields_not_a_byte_changes():
    event = made(b'{"a" : 1.0000000000000000001}', "a")
    assert masked_event(event, ()) == (event, ())


def test_other_numbers_keep_every_digit():
    value = b'{"big":123456789012345678901234567890,"exact":1.0000000000000000001,"name":"Ann"}'
    event, _ = masked_event(made(value), ("name",))
    assert b"123456789012345678901234567890" in event.value
    assert b"1.0000000000000000001" in event.value


def test_a_great_number_of_values_is_looked_for_and_too_many_mask_the_message_whole():
    for number, shown in ((2_000, f"{MASK} is bad"), (20_000, MASK)):
        data = {"names": [f"name{n}" for n in range(number)]}
        event, _ = masked_event(made(data, "name7 is bad"), ("names",))
        assert event.message == shown


@pytest.mark.parametrize(
    "around",
    [
        {"dataref": "payloads/p1/e1"},
        {"data_base64": "QW5u"},
        {"data": None},
        {"data": {"other": "what the transformation made of it"}},
    ],
)
@pytest.mark.parametrize("personal", [(KEY,), (KEY, "name"), None])
def test_a_key_with_a_personal_field_is_masked_wherever_the_payload_is(around, personal):
    value = {"specversion": "1.0", "id": "e1", "subject": '["Ann","41 5"]', **around}
    event, masked = masked_event(made(value, "no such: Ann", "'41 5'"), personal)
    assert json.loads(event.value)["subject"] == MASK
    assert KEY in masked
    assert "Ann" not in str(event)
    assert "41 5" not in str(event)


def test_a_key_without_personal_fields_is_shown():
    value = {"specversion": "1.0", "id": "e1", "subject": "[7]", "dataref": "payloads/p1/e1"}
    event, _ = masked_event(made(value), ("name",))
    assert json.loads(event.value)["subject"] == "[7]"


def test_what_surrounds_a_payload_that_nobody_declared_is_masked_but_for_the_envelope():
    value = wire({}, subject="Ann", mail="a@b.c", to={"zip": 1}, attempt=1, time="t")
    event, masked = masked_event(made(value), None)
    kept = {"specversion": "1.0", "id": "e1", "attempt": 1, "time": "t", "data": {}}
    assert json.loads(event.value) == kept | {"subject": MASK, "mail": MASK, "to": {"zip": MASK}}
    assert set(masked) == {KEY, "mail", "zip"}


@pytest.mark.parametrize("value", [b'["Ann",41]', b'[["Ann"],{"name":"Ann"}]', b'"Ann"', b"41"])
def test_values_that_no_field_names_are_masked_and_all_words_about_them(value):
    for whole in (value, b'{"specversion":"1.0","id":"e1","data":%b}' % value):
        event, masked = masked_event(made(whole, "An… came twice", "A"), ("name",))
        assert b"Ann" not in event.value
        assert b"41" not in event.value
        assert (event.message, event.where) == (MASK, MASK)
        assert "*" in masked


def test_words_about_a_payload_of_bytes_are_masked_whole():
    value = {"specversion": "1.0", "id": "e1", "data_base64": "QW5u"}
    event, masked = masked_event(made(value, "no such: Ann", "Ann"), ("name",))
    assert (event.message, event.where, masked) == (MASK, MASK, ("*",))


def test_words_about_a_payload_in_the_store_are_masked_whole():
    value = {"specversion": "1.0", "id": "e1", "dataref": "payloads/x"}
    event, masked = masked_event(made(value, "no such: Ann", "Ann"), ("name",))
    assert (event.message, event.where, masked) == (MASK, MASK, ("*",))
    assert json.loads(event.value) == value
    said = {"message": "no such: Ann", "columns": {"t.n": ["Ann", None, 41]}}
    hidden = {"message": MASK, "columns": {"t.n": [MASK, None, MASK]}}
    assert masked_words(json.dumps(value).encode(), said, ("name",)) == hidden
    assert masked_words(json.dumps(value).encode(), said, ()) == said


@pytest.mark.parametrize("personal", [["tail"], None])
def test_the_source_is_left_out_with_the_values_it_holds(personal):
    for value in (wire({"tail": "N1"}), b"no json"):
        event = replace(made(value), source=b"N1 in other words")
        assert masked_event(event, personal)[0].source == b""
        assert masked_event(event, [])[0].source == event.source


@pytest.mark.parametrize(
    "crew", ["alice@x", 5551234, ["alice@x", "bob@y"], '{"email": "alice@x"}', [["alice@x"]], True]
)
def test_a_path_that_ends_before_its_field_masks_what_stands_there(crew):
    """The source sent text where an object was declared: what it says cannot be told apart."""
    event, masked = masked_event(
        made(wire({"crew": crew, "n": 7}), f"bad crew: {crew}"), ("crew.email",)
    )
    assert json.loads(event.value)["data"]["n"] == 7
    assert masked == ("crew.email",)
    for text in (event.value.decode(), event.message):
        assert "alice" not in text
        assert "bob" not in text
        assert "5551234" not in text


def test_a_path_whose_field_is_absent_leaves_its_neighbours():
    data = {"crew": {"no": 1}, "to": None, "n": 7}
    event, masked = masked_event(made(data), ("crew.email", "to.mail", "gone"))
    assert (json.loads(event.value), masked) == (data, ())


@pytest.mark.parametrize(
    "name",
    ["email", "Email", "EMAIL", " email", "e mail", "email\u00a0", "e\u200bmail", "\uff25mail"],
)
def test_a_name_is_the_same_whatever_its_case_and_blanks(name):
    for data, path in (({name: "a@b.c"}, "email"), ({"Crew ": [{name: "a@b.c"}]}, "crew.eMail")):
        event, masked = masked_event(made(wire(data), "no a@b.c"), (path,))
        assert b"a@b.c" not in event.value
        assert (event.message, masked) == (f"no {MASK}", (path,))


def test_what_an_envelope_has_is_no_field_of_another_spelling():
    event, _ = masked_event(made(wire({"Time": "noon"}, time="12:00", id="e1")), ("TIME", "ID"))
    shown = json.loads(event.value)
    assert (shown["data"], shown["time"], shown["id"]) == ({"Time": MASK}, "12:00", "e1")


@pytest.mark.parametrize(
    ("value", "quotes"),
    [
        (1234.5, ["1234.5", "1234.50", "1,234.50", "1.234,50", "1 234,5", "1'234.5", "1_234.5",
                  "1234,5", "1.2345e+03", "1\u202f234,50"]),
        ("1,234.50", ["1234.5", "1.234,5", "1234.50"]),
        ("1.234,50", ["1234.5", "1,234.50"]),
        (1234567, ["1,234,567", "1.234.567", "1234567.0", "1234567.00", "1.234567e+06"]),
        ("+49 (170) 123-4567", ["491701234567", "+49(170)123-4567"]),
        ("2026-01-02", ["02.01.2026", "2.1.2026", "1/2/2026", "01/02/2026", "20260102", "2026/01/02",
                        "02.01.26", "2 Jan 2026", "January 2, 2026", "datetime.date(2026, 1, 2)",
                        "20455", "1767312000", "1767312000000", "1767312000000000"]),
        ("02.01.2026", ["2026-01-02", "2026-02-01", "2 January 2026"]),
        ("2026-01-02T03:04:05+02:00", ["2026-01-02 03:04:05", "02.01.2026", "01:04:05", "1767315845",
                                       "2026-01-02 01:04:05+00:00", "1767315845000",
                                       "datetime.datetime(2026, 1, 2, 3, 4, 5)"]),
        (1767315845000, ["2026-01-02", "01:04:05", "1767315845", "2026-01-02T01:04:05Z"]),
        ("a b@x.de", ["a%20b%40x.de", "a+b%40x.de", "ab@x.de", "A B@X.DE"]),
        ("Zo\u00eb", ["Zoe\u0308", "ZO\u00cb", "Zo\\u00eb"]),
        ("\u00c9lise-Dupont", ["\\xc9lise-Dupont", "\\xc3\\x89lise-Dupont", "&#201;lise-Dupont"]),
        ("\uff21lice\uff20example", ["Alice@example"]),
        ("Ann\u200b Kova\u010d", ["Ann Kova\u010d"]),
        ("Ann   Maria\tKovac", ["Ann Maria Kovac"]),
        ("Ann <ann@b.c>", ["Ann &lt;ann@b.c&gt;"]),
        (1234567, ["12d687", "12D687"]),
    ],
)  # fmt: skip
def test_values_are_found_in_other_spellings(value, quotes):
    for quote in quotes:
        event, _ = masked_event(made({"secret": value}, f"bad: {quote} (line 7)"), ("secret",))
        left = event.message.removeprefix("bad: ").removesuffix(" (line 7)")
        assert not left.replace(MASK, "").strip("TZ+0: )"), (quote, event.message)
        assert MASK in left


def test_names_inside_a_personal_object_are_values_too():
    data = {"contacts": {"alice@x.org": {"since": 2020}, "n": 1}}
    event, _ = masked_event(made(data, "no such: alice@x.org"), ("contacts",))
    assert event.message == f"no such: {MASK}"


def test_hostile_values_are_written_in_any_way_without_an_error():
    odd = ["9" * 5000, "1e99", "-0", "0000-00-00", "9999-12-31T23:59:59.999999+23:59", "0001-01-01",
           "31.02.2026", "\ud800", "²", "١٢٣٤٥", "1,,234", 10**40, -1e308, "\0", "=1+1"]  # fmt: skip
    for value in odd:
        text = json.dumps({"secret": value})
        event, _ = masked_event(made(text.encode(), "nothing of it"), ("secret",))
        assert json.loads(event.value) == {"secret": MASK}


NO_JSON = "expected an object of JSON in UTF-8; found no JSON"


@pytest.mark.parametrize(
    ("stage", "message", "shown"),
    [
        ("ingestion", NO_JSON, NO_JSON),
        ("ingestion", f"{NO_JSON}: Ann", MASK),
        ("ingestion", "expected an object of JSON in UTF-8; found Ann", MASK),
        ("transformation", NO_JSON, MASK),
        ("mapping", "column 'n' is text and takes no null", None),
        ("mapping", "column 'n' is text; got str 'Ann'", "column 'n' is text; got str •••"),
        (
            "mapping",
            "column 'n' is text; got str 'Ann'\n; got str",
            "column 'n' is text; got str •••",
        ),
        ("mapping", "column 'n' is text; got Ann 'x'", MASK),
        ("mapping", "column 'Ann' is text; got str 'x'", MASK),
        ("mapping", "column 'n' is Ann and takes no null", MASK),
        ("mapping", "Ann: column 'n' is text and takes no null", MASK),
        ("mapping", "column 'n' is text and takes no null Ann", MASK),
        ("transformation", "column 'n' is text; got str 'Ann'", MASK),
    ],
)
def test_only_what_is_whole_in_waybills_own_words_is_shown(stage, message, shown):
    assert own_words(stage, message, {"n"}) == (message if shown is None else shown)


def test_the_line_that_is_no_json_is_shown_and_neither_its_file_nor_another_place():
    for message, where, shown in (
        (NO_JSON, "line 7", "line 7"),
        (NO_JSON, "in/Ann, line 8.csv, line 7", "line 7"),
        (NO_JSON, "Ann", MASK),
        ("found Ann", "rides.jsonl, line 7", MASK),
    ):
        event = made(b'{"name": "Ann', message, where)
        event.stage = "ingestion"
        masked, _ = masked_event(event, ("name",))
        assert masked.where == shown
        assert "Ann" not in str((masked.message, masked.where, masked.value))
