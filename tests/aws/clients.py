"""boto3 clients of a tenant, called from asynchronous tests."""

import asyncio
import contextlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials as BotoCredentials
from botocore.exceptions import ClientError

from tests.gateway import Gateway, Tenant

REGION = "eu-central-1"


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key_id: str
    secret_access_key: str
    session_token: str | None = None


class Client:
    """A boto3 client. Its calls run in a thread, since the gateway is in the event loop of the test."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        async def call(**arguments: Any) -> Any:
            return await asyncio.to_thread(method, **arguments)

        return call


def boto(url: str, credentials: Credentials, service: str = "sqs", **config: Any) -> Client:
    session = boto3.session.Session(
        credentials.access_key_id, credentials.secret_access_key, credentials.session_token, region_name=REGION
    )
    options = {"retries": {"total_max_attempts": 1}, "read_timeout": 40, "max_pool_connections": 50, **config}
    return Client(session.client(service, endpoint_url=url, config=Config(**options)))


async def aws_key(tenant: Tenant, key_id: str = "") -> Credentials:
    """AWS credentials of the tenant's key, or of another one."""
    admin = tenant.gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    issued = (await admin.post(f"/api/control/keys/{key_id or tenant.record.id}/aws", {})).ok(201)
    return Credentials(issued["accessKeyId"], issued["secretAccessKey"])


@dataclass(frozen=True, slots=True)
class AwsTenant:
    """A tenant with AWS credentials of all scopes."""

    tenant: Tenant
    credentials: Credentials
    account: str
    sqs: Client

    @property
    def gateway(self) -> Gateway:
        return self.tenant.gateway

    def client(self, service: str = "sqs", credentials: Credentials | None = None, **config: Any) -> Client:
        return boto(self.gateway.url, credentials or self.credentials, service, **config)

    async def queue(self, name: str = "q", **attributes: str) -> str:
        """Create a queue; its URL."""
        url: str = (await self.sqs.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]
        return url

    def arn(self, name: str) -> str:
        return f"arn:aws:sqs:{REGION}:{self.account}:{name}"

    async def attributes(self, url: str, *names: str) -> dict[str, str]:
        found: dict[str, str] = (await self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names) or ["All"])).get(
            "Attributes", {}
        )
        return found

    async def receive(self, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
        found = await self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **{"WaitTimeSeconds": 10, **more})
        messages: list[dict[str, Any]] = found.get("Messages", [])
        return messages


async def post_form(tenant: AwsTenant, service: str, form: Mapping[str, str]) -> tuple[int, str]:
    """Send a signed form that boto3 would not send; status and body of the response."""
    return await post_signed(
        tenant, service, urlencode(form).encode(), {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    )


async def post_signed(tenant: AwsTenant, service: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
    request = AWSRequest("POST", f"{tenant.gateway.url}/", dict(headers), body)
    given = tenant.credentials
    signer = SigV4Auth(BotoCredentials(given.access_key_id, given.secret_access_key, given.session_token), service, REGION)
    signer.add_auth(request)

    def post() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(request.url, body, dict(request.headers.items())), timeout=40
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(post)


async def aws_tenant(gateway: Gateway, *, auto_create_queues: bool = False) -> AwsTenant:
    tenant = await gateway.tenant(auto_create_queues=auto_create_queues)
    credentials = await aws_key(tenant)
    account = (await tenant.client.get("/v1/whoami")).ok()["accountId"]
    return AwsTenant(tenant, credentials, account, boto(gateway.url, credentials))


@cache
def documented_statuses() -> dict[str, set[int]]:
    """The statuses of each modelled error, by its code in either protocol, from the reference page."""
    page = (Path(__file__).parent.parent.parent / "docs" / "aws.md").read_text()
    found: dict[str, set[int]] = {}
    for code, statuses in re.findall(r"^\| `\w+` \| `([\w.]+)` \| ([^|]+) \| raised \|$", page, re.MULTILINE):
        found.setdefault(code, set()).update(int(one) for one in re.findall(r"\b\d{3}\b", statuses))
    return found


@contextlib.contextmanager
def refused(code: str, status: int | None = None, message: str = "") -> Iterator[pytest.ExceptionInfo[ClientError]]:
    """A call fails with this code, as boto3 reports it, and with a status that the reference page has."""
    with pytest.raises(ClientError) as caught:
        yield caught
    found = caught.value.response
    assert found["Error"]["Code"] == code, found
    sent = found["ResponseMetadata"]["HTTPStatusCode"]
    assert status in (None, sent), found
    assert sent in documented_statuses().get(code, {sent}), found
    assert message in found["Error"]["Message"], found
