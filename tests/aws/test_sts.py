"""STS through boto3: identities and temporary credentials."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.aws.clients import AwsTenant, Credentials, refused
from tests.gateway import ShiftedClock


def credentials_of(answer: dict[str, Any]) -> Credentials:
    found = answer["Credentials"]
    return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])


def policy(action: str | list[str], resource: str = "*") -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": resource}]})


async def test_get_caller_identity(aws: AwsTenant) -> None:
    found = await aws.client("sts").get_caller_identity()
    assert (found["Account"], found["UserId"]) == (aws.account, aws.tenant.record.id)
    assert found["Arn"] == f"arn:aws:iam::{aws.account}:user/{aws.tenant.record.id}"


async def test_get_session_token_has_the_rights_of_the_key(aws: AwsTenant) -> None:
    session = credentials_of(await aws.client("sts").get_session_token(DurationSeconds=900))
    client = aws.client(credentials=session)
    await client.create_queue(QueueName="orders")
    assert (await aws.client("sts", session).get_caller_identity())["Account"] == aws.account


async def test_a_session_ends_with_its_time(aws: AwsTenant, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> datetime:
        return datetime.now(UTC) + timedelta(milliseconds=clock.ahead_ms)

    monkeypatch.setattr("botocore.auth.get_current_datetime", now)
    session = credentials_of(await aws.client("sts").get_session_token(DurationSeconds=900))
    clock.ahead_ms = 800_000
    await aws.client(credentials=session).list_queues()
    clock.ahead_ms = 901_000
    with refused("ExpiredToken", 403):
        await aws.client(credentials=session).list_queues()


async def test_a_session_ends_with_its_key(aws: AwsTenant) -> None:
    other = await aws.tenant.another_key()
    issued = (await aws.tenant.client.post(f"/api/control/keys/{other.record.id}/aws", {})).ok(201)
    keys = Credentials(issued["accessKeyId"], issued["secretAccessKey"])
    session = credentials_of(await aws.client("sts", keys).get_session_token())
    client = aws.client(credentials=session)
    await client.list_queues()
    (await aws.tenant.client.delete(f"/api/control/keys/{other.record.id}")).ok(204)
    with refused("InvalidClientTokenId", 403):
        await client.list_queues()


@pytest.mark.parametrize("part", ["access_key_id", "secret_access_key", "session_token"])
async def test_an_altered_session_is_refused(aws: AwsTenant, part: str) -> None:
    from dataclasses import replace

    session = credentials_of(await aws.client("sts").get_session_token())
    text = getattr(session, part)
    altered = replace(session, **{part: text[:-2] + ("A" if text[-2] != "A" else "B") + text[-1]})
    with refused("SignatureDoesNotMatch" if part == "secret_access_key" else "InvalidClientTokenId", 403):
        await aws.client(credentials=altered).list_queues()


async def test_assume_role_with_a_policy(aws: AwsTenant) -> None:
    orders, other = await aws.queue("orders-1"), await aws.queue("other")
    allowed = policy("sqs:SendMessage", f"arn:aws:sqs:*:{aws.account}:orders-*")
    role = f"arn:aws:iam::{aws.account}:role/worker"
    answer = await aws.client("sts").assume_role(RoleArn=role, RoleSessionName="one", Policy=allowed, DurationSeconds=43_200)
    assert answer["AssumedRoleUser"]["Arn"] == f"arn:aws:sts::{aws.account}:assumed-role/worker/one"
    session = credentials_of(answer)
    client = aws.client(credentials=session)
    await client.send_message(QueueUrl=orders, MessageBody="x")
    await client.send_message_batch(QueueUrl=orders, Entries=[{"Id": "a", "MessageBody": "x"}])
    for denied in (
        client.send_message(QueueUrl=other, MessageBody="x"),
        client.receive_message(QueueUrl=orders),
        client.list_queues(),
    ):
        with refused("AccessDenied", 403):
            await denied
    found = await aws.client("sts", session).get_caller_identity()
    assert found["Arn"] == answer["AssumedRoleUser"]["Arn"]
    again = credentials_of(await aws.client("sts", session).get_session_token())
    with refused("AccessDenied", 403):
        await aws.client(credentials=again).receive_message(QueueUrl=orders)


async def test_a_policy_for_some_queues_allows_their_names(aws: AwsTenant) -> None:
    await aws.queue("other")
    role, allowed = f"arn:aws:iam::{aws.account}:role/worker", policy("sqs:*", f"arn:aws:sqs:*:{aws.account}:orders-*")
    session = credentials_of(await aws.client("sts").assume_role(RoleArn=role, RoleSessionName="one", Policy=allowed))
    client = aws.client(credentials=session)
    await client.create_queue(QueueName="orders-1")
    await client.get_queue_url(QueueName="orders-1")
    for denied in (client.create_queue(QueueName="third"), client.get_queue_url(QueueName="other"), client.list_queues()):
        with refused("AccessDenied", 403):
            await denied


async def test_a_policy_for_a_dead_letter_queue_allows_its_move_tasks(aws: AwsTenant) -> None:
    for name in ("dead", "other"):
        await aws.queue(name)
        redrive = json.dumps({"deadLetterTargetArn": aws.arn(name), "maxReceiveCount": 1})
        await aws.queue(f"of-{name}", RedrivePolicy=redrive)
    role, allowed = f"arn:aws:iam::{aws.account}:role/worker", policy("sqs:*", f"arn:aws:sqs:*:{aws.account}:dead")
    session = credentials_of(await aws.client("sts").assume_role(RoleArn=role, RoleSessionName="one", Policy=allowed))
    client = aws.client(credentials=session)
    start, dead = client.start_message_move_task, aws.arn("dead")
    for denied in (start(SourceArn=aws.arn("other")), start(SourceArn=dead, DestinationArn=aws.arn("other"))):
        with refused("AccessDenied", 403):
            await denied
    await start(SourceArn=dead)
    assert len((await client.list_message_move_tasks(SourceArn=dead))["Results"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        policy("s3:GetObject"),
        policy("sqs:SendMessage", "arn:aws:s3:::bucket"),
        json.dumps({"Statement": [{"Effect": "Deny", "Action": "*", "Resource": "*"}]}),
        json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {}}]}),
        json.dumps({"Statement": [{"Effect": "Allow", "NotAction": "*", "Resource": "*"}]}),
        json.dumps({"Statement": [{"Effect": "Allow", "Action": [], "Resource": "*"}]}),
    ],
)
async def test_a_malformed_policy_document(aws: AwsTenant, text: str) -> None:
    role = f"arn:aws:iam::{aws.account}:role/worker"
    with refused("MalformedPolicyDocument", 400):
        await aws.client("sts").assume_role(RoleArn=role, RoleSessionName="one", Policy=text)


async def test_sessions_last_15_minutes_to_12_hours(aws: AwsTenant) -> None:
    sts = aws.client("sts", parameter_validation=False)
    for seconds in (899, 43_201):
        with refused("ValidationError", 400):
            await sts.get_session_token(DurationSeconds=seconds)


async def test_roles_are_those_of_the_own_account(aws: AwsTenant) -> None:
    with refused("AccessDenied", 403):
        await aws.client("sts").assume_role(RoleArn="arn:aws:iam::123456789012:role/x", RoleSessionName="one")
    with refused("ValidationError", 400):
        await aws.client("sts").assume_role(RoleArn=f"arn:aws:iam::{aws.account}:role/x", RoleSessionName="a b")
