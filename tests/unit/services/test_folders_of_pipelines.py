"""Where the folder of a deployed pipeline is looked for: in all folders of declarations."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.orders import write_orders

from waybill.errors import InputError
from waybill.services.ingestion import _folder_of
from waybill.settings import Settings


def test_a_pipeline_of_a_further_folder_has_that_folder(tmp_path: Path) -> None:
    own, more = tmp_path / "own", tmp_path / "more"
    own.mkdir()
    folder = write_orders(more, rows=1)
    settings = Settings(home=tmp_path / "home", pipelines_dir=own)
    with_more = settings.model_copy(update={"more_pipelines_dirs": (more,)})
    assert _folder_of(settings, "orders") == own / "orders"
    assert _folder_of(with_more, "orders") == folder
    assert _folder_of(with_more, "none") == own / "none"
    folder.rename(more / "renamed")
    assert _folder_of(with_more, "orders") == more / "renamed"
    first = write_orders(own, rows=1)
    assert _folder_of(with_more, "orders") == first


def test_a_link_that_leads_out_of_a_further_folder_is_refused(tmp_path: Path) -> None:
    own, more = tmp_path / "own", tmp_path / "more"
    own.mkdir()
    more.mkdir()
    (more / "orders").symlink_to(write_orders(tmp_path / "outside", rows=1))
    settings = Settings(home=tmp_path, pipelines_dir=own, more_pipelines_dirs=(more,))
    with pytest.raises(InputError, match="is a link that leads to"):
        _folder_of(settings, "orders")
