"""Senders of commands, for tests of the console."""

from typing import Any

import msgspec

from tests.browser.console import Console
from tests.commands.senders import envelope


def register(console: Console) -> str:
    """A sender with a grant on a route; returns its secret."""
    console.queue("bot-post", maxAttempts=3)
    console.call("PUT", "/v1/services/bot", {})
    console.call("PUT", "/v1/services/billing", {"trustedKeys": [console.key_id]})
    console.call("PUT", "/v1/routes/bot/post", {"queue": "bot-post"})
    console.call("PUT", "/v1/grants/bot/post/billing", {})
    services = console.call("GET", "/v1/tenant-config")["services"]
    return str(services[0]["secrets"][0]["secret"])


def send(console: Console, secret: str, **fields: Any) -> int:
    body = msgspec.json.encode(envelope(secret, **fields))
    return console.status("POST", "/v1/commands", body=body, service="billing")
