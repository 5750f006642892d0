"""Errors that are raised before or outside the operation use the protocol of the caller."""

import asyncio
from typing import Any

import pytest

from tests.aws.clients import aws_tenant
from tests.gateway import Answer, Gateway, gateway_settings, running_gateway, served, shared_app
from tests.http.small import raw_connection
from tests.servers import Server
from tests.waiting import eventually

JSON = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def check(answer: Answer, status: int, code: str, *, is_json: bool) -> None:
    assert answer.status == status, answer
    assert answer.headers["x-amzn-requestid"]
    fault = "Sender" if status < 500 else "Receiver"
    if is_json:
        assert answer.headers["x-amzn-query-error"] == f"{code};{fault}"
        assert answer.json["__type"] == answer.headers["x-amzn-errortype"] and answer.json["__type"].endswith(f"#{code}")
    else:
        assert f"<Code>{code}</Code>".encode() in answer.body and f"<Type>{fault}</Type>".encode() in answer.body


async def call(gateway: Gateway, *, is_json: bool, **headers: str) -> Answer:
    body, form = (b"{}", JSON) if is_json else (b"Action=ListQueues&Version=2012-11-05", FORM)
    return await gateway.anonymous.post("/", data=body, headers={**form, **headers})


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "query"])
async def test_413_a_body_that_is_too_large(gateway: Gateway, is_json: bool) -> None:
    form = JSON if is_json else FORM
    answer = await gateway.anonymous.post("/", data=b"x" * 20_000, headers=form)
    check(answer, 413, "RequestEntityTooLarge", is_json=is_json)


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "query"])
async def test_429_too_many_requests(engine_url: str, is_json: bool) -> None:
    async with running_gateway(gateway_settings(engine_url, requests_per_second_per_key_max=1)) as gateway:
        tenant = await gateway.tenant()
        bearer = {"Authorization": f"Bearer {tenant.key}"}
        answers = await asyncio.gather(*(call(gateway, is_json=is_json, **bearer) for _ in range(30)))
        answer = next(one for one in answers if one.status != 200)
        check(answer, 429, "RequestThrottled", is_json=is_json)
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "query"])
async def test_503_too_many_open_requests(engine_url: str, is_json: bool) -> None:
    async with running_gateway(gateway_settings(engine_url, requests_max=1)) as gateway, raw_connection(gateway.url) as held:
        await held.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n\r\n{")
        await eventually(lambda: gateway.node.app.open_requests == 1)
        check(await call(gateway, is_json=is_json), 503, "ServiceUnavailable", is_json=is_json)


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "query"])
@pytest.mark.parametrize("path", ["/", "/123456789012/q"])
async def test_408_a_body_that_arrives_too_slowly(gateway: Gateway, is_json: bool, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in (JSON if is_json else FORM).items())
    async with served(shared_app(gateway), body_seconds_max=0.05) as url, raw_connection(url) as connection:
        await connection.send(f"{head}\r\n{{".encode())
        answer = await connection.answer()
        check(answer, 408, "RequestTimeout", is_json=is_json)
        assert answer.headers["x-amzn-requestid"] == answer.headers["x-request-id"]
        assert await connection.is_closed()


async def test_408_of_the_native_api_stays_a_problem(gateway: Gateway) -> None:
    head = f"POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {(await gateway.tenant()).key}\r\n"
    async with served(shared_app(gateway), body_seconds_max=0.05) as url, raw_connection(url) as connection:
        await connection.send(f"{head}Content-Length: 50\r\n\r\n{{".encode())
        answer = await connection.answer()
        assert (answer.status, answer.json["code"]) == (408, "body-timeout")


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_503_a_send_whose_outcome_is_not_known(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        aws = await aws_tenant(gateway)
        url = await aws.queue()
        bearer: dict[str, Any] = {"Authorization": f"Bearer {aws.tenant.key}"}
        body = f'{{"QueueUrl": "{url}", "MessageBody": "x"}}'.encode()
        with own_server.suspended():
            sending = gateway.anonymous.post("/", data=body, headers={**JSON, "X-Amz-Target": "AmazonSQS.SendMessage", **bearer})
            check(await asyncio.wait_for(sending, 60), 503, "ServiceUnavailable", is_json=True)
