"""Whoever has the engine's credentials can put anything into its streams: it stops nobody who reads past it."""

from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.protocol import header_lines
from postroad.kernel.ids import new_id
from postroad.kernel.names import dead_subject, queue_subject
from tests.gateway import Gateway, Tenant


async def stored(gateway: Gateway, stream: str, subject: str, payload: bytes, headers: str = "") -> None:
    await gateway.node.platform.committers.of(stream).append(PendingMessage(subject, payload, new_id(), headers))


_ID = b"01890000-0000-7000-8000-000000000001"
_OF_NO_TIME = b'{"v":1,"id":"%b","job":"%b","at":%d,"payload":1}' % (_ID, _ID, 10**18)
_NOT_MESSAGES = [
    b"",
    b"nonsense",
    b'{"v": 1, "id": "\xff"}',
    b"[" * 3000,
    b'{"v":1,"id":"%b","job":"%b","at":1,"payload":"\xff"}' % (_ID, _ID),
    _OF_NO_TIME,
]


async def test_what_is_no_message_is_passed_over(gateway: Gateway, tenant: Tenant) -> None:
    path = await tenant.queue("q")
    for nonsense in _NOT_MESSAGES:
        await stored(gateway, f"Q_{tenant.id}__q", f"{queue_subject(tenant.id, 'q')}.ready", nonsense)
    made = await tenant.publish(path, "good")
    seen = (await tenant.client.get(f"{path}/messages")).ok()["messages"]
    assert [one["messageId"] for one in seen] == [made["messageId"]]
    assert [one["payload"] for one in await tenant.pull(path, 10)] == ["good"]


async def test_what_is_no_dead_letter_is_passed_over(gateway: Gateway, tenant: Tenant) -> None:
    path = await tenant.queue("q")
    await tenant.publish(path, "bad luck")
    [pulled] = await tenant.pull(path)
    (await tenant.client.post(f"{path}/nack", {"receiptId": pulled["receiptId"], "action": "dlq"})).ok()
    for number, nonsense in enumerate(_NOT_MESSAGES):
        await stored(gateway, f"D_{tenant.id}", f"{dead_subject(tenant.id, 'q')}.m{number}", nonsense)
        letter = b'{"v":1,"reason":"r","attempts":3,"dead_at":1,"message":' + (nonsense or b"1") + b"}"
        await stored(gateway, f"D_{tenant.id}", f"{dead_subject(tenant.id, 'q')}.l{number}", letter)
    letters = (await tenant.client.get(f"{path}/dlq")).ok()["messages"]
    assert [one["messageId"] for one in letters] == [pulled["messageId"]]


async def test_what_is_no_event_does_not_stop_those_who_follow(gateway: Gateway, tenant: Tenant) -> None:
    async with tenant.client.events("/v1/telemetry/stream?events=queue.changed") as events:
        frame = header_lines([("Postroad-Frame", "1")])
        for nonsense in (b'{"event": "\xff"}', b"\xff", b"[" * 3000, b'{"event": 1}', b"\n\n"):
            await stored(gateway, "TELEMETRY", f"telemetry.{tenant.id}", nonsense, frame)
        await tenant.queue("q")
        event = await events.next()
        assert event is not None and event.json["queue"] == "q"
