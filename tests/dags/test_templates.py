"""No value from outside reaches a template: event names, params of a run, XComs, declarations.

Airflow renders each template field of an operator as Jinja, and its templates reach any Python code
(``macros.json.codecs.builtins.eval``). The rules that each DAG here keeps, so that this cannot happen:

- A template field holds references (``dag.param``, an operator's output) or nothing. Airflow puts the
  value of a reference in place and does not render it. No text: who writes it is not known here.
- What is mapped is no template field, and ``expand_kwargs`` is not used: it sets any argument.
- Every operator is the project's own, and none inherits template fields or files as templates.
- Nothing else that Airflow renders is set: ``map_index_template``, arguments of triggers that start
  in the place of a task, inlets, outlets, fields of callbacks.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
from types import SimpleNamespace

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.sensors.bash import BashSensor
from airflow.sdk import DAG, BaseOperator, Param, XComArg
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.definitions._internal.expandinput import DictOfListsExpandInput
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions._internal.templater import Templater
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.triggers.base import BaseTrigger
from tests.dags.conftest import ROOT, load_dags

import waybill_airflow

CALLBACKS = ("execute", "success", "failure", "retry", "skipped")


# The rules ----------------------------------------------------------------------------------------


def broken_rules(dag):
    """Say where a value that the author of the DAG did not write can reach a template."""
    if dag.render_template_as_native_obj or dag.template_searchpath or dag.user_defined_macros:
        yield f"{dag.dag_id}: native rendering, template files or macros of its own"
    if (dag.doc_md or "").endswith(".md"):
        yield f"{dag.dag_id}: its documentation is read from a file"
    yield from _callbacks(dag.dag_id, dag)
    for task in dag.tasks:
        for words in (*_class(task), *_fields(task), *_mapped(task), *_elsewhere(task)):
            yield f"{dag.dag_id}.{task.task_id}: {words}"
        yield from _callbacks(f"{dag.dag_id}.{task.task_id}", task)


def _class(task):
    made_of = task.operator_class if isinstance(task, MappedOperator) else type(task)
    if not made_of.__module__.startswith("waybill_airflow."):
        yield f"{made_of.__name__} is not an operator of waybill_airflow"


def _fields(task):
    given = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
    for field in task.template_fields:
        if not _only_references(given.get(field)):
            yield f"template field {field} holds {given[field]!r}"


def _only_references(value):
    if isinstance(value, dict):  # Airflow renders the values of a dict, not its keys
        return all(map(_only_references, value.values()))
    if isinstance(value, list | tuple | set):
        return all(map(_only_references, value))
    return value is None or isinstance(value, ResolveMixin | bool | int | float)


def _mapped(task):
    if not isinstance(task, MappedOperator):
        return
    if not isinstance(task.expand_input, DictOfListsExpandInput):
        yield "expand_kwargs sets any argument, template fields too"
    elif reached := set(task.expand_input.value) & set(task.template_fields):
        yield f"mapped values reach the template fields {sorted(reached)}"


def _elsewhere(task):
    given = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
    for name in ("map_index_template", "inlets", "outlets", "start_trigger_args"):
        if given.get(name):
            yield f"{name} is rendered: {given[name]!r}"
    if task.template_ext:
        yield f"a value that ends in {task.template_ext} is read from a file"


def _callbacks(where, owner):
    for kind in CALLBACKS:
        found = getattr(owner, f"on_{kind}_callback", None)
        for callback in found if isinstance(found, list | tuple) else [found] if found else []:
            fields = getattr(callback, "template_fields", ())
            if any(not _only_references(getattr(callback, field)) for field in fields):
                yield f"{where}: a template field of {type(callback).__name__} holds text"


def project_classes():
    """Return every class of the project that Airflow renders, and every trigger."""
    for found in pkgutil.walk_packages(waybill_airflow.__path__, "waybill_airflow."):
        importlib.import_module(found.name)
    kinds = (Templater, BaseTrigger)
    seen, open_ends = set(), list(kinds)
    while open_ends:
        for made in open_ends.pop().__subclasses__():
            if made not in seen:
                seen.add(made)
                open_ends.append(made)
    return sorted(
        (made for made in seen if made.__module__.startswith("waybill_airflow.")),
        key=lambda made: made.__name__,
    )


# The project keeps them ---------------------------------------------------------------------------


@pytest.fixture
def hostile_declarations(tmp_path, monkeypatch):
    """Declarations that say all they may: right ones, broken ones, folders with odd names."""
    folder = tmp_path / "pipelines"
    shutil.copytree(
        ROOT / "include" / "pipelines", folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    flights, weather = (folder / name / "pipeline.yaml" for name in ("flights", "weather"))
    lines = flights.read_text().splitlines()
    named = ['owner: "{{ 7 * 7 }} .md"' if line.startswith("owner:") else line for line in lines]
    assert named != lines
    flights.write_text("\n".join(named))
    weather.write_text(weather.read_text().replace("team:", '"{{ 7 * 7 }}": x\nteam:'))
    (folder / "{{ 7 * 7 }}").mkdir()
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(folder))


@pytest.mark.filterwarnings("ignore:pipeline")
def test_no_dag_lets_a_value_from_outside_reach_a_template(hostile_declarations):
    bag = load_dags(ROOT / "dags")
    assert bag.import_errors == {}
    assert len(bag.dags) >= 14
    assert any(dag_id.startswith("ingest_") and "7" in dag_id for dag_id in bag.dags)
    assert any(isinstance(task, MappedOperator) for dag in bag.dags.values() for task in dag.tasks)
    assert [words for dag in bag.dags.values() for words in broken_rules(dag)] == []


def test_no_operator_notifier_or_trigger_inherits_template_fields_or_files():
    classes = project_classes()
    names = {made.__name__ for made in classes}
    assert {"UpkeepOperator", "UpkeepFailedNotifier", "BrokenDeclarationOperator"} <= names
    for made in classes:
        foreign = [
            base
            for base in made.__mro__
            if not base.__module__.startswith("waybill_airflow.")
            and "template_fields" in vars(base)
        ]
        inherited = {field for base in foreign for field in vars(base)["template_fields"]}
        assert not inherited & set(getattr(made, "template_fields", ())), made
        assert not getattr(made, "template_ext", ()), made


@pytest.mark.filterwarnings("ignore:pipeline")
def test_whatever_a_run_is_given_its_tasks_get_as_it_is(hostile_declarations, tmp_path):
    """By Airflow's own rendering of each task: params and conf, XComs, mapped values."""
    touched = tmp_path / "touched"
    code = f"__import__('pathlib').Path('{touched}').touch()"
    hostile = f'{{{{ macros.json.codecs.builtins.eval("{code}") }}}}'
    launch = {"conf": {"event_name": hostile}}
    rendered, mapped = 0, set()
    for dag in load_dags(ROOT / "dags").dags.values():
        for task in dag.tasks:
            done = render(task, {name: hostile for name in dag.params}, [launch])
            assert not touched.exists(), (dag.dag_id, task.task_id)
            given = [getattr(done, field) for field in done.template_fields]
            given = [value for value in given if value is not None]  # not given by the DAG's author
            assert all(value in (hostile, [launch]) for value in flat(given)), done
            rendered += len(given)
            if task.is_mapped:
                mapped.add(type(done).__name__)
                assert done.virtual_cluster == launch
    assert rendered >= 2
    assert mapped == {"SparkApplicationOperator"}


