"""A real SMTP server with STARTTLS that keeps what it receives."""

import email.policy
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

from postroad.runtime.embedded_server import free_port
from tests.certificates import Authority

USER, PASSWORD = "postroad", "secret"


class Mailbox:
    """`refuse` is the answer to recipients, if it is set."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.refuse = ""
        self.url, self.ca_file = "", ""

    async def handle_RCPT(self, _server: object, _session: object, envelope: Any, address: str, _options: object) -> str:  # noqa: N802
        if self.refuse:
            return self.refuse
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: object, session: Any, envelope: Any) -> str:  # noqa: N802
        assert session.ssl is not None, "STARTTLS is required"
        parsed = BytesParser(policy=email.policy.default).parsebytes(envelope.content)
        self.messages.append(parsed)
        return "250 OK"

    def to(self, address: str) -> list[EmailMessage]:
        return [one for one in self.messages if one["To"] == address]


def _authenticate(_server: object, _session: object, _envelope: object, _mechanism: object, data: Any) -> AuthResult:
    return AuthResult(success=data.login == USER.encode() and data.password == PASSWORD.encode())


@contextmanager
def mail_server(home: Path) -> Iterator[Mailbox]:
    authority = Authority(home)
    authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate, authority.key)
    mailbox, port = Mailbox(), free_port()

    class WithTls(Controller):
        def factory(self) -> SMTP:
            return SMTP(
                self.handler,
                tls_context=context,
                require_starttls=True,
                authenticator=_authenticate,
                auth_required=True,
            )

    controller = WithTls(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    mailbox.url, mailbox.ca_file = f"smtp://{USER}:{PASSWORD}@127.0.0.1:{port}", str(authority.ca_file)
    try:
        yield mailbox
    finally:
        controller.stop()
