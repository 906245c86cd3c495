"""The ``ingest`` family, file 15 of 0 to 15: one Airflow DAG a declared pipeline.

A broken declaration gives a notice in place of its DAG and leaves the others alone; see
``waybill_airflow.families``.
"""

from __future__ import annotations

from waybill_airflow.families import ingest_shard

globals().update(ingest_shard(15))
