"""Shared modules as code imports them at run time: those of its own version, and nothing else."""

from __future__ import annotations

import pickle
import sys
import threading

import pytest
from tests.unit.processing.made import event, pipeline

from waybill.errors import ParkError
from waybill.events import encode
from waybill.processing import Plan
from waybill.processing.code_runner import InProcess, outcomes_of
from waybill.processing.sandbox.pool import Sandbox
from waybill.processing.transformation import load_code
from waybill.settings import Settings

IMPORTS = "from shared.money import cents\ndef transform(event):\n    return cents(event)\n"


def money(factor):
    return {"shared/money.py": f"def cents(x):\n    return x * {factor}\n"}


def transform(code, shared, name="orders"):
    found = load_code(code, name, shared).transform
    assert found is not None
    return found


@pytest.mark.parametrize(
    "code",
    [
        IMPORTS,
        "import shared.money\ndef transform(event):\n    return shared.money.cents(event)\n",
        "import shared.money as m\ndef transform(event):\n    return m.cents(event)\n",
        "from shared import money\ndef transform(event):\n    return money.cents(event)\n",
        "from shared.money import *\ndef transform(event):\n    return cents(event)\n",
        "def transform(event):\n    from shared.money import cents\n    return cents(event)\n",
        "from shared.money import cents as transform\n",
    ],
    ids=["from", "plain", "as", "module", "star", "later", "whole"],
)
def test_each_way_to_import_finds_the_versions_module(code):
    assert transform(code, money(100))(2) == 200


def test_versions_in_one_process_do_not_see_one_anothers_modules():
    later = "def transform(event):\n    import shared.money\n    return shared.money.cents(event)\n"
    old, new = (transform(later, money(factor)) for factor in (1, 2))
    others = transform(later, money(1), name="refunds")
    assert [one(10) for one in (old, new, others, old)] == [10, 20, 10, 10]
    kept = {
        "shared/money.py": "SEEN = []\ndef cents(x):\n    SEEN.append(x)\n    return len(SEEN)\n"
    }
    first, second = (transform(IMPORTS, kept, name=name) for name in ("orders", "refunds"))
    assert [first(1), first(1), second(1)] == [1, 2, 1], "what a module keeps is a pipeline's own"
    assert not [name for name in sys.modules if name.partition(".")[0] == "shared"]
    with pytest.raises(ModuleNotFoundError):
        transform(later, {"shared/other.py": ""})(1)