def flat(values):
    for value in values:
        yield from flat(value.values()) if isinstance(value, dict) else [value]


def render(task, conf, xcom):
    """Render a task as a worker does; return it as it would execute."""
    ti = SimpleNamespace(
        map_index=0, task=None, xcom_pull=lambda **_given: xcom, _upstream_map_indexes={}
    )
    context = {
        "ti": ti,
        "task_instance": ti,
        "dag": task.dag,
        "dag_run": SimpleNamespace(conf={} if task.is_mapped else conf),
        "params": conf,
        "macros": importlib.import_module("airflow.sdk.execution_time.macros"),
    }
    if task.is_mapped:
        task.render_template_fields(context)
        return context["task"]
    done = task.prepare_for_execution()
    done.render_template_fields(context)
    return done


# The rules find what breaks them ------------------------------------------------------------------


class Notifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        """Say nothing."""


class Plan(BaseOperator):
    template_fields = ("filters",)

    def __init__(self, *, filters=None, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters


Plan.__module__ = "waybill_airflow.made_here"


def one_dag(**options):
    return DAG("one", schedule=None, params={"name": Param(type="string")}, **options)


def mapped_by_keywords():
    with one_dag() as dag:
        plan = Plan(task_id="plan")
        TriggerDagRunOperator.partial(task_id="t", trigger_dag_id="replay").expand_kwargs(
            plan.output
        )
    return dag


def mapped_into_a_field():
    with one_dag() as dag:
        Plan.partial(task_id="t").expand(filters=Plan(task_id="plan").output)
    return dag


def a_field_that_names_a_param():
    with one_dag() as dag:
        BashOperator(task_id="t", bash_command="echo {{ params.name }}")
    return dag


def text_deep_in_a_field():
    with one_dag() as dag:
        Plan(task_id="t", filters={"names": [dag.param("name"), "from a declaration"]})
    return dag


def a_sensor_of_others():
    with one_dag() as dag:
        BashSensor(task_id="t", bash_command="true")
    return dag


def a_label_from_what_is_mapped():
    with one_dag() as dag:
        Plan(task_id="t", map_index_template="{{ task.filters }}")
    return dag


def a_callback_with_text():
    with one_dag() as dag:
        Plan(task_id="t", on_failure_callback=Notifier("{{ params.name }}"))
    return dag


def native_rendering():
    with one_dag(render_template_as_native_obj=True) as dag:
        Plan(task_id="t")
    return dag


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (mapped_by_keywords, "expand_kwargs"),
        (mapped_into_a_field, "mapped values reach the template fields ['filters']"),
        (a_field_that_names_a_param, "bash_command"),
        (text_deep_in_a_field, "from a declaration"),
        (a_sensor_of_others, "not an operator of waybill_airflow"),
        (a_label_from_what_is_mapped, "map_index_template"),
        (a_callback_with_text, "Notifier holds text"),
        (native_rendering, "native rendering"),
    ],
)
def test_a_dag_that_breaks_a_rule_is_named(made, words):
    assert any(words in found for found in broken_rules(made()))


def test_references_alone_break_no_rule():
    with one_dag() as dag:
        plan = Plan(task_id="plan", filters={"name": dag.param("name"), "more": None})
        Plan(task_id="t", filters=XComArg(plan, "notes"))
    assert list(broken_rules(dag)) == []
