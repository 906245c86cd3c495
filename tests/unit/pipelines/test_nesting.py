"""What a declaration says of nested fields, arrays, evolution and deletes, and what is refused."""

from __future__ import annotations

import pytest

from waybill.pipelines import ChildTable, Column, Pipeline, check, load_pipeline

EVOLVING = """\
    policy: evolve
    nested: flatten
    depth: 3
    arrays: child
    deletes: soft
    personal: [customer.email, not_met_yet]
    columns:
      number: int64
      city: {type: string, from: address.city}
      a.b: string
    children:
      order_items:
        from: items
        columns: {sku: string not null, price: {type: "decimal(8,2)", from: unit.price}}
      order_tags:
        from: tags
        columns: {tag: {type: string, from: ""}}
"""


@pytest.fixture
def evolving(good) -> str:
    start, end = good.index("    policy: ignore"), good.index("transformation:")
    return good[:start] + EVOLVING + good[end:]


def test_an_event_says_how_it_evolves_and_what_becomes_of_nested_fields(folder, evolving):
    event = load_pipeline(folder.write(text=evolving)).events["order"]
    assert (event.policy, event.nested, event.depth, event.arrays) == (
        "evolve",
        "flatten",
        3,
        "child",
    )
    assert event.table.soft_delete
    assert [(c.name, c.source) for c in event.table.columns] == [
        ("number", "number"),
        ("city", "address.city"),
        ("a.b", "a\\.b"),
    ]
    assert event.table.children == (
        ChildTable(
            name="order_items",
            source="items",
            columns=(
                Column(name="sku", type="string", nullable=False),
                Column(name="price", type="decimal(8,2)", source="unit.price"),
            ),
        ),
        ChildTable(
            name="order_tags",
            source="tags",
            columns=(Column(name="tag", type="string", source=""),),
        ),
    )
    assert event.key == ("number",)


def test_the_item_itself_stays_the_source_of_its_column_through_json(folder, evolving):
    pipeline = load_pipeline(folder.write(text=evolving))
    again = Pipeline.from_json(pipeline.to_json())
    assert again == pipeline
    assert again.events["order"].table.children[1].columns[0].source == ""


def test_a_declaration_that_says_nothing_of_it_keeps_its_version(folder, good):
    plain = load_pipeline(folder.write(text=good))
    said = good.replace("policy: ignore", "policy: ignore\n    nested: json\n    deletes: hard")
    assert load_pipeline(folder.write("said", text=said)).version == plain.version


def test_without_columns_the_check_says_how_to_get_them(folder, good):
    start, end = good.index("    columns:\n      number"), good.index("transformation:")
    folder.write(text=good[:start] + good[end:])
    (problem,) = check(folder.root)
    assert problem.field == "events.order.columns"
    assert problem.message.startswith("expected columns with a type each")
    assert "it is missing: `waybill sources discover … --write` proposes" in problem.message


@pytest.mark.parametrize(
    ("before", "after", "field", "words"),
    [
        ("policy: evolve", "policy: evolv", "policy", "did you mean 'evolve'?"),
        ("nested: flatten", "nested: flat", "nested", "expected json or flatten; found 'flat'"),
        ("nested: flatten", "nested: json", "depth", "expected `nested: flatten` beside it"),
        ("depth: 3", "depth: 33", "depth", "a number from 1 to 32; found 33"),
        ("arrays: child", "arrays: children", "arrays", "did you mean 'child'?"),
        ("deletes: soft", "deletes: keep", "deletes", "expected hard or soft; found 'keep'"),
        ("number: int64\n      city", "number: {type: int64, from: order.number}\n      city",
         "columns.number.from",
         "keys are read before anything is flattened; found the path 'order.number'"),
        ("from: address.city", "from: 'address\\city'", "columns.city.from", "a path of fields"),
        ("a.b: string", "address: json", "columns.city", "column 'address' takes whole, as json"),
        ("from: items\n", "frm: items\n", "children.order_items.frm", "did you mean 'from'?"),
        ("from: tags", "from: items", "children.order_tags.from", "that of 'order_items' again"),
        ("order_tags:", "orders:", "children.orders", "event 'order' writes it too"),
        ("{tag: {", "{Number: {", "children.order_tags.columns.Number", "a child table has the"),
        ("sku: string", "price: string, Price: string", "children.order_items.columns.price",
         "each key once"),
        ("sku: string", "Price: string", "children.order_items.columns.price", "more than case"),
        ("{tag: {", "{no: int32, tag: {", "children.order_tags.columns.tag", "found 1"),
        ("sku: string", "_waybill_item: string", "children.order_items.columns._waybill_item",
         "belong to Waybill"),
        ("{sku: string", "{sku: strng", "children.order_items.columns.sku", "did you mean 'str"),
        ("{tag: {type: string, from: \"\"}}", "{}", "children.order_tags.columns", "with a type"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(folder, evolving, before, after, field, words):
    text = evolving.replace(before, after, 1)
    assert text != evolving
    folder.write(text=text)
    problems = check(folder.root)
    assert [p for p in problems if p.field == f"events.order.{field}" and words in p.message], [
        str(problem) for problem in problems
    ]


@pytest.mark.parametrize("policies", [("evolve", "strict"), ("ignore", "evolve")])
def test_a_table_that_evolves_belongs_to_one_event(folder, good, policies):
    event = good[good.index("  order:") : good.index("transformation:")]
    both = event.replace("policy: ignore", f"policy: {policies[0]}") + event.replace(
        "order:", "refund:", 1
    ).replace("policy: ignore", f"policy: {policies[1]}")
    folder.write(text=good.replace(event, both))
    (problem,) = check(folder.root)
    assert problem.field == "events.refund.table"
    assert "a table of its own under `policy: evolve`; event 'order'" in problem.message


def test_a_child_table_belongs_to_one_pipeline(folder, evolving):
    folder.write("a", text=evolving)
    other = evolving.replace("shop-orders", "other").replace("name: orders", "name: other")
    folder.write("b", text=other.replace("table: orders", "table: others"))
    fields = [problem.field for problem in check(folder.root)]
    assert fields == [
        "events.order.children.order_items",
        "events.order.children.order_tags",
    ]


def test_a_personal_name_under_evolve_may_come_later_but_not_under_strict(folder, evolving):
    folder.write(text=evolving.replace("policy: evolve", "policy: strict"))
    problems = check(folder.root)
    assert [problem.field for problem in problems] == [
        "events.order.personal.0",
        "events.order.personal.1",
    ]


def test_a_personal_object_may_be_one_that_columns_are_read_from_inside_of(folder, evolving):
    text = evolving.replace("policy: evolve", "policy: strict")
    folder.write(text=text.replace("customer.email, not_met_yet", "address, items.sku"))
    assert check(folder.root) == []
