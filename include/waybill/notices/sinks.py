"""Where messages go: a sink takes one, or says why not. The log is here, the others beside.

Mail: each message is one mail to the owner, over an encrypted connection by default.

Headers are made only of clean parts: the subject is one printable line, an owner is an address only
when it is one address and nothing else, and the mail's own policy refuses line ends all the same.

A webhook: each message is one POST of JSON, signed where a secret is set.

``text`` is for people, in the form that Slack and what understands the same take: `&`, `<` and `>`
are escaped, so that no name becomes a link or a mention. Redirects are not followed: a signed
message goes to the address that was configured, and nowhere else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import smtplib
import ssl
import time
from contextlib import suppress
from dataclasses import replace
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from typing import Protocol

import orjson

from waybill.errors import WaybillError
from waybill.notices.rendering import Message, one_line
from waybill.settings import MAIL_ADDRESS, NoticeSettings

_LOG = logging.getLogger(__name__)


class SinkError(WaybillError):
    """A sink did not take a message; it is kept and tried again."""


class SinkAwayError(SinkError):
    """A sink did not answer: other messages will hardly fare better now."""


class Sink(Protocol):
    """Takes messages. One message may come twice, under one id."""

    @property
    def name(self) -> str:
        """Return its name, which the tracker keeps."""

    def send(self, message: Message) -> None:
        """Send one message, within the settings' time.

        Raises:
            SinkError: it was not taken, or that is not known.
        """


class LogSink:
    """Writes messages to the log, as warnings, without what errors said.

    The log is read by more people than the owner, and error messages can quote personal values.
    """

    name = "log"

    def send(self, message: Message) -> None:
        """Write one message to the log."""
        said = replace(message, named=tuple(item.without_messages() for item in message.named))
        _LOG.warning("to %s, message %s:\n%s", _whom(message), message.id, said.text)


def open_sinks(settings: NoticeSettings) -> list[Sink]:
    """Return the configured sinks; none connects before it sends."""
    from waybill.notices.sinks import MailSink, WebhookSink

    found: list[Sink] = []
    if settings.log:
        found.append(LogSink())
    if settings.webhook_url is not None:
        found.append(WebhookSink(settings))
    if settings.smtp_host:
        found.append(MailSink(settings))
    return found


def _whom(message: Message) -> str:
    if message.owner:
        return ascii(message.owner)
    if message.words:
        return "whoever runs Waybill"
    return "nobody: the pipeline is not declared"


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
                f"the owner {owner!a} is not a mail address; write one in pipeline.yaml, or set "
                "WAYBILL_NOTICES__FALLBACK_TO"
            )
        return address


_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_ESCAPE = str.maketrans(_ESCAPES)
_TALKERS = ("httpx", "httpcore")
"""They log the address of each request, which is a secret."""


class WebhookSink:
    """Posts messages to one address."""

    name = "webhook"

    def __init__(self, settings: NoticeSettings) -> None:
        self._settings = settings

    def send(self, message: Message) -> None:
        """Post one message; anything but 2xx is a failure.

        Raises:
            SinkAwayError: no connection, or no answer in time.
            SinkError: the answer was not 2xx.
        """
        import httpx

        url, settings = self._settings.webhook_url, self._settings
        if url is None:
            raise SinkError("no webhook is set")
        text = message.text.translate(_ESCAPE)
        body = orjson.dumps({"text": text, **message.to_json()})
        headers = self._headers(message, body)
        for name in _TALKERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            with httpx.stream(
                "POST",
                url.get_secret_value(),
                content=body,
                headers=headers,
                timeout=settings.webhook_timeout_s,
                follow_redirects=False,
            ) as answer:
                if not answer.is_success:
                    said = next(answer.iter_bytes(), b"").decode("utf-8", "backslashreplace")
                    raise SinkError(f"the webhook answered {answer.status_code}: {one_line(said)}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Its words may hold the address, which is a secret.
            raise SinkAwayError(f"the webhook did not answer: {type(error).__name__}") from None

    def _headers(self, message: Message, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "waybill",
            "Idempotency-Key": str(message.id),
        }
        secret = self._settings.webhook_secret
        if secret is not None:
            at = str(int(time.time()))
            signed = hmac.new(secret.get_secret_value().encode(), digestmod=hashlib.sha256)
            signed.update(f"{at}.".encode() + body)
            headers["X-Waybill-Timestamp"] = at
            headers["X-Waybill-Signature"] = f"sha256={signed.hexdigest()}"
        return headers
