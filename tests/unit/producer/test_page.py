"""docs/producer.md and the room's first lines name what is there: settings, numbers, files, packages."""

import dataclasses
import re
from pathlib import Path

from tests.support.producer_page import PAGE, run

import waybill.producer
from waybill.producer import ProducerStats
from waybill.producer.client import _REFUSED, producer_config
from waybill.producer.metrics import _families
from waybill.settings import WalSettings

TEXT = PAGE.read_text(encoding="utf-8")
ROOM = Path(waybill.producer.__file__).parent


def rows(heading):
    """Return the cells in backticks of each row of the section's table(s)."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines]


def test_every_setting_is_named_with_its_default():
    told = {name: default for name, default, _ in rows("Settings")}
    assert told == {
        name: str(field.get_default()) for name, field in WalSettings.model_fields.items()
    }


def test_every_statistic_is_named_with_its_metric():
    told = {statistic: metric for statistic, metric, _ in rows("Statistics and metrics")}
    assert set(told) == {field.name for field in dataclasses.fields(ProducerStats)}
    shown = {
        family.name + ("_total" if family.type == "counter" else "") for family in _families([])
    }
    assert set(told.values()) == shown


def test_every_file_of_the_room_is_named_in_its_first_lines():
    text = waybill.producer.__doc__
    beginnings = re.findall(r"^  (\w[\w, ]*?)  ", text, re.MULTILINE)
    said = {name for names in beginnings for name in names.split(", ")}
    said |= set(re.findall(r"``(\w+)``", text))
    modules = {path.stem for path in ROOM.rglob("*.py") if path.stem != "__init__"}
    assert modules - said == set()


def test_every_configuration_that_is_refused_or_set_is_named():
    ours = producer_config({"bootstrap.servers": "x"}, WalSettings()).keys()
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([^`]+)`", prose))
    assert {*_REFUSED, *ours} - {"bootstrap.servers"} - named == set()


def test_the_packages_to_install_are_all_that_it_needs(tmp_path):
    listed = re.search(r"^pip install (confluent-kafka .*)$", TEXT, re.MULTILINE)
    assert listed is not None
    code = """
import sys
from importlib.metadata import packages_distributions

with LosslessProducer(settings, {**kafka, "log_level": 0}, name="p") as producer:
    producer.produce("t", b"x", headers={"h": "1"})
    producer.close(0)
owners = packages_distributions()
for name in sorted({module.split(".")[0] for module in sys.modules}):
    print(*owners.get(name, []), sep="\\n")
"""
    done = run(code, "127.0.0.1:1", tmp_path)
    assert done.returncode == 0, done.stderr
    of_pydantic = {"annotated-types", "pydantic", "pydantic_core", "python-dotenv"}
    of_pydantic |= {"typing_extensions", "typing-inspection"}
    used = {name for name in done.stdout.split() if name not in of_pydantic}
    assert used - {"waybill", "setuptools"} == set(listed[1].split())
