import pytest

from waybill.destinations.adapters.duckdb.session import DuckError, sorted_error
from waybill.errors import InputError, RetryError, StopError
from waybill.events import CATALOGUE


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("IOException", 'IO Error: Could not set lock on file "x": Conflicting lock is held'),
        ("IOException", 'IO Error: Could not write file "x": No space left on device'),
        ("OutOfMemoryException", "failed to offload data block of size 256.0 KiB"),
        ("FatalException", "FATAL Error: Failed to commit: no space left"),
        ("TransactionException", "TransactionContext Error: Conflict on update!"),
        ("CatalogException", "Catalog Error: Table with name t does not exist!"),
    ],
)
def test_what_may_pass_by_itself_is_tried_again(kind, message):
    error = sorted_error(DuckError(message, kind), "warehouse")
    assert isinstance(error, RetryError)
    assert "'warehouse'" in str(error)
    assert message in str(error)


def test_a_full_disk_is_said_to_be_full():
    for kind in ("IOException", "FatalException"):
        error = sorted_error(DuckError("No space left on device", kind), "warehouse")
        assert "the disk is full" in str(error)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("IOException", 'IO Error: Cannot open file "x": No such file or directory'),
        ("OutOfMemoryException", "Out of Memory Error: could not allocate block of 256 KiB"),
        ("SerializationException", "Serialization Error: version"),
    ],
)
def test_what_the_user_must_mend_says_how(kind, message):
    error = sorted_error(DuckError(message, kind), "warehouse")
    assert isinstance(error, InputError)
    assert "; " in str(error)


def test_what_no_rule_names_stops():
    assert isinstance(sorted_error(DuckError("words", "InternalException"), "w"), StopError)


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("ConstraintException", "NOT NULL constraint failed: t.x", "not_null_violation"),
        ("ConstraintException", "CHECK constraint failed on table t", "check_violation"),
        ("ConstraintException", "Violates foreign key constraint", "foreign_key_violation"),
        ("ConstraintException", 'Duplicate key "x: no space left"', "unique_violation"),
        ("ConversionException", "Could not convert string", "value_refused"),
    ],
)
def test_a_row_at_fault_has_an_error_type_of_the_catalogue(kind, message, code):
    assert DuckError(message, kind).refused_code == f"destination_{code}"
    assert CATALOGUE[f"destination_{code}"].stage == "destination"


def test_no_row_is_blamed_for_what_is_not_its_fault():
    for kind in ("IOException", "OutOfMemoryException", "TransactionException", "FatalException"):
        assert DuckError("Duplicate key: not null, check", kind).refused_code is None
