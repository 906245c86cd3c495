"""A dry run's report is masked by what any version of the pipeline has declared."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from tests.support import orders
from tests.support.parked_orders import order, park, parked
from tests.support.replays import dry_run_request

from waybill import services
from waybill.parking import Packer
from waybill.settings import Settings

pytestmark = pytest.mark.serves
QUOTES = "def transform(event):\n    raise ValueError(f\"no: {event.data['note']}\")\n"


def test_what_an_older_version_declared_is_masked(stack_settings: Settings, tmp_path: Path) -> None:
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    folder = orders.write_orders(settings.pipelines_dir, rows=1, code=QUOTES)
    declaration = folder / "pipeline.yaml"
    plain = declaration.read_text()
    declaration.write_text(plain.replace("policy: strict", "policy: strict\n    personal: [note]"))
    services.run_deploy(settings, folder, who="ann")
    for code in (QUOTES, f"{QUOTES}# newer\n"):  # the active version, and the one before
        declaration.write_text(plain)
        (folder / "transformation.py").write_text(code)
        services.run_deploy(settings, folder, who="ann")
    (folder / "transformation.py").write_text(f"{QUOTES}# proposed\n")

    packer = Packer()
    packer.add(parked(order(1, orders.team_of(settings.pipelines_dir), note="alice@x.org")))
    park(settings, packer)
    names = ("orders", "order", "transformation", "null_value")
    for proposed in (None, folder):
        request = dry_run_request(*names, proposed=proposed, good=0)
        report = services.run_dry_run(settings, request)
        assert report.tried == 1
        said = orjson.dumps(report.to_json()).decode()
        assert "no: •••" in said
        assert "alice" not in said
