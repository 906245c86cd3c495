"""What Airflow is told of this package: the entry point ``apache_airflow_provider``.

Airflow calls it in every command, so nothing is imported here. Keys of ``conn-fields`` are the
settings that a connection's extra carries, by the names of their variables.
"""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_SECRET: dict[str, Any] = {**_TEXT, "format": "password"}
_INTEGRATION = "Waybill"


def _modules(*names: str) -> list[dict[str, Any]]:
    modules = [f"waybill_airflow.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, by ``provider_info.schema.json`` of Airflow."""
    return {
        "package-name": "waybill",
        "name": "Waybill",
        "description": "Event pipelines that never lose an event: ingestion, replays, upkeep.\n",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "hooks": _modules("hooks.waybill"),
        "operators": _modules(
            "operators.campaign",
            "operators.clean_up_runs",
            "operators.clusters",
            "operators.ingest",
            "operators.maintenance",
            "operators.replay",
            "operators.spark_application",
            "operators.trace_tables",
            "operators.upkeep",
        ),
        "triggers": _modules(
            "triggers.applications",
            "triggers.campaigns",
            "triggers.ingest",
            "triggers.replays",
            "triggers.tables",
        ),
        "asset-uris": [
            {
                "schemes": ["waybill"],
                "handler": "waybill_airflow.assets.sanitize_uri",
                "factory": "waybill_airflow.assets.table_asset",
                "to_openlineage_converter": "waybill_airflow.assets.to_openlineage",
            }
        ],
        "notifications": [
            "waybill_airflow.notifiers.task_failed.TaskFailedNotifier",
            "waybill_airflow.notifiers.upkeep.UpkeepFailedNotifier",
        ],
        "extra-links": [
            "waybill_airflow.extra_links.ParkedGroupLink",
            "waybill_airflow.extra_links.PipelineLink",
        ],
        "connection-types": [
            {
                "connection-type": "waybill",
                "hook-class-name": "waybill_airflow.hooks.waybill.WaybillHook",
                "hook-name": "Waybill",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {
                        "host": "Tracker: host",
                        "port": "Tracker: port",
                        "schema": "Tracker: database",
                        "login": "Tracker: user",
                        "password": "Tracker: password",
                    },
                    "placeholders": {
                        "host": "postgres.example.org",
                        "port": "5432",
                        "schema": "waybill",
                        "login": "waybill",
                        "extra": '{"WAYBILL_RETENTION__TRACES_DAYS": 30}',
                        "WAYBILL_KAFKA__BOOTSTRAP_SERVERS": "kafka-1:9092,kafka-2:9092",
                        "WAYBILL_S3__ENDPOINT_URL": "empty: AWS",
                        "WAYBILL_S3__BUCKET": "waybill",
                        "WAYBILL_S3__REGION": "us-east-1",
                    },
                },
                "conn-fields": {
                    "WAYBILL_KAFKA__BOOTSTRAP_SERVERS": {
                        "label": "Kafka: brokers",
                        "description": "host:port, with commas between",
                        "schema": _TEXT,
                    },
                    "WAYBILL_S3__ENDPOINT_URL": {
                        "label": "Object store: address",
                        "schema": _TEXT,
                    },
                    "WAYBILL_S3__BUCKET": {"label": "Object store: bucket", "schema": _TEXT},
                    "WAYBILL_S3__REGION": {"label": "Object store: region", "schema": _TEXT},
                    "WAYBILL_S3__ACCESS_KEY": {
                        "label": "Object store: access key",
                        "description": "Empty: the usual AWS credential chain",
                        "schema": _SECRET,
                    },
                    "WAYBILL_S3__SECRET_KEY": {
                        "label": "Object store: secret key",
                        "schema": _SECRET,
                    },
                },
            }
        ],
    }


__all__ = ["get_provider_info"]
