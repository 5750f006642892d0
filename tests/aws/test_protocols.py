"""Both protocols: botocore's serializers and parsers are the oracle, and malformed requests are client errors."""

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from botocore.model import ServiceModel as BotoModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.aws import json_protocol, query_protocol
from postroad.aws.errors import AwsError, view_of
from postroad.aws.model import Operation, Shape, operations, service_model
from tests.aws.clients import AwsTenant
from tests.gateway import Gateway

SQS = service_model("sqs")
ALL = [one for known in operations().values() for one in known.values()]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff", min_codepoint=0x20), max_size=12)
QUERY_VERSION = "2012-11-05"


def botocore_model(service: str, protocol: str) -> BotoModel:
    """botocore's model of our table, in one of the protocols."""
    model = service_model(service)
    shapes = {name: _botocore_shape(shape, model.shapes, protocol) for name, shape in model.shapes.items()}
    described = {
        name: {
            "name": name,
            "http": {"method": "POST", "requestUri": "/"},
            **({"input": {"shape": given}} if given else {}),
            **({"output": {"shape": result, "resultWrapper": f"{name}Result"}} if result else {}),
        }
        for name, (given, result) in model.operations.items()
    }
    metadata = {
        "apiVersion": model.version,
        "protocol": protocol,
        "jsonVersion": "1.0",
        "targetPrefix": model.target,
        "endpointPrefix": service,
        "xmlNamespace": model.namespace,
        "serviceId": service,
    }
    return BotoModel({"metadata": metadata, "operations": described, "shapes": shapes}, service)


def _botocore_shape(shape: Shape, shapes: dict[str, Shape], protocol: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": shape.type}
    is_query = protocol == "query"
    if shape.type == "structure":
        found["members"] = {
            name: {"shape": kind, **({"locationName": query} if is_query and _is_named(shapes[kind]) else {})}
            for name, (kind, query) in shape.members.items()
        }
        found["required"] = list(shape.required)
    elif shape.type == "list":
        found["member"] = {"shape": shape.member, **({"locationName": shape.name} if is_query else {})}
    elif shape.type == "map":
        found["key"] = {"shape": shape.key, **({"locationName": shape.name} if is_query else {})}
        found["value"] = {"shape": shape.value, **({"locationName": shape.value_name} if is_query else {})}
    if shape.flattened:
        found["flattened"] = True
    return found


def _is_named(shape: Shape) -> bool:
    return not (shape.type == "list" and shape.flattened)


def values_of(model: Any, name: str, *, is_output: bool = False) -> st.SearchStrategy[Any]:
    """Values of a shape, as the codecs return or take them."""
    shape = model.shapes[name]
    if shape.type == "structure":
        members = {member: values_of(model, kind, is_output=is_output) for member, (kind, _) in shape.members.items()}
        return st.fixed_dictionaries({}, optional=members)
    if shape.type == "list":
        return st.lists(values_of(model, shape.member, is_output=is_output), min_size=1, max_size=3)
    if shape.type == "map":
        return st.dictionaries(TEXT, values_of(model, shape.value, is_output=is_output), min_size=1, max_size=3)
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": TEXT,
        "integer": st.integers(-(2**31), 2**31),
        "long": st.integers(-(2**62), 2**62),
        "boolean": st.booleans(),
        "blob": st.binary(max_size=12),
        "timestamp": st.integers(0, 4_000_000_000),
    }
    return kinds[shape.type]


def without_empty(value: Any) -> Any:
    """Empty structures are not transmitted by the query protocol."""
    if isinstance(value, dict):
        kept = {name: without_empty(one) for name, one in value.items()}
        return {name: one for name, one in kept.items() if one not in ({}, [])}
    if isinstance(value, list):
        return [kept for one in value if (kept := without_empty(one)) not in ({}, [])]
    return value


@pytest.mark.parametrize("operation", [one for one in ALL if one.model.target], ids=lambda one: one.name)
@settings(max_examples=25)
@given(data=st.data())
def test_json_input_is_what_botocore_serialized(operation: Operation, data: st.DataObject) -> None:
    values = data.draw(values_of(operation.model, operation.input or ""))
    model = botocore_model(operation.model.service, "json")
    request = create_serializer("json", include_validation=False).serialize_to_request(
        values, model.operation_model(operation.name)
    )
    assert json_protocol.decode(operation, request["body"]) == values


