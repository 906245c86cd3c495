from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from waybill.errors import InputError
from waybill.pipelines import (
    Column,
    Pipeline,
    TableSpec,
    arrow_type,
    load_pipeline,
    topic_of,
)


@pytest.fixture
def pipeline(folder) -> Pipeline:
    return load_pipeline(folder.write())


def test_a_declaration_becomes_a_pipeline(pipeline):
    assert (pipeline.id, pipeline.name, pipeline.team) == ("shop-orders", "orders", "shop")
    assert pipeline.schedule == "@hourly"
    assert pipeline.source.columns["total"] == "decimal(10,2)"
    assert pipeline.transformation_code == "def transform(event):\n    return event\n"
    assert (pipeline.destination, pipeline.schema_name) == ("warehouse", "shop")
    event = pipeline.events["order"]
    assert (event.name, event.key, event.version, event.policy) == (
        "order", ("number",), "changed", "ignore",
    )  # fmt: skip
    assert (event.table.schema_name, event.table.name) == ("shop", "orders")


def test_columns_take_null_unless_they_say_not_null_or_belong_to_the_key(pipeline):
    nullable = {column.name: column.nullable for column in pipeline.events["order"].table.columns}
    assert nullable == {"number": False, "placed_at": False, "total": False, "note": True}


def test_a_key_is_read_from_the_payload_field_of_its_column(folder, good):
    text = good.replace("key: [number]", "key: [number, placed_at]")
    event = load_pipeline(folder.write(text=text)).events["order"]
    assert event.key == ("number", "placed")
    assert event.table.key == ("number", "placed_at")


def test_the_arrow_schema_has_types_and_nulls_in_declared_order(pipeline):
    assert pipeline.events["order"].table.arrow_schema() == pa.schema(
        [
            pa.field("number", pa.int64(), nullable=False),
            pa.field("placed_at", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("total", pa.decimal128(10, 2), nullable=False),
            pa.field("note", pa.string()),
        ]
    )


@pytest.mark.parametrize("name", ["bool", "int32", "float64", "date", "bytes", "json"])
def test_every_type_has_an_arrow_type(name):
    assert isinstance(arrow_type(name), pa.DataType)


def test_a_pipeline_survives_a_trip_through_a_database_row(pipeline):
    row = json.dumps(pipeline.to_json())
    assert Pipeline.from_json(json.loads(row)) == pipeline
    spec = pipeline.events["order"].table
    assert TableSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_stored_value_of_another_shape_is_refused_with_its_place(pipeline):
    stored = pipeline.to_json()
    stored["events"]["order"]["table"]["columns"][0]["type"] = "int7"
    with pytest.raises(InputError, match=r"events\.order\.table\.columns\.0\.type"):
        Pipeline.from_json(stored)


def test_the_version_follows_declaration_and_code_and_nothing_else(folder, good, pipeline):
    def version(name, **changed):
        return load_pipeline(folder.write(name, **changed)).version

    assert len(pipeline.version) == 12
    assert version("comment", text="# a comment\n" + good) == pipeline.version
    personal = good.replace("policy: ignore", "policy: ignore\n    personal: [note]")
    assert version("nobody", text=personal.replace("[note]", "[]")) == pipeline.version
    assert version("personal", text=personal) != pipeline.version
    assert version("default", text=good + "keep_source: false\n") == pipeline.version
    assert version("code", code="def transform(event): ...") != pipeline.version
    assert version("owner", text=good.replace("shop@", "me@")) != pipeline.version
    lines = "      total: decimal(10,2) not null\n", "      note: string\n"
    swapped = good.replace("".join(lines), "".join(reversed(lines)))
    assert version("order", text=swapped) != pipeline.version


def test_pipelines_are_frozen(pipeline):
    with pytest.raises(ValidationError):
        pipeline.name = "other"
    with pytest.raises(ValidationError):
        Column(name="a", type="string", colour="red")


def test_a_table_whose_key_is_no_column_cannot_be_made():
    with pytest.raises(ValidationError, match="not columns"):
        TableSpec(schema_name="s", name="t", columns=(Column(name="a", type="string"),), key=("b",))


def test_the_topic_is_named_by_team_and_destination(pipeline):
    assert topic_of(pipeline) == "events.shop.warehouse"


@given(st.text(max_size=30))
def test_only_types_of_the_list_are_types(text):
    try:
        made = Column(name="a", type=text).type
    except ValidationError:
        return
    assert isinstance(arrow_type(made), pa.DataType)


def test_personal_fields_are_columns_what_they_are_read_from_or_the_sources(folder, good):
    said = "personal: [note, placed, changed, note.street]"
    pipeline = load_pipeline(folder.write(text=good.replace("policy: ignore", said)))
    assert pipeline.events["order"].personal == ("note", "placed", "changed", "note.street")
    assert Pipeline.from_json(pipeline.to_json()) == pipeline


def test_the_version_of_a_pipeline_stored_before_there_were_personal_fields_stays(pipeline):
    stored = pipeline.to_json()
    del stored["events"]["order"]["personal"]
    assert Pipeline.from_json(stored | {"version": ""}).version == pipeline.version
