"""Where messages go: a sink takes one, or says why not. The log is here, the others beside."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

from waybill.errors import WaybillError
from waybill.notices.rendering import Message
from waybill.settings import NoticeSettings

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
        _LOG.warning("to %s, message %s:\n%s", _whom(message.owner), message.id, said.text)


def open_sinks(settings: NoticeSettings) -> list[Sink]:
    """Return the configured sinks; none connects before it sends."""
    from waybill.notices.mail import MailSink
    from waybill.notices.webhook import WebhookSink

    found: list[Sink] = []
    if settings.log:
        found.append(LogSink())
    if settings.webhook_url is not None:
        found.append(WebhookSink(settings))
    if settings.smtp_host:
        found.append(MailSink(settings))
    return found


def _whom(owner: str) -> str:
    return ascii(owner) if owner else "nobody: the pipeline is not declared"