HOT = (*("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility"),)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)


def damaged(data: st.DataObject, value: Any) -> Any:
    """Some parts of a value are replaced, added or null."""
    if data.draw(st.integers(0, 9)) == 0:
        return data.draw(JSON)
    if isinstance(value, dict):
        more = data.draw(st.dictionaries(TEXT, JSON, max_size=1))
        return more | {name: damaged(data, one) for name, one in value.items()}
    if isinstance(value, list):
        return [damaged(data, one) for one in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def outcome(decode: Callable[[Operation, bytes], Any], operation: Operation, body: bytes) -> Any:
    try:
        return repr(decode(operation, body))  # with the types of numbers
    except AwsError as error:
        return error.code, error.message


@pytest.mark.parametrize("operation", [one for one in ALL if one.model.target], ids=lambda one: one.name)
@settings(max_examples=100)
@given(data=st.data())
def test_typed_decoders_agree_with_the_shapes(operation: Operation, data: st.DataObject) -> None:
    value = damaged(data, data.draw(values_of(operation.model, operation.input or "")))
    body = msgspec.json.encode(value) + data.draw(st.sampled_from([b"", b"", b" ", b"x"]))
    assert outcome(json_protocol.decode, operation, body) == outcome(json_protocol.decode_by_shape, operation, body)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "[]", "null", "1", '{"QueueUrl": null}', '{"QueueUrl": "a", "QueueUrl": "b"}', '{"QueueUrl": "\\ud800"}'),
        *(
            '{"DelaySeconds": 1.0}',
            '{"DelaySeconds": 1e2}',
            '{"DelaySeconds": "1"}',
            '{"DelaySeconds": true}',
            '{"DelaySeconds": -0}',
        ),
        *(
            f'{{"DelaySeconds": {2**63}}}',
            f'{{"DelaySeconds": {2**64}}}',
            f'{{"DelaySeconds": {10**400}}}',
            '{"unknown": [[[[1]]]]}',
        ),
        *(
            f'{{"MessageAttributes": {{"a": {{"BinaryValue": "{one}"}}}}}}'
            for one in ("", "YQ==", "YQ", "YR==", "Y Q==", "YQ==x", "-_==", "ä")
        ),
        *('{"MessageAttributes": {"a": null}}', '{"MessageAttributes": {"a": {"StringListValues": ["x", null]}}}', "\ufeff{}"),
    ],
)
def test_odd_input_is_decoded_as_by_the_shapes(text: str) -> None:
    operation = operations()["sqs"]["SendMessage"]
    found = [outcome(decode, operation, text.encode()) for decode in (json_protocol.decode, json_protocol.decode_by_shape)]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", HOT)
@settings(max_examples=25)
@given(data=st.data())
def test_hot_operations_have_a_typed_decoder(name: str, data: st.DataObject) -> None:
    operation = operations()["sqs"][name]
    values = data.draw(values_of(operation.model, operation.input or ""))
    assert json_protocol._decoder(operation)(msgspec.json.encode(values)) == values


@pytest.mark.parametrize("operation", ALL, ids=lambda one: one.label)
@settings(max_examples=25)
@given(data=st.data())
def test_query_input_is_what_botocore_serialized(operation: Operation, data: st.DataObject) -> None:
    values = without_empty(data.draw(values_of(operation.model, operation.input or "")))
    model = botocore_model(operation.model.service, "query")
    serializer = create_serializer("query", include_validation=False)
    request = serializer.serialize_to_request(values, model.operation_model(operation.name))
    form = query_protocol.parse_form(urlencode(request["body"]).encode())
    assert form["Action"] == operation.name
    assert query_protocol.decode(operation, form) == values


@pytest.mark.parametrize("operation", [one for one in ALL if one.output], ids=lambda one: one.label)
@settings(max_examples=25)
@given(data=st.data())
def test_botocore_parses_the_results_of_both_codecs(operation: Operation, data: st.DataObject) -> None:
    values = without_empty(data.draw(values_of(operation.model, operation.output or "", is_output=True)))
    expected = _parsed(operation, values)
    answers = {"query": query_protocol.encode(operation, values, "r")}
    if operation.model.target:
        answers["json"] = json_protocol.encode(values)
    for protocol, body in answers.items():
        shape = botocore_model(operation.model.service, protocol).operation_model(operation.name).output_shape
        found = create_parser(protocol).parse({"status_code": 200, "headers": {}, "body": body}, shape)
        found.pop("ResponseMetadata", None)
        assert {name: one for name, one in found.items() if one not in ([], {})} == expected, protocol


