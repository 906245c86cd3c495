"""A tracker that tests share is as new for each of them."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support import emptied

from waybill.storage.tracker.tables import METADATA

pytestmark = pytest.mark.serves
opened_lots, lot = parking_lot.opened_lots, parking_lot.lot
AUDITED = "INSERT INTO audit_log (who, action, target) VALUES ('ann', 'none', 'none')"


def test_rows_are_gone_numbers_begin_again_and_what_shall_stay_stays(lot):
    lot.park([make_event()])
    with pytest.raises(ZeroDivisionError), lot.tracker.transaction() as connection:
        connection.execute(text(AUDITED))
        raise ZeroDivisionError  # rolled back: no row is left, but a number was drawn
    emptied.empty(lot.sql, but={"deployment"})
    rows = {name: lot.sql(f"SELECT count(*) FROM {name}")[0][0] for name in METADATA.tables}
    assert rows == {name: int(name == "deployment") for name in rows}
    lot.park([make_event()])
    assert lot.only().id == 1
    lot.sql(AUDITED)
    assert lot.sql("SELECT id FROM audit_log") == [(1,)]
