"""TLS of the listener: a certificate that is replaced while the server runs, and a limit on unfinished handshakes."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import structlog
from cryptography import x509

from postroad.http import metrics
from postroad.kernel.errors import CertificateInvalid

log = structlog.get_logger("postroad.http")


class _Connection(ssl.SSLObject):
    """TLS of one connection. `handshakes` has it until its handshake is complete."""

    handshakes: "WeakSet[_Connection]"

    def do_handshake(self) -> None:
        super().do_handshake()
        self.handshakes.discard(self)


class _ListenerContext(ssl.SSLContext):
    """Refuses connections while `is_full(unfinished)`, given the number of unfinished handshakes: clients that connect and send
    nothing must not use up the descriptors of the process."""

    def __init__(self, _protocol: int) -> None:
        self.sslobject_class = _Connection
        self.is_full: Callable[[int], bool] = lambda _unfinished: False
        self._handshakes = WeakSet[_Connection]()

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Called by the event loop for each accepted connection. Raises SSLError."""
        if self.is_full(len(self._handshakes)):
            metrics.protocol_errors.labels("overloaded").inc()
            raise ssl.SSLError("too many connections")
        connection = super().wrap_bio(*arguments, **options)
        if isinstance(connection, _Connection):
            connection.handshakes = self._handshakes
            self._handshakes.add(connection)
        return connection


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])


class TlsCertificate:
    """Certificate chain and key from PEM files. `reload` replaces them for new connections; open ones keep theirs.

    `context` stays the same object: its callback selects the loaded certificate for each handshake, so that a replacement takes
    effect as a whole. Raises CertificateInvalid.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._version = self._files_version()
        self._loaded = self._load()
        self.context = _ListenerContext(ssl.PROTOCOL_TLS_SERVER)
        _restrict(self.context)
        self.context.sni_callback = self._select

    def _select(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._loaded

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _restrict(context)
        try:
            # A key with a passphrase is refused; without a callback OpenSSL would ask for it on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
            leaf = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        except (OSError, ValueError) as exc:
            cause = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or str(exc)
            raise CertificateInvalid(
                f"cannot load the certificate {self._certificate} with the key {self._key}: {cause}"
            ) from exc
        metrics.tls_certificate_expiry.labels(str(self._certificate)).set(leaf.not_valid_after_utc.timestamp())
        return context

    def _files_version(self) -> list[tuple[int, int, int]]:
        """Changes when a file is written, replaced, or linked to another one."""
        found = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return found

    def reload(self) -> bool:
        """Load the files again if they have changed; true if they were loaded. Raises CertificateInvalid and keeps the previous
        certificate, for instance while only one of the two files is new."""
        version = self._files_version()
        if version == self._version:
            return False
        self._loaded = self._load()
        self._version = version
        return True

    async def watch(self, interval_seconds: float) -> None:
        """Reload the files whenever they change, for ever. A failure is logged once, and tried again at every interval."""
        failure = ""
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                if await asyncio.to_thread(self.reload):
                    failure = ""
                    metrics.tls_reloads.labels("ok").inc()
                    log.info("tls_certificate_loaded", certificate=str(self._certificate))
            except CertificateInvalid as exc:
                if str(exc) != failure:
                    failure = str(exc)
                    metrics.tls_reloads.labels("failed").inc()
                    log.error("tls_certificate_not_loaded", detail=failure)