def _parsed(operation: Operation, values: Any) -> Any:
    import datetime

    def convert(shape: Shape, value: Any) -> Any:
        if shape.type == "structure":
            return {name: convert(operation.model.shapes[shape.members[name][0]], one) for name, one in value.items()}
        if shape.type == "list":
            return [convert(operation.model.shapes[shape.member], one) for one in value]
        if shape.type == "map":
            return {name: convert(operation.model.shapes[shape.value], one) for name, one in value.items()}
        return datetime.datetime.fromtimestamp(value, datetime.UTC) if shape.type == "timestamp" else value

    return convert(operation.model.shapes[operation.output or ""], values)


@pytest.mark.parametrize("shape", list(SQS.errors))
def test_botocore_parses_errors_of_both_codecs(shape: str) -> None:
    view = view_of(AwsError(shape, "a <message> & more"), SQS)
    body, headers = json_protocol.encode_error(view, SQS)
    names = {name.decode(): value.decode() for name, value in headers}
    found = create_parser("json").parse({"status_code": view.status, "headers": names, "body": body}, None)
    assert found["Error"]["Message"] == "a <message> & more" and found["Error"]["Code"] == SQS.errors[shape][0]
    assert body.startswith(f'{{"__type":"com.amazonaws.sqs#{shape}"'.encode())
    fault = "Receiver" if shape == "OverLimit" else "Sender"  # 507: the store is full
    assert names["x-amzn-query-error"] == f"{SQS.errors[shape][0]};{fault}"
    xml = query_protocol.encode_error(view, SQS, "id")
    parsed = create_parser("query").parse({"status_code": view.status, "headers": {}, "body": xml}, None)
    assert parsed["Error"]["Code"] == SQS.errors[shape][0] and parsed["Error"]["Message"] == "a <message> & more"
    assert parsed["ResponseMetadata"]["RequestId"] == "id"


# On the wire


async def test_the_query_protocol_in_all_its_places(aws: AwsTenant) -> None:
    await aws.queue("orders")
    client, path = aws.tenant.client, f"/{aws.account}/orders"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    sent = await client.post(path, data=b"Action=SendMessage&MessageBody=a%26%3Cb%3E&Version=2012-11-05", headers=form)
    assert sent.status == 200 and sent.headers["content-type"].startswith("text/xml") and b"<MessageId>" in sent.body
    url = quote(f"{aws.gateway.url}{path}", safe="")
    root = await client.post("/", data=f"Action=GetQueueUrl&QueueName=orders&QueueUrl={url}".encode(), headers=form)
    assert f"<QueueUrl>{aws.gateway.url}{path}</QueueUrl>".encode() in root.body
    got = await client.get(f"{path}?Action=ReceiveMessage&AttributeName.1=All&MaxNumberOfMessages=10")
    assert b"<Body>a&amp;&lt;b&gt;</Body>" in got.body and b"<Name>SenderId</Name>" in got.body
    assert (await client.get("/", headers={"Accept": "text/html"})).status == 200  # the page of links


