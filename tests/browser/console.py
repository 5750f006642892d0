"""The console as a person uses it: by roles, labels and keys. API calls prepare and check."""

import json
import re
import urllib.error
import urllib.request
import uuid
from types import TracebackType
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from tests.installation import Installation

SCOPES = ["read", "publish", "consume", "write", "admin"]


class Watched:
    """A browser context whose pages are watched for errors, reports of the policy and requests that leave the origin."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        options.setdefault("viewport", {"width": 1400, "height": 900})
        self.url, self.context = url, browser.new_context(**options)
        self.problems: list[str] = []
        self.allowed: list[str] = []
        self.context.on("page", self._watch)

    def _watch(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"error in the page: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type} on the console: {message.text} {message.location['url']}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"a request left the origin: {request.url}")

    def allow(self, pattern: str) -> None:
        """An error that the test provokes: browsers report every response of 4xx on the console."""
        self.allowed.append(pattern)

    def check(self) -> None:
        found = [one for one in self.problems if not any(re.search(pattern, one) for pattern in self.allowed)]
        assert not found, found

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.context.close()


class Console:
    """A page, and a tenant of its own with a key."""

    def __init__(self, watched: Watched, installation: Installation) -> None:
        self.watched, self.url = watched, installation.url
        self.admin_key = installation.credentials["admin_key"]
        self.tenant = f"t{uuid.uuid4().hex[:10]}"
        self.call("POST", "/api/control/tenants", {"id": self.tenant}, key=self.admin_key)
        self.key_id, self.key = self.new_key("operator", SCOPES)
        self.page = watched.context.new_page()

    def call(
        self, method: str, path: str, body: object = None, *, key: str | None = None, tenant: str = "", service: str = ""
    ) -> Any:
        """The response of the API; raises urllib's HTTPError."""
        headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"}
        if tenant:
            headers["X-Postroad-Tenant"] = tenant
        if service:
            headers["X-Postroad-Service"] = service
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=20) as response:
            content = response.read()
            return json.loads(content) if content else None

    def status(self, method: str, path: str, **options: Any) -> int:
        try:
            self.call(method, path, **options)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def new_key(self, name: str, scopes: list[str]) -> tuple[str, str]:
        made = self.call("POST", "/api/control/keys", {"name": name, "scopes": scopes}, key=self.admin_key, tenant=self.tenant)
        return made["record"]["id"], made["key"]

    def sign_in(self, key: str | None = None, path: str = "/") -> Page:
        self.page.goto(self.url + path)
        self.page.get_by_label("API key").fill(key or self.key)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("heading", level=1)).to_be_visible()
        expect(self.page.get_by_label("API key")).to_have_count(0)
        return self.page

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    # What tests prepare

    def queue(self, name: str, **settings: object) -> str:
        self.call("PUT", f"/v1/queues/{name}", settings)
        return name

    def publish(self, queue: str, payload: object, **more: object) -> str:
        stored = self.call("POST", f"/v1/queues/{queue}/messages", {"payload": payload, **more})
        return str(stored["messageId"])

    def kill(self, queue: str, payload: object, reason: str) -> str:
        """A dead letter with this error."""
        message = self.publish(queue, payload)
        [leased] = self.call("POST", f"/v1/queues/{queue}/pull", {"maxMessages": 1, "waitMs": 5000})["messages"]
        receipt = {"receiptId": leased["receiptId"], "action": "dlq", "reason": reason}
        self.call("POST", f"/v1/queues/{queue}/nack", receipt)
        return message
