"""A receiver of deliveries that forwards each one to another service: what the recipes share.

    2xx of the service                              200: delivered
    408, 429, 5xx, 3xx, network error, timeout      503: Postroad makes another attempt later
    any other 4xx, a delivery that makes no sense   400: dead letter, with the reason
    a delivery that was forwarded before            200: nothing is sent

It uses the standard library and `postroad.webhooks`.
"""

import os
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from postroad.webhooks import Delivery, WebhookInvalid, verify

TIMEOUT_SECONDS = 10  # two services in turn stay below the 25 seconds that Postroad waits for a response
BODY_BYTES_MAX = 8 * 1024 * 1024
_REMEMBERED_MAX = 10_000
_TRANSIENT = {408, 429}

Forward = Callable[[Delivery], None]


class Refused(Exception):
    """The service will not accept this message, however often it is sent."""


class Unavailable(Exception):
    """The service may accept the message later. `retry_after`: in seconds, if it said when."""

    def __init__(self, reason: str, retry_after: str | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after if retry_after and retry_after.isascii() and retry_after.isdigit() else None


class ServiceError(Exception):
    """A response other than 2xx."""

    def __init__(self, service: str, status: int, retry_after: str | None, body: bytes) -> None:
        super().__init__(f"{service}: HTTP {status}")
        self.status, self.retry_after, self.body = status, retry_after, body

    @property
    def is_transient(self) -> bool:
        return self.status in _TRANSIENT or self.status >= 500 or self.status < 400


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        """A redirect could take the message, and the credentials, to another host."""


_opener = urllib.request.build_opener(_NoRedirects)


def post(service: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a request. Raises ServiceError, or Unavailable without a response. No error has the URL: it may have a token."""
    try:
        with _opener.open(urllib.request.Request(url, body, dict(headers), method="POST"), timeout=TIMEOUT_SECONDS) as response:
            response.read(65_536)
    except urllib.error.HTTPError as problem:
        with problem:
            raise ServiceError(service, problem.code, problem.headers.get("Retry-After"), problem.read(65_536)) from None
    except OSError as problem:
        raise Unavailable(f"{service}: {type(problem).__name__}") from None


def json_headers(delivery: Delivery) -> dict[str, str]:
    """Headers of a JSON request. The hops are passed on: a service that publishes in response sends them back, so loops end."""
    return {"Content-Type": "application/json; charset=utf-8", "X-MQ-Hops": str(delivery.hops)}


class _Forwarded:
    """The ids of deliveries that were forwarded. A real service remembers them in its database: these are lost at its end."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, message_id: str) -> bool:
        with self._lock:
            return message_id in self._ids

    def add(self, message_id: str) -> None:
        with self._lock:
            self._ids[message_id] = None
            if len(self._ids) > _REMEMBERED_MAX:
                self._ids.popitem(last=False)


def serve(forward: Forward) -> None:
    """Receive on PORT and forward what SECRET verifies, until the process ends. SECRET_PREVIOUS: during a rotation."""
    secrets = [os.environ[name] for name in ("SECRET", "SECRET_PREVIOUS") if os.environ.get(name)]
    forwarded = _Forwarded()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if length > BODY_BYTES_MAX:
                self.answer(413, "the body is too large")
                return
            try:
                delivery = verify(secrets, dict(self.headers.items()), self.rfile.read(length))
                if not forwarded.has(delivery.id):
                    forward(delivery)
                    forwarded.add(delivery.id)
            except (WebhookInvalid, Refused) as problem:
                self.answer(400, str(problem))
            except ServiceError as problem:
                self.answer(503 if problem.is_transient else 400, str(problem), problem.retry_after)
            except Unavailable as problem:
                self.answer(503, str(problem), problem.retry_after)
            else:
                self.answer(200, "ok")

        def answer(self, status: int, text: str, retry_after: str | None = None) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Postroad keeps the attempts."""

    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Receiver).serve_forever()
