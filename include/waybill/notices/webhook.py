"""A webhook: each message is one POST of JSON, signed where a secret is set.

``text`` is for people, in the form that Slack and what understands the same take: `&`, `<` and `>`
are escaped, so that no name becomes a link or a mention. Redirects are not followed: a signed
message goes to the address that was configured, and nowhere else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time

import orjson

from waybill.notices.rendering import Message, one_line
from waybill.notices.sinks import SinkAwayError, SinkError
from waybill.settings import NoticeSettings

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
