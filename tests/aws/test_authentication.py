"""Authentication of AWS requests: signatures, bearer keys, scopes, restrictions, revocation, accounts."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from botocore.exceptions import ClientError

from postroad.access.records import TenantRecord
from postroad.container import Role
from postroad.kernel.clock import now_ms
from postroad.kernel.identity import Caller, Scope
from tests.access import hooks
from tests.aws.clients import AwsTenant, Credentials, aws_key, aws_tenant, boto, post_signed, refused
from tests.gateway import Gateway, ShiftedClock, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

JSON = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}


async def test_a_request_without_credentials(gateway: Gateway) -> None:
    answer = await gateway.anonymous.post("/", headers=JSON, data=b"{}")
    assert answer.status == 403 and answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
    assert answer.json["__type"] == answer.headers["x-amzn-errortype"]
    assert answer.headers["x-amzn-requestid"] == answer.headers["x-request-id"]
    xml = await gateway.anonymous.post("/", data=b"Action=ListQueues&Version=2012-11-05")
    assert xml.status == 403 and b"<Code>MissingAuthenticationToken</Code>" in xml.body


async def test_wrong_credentials(aws: AwsTenant) -> None:
    wrong = replace(aws.credentials, secret_access_key="x" * 40)
    with refused("SignatureDoesNotMatch", 403):
        await aws.client(credentials=wrong).list_queues()
    for unknown in ("PRAK" + "0" * 16, "AKIAIOSFODNN7EXAMPLE", "PRAS" + aws.tenant.record.id):
        with refused("InvalidClientTokenId", 403):
            await aws.client(credentials=replace(aws.credentials, access_key_id=unknown)).list_queues()


async def test_a_bearer_key_is_accepted(aws: AwsTenant) -> None:
    await aws.queue("orders")
    answer = await aws.tenant.client.post("/", headers=JSON, data=b"{}")
    assert answer.ok()["QueueUrls"] == [f"{aws.gateway.url}/{aws.account}/orders"]
    wrong = await aws.gateway.with_key("pr_live_unknown").post("/", headers=JSON, data=b"{}")
    assert (wrong.status, wrong.headers["x-amzn-query-error"]) == (403, "InvalidClientTokenId;Sender")


async def test_a_presigned_url_is_accepted_until_it_expires(aws: AwsTenant, clock: ShiftedClock) -> None:
    await aws.queue("orders")
    request = AWSRequest("GET", f"{aws.gateway.url}/", params={"Action": "ListQueues", "Version": "2012-11-05"})
    keys = BotoCredentials(aws.credentials.access_key_id, aws.credentials.secret_access_key)
    SigV4QueryAuth(keys, "sqs", "eu-west-1", 3600).add_auth(request)
    path = request.prepare().url.removeprefix(aws.gateway.url)
    answer = await aws.gateway.anonymous.get(path)
    assert answer.status == 200 and f"/{aws.account}/orders</QueueUrl>".encode() in answer.body
    altered = await aws.gateway.anonymous.get(path + "&QueueNamePrefix=x")
    assert altered.status == 403 and b"SignatureDoesNotMatch" in altered.body
    clock.ahead_ms = 3_700_000
    assert (await aws.gateway.anonymous.get(path)).status == 403


async def test_the_clock_of_the_client_must_be_right(aws: AwsTenant, clock: ShiftedClock) -> None:
    clock.ahead_ms = 16 * 60_000
    with refused("SignatureDoesNotMatch", 403, "expired"):
        await aws.sqs.list_queues()


async def test_two_secrets_are_valid_during_a_rotation(aws: AwsTenant) -> None:
    second = await aws_key(aws.tenant)
    await aws.sqs.list_queues()
    await aws.client(credentials=second).list_queues()
    third = await aws_key(aws.tenant)
    await aws.client(credentials=second).list_queues()
    await aws.client(credentials=third).list_queues()
    with refused("SignatureDoesNotMatch", 403):
        await aws.sqs.list_queues()


async def test_a_revoked_key_ends_its_credentials_on_every_gateway(aws: AwsTenant, second_gateway: Gateway) -> None:
    other = await aws.tenant.another_key()
    credentials = await aws_key(aws.tenant, other.record.id)
    client = boto(second_gateway.url, credentials)
    await client.list_queues()
    (await aws.tenant.client.patch(f"/api/control/keys/{other.record.id}", {"enabled": False})).ok()

    async def is_refused() -> bool:
        try:
            await client.list_queues()
        except ClientError as error:
            return bool(error.response["Error"]["Code"] == "InvalidClientTokenId")
        return False

    await eventually(is_refused)


async def test_a_revoked_key_succeeds_nowhere_once_its_gateway_knows(aws: AwsTenant, second_gateway: Gateway) -> None:
    """At the gateway of the revocation: the next request. Elsewhere: the first one after the change of the record arrived."""
    key = (await aws.tenant.another_key()).record.id
    credentials = await aws_key(aws.tenant, key)
    here, there = aws.client(credentials=credentials), boto(second_gateway.url, credentials)
    session = (await aws.client("sts", credentials).get_session_token())["Credentials"]
    temporary = boto(second_gateway.url, Credentials(session["AccessKeyId"], session["SecretAccessKey"], session["SessionToken"]))
    for client in (here, there, temporary):
        await client.list_queues()
    known = second_gateway.node.platform.identities.keys
    (await aws.tenant.client.patch(f"/api/control/keys/{key}", {"enabled": False})).ok()
    with refused("InvalidClientTokenId", 403):
        await here.list_queues()
    await eventually(lambda: (record := known.get(key)) is not None and not record.is_active(now_ms()))
    for client in (there, temporary):
        with refused("InvalidClientTokenId", 403):
            await client.list_queues()


async def test_deleted_aws_credentials_end_and_the_key_stays(aws: AwsTenant) -> None:
    (await aws.tenant.client.delete(f"/api/control/keys/{aws.tenant.record.id}/aws")).ok(204)
    with refused("InvalidClientTokenId", 403):
        await aws.sqs.list_queues()
    (await aws.tenant.client.get("/v1/whoami")).ok()


async def test_a_revocation_ends_a_long_poll(aws: AwsTenant) -> None:
    url = await aws.queue()
    other = await aws.tenant.another_key()
    client = aws.client(credentials=await aws_key(aws.tenant, other.record.id))
    waiting = asyncio.create_task(client.receive_message(QueueUrl=url, WaitTimeSeconds=20))
    await eventually(lambda: aws.gateway.node.platform.identities._watched.get(other.record.id))
    (await aws.tenant.client.delete(f"/api/control/keys/{other.record.id}")).ok(204)
    with refused("InvalidClientTokenId", 403):
        await waiting


async def test_the_secret_is_stored_encrypted(aws: AwsTenant) -> None:
    record = aws.gateway.node.platform.identities.keys.get(aws.tenant.record.id)
    assert record is not None
    assert aws.credentials.secret_access_key.encode() not in msgspec.json.encode(record)
    shown = (await aws.tenant.client.get(f"/api/control/keys/{aws.tenant.record.id}")).ok()
    assert shown["awsAccessKeyId"] == aws.credentials.access_key_id and "aws" not in shown


async def test_a_platform_key_has_no_aws_credentials(gateway: Gateway) -> None:
    key_id = (await gateway.admin.get("/v1/whoami")).ok()["keyId"]
    (await gateway.admin.post(f"/api/control/keys/{key_id}/aws", {})).problem(409, "precondition-failed")


async def test_accounts_are_unique_and_stay(gateway: Gateway, second_gateway: Gateway) -> None:
    tenants = [await gateway.tenant() for _ in range(5)]
    accounts = [(await one.client.get("/v1/whoami")).ok()["accountId"] for one in tenants]
    assert len(set(accounts)) == 5 and all(len(one) == 12 and one.isdecimal() for one in accounts)
    seen = [(await second_gateway.seen_by(one).client.get("/v1/whoami")).ok()["accountId"] for one in tenants]
    assert seen == accounts


async def test_tenants_without_an_account_get_one_at_the_start(own_server: Server) -> None:
    settings = gateway_settings(own_server.url)
    async with running_gateway(settings) as before:
        tenants = before.node.platform.identities.tenants
        for name in ("old-1", "old-2"):
            await tenants.create(name, TenantRecord(id=name, created_at_ms=now_ms(), updated_at_ms=now_ms()))
        assert not {"old-1", "old-2"} & set(before.node.access.accounts._by_tenant)
    async with running_gateway(settings, Role.ALL) as after:
        accounts = after.node.access.accounts
        await eventually(lambda: {"old-1", "old-2"} <= set(accounts._by_tenant))
        assigned = [accounts._by_tenant[name] for name in ("old-1", "old-2")]
        assert len(set(assigned)) == 2 and [accounts.tenant(one) for one in assigned] == ["old-1", "old-2"]


async def test_resources_of_another_account_do_not_exist(aws: AwsTenant, gateway: Gateway) -> None:
    other = await aws_tenant(gateway)
    url = await other.queue("orders")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        await aws.sqs.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=other.account)
    assert "QueueUrls" not in await aws.sqs.list_queues()


async def test_queues_outside_the_restrictions_do_not_exist(aws: AwsTenant) -> None:
    await aws.queue("orders-1")
    url = await aws.queue("secret")
    narrow = await aws.tenant.another_key(allowed_queues=("orders-*",))
    client = aws.client(credentials=await aws_key(aws.tenant, narrow.record.id))
    assert [one.rpartition("/")[2] for one in (await client.list_queues())["QueueUrls"]] == ["orders-1"]
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        await client.send_message(QueueUrl=url, MessageBody="x")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        await client.get_queue_url(QueueName="secret")
    with refused("AccessDenied", 403):
        await client.create_queue(QueueName="other")
    await client.create_queue(QueueName="orders-2")


NEEDS = {
    "AddPermission": {"admin"},
    "CancelMessageMoveTask": {"write", "admin"},
    "ChangeMessageVisibility": {"consume"},
    "ChangeMessageVisibilityBatch": {"consume"},
    "CreateQueue": {"admin"},
    "DeleteMessage": {"consume"},
    "DeleteMessageBatch": {"consume"},
    "DeleteQueue": {"admin"},
    "GetQueueAttributes": {"read", "admin"},
    "GetQueueUrl": {"read", "admin"},
    "ListDeadLetterSourceQueues": {"read", "admin"},
    "ListMessageMoveTasks": {"read", "admin"},
    "ListQueueTags": {"read", "admin"},
    "ListQueues": {"read", "admin"},
    "PurgeQueue": {"write", "admin"},
    "ReceiveMessage": {"consume"},
    "RemovePermission": {"admin"},
    "SendMessage": {"publish"},
    "SendMessageBatch": {"publish"},
    "SetQueueAttributes": {"admin"},
    "StartMessageMoveTask": {"write", "admin"},
    "TagQueue": {"admin"},
    "UntagQueue": {"admin"},
}
_REQUIRED = {
    "Label": "l",
    "AWSAccountIds": ["123456789012"],
    "Actions": ["SendMessage"],
    "TaskHandle": "x",
    "ReceiptHandle": "x",
    "VisibilityTimeout": 1,
    "QueueName": "missing",
    "SourceArn": "x",
    "MessageBody": "x",
    "Entries": [{"Id": "a"}],
    "Attributes": {"DelaySeconds": "0"},
    "Tags": {"a": "b"},
    "TagKeys": ["a"],
}


@pytest.mark.parametrize("scope", list(Scope))
async def test_every_operation_needs_the_scope_of_its_native_one(aws: AwsTenant, scope: Scope) -> None:
    from postroad.aws.model import service_model

    key = await aws.tenant.another_key((scope,))
    url = f"{aws.gateway.url}/{aws.account}/missing"
    model = service_model("sqs")
    assert set(NEEDS) == set(model.operations)
    for name, (given, _) in model.operations.items():
        body = {one: _REQUIRED.get(one, url) for one in model.shapes[given or ""].required}
        answer = await key.client.post("/", body, headers={"X-Amz-Target": f"AmazonSQS.{name}"})
        is_denied = answer.headers.get("x-amzn-query-error") == "AccessDenied;Sender"
        assert is_denied == (str(scope) not in NEEDS[name]), (name, scope, answer.body)
        assert answer.status < 500


async def test_every_operation_refuses_other_credentials(aws: AwsTenant, gateway: Gateway) -> None:
    from postroad.aws.model import operations

    wrong = {
        "none": gateway.anonymous,
        "unknown": gateway.with_key("pr_live_" + "0" * 54),
        "malformed": gateway.anonymous.with_headers(Authorization="AWS4-HMAC-SHA256 Credential=x"),
        "scheme": gateway.anonymous.with_headers(Authorization="Basic eDp5"),
    }
    codes = {
        "none": b"MissingAuthenticationToken",
        "unknown": b"InvalidClientTokenId",
        "malformed": b"IncompleteSignature",
        "scheme": b"IncompleteSignature",
    }
    for known in operations().values():
        for name in known:
            for kind, client in wrong.items():
                if kind == "none" and name in ("ConfirmSubscription", "Unsubscribe"):
                    continue  # their tokens are tested in tests/sns
                answer = await client.post("/", data=f"Action={name}".encode())
                assert answer.status in (400, 403) and codes[kind] in answer.body, (name, kind, answer.body)


# The operator's hook, the throttle, the public address


@pytest.fixture(scope="module")
async def guarded(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway with the operator's hook and a public address, whose clients may fail three times."""
    settings = gateway_settings(
        engine_url,
        authorize="tests.access.hooks:authorize",
        public_url="https://mq.example.com",
        auth_failures_burst=3,
        auth_failures_per_minute=1,
        trusted_proxies="127.0.0.0/8",
    )
    async with running_gateway(settings) as running:
        yield running


