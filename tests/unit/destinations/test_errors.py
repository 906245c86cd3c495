import pytest

from waybill.destinations.adapters.postgres.session import PostgresError, sorted_error
from waybill.errors import InputError, RetryError, StopError
from waybill.events import CATALOGUE


@pytest.mark.parametrize(
    "state",
    ["08006", "08P01", "40001", "40P01", "53100", "53200", "53300", "57014", "57P01", "57P03",
     "58030", "55P03", "25006", "25P03", "42P01", "42703"],
)  # fmt: skip
def test_what_may_pass_by_itself_is_tried_again(state):
    error = sorted_error(PostgresError("words of the server", state), "warehouse")
    assert isinstance(error, RetryError)
    assert "'warehouse'" in str(error)
    assert "words of the server" in str(error)


@pytest.mark.parametrize("state", ["28P01", "28000", "3D000", "42501"])
def test_what_the_user_must_mend_says_how(state):
    error = sorted_error(PostgresError("words of the server", state), "warehouse")
    assert isinstance(error, InputError)
    assert "; " in str(error)


@pytest.mark.parametrize("state", ["XX001", "42601", "21000", "0A000"])
def test_what_no_rule_names_stops(state):
    assert isinstance(sorted_error(PostgresError("words", state), "warehouse"), StopError)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("23505", "destination_unique_violation"),
        ("23P01", "destination_unique_violation"),
        ("23503", "destination_foreign_key_violation"),
        ("23514", "destination_check_violation"),
        ("23502", "destination_not_null_violation"),
        ("22003", "destination_value_refused"),
        ("22021", "destination_value_refused"),
        ("22P05", "destination_value_refused"),
        ("54000", "destination_value_refused"),
        ("P0001", "destination_check_violation"),
    ],
)
def test_a_row_at_fault_has_an_error_type_of_the_catalogue(state, code):
    assert PostgresError("words", state).refused_code == code
    assert CATALOGUE[code].stage == "destination"


@pytest.mark.parametrize("state", [None, "08006", "40P01", "53100", "42501", "25P02", "54001"])
def test_no_row_is_blamed_for_what_is_not_its_fault(state):
    assert PostgresError("words", state).refused_code is None


@pytest.mark.parametrize(
    "words",
    [
        'FATAL:  database "x" does not exist',
        'FATAL:  password authentication failed for user "x"',
        'FATAL:  no pg_hba.conf entry for host "10.0.0.1"',
        "could not open: root certificate file",
    ],
)
def test_a_connection_refused_for_its_configuration_is_the_users_to_mend(words):
    error = PostgresError(f"IO: [libpq] Failed to connect: connection to server failed: {words}")
    assert isinstance(sorted_error(error, "warehouse"), InputError)


@pytest.mark.parametrize(
    "words",
    [
        "IO: [libpq] Failed to connect: Connection refused",
        "IO: [libpq] Failed to connect: FATAL:  sorry, too many clients already",
        "IO: [libpq] Failed to connect: FATAL:  the database system is starting up",
        'IO: [libpq] Failed to connect: could not translate host name "x" to address',
        "IO: server closed the connection unexpectedly",
        "IO: no connection to the server",
    ],
)
def test_a_server_that_does_not_answer_is_tried_again(words):
    assert isinstance(sorted_error(PostgresError(words), "warehouse"), RetryError)


def test_values_of_a_row_are_shown_only_where_keys_clash():
    detail = "Key (email)=(a@b) already exists."
    assert "a@b" in PostgresError("clash", "23505", detail).words
    assert "secret" not in PostgresError("check", "23514", "Failing row contains (secret).").words
    assert len(PostgresError("clash", "23505", "x" * 10_000).words) < 600
