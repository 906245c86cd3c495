"""The documentation says what is there: links, commands, settings, DAGs, tests, generated pages."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
import typer
from tests.support import error_types_page, performance_page, settings_page

from waybill.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```\n?", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
TEST = re.compile(r"`(tests/[^`]+?\.py)(?:::(\w+))?`")
VARIABLE = re.compile(r"\bWAYBILL_[A-Z0-9_]*[A-Z0-9]\b")
WORD = re.compile(r"[a-z][a-z-]*")
MACHINE_PATH = re.compile(r"(?<![\w.>`/])/(?:home|root|work|tmp|Users|mnt|srv)/")
HOST = re.compile(r"https?://([^/\s`)\"'…]+)")
OWN_HOSTS = {"127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:28080", "127.0.0.1:28090"}


def name_of(page):
    return str(page.relative_to(ROOT))


def prose(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page):
    """Return the anchors of a page, made as code forges make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page):
    for target in LINK.findall(prose(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            yield f"{target}: no such file"
        elif anchor and anchor not in headings(file):
            yield f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page):
    assert list(broken_links(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) [b](page.md#there) [c](#nowhere)\n\n## There\n")
    assert len(list(broken_links(page))) == 3  # outside of the checkout, all of them are wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_that_is_named_exists(page):
    unknown = set(VARIABLE.findall(page.read_text(encoding="utf-8"))) - known_variables()
    assert {name for name in unknown if not name.startswith("WAYBILL_DESTINATIONS__")} == set()


@cache
def known_variables():
    names = {"WAYBILL_DESTINATIONS"}
    for name, field in Settings.model_fields.items():
        names.add(f"WAYBILL_{name.upper()}")
        sections = getattr(field.annotation, "model_fields", {})
        names |= {f"WAYBILL_{name}__{part}".upper() for part in sections}
    return names


@cache
def command_line():
    return typer.main.get_command(pytest.importorskip("waybill.cli").app)


_LOADED: dict = {}


def loaded(later, name):
    """Return a command that is loaded late; each once, as that takes 10 ms."""
    if (command := _LOADED.get((id(later), name))) is None:
        command = _LOADED[id(later), name] = later.load(name)
    return command


def commands_of(text):
    """Yield each ``waybill …`` that a page tells to type, word by word."""
    fenced = [line for block in FENCE.findall(text) for line in block.splitlines()]
    for line in [*CODE.findall(FENCE.sub("", text)), *fenced]:
        for typed in re.findall(r"(?<![\w./-])(?:\.venv/bin/)?waybill ([^|#;&]+)", line):
            yield typed.split()


def unknown_part(words):
    """Return the first word that is neither command, option of its command, nor argument."""
    command = command_line()
    while words and hasattr(command, "commands") and WORD.fullmatch(words[0]):
        found = command.commands.get(words[0])
        if found is None:
            return words[0]
        later = getattr(found, "later", None)  # stands for a command until it is called
        command, words = loaded(later, words[0]) if later else found, words[1:]
    options = {name for one in command.params for name in [*one.opts, *one.secondary_opts]}
    typed = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)} - {"--help"}
    return next(iter(sorted(typed - options)), None)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_is_named_exists_with_its_options(page):
    wrong = {}
    for words in commands_of(page.read_text(encoding="utf-8")):
        if part := unknown_part(words):
            wrong[" ".join(words)] = part
    assert wrong == {}


def test_a_command_or_option_that_does_not_exist_is_found():
    assert unknown_part(["parkd", "list"]) == "parkd"
    assert unknown_part(["parked", "lst"]) == "lst"
    assert unknown_part(["parked", "list", "--al"]) == "--al"
    assert unknown_part(["parked", "list", "flights", "--all"]) is None
    assert list(commands_of("`waybill parked list --all` and ```")) == [["parked", "list", "--all"]]


def missing_tests(text):
    for path, name in TEST.findall(text):
        file = ROOT / path
        if not file.is_file():
            yield path
        elif name and name not in functions_of(file):
            yield f"{path}::{name}"


@cache
def functions_of(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


DOCUMENTED = [page for page in PAGES if page.parent.name != "adr"]


@pytest.mark.parametrize("page", DOCUMENTED, ids=name_of)
def test_every_test_that_is_named_exists(page):
    assert list(missing_tests(page.read_text(encoding="utf-8"))) == []


def test_each_guarantee_names_tests_and_what_is_weaker():
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (G\d)\. ", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(sections) == [f"G{number}" for number in range(1, 8)]
    for name, section in sections.items():
        assert TEST.search(section), name
        assert "**Weaker today.**" in section, name


def test_a_test_that_does_not_exist_is_found():
    named = "`tests/gone.py` `tests/unit/test_docs.py::test_gone` `tests/unit/test_docs.py`"
    assert list(missing_tests(named)) == ["tests/gone.py", "tests/unit/test_docs.py::test_gone"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_machine_or_a_host_of_others(page):
    text = page.read_text(encoding="utf-8")
    assert MACHINE_PATH.findall(text) == []
    assert set(HOST.findall(text)) - OWN_HOSTS == set()


@pytest.mark.parametrize("generator", [settings_page, error_types_page, performance_page])
def test_the_generated_pages_are_current(generator):
    command = f"python -m {generator.__name__}"
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), f"run {command}"


def test_words_are_only_for_settings_that_exist():
    known = {name.removeprefix("WAYBILL_").lower().replace("__", ".") for name in known_variables()}
    known |= {"destination.kind", "destination.dsn"}
    assert set(settings_page.WORDS) - known == set()


def test_every_dag_is_documented():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    stems = {re.sub(r"_\d\d$", "", file.stem) for file in (ROOT / "dags").glob("*.py")}
    named = {re.split(r"_(?=default|<)", code)[0] for code in CODE.findall(text)}
    assert stems - named == set()


def test_every_service_of_the_stack_is_documented(tmp_path):
    from waybill.stack import credentials
    from waybill.stack.embedded import Stack

    keys = credentials.read_or_draw(tmp_path)
    services = {service.name for service in Stack(Settings(home=tmp_path)).services(keys)}
    named = set(CODE.findall((ROOT / "docs" / "operations.md").read_text(encoding="utf-8")))
    assert services - named == set()


def test_every_table_of_the_tracker_is_documented():
    from waybill.storage.tracker.tables import METADATA

    named = set(CODE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    assert set(METADATA.tables) - named == set()


def test_every_room_is_documented():
    library = ROOT / "include" / "waybill"
    rooms = {path.parent.name for path in library.glob("*/__init__.py")}
    rooms |= {path.stem for path in library.glob("*.py") if path.stem != "__init__"}
    named = set(CODE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    assert rooms - named == set()


PUBLIC_ROOMS = ("events", "pipelines", "storage", "access", "producer", "processing", "parking",
                "tracing", "tracing.files", "ledger", "destinations", "retention", "reconciliation", "testing")  # fmt: skip


@pytest.mark.parametrize("room", PUBLIC_ROOMS)
def test_what_a_room_is_said_to_offer_is_in_its_public_api(room):
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith(f"| `{room}` |"))
    spec = importlib.util.find_spec(f"waybill.{room}")
    assert spec is not None
    module = importlib.import_module(f"waybill.{room}")
    assert set(CODE.findall(row.split("|")[3])) - set(module.__all__) == set()


def walks():
    """Return the walks of docs/architecture.md: for each, its packages in order, with their files."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Three walks\n")[2].partition("\n## ")[0]
    for title, steps in re.findall(r"\*\*(.+?)\*\*\n\n((?:\d+\. .+\n)+)", section):
        rooms = []
        for line in steps.splitlines():
            first, *others = CODE.findall(line.partition(": ")[0])
            folder = (ROOT / first).parent
            rooms.append((folder, [ROOT / first, *((folder / name).resolve() for name in others)]))
        yield pytest.param(rooms, id=title)


def test_there_are_three_walks():
    assert len(list(walks())) == 3


@pytest.mark.parametrize("rooms", list(walks()))
def test_a_walk_enters_no_package_twice_and_goes_along_imports(rooms):
    folders = [folder for folder, _ in rooms]
    assert len(set(folders)) == len(folders) >= 5
    assert [file for _, files in rooms for file in files if not file.is_file()] == []
    for number, (folder, files) in enumerate(rooms[1:], 1):
        if {folder.name, folders[number - 1].name} & {"static", "dags"}:
            continue  # a browser, or Airflow, is between
        before = rooms[:number]
        assert any(_imports(files, one) or _imports(those, folder) for one, those in before), folder


def _imports(files, folder):
    parts = folder.relative_to(ROOT).parts
    dotted = ".".join(part for part in parts if part not in ("include", "plugins"))
    texts = [file.read_text(encoding="utf-8") for file in files if file.suffix == ".py"]
    return any(re.search(rf"\b(from|import) {re.escape(dotted)}\b", text) for text in texts)
