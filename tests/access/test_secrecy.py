"""Credentials and their hashes are shown once: they are in no other response, audit entry, log or bucket."""

import re
from typing import Any

from structlog.testing import capture_logs

from postroad.access.capability import AccessCapability
from postroad.access.keys import key_hash
from tests.access.control import (
    AUDIT,
    CLAIM,
    DEFAULTS,
    EVERY_SCOPE,
    INVITES,
    KEYS,
    SECRETS,
    SETTINGS,
    STREAM,
    TENANTS,
    WHOAMI,
    entries_of,
    fresh,
    patch,
    raw_bucket,
)
from tests.gateway import Answer, Client, Gateway, gateway_settings, running_gateway


def traces(texts: list[str]) -> list[str]:
    """Texts that would reveal a credential: itself, its secret part, and its hash."""
    return [part for text in texts for part in (text, re.sub(r"^pr_[a-z]+_", "", text)[16:], key_hash(text)) if len(part) > 16]


class IssuedCredentials:
    """One credential of each kind, and all responses except those that show them."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.texts: list[str] = [gateway.admin_key]
        self.answers: list[Answer] = []

    async def shown_once(self, client: Client, path: str, body: object, name: str) -> Any:
        answer = await client.post(path, body)
        made = answer.json
        self.texts.append(made.pop(name))
        assert not any(trace in str(made) for trace in traces(self.texts))
        return made

    async def make(self) -> None:
        admin, name = self.gateway.admin, fresh()
        invite = await self.shown_once(admin, INVITES, {"note": "n"}, "code")
        claimed = await self.shown_once(
            self.gateway.anonymous, CLAIM, {"code": self.texts[-1], "tenant": name, "keyName": "k"}, "key"
        )
        client = self.gateway.with_key(self.texts[-1])
        key = await self.shown_once(client, KEYS, {"name": "n", "scopes": EVERY_SCOPE}, "key")
        await self.shown_once(client, f"{KEYS}/{key['record']['id']}/rotate", {}, "key")
        await self.shown_once(admin, KEYS, {"name": "n", "scopes": EVERY_SCOPE, "platform": True}, "key")
        secret = await self.shown_once(client, SECRETS, {"name": "n"}, "secret")
        await self.shown_once(client, SECRETS, {"name": "n", "secret": f"chosen by the tenant, {name}"}, "secret")
        await self.shown_once(client, "/v1/tokens", {"resource": "telemetry"}, "token")
        await self.ask(client, admin, name, key["record"]["id"])
        self.answers.append(await admin.delete(f"{INVITES}/{invite['invite']['id']}"))
        self.answers.append(await client.delete(f"{SECRETS}/{secret['record']['id']}"))
        self.answers.append(await client.delete(f"{KEYS}/{key['record']['id']}"))
        assert claimed["record"]["tenant"] == name

    async def ask(self, client: Client, admin: Client, name: str, key_id: str) -> None:
        within = admin.with_headers(**{"X-Postroad-Tenant": name})
        for one in (client, within):
            for path in (WHOAMI, KEYS, f"{KEYS}/{key_id}", SECRETS, SETTINGS, f"{AUDIT}?limit=1000"):
                self.answers.append(await one.get(path))
        for path in (f"{KEYS}?platform=true&limit=1000", INVITES, TENANTS, DEFAULTS, f"{AUDIT}?limit=1000"):
            self.answers.append(await admin.get(path))
        self.answers.append(await patch(client, f"{KEYS}/{key_id}", name="changed"))
        self.answers.append(await client.post(SETTINGS, {"auditMode": "off"}))
        for text in self.texts:  # where it does not belong
            self.answers.append(await self.gateway.anonymous.get(f"{STREAM}?bearer={text}x"))
            for path in (f"{KEYS}/{text}", f"{TENANTS}/{text}", f"/v1/queues/{text}", f"/{text}"):
                self.answers.append(await client.get(path))
            self.answers.append(await self.gateway.with_key(f"{text}x").get(WHOAMI))
            self.answers.append(await self.gateway.anonymous.post(CLAIM, {"code": f"{text}x", "tenant": "x"}))
            self.answers.append(await client.post(KEYS, {"name": "n", "scopes": [text]}))


async def test_credentials_are_shown_once(engine_url: str) -> None:
    with capture_logs() as logs:
        async with running_gateway(gateway_settings(engine_url, access_log=True)) as gateway:
            everything = IssuedCredentials(gateway)
            await everything.make()
            audit = await entries_of(gateway)
            stored = [await raw_bucket(gateway, bucket) for bucket in AccessCapability.buckets]
    hidden = traces(everything.texts)
    assert len(logs) > 50 and len(audit) > 5
    for trace in hidden:
        assert not [entry for entry in audit if trace in str(entry)]
        assert not [line for line in logs if trace in str(line)]
    for text in everything.texts:
        assert not [raw for raw in stored if text.encode() in raw], "stored as hashes, or encrypted"
        for answer in everything.answers:
            shown = answer.body.decode()
            assert key_hash(text) not in shown
            assert text not in shown or answer.status >= 400, "except to who sent it, in the wrong place"
