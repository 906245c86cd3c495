"""What tasks read and wrote, for OpenLineage.

Airflow's OpenLineage provider asks an operator when its task has ended; without it nothing here is
called. Namespaces are ``waybill://<team>`` and ``kafka://<first server>``; names are
percent-encoded part by part, as names of events come from payloads.

=========  ==================================  ==================================================
task       reads                               writes
=========  ==================================  ==================================================
ingest     ``<pipeline>/source``               the topic
replay     ``<pipeline>/parked/<event>/        the topic
           <stage>/<error type>``
loading    topics                              ``<pipeline>/<table>``, each table of the
                                               destinations that its virtual cluster loads
=========  ==================================  ==================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from waybill.settings import Settings


def of_ingest(settings: Settings, name: str, counts: Mapping[str, Any]) -> Any:
    """Return the ``OperatorLineage`` of an ingest run; ``counts``: of its report."""
    from waybill.pipelines import topic_of
    from waybill.services import deployed_pipeline

    pipeline = deployed_pipeline(settings, name)
    rows = counts.get("accepted")
    return _lineage(
        [_dataset(pipeline.team, pipeline.name, "source")],
        [_topic(settings, topic_of(pipeline), rows)],
    )


def of_replay(settings: Settings, names: Mapping[str, str], counts: Mapping[str, Any]) -> Any:
    """Return the ``OperatorLineage`` of a replay of one parked group, by its four names."""
    from waybill.pipelines import topic_of
    from waybill.services import deployed_pipeline

    pipeline = deployed_pipeline(settings, names["pipeline"])
    group = (names["event_name"], names["stage"], names["error_type"])
    return _lineage(
        [_dataset(pipeline.team, pipeline.name, "parked", *group)],
        [_topic(settings, topic_of(pipeline), counts.get("sent"))],
    )


def of_loading(settings: Settings, virtual_cluster: str) -> Any:
    """Return the ``OperatorLineage`` of a shift of a loading application."""
    from waybill.pipelines import topic_name
    from waybill.services import tables_loaded_by

    tables = tables_loaded_by(settings, virtual_cluster)
    topics = sorted({topic_name(one.team, one.destination) for one in tables})
    return _lineage(
        [_topic(settings, topic, None) for topic in topics],
        [_dataset(one.team, one.pipeline, one.table) for one in tables],
    )


def _lineage(inputs: list[Any], outputs: list[Any]) -> Any:
    from airflow.providers.openlineage.extractors.base import OperatorLineage

    return OperatorLineage(inputs=inputs, outputs=outputs)


def _dataset(team: str, *parts: str) -> Any:
    from openlineage.client.event_v2 import Dataset

    return Dataset(f"waybill://{_quoted(team)}", "/".join(map(_quoted, parts)))


def _topic(settings: Settings, topic: str, rows: int | None) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    server = settings.kafka.bootstrap_servers.partition(",")[0].strip()
    told = statistics.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    facets = {} if rows is None else {"outputStatistics": told}
    return OutputDataset(f"kafka://{server}", topic, outputFacets=facets)


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="replace")


__all__ = ["of_ingest", "of_loading", "of_replay"]
