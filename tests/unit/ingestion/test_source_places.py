"""Only files of the pipeline's folder, of packages and below the settings' roots are read."""

from __future__ import annotations

import os

import pytest

from waybill.errors import InputError
from waybill.ingestion.connectors import open_connector
from waybill.ingestion.connectors.source_file import read_file
from waybill.pipelines import Source, find_file

PRIVATE = "name\nS3-SECRET-KEY\n"


@pytest.fixture
def home(tmp_path):
    """The pipeline's folder; beside it a file that is none of the author's business."""
    (tmp_path / "stack.env").write_text(PRIVATE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "plain.csv").write_text("a\n1\n")
    (folder := tmp_path / "pipelines" / "orders").mkdir(parents=True)
    (folder / "own.csv").write_text("a\n1\n")
    return folder


def rows_of(path, home, *roots):
    connector = open_connector(Source(connector="csv", event="e", path=path), home, roots)
    return [row for page in connector.read(None) for row in page.rows]


@pytest.mark.parametrize(
    "path",
    ["{tmp}/stack.env", "../../stack.env", "./x/../../../stack.env", "link", "links/stack.env"],
)
def test_a_file_outside_is_not_read_whatever_way_leads_there(home, tmp_path, path):
    (home / "link").symlink_to(tmp_path / "stack.env")
    (home / "links").symlink_to(tmp_path)
    with pytest.raises(InputError, match="outside of them, or a link leads out") as caught:
        rows_of(path.format(tmp=tmp_path), home, tmp_path / "data")
    assert "S3-SECRET" not in str(caught.value)


def test_files_of_the_folder_and_below_roots_are_read(home, tmp_path):
    (home / "link.csv").symlink_to(home / "own.csv")
    (home / "shared.csv").symlink_to(tmp_path / "data" / "plain.csv")
    data = tmp_path / "data"
    for path in (
        "own.csv",
        str(home / "own.csv"),
        "link.csv",
        str(data / "plain.csv"),
        "shared.csv",
    ):
        assert rows_of(path, home, data) == [{"a": 1}]
    with pytest.raises(InputError, match=r"below WAYBILL_SOURCES__ROOTS \(none\)"):
        rows_of("shared.csv", home)


def test_a_root_that_is_a_link_is_its_target(home, tmp_path):
    (tmp_path / "mounted").symlink_to(tmp_path / "data")
    assert rows_of(f"{tmp_path}/mounted/plain.csv", home, tmp_path / "mounted") == [{"a": 1}]


@pytest.mark.parametrize("level", ["file", "folder"])
def test_a_link_that_came_after_the_path_was_judged_is_not_followed(home, tmp_path, level):
    (home / "in").mkdir()
    (home / "in" / "stack.env").write_text("a\n1\n")
    file = find_file("in/stack.env", home)
    assert read_file(file) == b"a\n1\n"
    if level == "file":
        file.unlink()
        file.symlink_to(tmp_path / "stack.env")
    else:
        file.unlink()
        file.parent.rmdir()
        file.parent.symlink_to(tmp_path)
    with pytest.raises(InputError, match="is not there"):
        read_file(file)


def test_a_pipe_is_no_file_and_is_not_waited_for(home):
    os.mkfifo(home / "pipe.csv")
    with pytest.raises(InputError, match="is not a file"):
        rows_of("pipe.csv", home)


def test_a_folder_beside_the_code_is_no_package(home, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "stack.env").write_text(PRIVATE)
    with pytest.raises(InputError, match="'state' is not installed here"):
        rows_of("package:state/stack.env", home)
