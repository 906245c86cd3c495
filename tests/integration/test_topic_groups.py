"""Several topics in one query: each has its own pipelines, objects, commits and faults."""

from __future__ import annotations

import re

import pytest
from tests.support import children

from waybill.settings import Settings

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]


def test_topics_of_a_query_are_committed_apart_whoever_dies_or_wakes_up_late_or_is_slow(
    stack_settings: Settings,
) -> None:
    settings = stack_settings.model_copy(
        update={
            "pipelines_dir": stack_settings.home / "pipelines",
            "kafka": stack_settings.kafka.model_copy(update={"topic_partitions": 3}),
            "spark": stack_settings.spark.model_copy(update={"trigger_ms": 200}),
        }
    )
    code = "from tests.support.topic_groups_run import main\nmain(settings)"
    output = children.run(settings, code, limit_s=500.0)
    assert re.search(r"INFO waybill.user_code team west-\w+ printed: 'slow: west-300\\n", output)