@pytest.fixture
async def guarded_tenant(guarded: Gateway) -> AsyncIterator[AwsTenant]:
    yield await aws_tenant(guarded)
    hooks.authorize.answer = None
    hooks.authorize.attempts.clear()


async def test_the_hook_of_the_operator_decides(guarded_tenant: AwsTenant) -> None:
    aws = guarded_tenant
    url = await aws.queue("orders")
    hooks.authorize.attempts.clear()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [attempt] = hooks.authorize.attempts
    assert (attempt.action, attempt.project, attempt.needs) == ("sqs:SendMessage", aws.tenant.id, "publish")
    assert (attempt.route, attempt.parameters) == ("/aws/sqs/SendMessage", {"queue": "orders"})
    assert attempt.credential == aws.credentials.access_key_id
    hooks.authorize.answer = lambda attempt: attempt.action != "sqs:ReceiveMessage"
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    with refused("AccessDenied", 403):
        await aws.sqs.receive_message(QueueUrl=url)
    other = await aws_tenant(aws.gateway)
    hooks.authorize.answer = lambda _attempt: Caller(other.tenant.id, "sso:ada", frozenset({Scope.READ}), name="Ada")
    assert (await aws.client("sts").get_caller_identity())["Account"] == other.account
    with refused("AccessDenied", 403):
        await aws.sqs.create_queue(QueueName="q")


