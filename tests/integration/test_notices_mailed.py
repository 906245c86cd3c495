"""Messages reach owners by a real mail server: encrypted, and with clean headers."""

from __future__ import annotations

import email
import email.policy

import pytest
from tests.integration import parking_lot
from tests.support.told import certificate, declare, end_waits, mail_server, note

from waybill.notices import send_notices, send_test, waiting_notices
from waybill.settings import NoticeSettings

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ANN, BOB = "ann@example.org", "bob@example.org"


@pytest.fixture
def mailbox():
    with mail_server() as found:
        yield found


def by_mail(mailbox, **changes):
    given = {"log": False, "smtp_host": "127.0.0.1", "smtp_port": mailbox.port}
    given |= {"smtp_tls": "none", "smtp_from": "waybill@example.org"}
    return NoticeSettings(**(given | changes))


def mails(mailbox):
    return [email.message_from_bytes(raw, policy=email.policy.SMTP) for _, raw, *_ in mailbox.mails]


def test_owners_with_an_address_get_mail_the_others_go_to_the_fallback(lot, mailbox):
    declare(lot, "pl-1", ANN, "flights")
    declare(lot, "pl-2", "the flight team", "trains")
    note(lot, "pl-1", event_name="départ ✈", stage="mapping", error_type="type_mismatch")
    note(lot, "pl-2")
    settings = by_mail(mailbox)
    assert send_notices(lot.tracker, settings).messages == 1
    [item] = waiting_notices(lot.tracker)
    assert (
        "owner 'the flight team' is not a mail address; write one in pipeline.yaml" in item.problem
    )
    end_waits(lot)
    settings = by_mail(mailbox, fallback_to="all@example.org")
    assert send_notices(lot.tracker, settings).messages == 1
    anns, others = mails(mailbox)
    assert [found[0] for found in mailbox.mails] == [[ANN], ["all@example.org"]]
    assert anns["Subject"] == "Waybill: 1 new kind of parked events in flights"
    assert "départ ✈" in anns.get_content()
    assert anns["Message-ID"] != others["Message-ID"]
    assert anns["Auto-Submitted"] == "auto-generated"


@pytest.mark.parametrize(
    "owner",
    [
        "ann@example.org\nBcc: eve@example.org",
        "ann@example.org, eve@example.org",
        "Ann <ann@example.org>",
        "ann@example.org\r\n\r\nbody",
        "=?utf-8?q?ann=40example.org=0ABcc=3A?=@example.org",
        "änn@example.org",
        "ann@example.org\x00",
    ],
)
def test_an_owner_that_is_not_one_address_gets_into_no_header(mailbox, owner):
    settings = by_mail(mailbox, fallback_to="all@example.org")
    assert send_test(settings, owner, who="eve\r\nX: y") == {"smtp": ""}
    [(to, _, *_)] = mailbox.mails
    assert to == ["all@example.org"]
    [mail] = mails(mailbox)
    assert mail["Bcc"] is None
    assert mail["X"] is None
    assert "asked by: eve\\r\\nX: y" in mail.get_content()


def test_line_ends_in_names_get_into_no_header(lot, mailbox):
    """A pipeline that nobody declared has the id that its events gave."""
    hostile = "x\r\nBcc: eve@example.org\r\n\r\nbody"
    note(lot, hostile, event_name="\r\n.\r\nQUIT\r\n", message="\u2028\x85\x0b")
    settings = by_mail(mailbox, fallback_to="all@example.org", personal_messages=True)
    assert send_notices(lot.tracker, settings).messages == 1
    [(to, _, *_)] = mailbox.mails
    assert to == ["all@example.org"]
    [mail] = mails(mailbox)
    assert mail["Bcc"] is None
    assert mail["Subject"].endswith("in x\\r\\nBcc: eve@example.org\\r\\n\\r\\nbody")
    assert "\\u2028\\x85\\x0b" in mail.get_content()


def test_a_refused_address_is_kept_and_its_answer_is_shown_as_text(lot, mailbox):
    declare(lot, "pl-1", ANN)
    declare(lot, "pl-2", BOB)
    note(lot, "pl-1")
    note(lot, "pl-2")
    mailbox.refused.add(ANN)
    report = send_notices(lot.tracker, by_mail(mailbox))
    assert (report.messages, report.failed) == (1, 1)
    [item] = waiting_notices(lot.tracker)
    assert "550" in item.problem
    assert "\x1b" not in item.problem
    end_waits(lot)
    mailbox.refused.clear()
    assert send_notices(lot.tracker, by_mail(mailbox)).messages == 1
    assert [found[0] for found in mailbox.mails] == [[BOB], [ANN]]


def test_mail_is_encrypted_signed_in_and_never_goes_to_a_stranger(tmp_path):
    context, trusted = certificate(tmp_path)
    with mail_server(context=context, password="hush") as mailbox:
        given = {"smtp_tls": "starttls", "smtp_user": "waybill"}
        right = given | {"smtp_ca_file": trusted, "smtp_password": "hush"}
        assert send_test(by_mail(mailbox, **right), ANN, who="ann") == {"smtp": ""}
        assert mailbox.mails[0][2:] == (True, True)
        for wrong in (given, right | {"smtp_password": "no"}, right | {"smtp_tls": "none"}):
            assert send_test(by_mail(mailbox, **wrong), ANN, who="ann")["smtp"]
        assert len(mailbox.mails) == 1
    with mail_server() as plain:  # offers no encryption: nothing is sent in the clear
        answer = send_test(by_mail(plain, **right), ANN, who="ann")
        assert "STARTTLS" in answer["smtp"]
        assert plain.mails == []
