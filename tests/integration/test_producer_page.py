"""Every Python snippet of docs/producer.md runs against a real broker and prints what it says."""

import pytest
from tests.support.producer_page import SNIPPETS, run, said

pytestmark = pytest.mark.serves


@pytest.fixture
def servers(kafka):
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    topic = NewTopic("orders", 2, 1, config={"max.message.bytes": "4000000"})
    try:
        admin.create_topics([topic])["orders"].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    return kafka.bootstrap_servers


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs_and_prints_what_it_says(servers, tmp_path, number):
    done = run(SNIPPETS[number], servers, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == said(SNIPPETS[number]), done.stderr


def test_a_snippet_that_is_wrong_is_found(servers, tmp_path):
    assert run("producer.produce('orders')", servers, tmp_path).returncode == 1
    done = run("print(1)  # 2", servers, tmp_path)
    assert done.stdout.splitlines() != said("print(1)  # 2")
