"""Sends emails through the mail server of the installation."""

import asyncio
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formataddr, formatdate, parseaddr
from urllib.parse import unquote, urlsplit

import aiosmtplib

_SECONDS = 20.0
_PORTS = {"smtp": 587, "smtps": 465, "smtp+plain": 25}


class EmailFailed(Exception):
    """`is_permanent`: the server refused the address or the message for good."""

    def __init__(self, reason: str, *, is_permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.is_permanent = reason, is_permanent


@dataclass(frozen=True, slots=True)
class MailServer:
    host: str
    port: int
    scheme: str
    user: str | None
    password: str | None


def mail_server(url: str) -> MailServer:
    """Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("it must be smtp://, smtps:// or smtp+plain://, with a host")
    user, password = (None if one is None else unquote(one) for one in (parts.username, parts.password))
    return MailServer(parts.hostname, parts.port or _PORTS[parts.scheme], parts.scheme, user, password)


def is_address(text: str) -> bool:
    """True for a plain address, without a name and without characters that could end a header."""
    name, address = parseaddr(text)
    local, at, domain = address.rpartition("@")
    return not name and address == text and bool(at and local and "." in domain) and text.isascii() and text.isprintable()


class EmailSender:
    def __init__(self, url: str, sender: str, ca_file: str = "") -> None:
        self._server, self._sender, self._ca_file = mail_server(url), sender, ca_file
        self._slots = asyncio.Semaphore(4)

    async def send(self, address: str, subject: str, body: str, message_id: str) -> None:
        """Raises EmailFailed. The same `message_id` marks a message that is sent again."""
        server = self._server
        try:
            message = self._message(address, subject, body, message_id)
            async with self._slots, asyncio.timeout(_SECONDS):
                await aiosmtplib.send(
                    message,
                    hostname=server.host,
                    port=server.port,
                    username=server.user,
                    password=server.password,
                    use_tls=server.scheme == "smtps",
                    start_tls=server.scheme == "smtp",
                    tls_context=None if server.scheme == "smtp+plain" else self._context(),
                    timeout=_SECONDS,
                )
        except TimeoutError as exc:
            raise EmailFailed("timeout") from exc
        except aiosmtplib.SMTPRecipientsRefused as exc:
            codes = {one.code for one in exc.recipients}
            raise EmailFailed(f"refused: {min(codes)}", is_permanent=min(codes) >= 500) from exc
        except aiosmtplib.SMTPResponseException as exc:
            raise EmailFailed(f"SMTP {exc.code}", is_permanent=exc.code >= 550) from exc
        except (aiosmtplib.SMTPException, OSError, ssl.SSLError, ValueError) as exc:
            raise EmailFailed(type(exc).__name__) from exc

    def _message(self, address: str, subject: str, body: str, message_id: str) -> EmailMessage:
        """Raises ValueError for an address that does not fit in a header."""
        message = EmailMessage()
        message["From"] = formataddr(("Postroad", self._sender))
        message["To"] = address
        message["Subject"] = " ".join(subject.split())[:200]
        message["Date"] = formatdate()
        message["Message-ID"] = f"<{message_id}@{self._sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(body)
        return message

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._ca_file or None)
