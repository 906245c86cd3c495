"""What is done to each record before it becomes a row; docs/pipelines.md says what it may do."""

from decimal import Decimal

from waybill.errors import ParkError


def transform(event):
    record = event.data  # one record of the source, a dict
    record["status"] = record["status"].lower()
    if record["status"] == "test":
        return None  # filtered on purpose, and counted
    if Decimal(record["amount"]) < 0:
        raise ParkError("record_invalid", "the amount is negative", where="amount")
    return event
