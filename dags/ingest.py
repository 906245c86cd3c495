"""The ``ingest`` family: one Airflow DAG a declared pipeline, scheduled as its declaration says.

A broken declaration gives a notice in place of its DAG and leaves the others alone; see
``waybill_airflow.families``.
"""

from __future__ import annotations

from waybill.settings import Settings
from waybill_airflow.families import ingest_dags

globals().update(ingest_dags(Settings().pipelines_dir))
