"""One topic's query over parts that a test or a benchmark opened itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from waybill.processing.spark.topic_consumer import ProcessingParts, TopicConsumer
from waybill.processing.spark.topic_group import TopicGroup
from waybill.storage import TopicInfo


def start_query(
    spark: SparkSession,
    parts: ProcessingParts,
    *topics: TopicInfo,
    checkpoint: Path,
    destination: str = "warehouse",
    group: type[TopicGroup] = TopicGroup,
) -> StreamingQuery:
    """Take topics over and start one query for them, as the application does."""
    consumers: list[Any] = []
    for topic in topics:
        consumers.append(TopicConsumer(parts, topic, destination=destination, holder="test"))
        consumers[-1].open()
    return group(parts, consumers, name="test", checkpoint=checkpoint).start(spark)
