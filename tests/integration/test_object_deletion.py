"""Objects that the store does not delete keep no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import ParkingLot
from tests.servers import S3Server
from tests.support.denied_deletes import denied
from tests.unit.tracing.samples import NOON_US, batch, ids

from waybill.errors import NotDeletedError
from waybill.retention import trim_payloads, trim_source_keys
from waybill.storage import ObjectStore
from waybill.tracing import expire_traces
from waybill.tracing.layout import LAYOUT_KEY, Hour, Layout, object_key
from waybill.tracing.parquet import sorted_body

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ALL_S = -3600.0
"""Of what is kept, so that all objects are old."""


@pytest.fixture
def store(s3: S3Server) -> ObjectStore:
    return ObjectStore(s3.bucket("deletion"))


def left(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(item.key for item in store.list(prefix))


def test_all_pages_of_a_deletion_are_asked_for_before_it_fails(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.storage.objects._DELETE_MOST", 2)
    keys = [f"x/{number}" for number in range(7)]
    for key in keys:
        store.put(key, b"x")
    kept = [keys[n] for n in (0, 2, 3, 6)]
    with denied(store, *kept), pytest.raises(NotDeletedError) as caught:
        store.delete(keys)
    assert list(caught.value.reasons) == kept == left(store)
    assert str(caught.value) == (
        "could not delete 'x/0' (AccessDenied Access Denied.), 'x/2' (AccessDenied Access "
        "Denied.), 'x/3' (AccessDenied Access Denied.), and others: a policy of the bucket, or a "
        "lock, may keep them"
    )
    store.delete(keys)
    assert left(store) == []


def test_traces_of_other_hours_expire(store: ObjectStore) -> None:
    store.put(LAYOUT_KEY, Layout(2).encode())
    noon = Hour.of(datetime.fromtimestamp(NOON_US / 1_000_000, UTC))
    body = sorted_body(pa.Table.from_batches([batch(ids(3))]))
    keys = [object_key(number, noon, "one") for number in range(3)]
    for key in keys:
        store.put(key, body)
    with denied(store, keys[0]), pytest.raises(NotDeletedError):
        expire_traces(store, noon.end + timedelta(hours=1))
    assert left(store, "traces/bucket=") == keys[:1]
    assert expire_traces(store, noon.end + timedelta(hours=1)) == 1


def test_payloads_of_other_pipelines_and_known_keys_of_other_tables_go(lot: ParkingLot) -> None:
    for name in ("pl-1", "pl-2"):
        lot.sql("INSERT INTO pipelines (id, name, team) VALUES (:name, :name, 'a')", name=name)
    keys = [f"payloads/{name}/{n}" for name in ("pl-1", "pl-2") for n in (1, 2)]
    keys += [f"source-keys/{name}/0/{n}.zst" for name in ("flights", "orders") for n in (1, 2)]
    for key in keys:
        lot.objects.put(key, b"{}")
    with denied(lot.objects, keys[0], keys[4]):
        with pytest.raises(NotDeletedError):
            trim_payloads(lot.tracker, lot.objects, kept_s=ALL_S)
        with pytest.raises(NotDeletedError):
            trim_source_keys(lot.tracker, lot.objects, lambda _: (), kept_s=ALL_S)
    assert left(lot.objects) == [keys[0], keys[4]]
    assert trim_payloads(lot.tracker, lot.objects, kept_s=ALL_S).deleted == 1
    assert trim_source_keys(lot.tracker, lot.objects, lambda _: (), kept_s=ALL_S).bytes == 2
