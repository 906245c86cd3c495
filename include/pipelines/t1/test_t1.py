"""Run by `waybill pipelines test t1`, or by pytest."""

from pathlib import Path

from waybill.testing import run_pipeline

FOLDER = Path(__file__).parent
RECORD = {
    "id": "A-1",
    "changed_at": "2026-01-01T08:00:00Z",
    "status": "Paid",
    "amount": "12.50",
}


def test_a_status_is_written_in_small_letters():
    result = run_pipeline(FOLDER, [RECORD])
    assert [row["status"] for row in result.rows["t1"]] == ["paid"]


def test_a_record_without_a_status_parks():
    result = run_pipeline(FOLDER, [RECORD | {"status": None}])
    assert [parked.error_type for parked in result.parked] == ["null_value"]
