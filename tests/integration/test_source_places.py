"""A worker reads no file outside of where sources may lie, also of a pipeline deployed before."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.orders import write_orders

from waybill import services
from waybill.errors import InputError
from waybill.ledger import read_position
from waybill.settings import Settings, SourceSettings
from waybill.storage import open_tracker

pytestmark = pytest.mark.serves


def test_a_pipeline_deployed_before_reads_no_file_outside(
    stack_settings: Settings, tmp_path: Path
) -> None:
    """The settings were narrowed, or a link was put in place, after the deploy."""
    secret = tmp_path / "stack.env"
    secret.write_text("number,amount,note\n1,1,S3-SECRET-KEY\n")
    folder = write_orders(tmp_path / "pipelines", rows=3)
    text = (folder / "pipeline.yaml").read_text()
    (folder / "pipeline.yaml").write_text(text.replace("path: orders.csv", f"path: {secret}"))
    closed = stack_settings.model_copy(update={"pipelines_dir": folder.parent})
    services.migrate(closed)
    with pytest.raises(InputError, match="outside of them"):
        services.run_deploy(closed, folder, who="eve")
    opened = closed.model_copy(update={"sources": SourceSettings(roots=(tmp_path,))})
    services.run_deploy(opened, folder, who="ann")
    with pytest.raises(InputError, match="outside of them") as caught:
        services.run_ingest(closed, "orders")
    assert "S3-SECRET" not in str(caught.value)

    (folder / "pipeline.yaml").write_text(text)
    services.run_deploy(closed, folder, who="ann")
    (folder / "orders.csv").unlink()
    (folder / "orders.csv").symlink_to(secret)
    with pytest.raises(InputError, match="outside of them"):
        services.run_ingest(closed, "orders")

    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link that leads to"):
        services.run_ingest(closed, "orders")
    with open_tracker(closed.tracker) as tracker:
        assert read_position(tracker, "test-orders").rows_read == 0
