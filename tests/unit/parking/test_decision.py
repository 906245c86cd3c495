"""A decision says who, and why where that is asked for."""

import pytest

from waybill.access import Decision
from waybill.errors import InputError


@pytest.mark.parametrize("who", ["", "  ", "\0"])
def test_nobody_decides_nothing(who):
    with pytest.raises(InputError, match="`who` must not be empty"):
        Decision(who, "a reason")


@pytest.mark.parametrize("why", ["", " \n", "\0"])
def test_a_reason_is_missed_where_it_is_asked_for(why):
    decision = Decision("ann", why)
    with pytest.raises(InputError, match="`why` must not be empty"):
        decision.require_why()


def test_what_no_audit_log_holds_is_left_out():
    decision = Decision(" an\0n ", " no\0w ")
    assert (decision.who, decision.require_why()) == ("ann", "now")


def test_the_system_user_stands_beside_a_name_that_was_given():
    assert Decision("ann", "x", system_user="root").beside_who() == {"system_user": "root"}
    assert Decision("ann", "x").beside_who() == {}
