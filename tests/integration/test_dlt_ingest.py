"""A REST API through runs of ingestion: what would be lost in silence fails a run, or parks."""

from __future__ import annotations

import pytest
from tests.support.rest_source import NumberedPages, RowsSince, serving

from waybill import services
from waybill.errors import InputError

pytestmark = pytest.mark.serves
DECLARATION = """
id: rest-0001
name: rest
team: {team}
owner: shop@example.com
source:
  connector: dlt
  event: order
  options:
    events: {{orders: order}}
    rest_api:
      client: {{base_url: "{url}"}}
      resources:
        - name: orders
          primary_key: id
          endpoint:
            path: orders
            data_selector: data
{endpoint}
events:
  order: {{key: [id], table: orders, columns: {{id: int64}}}}
destination: {{name: warehouse, schema: shop}}
"""
SINCE = """
            paginator: single_page
            params: {since: "{incremental.start_value}"}
            incremental: {cursor_path: at, initial_value: "2024-01-01", row_order: asc}
"""


def deployed(stack_settings, tmp_path, url, endpoint=""):
    folder = tmp_path / "pipelines" / "rest"
    folder.mkdir(parents=True)
    team = f"t{abs(hash(str(tmp_path))) % 10**9}"
    declared = DECLARATION.format(team=team, url=url, endpoint=endpoint)
    (folder / "pipeline.yaml").write_text(declared)
    (folder / "transformation.py").write_text(
        "def transform(event):\n    return {'id': event.data['id']}\n"
    )
    egress = stack_settings.egress.model_copy(update={"allowed_hosts": ("127.0.0.1",)})
    settings = stack_settings.model_copy(
        update={"pipelines_dir": tmp_path / "pipelines", "egress": egress}
    )
    services.migrate(settings)
    services.run_deploy(settings, folder, who="test")
    return settings


def test_a_row_whose_cursor_is_no_time_parks_once_and_later_rows_are_read(stack_settings, tmp_path):
    rows = [{"id": 1, "at": "2024-05-01"}, {"id": 2, "at": "not a time"}]
    with serving(RowsSince(rows)) as source:
        settings = deployed(stack_settings, tmp_path, source.url, SINCE)
        report = services.run_ingest(settings, "rest")
        assert (report.accepted, report.parked) == (1, 1)
        [group] = services.parked_partitions(settings)
        assert (group.error_type, group.parked) == ("source_row_malformed", 1)
        for number in (3, 4):
            rows.append({"id": number, "at": f"2024-05-0{number}"})
            report = services.run_ingest(settings, "rest")
            assert (report.accepted, report.parked) == (1, 0)
        report = services.run_ingest(settings, "rest")
        assert (report.read, report.accepted, report.parked) == (0, 0, 0)
        balance = services.balance(settings)
        assert (balance.ingested, balance.parked, balance.unaccounted) == (4, 1, 0)


def test_pages_whose_numbers_would_be_guessed_fail_the_run(stack_settings, tmp_path):
    with serving(NumberedPages([{"id": number} for number in range(18)])) as source:
        settings = deployed(stack_settings, tmp_path, source.url)
        with pytest.raises(InputError, match=r"a page would never be read.*base_page: 1"):
            services.run_ingest(settings, "rest")
        assert services.balance(settings).ingested == 0