async def test_failed_signatures_are_throttled(guarded_tenant: AwsTenant) -> None:
    aws, address = guarded_tenant, "192.0.2.77"
    wrong = replace(aws.credentials, secret_access_key="x" * 40)
    unknown = replace(aws.credentials, access_key_id="PRAK" + "0" * 16)

    async def list_queues(credentials: Credentials) -> tuple[int, str]:
        headers = {**JSON, "X-Forwarded-For": address}
        status, body = await post_signed(replace(aws, credentials=credentials), "sqs", b"{}", headers)
        return status, str(json.loads(body).get("__type", "")).partition("#")[2]

    failures = [await list_queues(one) for one in (wrong, unknown, wrong)]
    assert failures == [(403, "SignatureDoesNotMatch"), (403, "InvalidClientTokenId"), (403, "SignatureDoesNotMatch")]
    assert await list_queues(wrong) == (429, "RequestThrottled")
    there = aws.gateway.with_key("pr_live_unknown").with_headers(**{"X-Forwarded-For": address})
    (await there.get("/v1/whoami")).problem(429, "rate-limited")
    assert await list_queues(aws.credentials) == (200, "")


async def test_queue_urls_have_the_public_address(guarded_tenant: AwsTenant) -> None:
    aws = guarded_tenant
    expected = f"https://mq.example.com/{aws.account}/orders"
    assert await aws.queue("orders") == expected
    assert (await aws.sqs.get_queue_url(QueueName="orders"))["QueueUrl"] == expected
    assert (await aws.sqs.list_queues())["QueueUrls"] == [expected]
    await aws.sqs.send_message(QueueUrl=expected, MessageBody="x")
    [message] = await aws.receive(f"http://elsewhere/{aws.account}/orders")
    assert message["Body"] == "x"
