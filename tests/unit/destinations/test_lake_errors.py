"""Errors of the lakes' libraries: what the caller must do, in words."""

from __future__ import annotations

from waybill.destinations.per_table.errors import sorter
from waybill.errors import InputError, RetryError


def test_a_library_that_is_not_installed_is_the_users_to_install():
    sort = sorter("lake", ("builtins",))
    error = ModuleNotFoundError("No module named 'pyiceberg_core'")
    found = sort(error)
    assert isinstance(found, InputError)
    assert "install it" in str(found)
    assert "pyiceberg_core" in str(found)


def test_a_file_that_is_gone_is_looked_for_again():
    assert isinstance(sorter("lake", ())(FileNotFoundError("No such file")), RetryError)


def test_a_number_in_a_path_is_no_answer_of_a_server():
    sort = sorter("lake", ())
    gone = FileNotFoundError("No such file: /tmp/of-500/part-503-403/507.parquet")
    assert "lacks a table or a file" in str(sort(gone))
    assert "did not answer" in str(sort(OSError("HTTP status 502: bad gateway")))