async def test_other_routes_are_not_disturbed(aws: AwsTenant) -> None:
    client = aws.tenant.client
    (await client.post("/v1/nothing", {})).problem(404, "route-not-found")
    (await client.post("/123/q", {})).problem(404, "route-not-found")
    (await client.get(f"/{aws.account}/q")).problem(404, "route-not-found")
    (await client.put(f"/{aws.account}/q", {})).problem(404, "route-not-found")
    (await client.delete("/")).problem(405, "method-not-allowed")
    assert "POST" in (await aws.gateway.anonymous.call("OPTIONS", "/")).headers["access-control-allow-methods"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MissingAction"),
        (b"Action=Nothing", "InvalidAction"),
        (b"Action=SendMessage&Version=1999-01-01", "InvalidAction"),
        (b"Action=SendMessage", "MissingParameter"),
        (b"Action=ListQueues&MaxResults=x", "InvalidParameterValue"),
        (b"Action=ListQueues&MaxResults.1=1", "MalformedQueryString"),
        (b"Action=SendMessage&a=%ff", "MalformedQueryString"),
        (b"Action=TagQueue&QueueUrl=x&Tag.x.Key=1", "MalformedQueryString"),
        (b"Action=TagQueue&QueueUrl=x&Tag.1.Value=1", "MissingParameter"),
        (b"Action=DeleteQueue&QueueUrl=orders", "InvalidAddress"),
    ],
)
async def test_errors_of_the_query_protocol(aws: AwsTenant, body: bytes, code: str) -> None:
    answer = await aws.tenant.client.post("/", data=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert 400 <= answer.status < 500 and f"<Code>{code}</Code>".encode() in answer.body, answer.body


@pytest.mark.parametrize(
    ("target", "body", "code"),
    [
        ("AmazonSQS.Nothing", b"{}", "UnknownOperationException"),
        ("Nothing", b"{}", "UnknownOperationException"),
        ("AmazonSQS.ListQueues", b"{", "SerializationException"),
        ("AmazonSQS.ListQueues", b"[]", "SerializationException"),
        ("AmazonSQS.ListQueues", b'{"MaxResults": "1"}', "SerializationException"),
        ("AmazonSQS.ListQueues", b'{"MaxResults": true}', "SerializationException"),
        ("AmazonSQS.SendMessage", b'{"QueueUrl": 1}', "SerializationException"),
        ("AmazonSQS.SendMessage", b"{}", "MissingParameter"),
        ("AmazonSQS.TagQueue", b'{"QueueUrl": "x", "Tags": {"a": null}}', "SerializationException"),
    ],
)
async def test_errors_of_the_json_protocol(aws: AwsTenant, target: str, body: bytes, code: str) -> None:
    answer = await aws.tenant.client.post("/", data=body, headers={"X-Amz-Target": target})
    assert 400 <= answer.status < 500 and answer.json["__type"].endswith(f"#{code}"), answer.body


async def test_a_large_body_needs_a_known_key(aws: AwsTenant, gateway: Gateway) -> None:
    headers = {"X-Amz-Target": "AmazonSQS.SendMessage"}
    answer = await gateway.anonymous.post("/", data=b"x" * 20_000, headers=headers)
    assert (answer.status, answer.headers["x-amzn-query-error"]) == (413, "RequestEntityTooLarge;Sender")
    xml = await gateway.anonymous.post("/", data=b"Action=" + b"x" * 20_000)
    assert xml.status == 413 and b"<Code>RequestEntityTooLarge</Code>" in xml.body


FORMS = st.lists(
    st.tuples(
        st.sampled_from(
            ["Action", "QueueUrl", "Attribute.1.Name", "Tag.1", "Tag.1.Key", "MessageBody", "Entries", "Version", "a.b"]
        )
        | TEXT,
        st.sampled_from([*SQS.operations, "1", "", QUERY_VERSION]) | TEXT,
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(form=FORMS, raw=st.binary(max_size=60), header=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=80))
async def test_no_request_causes_a_server_error(gateway: Gateway, form: list[tuple[str, str]], raw: bytes, header: str) -> None:
    tenant = gateway.with_key(gateway.admin_key)
    attempts = [
        await tenant.post("/", data=urlencode(form).encode()),
        await tenant.post("/", data=raw, headers={"X-Amz-Target": "AmazonSQS.SendMessage"}),
        await tenant.post("/123456789012/q", data=raw),
        await gateway.anonymous.post("/", data=b"Action=ListQueues", headers={"Authorization": f"AWS4-HMAC-SHA256 {header}"}),
        await gateway.anonymous.get(f"/?Action=ListQueues&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={quote(header)}"),
    ]
    assert all(answer.status < 500 for answer in attempts), [answer.body for answer in attempts if answer.status >= 500]


def test_blobs_are_base64() -> None:
    with pytest.raises(AwsError, match="base64"):
        json_protocol.decode_blob("ä", "x")
    assert json_protocol.decode_blob(base64.b64encode(b"\xff").decode(), "x") == b"\xff"
