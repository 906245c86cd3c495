"""Owners' ends on loopback: a web server that takes webhooks, and a mail server."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from waybill.notices import SinkError, write_notice


class Webhook:
    """What was posted, and how it is answered: a status, or a function of the content."""

    def __init__(self, url):
        self.url, self.requests, self.answer, self.hang_s = url, [], 200, 0.0
        self.ends = threading.Event()

    @property
    def contents(self):
        return [json.loads(body) for _, body in self.requests]

    def to(self, owner):
        return [content for content in self.contents if content["owner"] == owner]


@contextmanager
def web_server():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            webhook.requests.append((dict(self.headers), body))
            webhook.ends.wait(webhook.hang_s)
            answer = webhook.answer
            self.send_response(answer(json.loads(body)) if callable(answer) else answer)
            self.send_header("Location", f"{webhook.url}/elsewhere")
            self.end_headers()
            self.wfile.write(b"said\r\nso")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    webhook = Webhook(f"http://127.0.0.1:{server.server_port}/hook/s3cret")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield webhook
    finally:
        webhook.ends.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Mailbox:
    """What was mailed; addresses in ``refused`` are not taken."""

    def __init__(self):
        self.mails, self.refused, self.port = [], set(), 0

    async def handle_RCPT(self, server, session, envelope, address, _options):
        if address in self.refused:
            return "550 no such\x1b[2Jmailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        secure = session.ssl is not None
        self.mails.append((envelope.rcpt_tos, envelope.content, secure, session.authenticated))
        return "250 taken"


class _Server(Controller):
    def __init__(self, mailbox, context, password):
        super().__init__(mailbox, hostname="127.0.0.1", port=0)
        self.given = {"tls_context": context, "require_starttls": context is not None}
        if password:
            self.given |= {"authenticator": _check(password), "auth_required": True}

    def factory(self):
        return SMTP(self.handler, **self.given)

    def _trigger_server(self):
        """Knock where it listens: its port was 0 until it did."""
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


def _check(password):
    def check(_server, _session, _envelope, _mechanism, found):
        return AuthResult(success=found.password == password.encode())

    return check


@contextmanager
def mail_server(*, context=None, password=""):
    mailbox = Mailbox()
    server = _Server(mailbox, context, password)
    server.start()
    mailbox.port = server.port
    try:
        yield mailbox
    finally:
        server.stop()


def certificate(folder):
    """Return a server's TLS context for 127.0.0.1, and the file of what to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = folder / "key.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path, private)
    return context, path


class Kept:
    """A sink in memory; ``fails`` says of a message why it is not taken."""

    def __init__(self, name="kept", fails=lambda _message: None):
        self.name, self.taken, self.fails = name, [], fails

    def send(self, message):
        if problem := self.fails(message):
            raise problem if isinstance(problem, Exception) else SinkError(problem)
        self.taken.append(message)


def declare(lot, pipeline, owner, name=""):
    """Deploy a pipeline as far as sending looks at it."""
    lot.sql(
        "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, 't')",
        id=pipeline,
        name=name or pipeline,
    )
    change_owner(lot, pipeline, owner, 1)


def change_owner(lot, pipeline, owner, number):
    lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES (:id, :number, 'v', cast(:declaration AS jsonb), 'ann')",
        id=pipeline,
        number=number,
        declaration=json.dumps({"owner": owner}),
    )


def note(lot, pipeline="pl-1", kind="first", **detail):
    with lot.tracker.transaction() as connection:
        write_notice(connection, kind=kind, pipeline_id=pipeline, **detail)


def end_waits(lot):
    """Let the leases and waits of all messages be over."""
    lot.sql("UPDATE notice_messages SET next_try_at = clock_timestamp()")
