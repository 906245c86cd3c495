"""Mail: each message is one mail to the owner, over an encrypted connection by default.

Headers are made only of clean parts: the subject is one printable line, an owner is an address only
when it is one address and nothing else, and the mail's own policy refuses line ends all the same.
"""

from __future__ import annotations

import smtplib
import ssl
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime

from waybill.notices.rendering import Message, one_line
from waybill.notices.sinks import SinkAwayError, SinkError
from waybill.settings import MAIL_ADDRESS, NoticeSettings


class MailSink:
    """Mails messages by one server."""

    name = "smtp"

    def __init__(self, settings: NoticeSettings) -> None:
        self._settings = settings

    def send(self, message: Message) -> None:
        """Mail one message to its owner, or to the fallback where the owner is no address.

        Raises:
            SinkAwayError: no connection, no answer in time, or no encryption.
            SinkError: there is nobody to mail to, or the server refused.
        """
        mail = self._mail(message)
        try:
            server = self._connect()
            try:
                self._sign_in(server)
                server.send_message(mail)
                with suppress(OSError, smtplib.SMTPException):  # it has the mail already
                    server.quit()
            finally:
                server.close()
        except smtplib.SMTPResponseException as error:
            said = one_line(
                error.smtp_error.decode("utf-8", "backslashreplace")
                if isinstance(error.smtp_error, bytes)
                else str(error.smtp_error)
            )
            raise SinkError(f"the mail server answered {error.smtp_code}: {said}") from error
        except smtplib.SMTPRecipientsRefused as error:
            raise SinkError(
                f"the mail server refused {one_line(repr(error.recipients))}"
            ) from error
        except (OSError, smtplib.SMTPException) as error:
            words = one_line(str(error)) or type(error).__name__
            raise SinkAwayError(f"the mail server did not answer: {words}") from error

    def _connect(self) -> smtplib.SMTP:
        given = self._settings
        host, port, limit = given.smtp_host or "", given.smtp_port, given.smtp_timeout_s
        if given.smtp_tls == "implicit":
            return smtplib.SMTP_SSL(host, port, timeout=limit, context=self._trust())
        server = smtplib.SMTP(host, port, timeout=limit)
        if given.smtp_tls == "starttls":
            try:
                server.starttls(context=self._trust())
            except BaseException:
                server.close()
                raise
        return server

    def _trust(self) -> ssl.SSLContext:
        file = self._settings.smtp_ca_file
        return ssl.create_default_context(cafile=None if file is None else str(file))

    def _sign_in(self, server: smtplib.SMTP) -> None:
        user, password = self._settings.smtp_user, self._settings.smtp_password
        if user:
            server.login(user, password.get_secret_value() if password else "")

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage(policy=SMTP)
        sender = self._settings.smtp_from or ""
        mail["From"] = sender
        mail["To"] = self._address(message.owner)
        mail["Subject"] = message.subject
        mail["Date"] = format_datetime(localtime())
        mail["Message-ID"] = f"<{message.id}@{sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text, cte="quoted-printable")
        return mail

    def _address(self, owner: str) -> str:
        address = owner if MAIL_ADDRESS.fullmatch(owner) else self._settings.fallback_to
        if address is None:
            raise SinkError(
                f"the owner {owner!a} is no mail address; write one in pipeline.yaml, or set "
                "WAYBILL_NOTICES__FALLBACK_TO"
            )
        return address
