"""The AsyncAPI document with both clients, against a running gateway."""

from tests.client.conftest import Sdk


async def test_the_document_of_a_tenant(sdk: Sdk, name: str) -> None:
    await sdk("queues.put", name)
    found = await sdk("asyncapi.get", limit=5)
    assert (found["asyncapi"], [one for one in found["channels"] if one != "telemetry"]) == ("3.0.0", [f"queues.{key(name)}"])


def key(name: str) -> str:
    return name.replace("_", "_5f")
