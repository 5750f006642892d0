"""Every operation of SQS, SNS and STS with hostile values of the shapes of its input, on resources that exist: never a 5xx."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.aws.model import Operation, Shape, operations
from tests.aws.clients import REGION
from tests.gateway import Gateway, Tenant
from tests.tiers import long_runs

SERVED = [one for known in operations().values() for one in known.values()]
DESTRUCTIVE = {"DeleteQueue", "DeleteTopic", "Unsubscribe"}
CONDITIONS: list[Any] = [
    *([], ["x"], [1e9 + 1], [["x"]], [{}], [{"numeric": [["x"], 1]}], [{"numeric": [">", 1, ["x"], 2]}], "x"),
    *([{"anything-but": [[1]]}], [{"anything-but": {"prefix": 1}}], [{"cidr": "\ud800/8"}], [{"exists": []}]),
    *([{"prefix": "\ud800"}], [int("1" * 400)], [{"numeric": ["=", int("1" * 400)]}], [{"\ud800": 1}]),
]
SOURCES: list[Any] = [["\ud800"], [5], [[]], "x"]
DAYS: list[Any] = ["1", 0, "\ud800", [], 1e400, "9" * 5000]
STATEMENTS: list[Any] = [5, [], [5], {}, [{"Effect": ["x"], "Action": {}}], [{"Sid": "\ud800", "Effect": "Allow"}]]
RELATED: dict[str, list[Any]] = {  # by attribute
    "FilterPolicy": [
        *({"key": condition} for condition in CONDITIONS),
        {"$or": [{"$or": [{"a": []}, {"a": ["x"]}]}, {"a": {"b": ["x"]}}]},
    ],
    "DeliveryPolicy": [
        *(
            {"healthyRetryPolicy": 5},
            {"healthyRetryPolicy": {"minDelayTarget": "x"}},
            {"requestPolicy": {"headerContentType": 5}},
        ),
        {"throttlePolicy": {"maxReceivesPerSecond": [1]}},
        {"healthyRetryPolicy": {"backoffFunction": ["x"], "numRetries": None}},
        *({"http": 5}, {"http": {"defaultHealthyRetryPolicy": []}}, {"http": {"defaultRequestPolicy": {"headerContentType": 5}}}),
        *({"healthyRetryPolicy": {"numRetries": True, "minDelayTarget": -1}}, {"http": {"disableSubscriptionOverrides": 1}}),
    ],
    "RedrivePolicy": [
        *({"deadLetterTargetArn": "x", "maxReceiveCount": 1}, {"deadLetterTargetArn": 5, "maxReceiveCount": [1]}),
        *({"deadLetterTargetArn": "\ud800", "maxReceiveCount": {}}, {"deadLetterTargetArn": None}, {"deadLetterTargetArn": []}),
    ],
    "RedriveAllowPolicy": [
        *({"redrivePermission": "byQueue", "sourceQueueArns": one} for one in SOURCES),
        *({"redrivePermission": ["x"], "sourceQueueArns": "x"}, {"redrivePermission": "denyAll", "sourceQueueArns": [[]]}),
    ],
    "ReplayPolicy": [
        {"PointType": "Timestamp", "StartingPoint": "0001-01-01T00:00:00+14:00"},
        {"PointType": "Timestamp", "StartingPoint": "2026-01-01T00:00:00Z", "EndingPoint": "9999-12-31T23:59:59-14:00"},
        *({"PointType": [], "StartingPoint": {}}, {"PointType": "Timestamp", "StartingPoint": 5, "EndingPoint": "\ud800"}),
    ],
    "ArchivePolicy": [{"MessageRetentionPeriod": days} for days in DAYS],
    "Policy": [{"Statement": one} for one in STATEMENTS],
}
PARTS: list[str] = [
    *(
        "",
        " ",
        "\x00",
        "\ud800",
        "ü",
        "\ufffe",
        "x" * 300,
        "a" * 80_000,
        "-1",
        "0",
        "1",
        "3",
        "10",
        "9" * 30,
        "1e400",
        "NaN",
        "true",
    ),
    *("String", "Number", "Binary", "String.Array", "Number.x", "json", "sqs", "http", "https", "sms", "All", ".*", "*", "a.*"),
    *("MessageBody", "MessageAttributes", "byQueue", "perMessageGroupId", "messageGroup", "SHA256", "2", "Active", "PassThrough"),
    *("null", "[]", "{}", '"x"', "[[[[]]]]", '{"a":1}', "{" * 2000, "[" * 2000, '{"a":{"b":{"c":["x"]}}}', "1" + "0" * 400),
    *('["x",1,null]', '["\\ud800"]', '[{"a":[1]}]', f"[1{'0' * 5000}]", '{"default":"\\ud800"}', '{"default":5,"sqs":[1]}'),
    *(json.dumps(one) for values in RELATED.values() for one in values),
]
NAMES = [
    *(
        "VisibilityTimeout",
        "DelaySeconds",
        "MaximumMessageSize",
        "MessageRetentionPeriod",
        "ReceiveMessageWaitTimeSeconds",
        "Policy",
    ),
    *(
        "RedrivePolicy",
        "RedriveAllowPolicy",
        "FifoQueue",
        "ContentBasedDeduplication",
        "DeduplicationScope",
        "FifoThroughputLimit",
    ),
    *(
        "KmsMasterKeyId",
        "SqsManagedSseEnabled",
        "DisplayName",
        "DeliveryPolicy",
        "FilterPolicy",
        "FilterPolicyScope",
        "ReplayPolicy",
    ),
    *(
        "RawMessageDelivery",
        "SignatureVersion",
        "TracingConfig",
        "FifoTopic",
        "ArchivePolicy",
        "FifoThroughputScope",
        "AWSTraceHeader",
    ),
]
ATTRIBUTE = (  # name and value, most of them related
    st.sampled_from(sorted(RELATED)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from([*map(json.dumps, RELATED[name])]))
    )
    | st.tuples(st.sampled_from(NAMES), st.sampled_from(PARTS))
    | st.tuples(st.sampled_from(PARTS), st.sampled_from(PARTS))
)


@dataclass(frozen=True)
class Resources:
    """What exists, by the name of the member that names it."""

    tenant: Tenant
    known: dict[str, list[str]]

    def strategy(self, member: str, operation: Operation) -> st.SearchStrategy[str] | None:
        if operation.name in DESTRUCTIVE and member in ("QueueUrl", "TopicArn", "SubscriptionArn"):
            return st.sampled_from([one.replace("fuzz", "doomed") for one in self.known[member]])
        return st.sampled_from(self.known[member]) if member in self.known else None


@pytest.fixture(scope="session")
async def resources(gateway: Gateway) -> Resources:
    tenant = await gateway.tenant()
    account = (await tenant.client.get("/v1/whoami")).ok()["accountId"]

    async def call(version: str, action: str, **form: str) -> str:
        given_form = {"Action": action, "Version": version, **form}
        answer = await tenant.client.post("/", data=urlencode(given_form).encode())
        assert answer.status == 200, answer.body
        return answer.body.decode()

    urls, arns, topics, subscriptions, receipts = [], [], [], [], ["x"]
    for queue, more in (("fuzz", {}), ("fuzz.fifo", {"Attribute.1.Name": "FifoQueue", "Attribute.1.Value": "true"})):
        await call("2012-11-05", "CreateQueue", QueueName=queue, **more)
        urls.append(f"{gateway.url}/{account}/{queue}")
        arns.append(f"arn:aws:sqs:{REGION}:{account}:{queue}")
        group = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if more else {}
        for _ in range(3):
            await call("2012-11-05", "SendMessage", QueueUrl=urls[-1], MessageBody="x", **group)
        body = await call("2012-11-05", "ReceiveMessage", QueueUrl=urls[-1], MaxNumberOfMessages="1", WaitTimeSeconds="5")
        receipts.append(body.partition("<ReceiptHandle>")[2].partition("<")[0])
    for topic, queue_arn in (("fuzz", arns[0]), ("fuzz.fifo", arns[1])):
        entry = {"Attributes.entry.1.key": "FifoTopic", "Attributes.entry.1.value": "true"} if "." in topic else {}
        await call("2010-03-31", "CreateTopic", Name=topic, **entry)
        topics.append(f"arn:aws:sns:{REGION}:{account}:{topic}")
        body = await call("2010-03-31", "Subscribe", TopicArn=topics[-1], Protocol="sqs", Endpoint=queue_arn)
        subscriptions.append(body.partition("<SubscriptionArn>")[2].partition("<")[0])
    known = {
        "QueueUrl": urls,
        "QueueName": ["fuzz", "fuzz.fifo", "fuzz-2", "fuzz-2.fifo"],
        "Name": ["fuzz", "fuzz.fifo", "fuzz-2", "fuzz-2.fifo"],
        "TopicArn": topics,
        "TargetArn": topics,
        "ResourceArn": topics,
        "SubscriptionArn": subscriptions,
        "Endpoint": [*arns, "https://endpoint.example/", "http://[", "https://\ud800/", "http://10.0.0.1/"],
        "SourceArn": arns,
        "DestinationArn": arns,
        "ReceiptHandle": receipts,
        "AttributeName": NAMES,
        "Id": ["a", "b", "c", "d", "e", "f"],
        "MessageBody": ["x"],
        "Message": ["x", '{"default": "x"}'],
        "MessageGroupId": ["g"],
        "MessageDeduplicationId": ["d", "e"],
        "RoleArn": [f"arn:aws:iam::{account}:role/x", "x"],
    }
    return Resources(tenant, known)


def hostile(operation: Operation, name: str, resources: Resources, member: str = "") -> st.SearchStrategy[Any]:
    """Values of a shape, most of them of its type, and names of what exists where a member has one."""
    shapes, shape = operation.model.shapes, operation.model.shapes[name]
    if shape.type == "structure":
        required = {
            one: hostile(operation, kind, resources, one) for one, (kind, _) in shape.members.items() if one in shape.required
        }
        others = {
            one: hostile(operation, kind, resources, one) for one, (kind, _) in shape.members.items() if one not in shape.required
        }
        found = st.fixed_dictionaries(required, optional=others) | st.fixed_dictionaries({}, optional={**required, **others})
        if "AttributeValue" not in shape.members:
            return found
        pair = ATTRIBUTE.map(lambda one: {"AttributeName": one[0], "AttributeValue": one[1]})
        return st.tuples(found, pair | st.just({})).map(lambda both: {**both[0], **both[1]})
    if shape.type == "list":
        return st.lists(hostile(operation, shape.member, resources, member), max_size=3)
    if shape.type == "map" and shapes[shape.value].type == "string":
        return st.lists(ATTRIBUTE, max_size=3).map(dict)
    if shape.type == "map":
        return st.dictionaries(
            st.sampled_from(NAMES) | st.sampled_from(PARTS), hostile(operation, shape.value, resources), max_size=3
        )
    if member == "WaitTimeSeconds":
        return st.sampled_from([-1, 0, 21, 2**40])
    names = resources.strategy(member, operation)
    if shape.type == "string" and names is not None:
        return st.integers(0, 9).flatmap(lambda one: names if one else st.sampled_from(PARTS))
    texts = st.sampled_from([*PARTS, *NAMES, *shapes[name].enum])
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": texts,
        "integer": st.sampled_from([-1, 0, 1, 10, 11, 43_200, 2**31, 2**70]),
        "long": st.sampled_from([-1, 0, 1, 500, 2**63, 2**70]),
        "boolean": st.booleans(),
        "blob": st.binary(max_size=4),
        "timestamp": st.just(0),
    }
    return kinds[shape.type]


def form_of(operation: Operation, values: dict[str, Any]) -> dict[str, str]:
    """The form of a request in the query protocol."""
    shapes = operation.model.shapes

    def write(shape: Shape, name: str, value: Any) -> Iterator[tuple[str, str]]:
        if shape.type == "structure":
            for member, (kind, query) in shape.members.items():
                if member in value:
                    yield from write(shapes[kind], f"{name}.{query}" if name else query, value[member])
        elif shape.type == "list":
            for index, one in enumerate(value, 1):
                yield from write(
                    shapes[shape.member], f"{name}.{index}" if shape.flattened else f"{name}.{shape.name}.{index}", one
                )
        elif shape.type == "map":
            for index, (key, one) in enumerate(value.items(), 1):
                entry = f"{name}.{index}" if shape.flattened else f"{name}.entry.{index}"
                yield f"{entry}.{shape.name}", key
                yield from write(shapes[shape.value], f"{entry}.{shape.value_name}", one)
        else:
            yield name, value if isinstance(value, str) else "eA==" if isinstance(value, bytes) else str(value).lower()

    return dict(write(shapes[operation.input or ""], "", values))


@pytest.mark.parametrize("operation", SERVED, ids=lambda one: one.label)
@settings(long_runs(25))
@given(data=st.data())
async def test_no_operation_causes_a_server_error(operation: Operation, resources: Resources, data: st.DataObject) -> None:
    values = data.draw(hostile(operation, operation.input, resources) if operation.input else st.just({}))
    wrong = {
        **values,
        data.draw(st.sampled_from(sorted(values) or [""])): data.draw(st.sampled_from([None, 5, [], {}, [5], {"a": 5}])),
    }
    client, model = resources.tenant.client, operation.model
    form = {"Action": operation.name, "Version": model.version, **form_of(operation, values)}
    answers = [await client.post("/", data=urlencode(form, errors="surrogatepass").encode())]
    if model.target:
        for given_values in (values, wrong):
            body = json.dumps(given_values, default=lambda _bytes: "eA==").encode()
            answers.append(await client.post("/", data=body, headers={"X-Amz-Target": f"{model.target}.{operation.name}"}))
    assert all(answer.status < 500 for answer in answers), [one.body for one in answers if one.status >= 500]