def test_code_without_shared_modules_imports_as_ever(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "money.py").write_text("def cents(x):\n    return -x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert transform(IMPORTS, {})(2) == -2, "of what is installed under that name"
        assert transform(IMPORTS, money(3))(2) == 6
    finally:
        for name in ("shared", "shared.money"):
            sys.modules.pop(name, None)


def test_packages_and_relative_imports_and_what_they_give_each_other():
    shared = {
        "shared/__init__.py": "from .money import cents\n",
        "shared/money.py": "from .deep.rates import RATE\nimport json\ndef cents(x):\n    return x * RATE\n",
        "shared/deep/rates.py": "from . import low\nfrom .. import deep\nRATE = low.LOW\n",
        "shared/deep/low.py": "LOW = 7\n",
    }
    code = "from shared import cents\nimport shared.deep.low\n"
    code += "def transform(event):\n    return cents(event) + shared.deep.low.LOW\n"
    assert transform(code, shared)(1) == 14


def test_what_libraries_look_up_by_a_classs_module_is_there():
    shared = {
        "shared/shapes.py": (
            "from __future__ import annotations\n"
            "from dataclasses import InitVar, asdict, dataclass\nfrom typing import get_type_hints\n"
            "@dataclass\nclass Money:\n    amount: Cents\n    factor: InitVar[int] = 1\n"
            "@dataclass\nclass Cents:\n    value: int\n"
            "def transform(event):\n"
            "    return asdict(Money(Cents(event))), get_type_hints(Money)['amount'] is Cents\n"
            "def made(x):\n    return Cents(x)\n"
        )
    }
    assert transform("from shared.shapes import transform\n", shared)(3) == (
        {"amount": {"value": 3}},
        True,
    )
    made = transform("from shared.shapes import made as transform\n", shared)(3)
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_module_is_loaded_once_and_by_one_thread_at_a_time():
    shared = {"shared/slow.py": "import time\nLOADED = []\ntime.sleep(0.05)\nLOADED.append(1)\n"}
    code = "def transform(event):\n    from shared.slow import LOADED\n    event.append(LOADED)\n"
    run, found = transform(code, shared), []
    threads = [threading.Thread(target=run, args=(found,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(one) for one in found] == [1] * 4
    assert len({id(one) for one in found}) == 1


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        ({"shared/money.py": "1 / 0\n"}, "ZeroDivisionError: division by zero (shared/money.py:1"),
        ({"shared/money.py": "A = 1\n"}, "cannot import name 'cents' from 'shared.money'"),
        ({"shared/rates.py": "A = 1\n"}, "No module named 'shared.money' in this version"),
        ({"shared/money.py": "import nothing_of_that_name\n"}, "No module named 'nothing_of"),
    ],
    ids=["raises", "no_name", "no_module", "not_installed"],
)
def test_a_module_that_cannot_be_loaded_says_where(shared, words):
    with pytest.raises(ParkError) as caught:
        load_code(IMPORTS, "orders", shared)
    assert caught.value.code == "code_invalid"
    assert words in caught.value.message
    assert "waybill_" not in caught.value.message


def test_an_event_that_fails_in_a_shared_module_parks_with_its_place():
    code = "from shared.money import cents\ndef transform(event):\n    return cents(event)\n"
    shared = {"shared/money.py": "\ndef cents(event):\n    return event.data['gone']\n"}
    plan = Plan(pipeline(code).model_copy(update={"shared_code": shared}))
    given = [event(data={"id": 1})]
    [fault] = outcomes_of(given, InProcess().run(plan, given, [b""], None))
    assert (fault.code, fault.where) == ("field_missing", "shared/money.py:3 in cents")


def test_a_plan_tells_code_apart_by_its_shared_modules_and_keeps_the_key_of_what_has_none():
    plain = pipeline(IMPORTS)
    keys = {
        Plan(plain.model_copy(update={"shared_code": shared})).code_key
        for shared in ({}, money(1), money(2), {"shared/money.py\0": ""})
    }
    assert len(keys) == 4
    assert Plan(plain).code_key == Plan(plain.model_copy(update={"version": "other"})).code_key


@pytest.mark.parametrize("form", ["events", "tables"])
def test_the_confined_process_runs_each_pipeline_with_its_own_modules(form):
    if form == "events":
        code = (
            "def transform(event):\n    from shared.rules import tripled\n"
            "    event.data['n'] = tripled(event.data['n'])\n    return event\n"
        )
    else:
        code = (
            "import pyarrow.compute as pc\ndef transform_batch(table):\n"
            "    from shared.rules import tripled\n"
            "    at = table.column_names.index('n')\n"
            "    return table.set_column(at, 'n', tripled(table['n']))\n"
        )
    times = "x * {}" if form == "events" else "pc.multiply(x, {})"
    head = "" if form == "events" else "import pyarrow.compute as pc\n"
    sandbox = Sandbox(Settings().sandbox, timeout_s=30.0)
    try:
        results = []
        for ident, factor in (("p1", 3), ("p2", 4), ("p1", 3), ("p1", 5)):
            text = f"{head}def tripled(x):\n    return {times.format(factor)}\n"
            made = pipeline(code, ident=ident).model_copy(
                update={"shared_code": {"shared/rules.py": text}}
            )
            given = [event(data={"id": 1, "n": 10}, pipeline_id=ident)]
            found = outcomes_of(given, sandbox.run(Plan(made), given, [*map(encode, given)], None))
            results.append(found[0].data["n"])
        assert results == [30, 40, 30, 50]
    finally:
        sandbox.close()
