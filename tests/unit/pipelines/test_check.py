"""Each mistake is reported with its line, its field, what was expected, found, and meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from waybill.errors import InputError
from waybill.pipelines import DeclarationError, check, load_pipeline, load_pipelines


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def test_a_good_declaration_has_no_problems(folder):
    folder.write()
    assert check(folder.root) == []


@pytest.mark.parametrize(
    ("before", "after", "field", "words"),
    [
        ("team: shop", "taem: shop", "taem", "found 'taem'; did you mean 'team'?"),
        ("team: shop", "taem: shop", "taem", "did you mean 'team'?"),
        ("team: shop", "", "team", "it is missing"),
        ("connector: csv", "connector: cvs", "source.connector", "did you mean 'csv'?"),
        ("policy: ignore", "polcy: ignore", "events.order.polcy", "did you mean 'policy'?"),
        ("policy: ignore", "policy: ignored", "events.order.policy", "did you mean 'ignore'?"),
        ("note: string", "note: strng", "events.order.columns.note", "did you mean 'string'?"),
        ("note: string", "note: string nul", "events.order.columns.note", "unknown type"),
        ("type: timestamp,", "type: timstamp,", "events.order.columns.placed_at.type",
         "did you mean 'timestamp'?"),
        ("total: decimal(10,2) not", "total: decimal(10,12) not", "events.order.columns.total",
         "a decimal has 1 to 38 digits"),
        ("changed: int64", "changed: json", "source.columns.changed", "holds none of this type"),
        ('"@hourly"', '"@hourli"', "schedule", "did you mean '@hourly'?"),
        ('"@hourly"', "* * * * *", "", "text that begins with * goes in quotes"),
        ('"@hourly"', "61 * * * *", "schedule", "not a cron expression"),
        ('"@hourly"', '"* * * *"', "schedule", "five fields"),
        ('"@hourly"', "0 0 31 2 *", "schedule", "never comes"),
        ('"@hourly"', "5", "schedule", "found 5"),
        ("key: [number]", "key: [numbr]", "events.order.key.0", "did you mean 'number'?"),
        ("key: [number]", "key: [number, number]", "events.order.key.1", "'number' again"),
        ("key: [number]", "key: []", "events.order.key", "one or more columns"),
        ("number: int64\n      placed_at", "number: {type: int64, nullable: true}\n      placed_at",
         "events.order.columns.number.nullable", "never null"),
        ("key: [number]", "key: [note]", "events.order.key.0", "a column of source.columns"),
        ("version: changed", "version: chnged", "events.order.version", "did you mean 'changed'?"),
        ("policy: ignore", "personal: [noet]", "events.order.personal.0", "did you mean 'note'?"),
        ("policy: ignore", "personal: [plced.x]", "events.order.personal.0", "a column of source"),
        ("policy: ignore", "personal: [note, note]", "events.order.personal.1", "'note' again"),
        ("policy: ignore", "personal: note", "events.order.personal", "a list of payload fields"),
        ("event: order", "event: ordr", "source.event", "did you mean 'order'?"),
        ("order_by: [placed]", "order_by: [plced]", "source.order_by.0", "did you mean 'placed'?"),
        ("order_by: [placed]", "page_rows: 0", "source.page_rows", "from 1 to 1000000"),
        ("order_by: [placed]", "page_rows: ten", "source.page_rows", "found 'ten'"),
        ("team: shop", "team: sh.op", "team", "letters, digits, - and _"),
        ("team: shop", "team: " + "x" * 64, "team", "1 to 63"),
        ("name: warehouse", "name: ware.house", "destination.name", "letters, digits, - and _"),
        ("name: orders", "name: ../orders", "name", "found '../orders'"),
        ("id: shop-orders", "id: Shop", "id", "3 to 63 small letters"),
        ("id: shop-orders", "id: shop/orders", "id", "3 to 63 small letters"),
        ("id: shop-orders", "id: 1234", "id", "found 1234"),
        ("id: shop-orders", "id: unknown", "id", "'unknown' (events whose envelope cannot be read"),
        ("path: orders.csv", "path: package:nope", "source.path", "package:<name>/<path"),
        ("path: orders.csv", "path: package:os/../x.csv", "source.path", "package:<name>/<path"),
        ("path: orders.csv", 'path: "a\\0b"', "source.path", "holds a NUL"),
        ("table: orders", 'table: ""', "events.order.table", "a table's name"),
        ("table: orders", "table: " + "é" * 32, "events.order.table", "more than 63 bytes"),
        ("note: string", "_waybill_id: string", "events.order.columns._waybill_id", "belong to"),
        ("note: string", "Total: string", "events.order.columns.Total", "differ by more than case"),
        ("note: string", "note: string\n      note: string", "events.order.columns.note",
         "each key once"),
        ("team: shop", "team: shop\nteam: shop", "team", "also in line 3"),
        ("team: shop", "team: !!python/name:os.system shop", "team", "without a tag"),
        ("team: shop", "team: !!int shop", "team", "without a tag"),
        ("schema: shop}", "schema: shop, <<: {a: b}}", "destination.<<", "merge key"),
        ("schema: shop}", "schema: shop, [a]: b}", "destination", "text as a key"),
        ("destination: {name: warehouse, schema: shop}", "destination: warehouse", "destination",
         "found 'warehouse'"),
        ("transformation: transformation.py", "transformation: other.py", "transformation",
         "there is none"),
        ("transformation: transformation.py", "transformation: ../../x.py", "transformation",
         "outside of it"),
        ("transformation: transformation.py", "transformation: /etc/hostname", "transformation",
         "outside of it"),
        ("transformation: transformation.py", 'transformation: "a\\0b"', "transformation",
         "cannot be read"),
        ("transformation: transformation.py", "transformation: " + "x" * 300, "transformation",
         "cannot be read"),
        ("transformation: transformation.py", "transformation: .", "transformation",
         "there is none"),
        ("team: shop", "team: [shop", "", "expected YAML"),
        ("team: shop", "team: *nobody", "", "expected YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(folder, good, before, after, field, words):
    text = good.replace(before, after, 1)
    assert text != good
    folder.write(text=text)
    problems = check(folder.root)
    found = [p for p in problems if p.field == field and words in p.message]
    assert found, problems
    assert found[0].file.endswith("orders/pipeline.yaml")


def test_a_misspelt_field_is_told_once(folder, good):
    folder.write(text=good.replace("connector: csv", "conector: csv"))
    [problem] = check(folder.root)
    assert problem.field == "source.conector"
    assert "did you mean 'connector'?" in problem.message


@pytest.mark.parametrize("path", ["package:p/../x", "package:p//etc/x", "package:p/", "package:p"])
def test_a_path_never_leaves_its_package(folder, good, path):
    folder.write(text=good.replace("orders.csv", path))
    [problem] = check(folder.root)
    assert problem.field == "source.path"


@pytest.mark.parametrize("path", ["../x.py", "/etc/passwd", "a/../../x.py"])
def test_a_transformation_outside_of_the_folder_is_refused(folder, good, path):
    (folder.root / "x.py").write_text("def transform(event): return event")
    folder.write(text=good.replace("transformation: transformation.py", f"transformation: {path}"))
    [problem] = check(folder.root)
    assert "outside of it" in problem.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("team: shop", "taem: shop"),
        ("policy: ignore", "policy: ignored"),
        ("note: string", "note: strng"),
        ('"@hourly"', '"@hourli"'),
        ("key: [number]", "key: [numbr]"),
        ("placed: timestamp", "placed: timestmp"),
    ],
)
def test_the_line_is_that_of_the_mistake(folder, good, before, after):
    text = good.replace(before, after, 1)
    folder.write(text=text)
    problems = check(folder.root)
    assert line_of(text, after) in {problem.line for problem in problems}


def test_all_mistakes_of_a_file_and_of_its_code_are_reported_at_once(folder, good):
    text = (
        good.replace("team:", "taem:")
        .replace("connector: csv", "connector: cvs")
        .replace("key: [number]", "key: [numbr]")
        .replace("note: string", "note: strng")
        .replace("order_by: [placed]", "order_by: [plced]")
    )
    folder.write(text=text, code="def tranform(event): return event")
    fields = {problem.field for problem in check(folder.root)}
    assert fields >= {
        "taem",
        "source.connector",
        "source.order_by.0",
        "events.order.key.0",
        "events.order.columns.note",
        "",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# only a comment", "the file is empty"),
        ("- a\n- b", "expected a mapping"),
        ("hello", "expected a mapping"),
        ("a: 1\n---\nb: 2", "expected YAML"),
        ("&a [*a]", "turn in a circle"),
        ("[" * 100_000, "at most 50 levels"),
        ("a: \0", "expected YAML"),
        ("id: \ud800", "in UTF-8; line 1 is not"),
    ],
)
def test_what_is_no_declaration_gets_a_problem_not_a_crash(folder, text, words):
    folder.write(text=text)
    assert any(words in problem.message for problem in check(folder.root))


def test_aliases_that_swell_are_refused_before_they_fill_the_memory(folder):
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    folder.write(text="\n".join(["a0: &a0 x", *levels]))
    assert any("aliases that swell" in problem.message for problem in check(folder.root))


def test_aliases_that_do_not_swell_are_welcome(folder, good):
    text = good.replace("number: int64\n    placed", "number: &wide int64\n    placed", 1)
    text = text.replace("changed: int64", "changed: *wide")
    folder.write(text=text)
    assert load_pipelines(folder.root)["orders"].source.columns["changed"] == "int64"


def test_yaml_1_1_surprises_are_text_or_numbers(folder, good):
    text = good.replace("null_values", "x").replace(
        "order_by: [placed]", "order_by: [placed]\n  null_values: [no, off, 1:30, NA, 2013-01-01]"
    )
    folder.write(text=text)
    source = load_pipelines(folder.root)["orders"].source
    assert source.null_values == ("no", "off", "1:30", "NA", "2013-01-01")


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("def transform(event)\n    return event", 1, "expected Python"),
        ("x = 1\nreturn x", 2, "'return' outside function"),
        ("def tranform(event): ...", 1, "is it 'tranform'?"),
        ("", 1, "found none"),
        ("x = '\0'", 1, "expected Python"),
        ("async def transform(event): ...", 1, "an async function"),
        ("\ndef transform(): ...", 2, "a function of 0 arguments"),
        ("\n\ndef transform(event, more): ...", 3, "a function of 2 arguments"),
        ("def transform(event, *, more): ...", 1, "a function of 2 arguments"),
        ("async def transform_batch(table): ...", 1, "an async function"),
        ("\ndef transform_batch(): ...", 2, "called with one table; found a function of 0"),
        ("def transform_batches(t): ...", 1, "or 'def transform_batch(table)'; found none"),
        ("def transform(e): ...\ndef transform_batch(t): ...", 2, "found both"),
        ("def transform_batch(t): ...\nfrom x import transform", 2, "found both"),
        ("x = 1\n" * 22_000 + "def transform_batch(t): ...", 1, "131,072 characters beside"),
        ("(" * 10_000, 1, "expected Python"),
        ("x = " + "-" * 100_000 + "1", 1, "expected Python"),
    ],
)
def test_a_transformation_that_cannot_run_is_named(folder, code, line, words):
    folder.write(code=code)
    problems = check(folder.root)
    assert [problem.line for problem in problems if words in problem.message] == [line], problems
    assert all(problem.file.endswith("transformation.py") for problem in problems)


@pytest.mark.parametrize(
    "code",
    [
        "def transform(event, more=1): ...",
        "def transform(*events): ...",
        "def inner(event): ...\ntransform = inner",
        "from json import loads as transform",
        "def transform_batch(table): ...",
        "def transform_batch(table, more=1): ...",
        "x = 1\n" * 22_000 + "def transform(event): ...  # no transform_batch",
        "from json import loads as transform_batch",
        "import re\nPATTERN = re.compile('\\d')\ndef transform(event): ...",
    ],
)
def test_any_way_to_bind_transform_is_fine(folder, code):
    folder.write(code=code)
    assert check(folder.root) == []


def test_checking_and_loading_never_run_the_code(folder, tmp_path):
    mark = tmp_path / "ran"
    folder.write(code=f"open({str(mark)!r}, 'w')\ndef transform(event): ...")
    assert check(folder.root) == []
    load_pipelines(folder.root)
    assert not mark.exists()


def test_a_missing_transformation_is_named(folder, good):
    folder.write(code=None)
    (problem,) = check(folder.root)
    assert problem.field == "transformation"
    assert problem.line == line_of(good, "transformation:")
    assert "there is none" in problem.message


def test_a_link_out_of_the_folder_is_not_followed(folder, tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("def transform(event): ...")
    directory = folder.write(code=None)
    (directory / "transformation.py").symlink_to(outside)
    (problem,) = check(folder.root)
    assert "outside of it" in problem.message


@pytest.mark.parametrize("path", ["/etc/passwd", "../../stack.env", "link.csv"])
def test_a_source_outside_of_the_folder_is_a_mistake_and_is_not_deployed(
    folder, good, tmp_path, path
):
    directory = folder.write(text=good.replace("orders.csv", path))
    (directory / "link.csv").symlink_to("/etc/passwd")
    (problem,) = check(folder.root)
    assert problem.field == "source.path"
    assert "WAYBILL_SOURCES__ROOTS" in problem.message
    with pytest.raises(DeclarationError, match="outside of them"):
        load_pipeline(directory, ())
    assert check(folder.root, lambda _: [tmp_path, Path("/etc")]) == []
    assert load_pipeline(directory, [tmp_path, Path("/etc")]).source.path == path


def test_a_fifo_does_not_hang_the_check(folder):
    import os

    directory = folder.write(code=None)
    os.mkfifo(directory / "transformation.py")
    (problem,) = check(folder.root)
    assert "there is none" in problem.message


def test_links_in_a_circle_are_a_problem(folder):
    directory = folder.write(code=None)
    (directory / "transformation.py").symlink_to(directory / "transformation.py")
    assert len(check(folder.root)) == 1


def test_ids_names_and_tables_belong_to_one_pipeline(folder, good):
    folder.write("a")
    folder.write("b")
    fields = [(p.file.split("/")[-2], p.field) for p in check(folder.root)]
    assert fields == [("b", "id"), ("b", "name"), ("b", "events.order.table")]


def test_the_same_table_in_another_schema_or_destination_is_another_table(folder, good):
    folder.write("a")
    other = good.replace("shop-orders", "other").replace("name: orders", "name: other")
    folder.write("b", text=other.replace("schema: shop", "schema: other"))
    assert check(folder.root) == []
    folder.write(
        "c", text=other.replace("id: other", "id: third").replace("name: other", "name: c")
    )
    (problem,) = check(folder.root)
    assert (problem.field, problem.line) == ("events.order.table", line_of(other, "table:"))
    assert "a/pipeline.yaml has too" in problem.message


def test_two_events_of_a_pipeline_share_a_table_only_with_the_same_columns(folder, good):
    event = good[good.index("  order:") : good.index("transformation:")]
    folder.write(text=good.replace(event, event + event.replace("order:", "refund:", 1)))
    assert check(folder.root) == []
    other = event.replace("order:", "refund:", 1).replace("note: string", "note: json")
    folder.write("b", text=good.replace(event, event + other).replace("shop", "b").replace(
        "name: orders", "name: b"))  # fmt: skip
    (problem,) = check(folder.root)
    assert problem.field == "events.refund.table"


def test_a_folder_without_a_declaration_is_a_problem_that_names_a_similar_file(folder):
    directory = folder.write()
    (directory / "pipeline.yaml").rename(directory / "pipeline.yml")
    (problem,) = check(folder.root)
    assert "did you mean 'pipeline.yml'?" in problem.message


def test_folders_that_are_no_pipelines_are_passed_over(folder):
    folder.write()
    for name in ("__pycache__", ".git"):
        (folder.root / name).mkdir()
    (folder.root / "README.md").write_text("about")
    assert check(folder.root) == []


def test_check_takes_one_pipelines_folder_too(folder):
    directory = folder.write()
    assert check(directory) == []
    assert list(load_pipelines(directory)) == ["orders"]


def test_a_root_that_is_not_there_is_a_problem(tmp_path):
    (problem,) = check(tmp_path / "nothing")
    assert "No such file" in problem.message


def test_loading_raises_with_every_problem(folder, good):
    directory = folder.write(text=good.replace("team:", "taem:"))
    for load, place in ((load_pipeline, directory), (load_pipelines, folder.root)):
        with pytest.raises(DeclarationError) as caught:
            load(place)
        assert isinstance(caught.value, InputError)
        assert [p.field for p in caught.value.problems] == ["taem"]
        assert "pipeline.yaml:3: taem: expected one of id, name" in str(caught.value)
