"""The AsyncAPI document and CloudEvents on the command line."""

import json

from tests.cli.shell import Shell


def test_the_asyncapi_document_is_printed(shell: Shell, name: str) -> None:
    shell.run("queues", "put", name)
    found = shell.run("asyncapi").json
    assert found["asyncapi"] == "3.0.0"
    assert any(one["address"] == f"/v1/queues/{name}/messages" for one in found["channels"].values())


def test_a_cloud_event_is_published(shell: Shell, name: str) -> None:
    shell.run("queues", "put", name)
    event = {"specversion": "1.0", "id": "5", "source": "/shop", "type": "order.created", "data": {"total": 12.5}}
    published = [shell.run("queues", "publish", name, json.dumps(event), "--cloudevent", "--json").json for _ in range(2)]
    assert published[0]["messageId"] == published[1]["messageId"]
    [message] = shell.run("queues", "pull", name, "--json").json
    assert (message["headers"]["ce-source"], message["payload"]) == ("/shop", {"total": 12.5})
    assert "excludes" in shell.invoke("queues", "publish", name, "{}", "--cloudevent", "--delay-ms", "5").stderr
    assert "JSON object" in shell.invoke("queues", "publish", name, "[]", "--cloudevent").stderr
    assert "specversion" in shell.invoke("queues", "publish", name, "{}", "--cloudevent").stderr
