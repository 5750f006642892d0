"""The contract of sessions, request by request, against a running installation: paths, bodies, headers, statuses, scopes and
constants that clients rely on."""

import asyncio
import time
import uuid

import jwt
import pytest

from postroad.sessions import service
from postroad.sessions.settings import SessionsSettings
from tests.conformance.conftest import Project
from tests.gateway import Answer, Client
from tests.waiting import eventually

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
TTL_MS = 1800 * 1000
SECRET = "a secret that the project shares with its backend"


async def create(project: Project, stream: str, headers: dict[str, str] = TEXT) -> None:
    assert (await project.client.call("PUT", f"{project.root}/stream/{stream}", headers=headers)).status == 201


async def subscribe(project: Project, session: str, stream: str) -> Answer:
    return await project.client.post(f"{project.root}/subscribe", {"sessionId": session, "streamId": stream})


async def publish(project: Project, stream: str, data: bytes = b"hello", headers: dict[str, str] = TEXT) -> Answer:
    return await project.client.post(f"{project.root}/publish/{stream}", data=data, headers=headers)


def fanout(answer: Answer) -> tuple[str, int, int, int]:
    headers = answer.headers
    counts = [int(headers[f"stream-fanout-{name}"]) for name in ("count", "successes", "failures")]
    return headers["stream-fanout-mode"], counts[0], counts[1], counts[2]


# Subscribe and unsubscribe


async def test_subscribe(project: Project) -> None:
    await create(project, "chat-room-1")
    before = time.time() * 1000
    answer = (await subscribe(project, "user-alice", "chat-room-1")).ok(200)
    assert before + TTL_MS - 5000 <= answer.pop("expiresAt") <= time.time() * 1000 + TTL_MS + 5000
    assert answer == {
        "sessionId": "user-alice",
        "streamId": "chat-room-1",
        "sessionStreamPath": f"/v1/{project.id}/stream/session:user-alice",
        "isNewSession": True,
    }
    assert (await subscribe(project, "user-alice", "chat-room-1")).ok()["isNewSession"] is False


async def test_a_uuid_is_a_session_id_and_streams_may_have_colons_and_periods(project: Project) -> None:
    await create(project, "chat:room_1.eu-west")
    session = str(uuid.uuid4())
    assert (await subscribe(project, session, "chat:room_1.eu-west")).ok()["sessionId"] == session


async def test_subscribing_to_a_missing_stream_fails(project: Project) -> None:
    (await subscribe(project, "s", "nowhere")).problem(404, "stream-not-found")
    (await project.client.get(f"{project.root}/session/s")).problem(404, "session-not-found")


async def test_the_content_type_of_the_session_must_match_its_sources(project: Project) -> None:
    await create(project, "text")
    await create(project, "json", JSON)
    (await subscribe(project, "s", "text")).ok()
    (await subscribe(project, "s", "json")).problem(409, "content-type-mismatch")


@pytest.mark.parametrize("method", ["DELETE", "POST"])
async def test_unsubscribe(project: Project, method: str) -> None:
    await create(project, "chat")
    (await subscribe(project, "s", "chat")).ok()
    body = {"sessionId": "s", "streamId": "chat"}
    assert (await project.client.call(method, f"{project.root}/unsubscribe", body)).status == 200
    assert (await project.client.get(f"{project.root}/session/s")).ok()["subscriptions"] == []
    assert fanout(await publish(project, "chat")) == ("inline", 0, 0, 0)


@pytest.mark.parametrize("name", ["My_App", "a b", "a.b", "ü"])
async def test_an_invalid_project_is_refused(project: Project, name: str) -> None:
    answer = await project.client.post(f"/v1/{name}/subscribe".replace(" ", "%20"), {"sessionId": "s", "streamId": "x"})
    answer.problem(400, "invalid-parameter")


# Publish


@pytest.mark.parametrize(("data", "headers"), [(b"plain", TEXT), (b'{"a":1}', JSON), (b"\0\xff", {"Content-Type": "image/png"})])
async def test_publish_any_content_type(project: Project, data: bytes, headers: dict[str, str]) -> None:
    await create(project, "source", headers)
    for session in ("alice", "bob"):
        (await subscribe(project, session, "source")).ok()
    answer = await publish(project, "source", data, headers)
    assert answer.status == 204
    assert fanout(answer) == ("inline", 2, 2, 0)
    for stream in ("source", "session:alice", "session:bob"):
        found = await project.client.get(f"{project.root}/stream/{stream}")
        body = b"[" + data + b"]" if headers == JSON else data
        assert (found.body, found.headers["content-type"]) == (body, headers["Content-Type"])


async def test_a_repeated_publish_of_a_producer_is_absorbed(project: Project) -> None:
    await create(project, "chat")
    (await subscribe(project, "s", "chat")).ok()
    headers = {**TEXT, "Producer-Id": "p", "Producer-Epoch": "1", "Producer-Seq": "0"}
    assert [(await publish(project, "chat", b"once", headers)).status for _ in range(2)] == [200, 204]
    assert (await project.client.get(f"{project.root}/stream/session:s")).body == b"once"


async def test_publishing_to_a_missing_stream_fails(project: Project) -> None:
    (await publish(project, "nowhere")).problem(404, "stream-not-found")


async def test_up_to_200_subscribers_are_inline_and_more_are_queued(project: Project) -> None:
    await create(project, "chat")
    sessions = [f"s{number:03}" for number in range(201)]
    for start in range(0, 200, 20):
        await asyncio.gather(*(subscribe(project, session, "chat") for session in sessions[start : min(start + 20, 200)]))
    assert fanout(await publish(project, "chat", b"1")) == ("inline", 200, 200, 0)
    (await subscribe(project, sessions[200], "chat")).ok()
    for _ in range(4):  # whichever worker serves it
        assert fanout(await publish(project, "chat", b"2")) == ("queued", 201, 0, 0)

    async def is_delivered() -> bool:
        bodies = [(await project.client.get(f"{project.root}/stream/session:{one}")).body for one in (sessions[0], sessions[200])]
        return bodies == [b"12222", b"2222"]

    await eventually(is_delivered, 60)
    body = {"sessionId": sessions[200], "streamId": "chat"}
    (await project.client.delete(f"{project.root}/unsubscribe", body=body)).ok()
    for _ in range(4):
        assert fanout(await publish(project, "chat", b"3")) == ("inline", 200, 200, 0)


async def test_a_deleted_session_is_no_subscriber(project: Project) -> None:
    await create(project, "chat")
    for session in ("a", "b"):
        (await subscribe(project, session, "chat")).ok()
    assert (await project.client.delete(f"{project.root}/session/a")).status == 204
    assert (await project.client.delete(f"{project.root}/stream/session:b")).status == 204
    assert fanout(await publish(project, "chat")) == ("inline", 0, 0, 0)


# Session


async def test_get_touch_and_delete(project: Project) -> None:
    await create(project, "chat")
    await create(project, "news")
    made = (await subscribe(project, "s", "chat")).ok()
    (await subscribe(project, "s", "news")).ok()
    path = f"{project.root}/session/s"
    shown = (await project.client.get(path)).ok()
    assert {one["streamId"] for one in shown["subscriptions"]} == {"chat", "news"}
    assert shown["sessionId"] == "s" and shown["sessionStreamPath"] == made["sessionStreamPath"]
    touched = (await project.client.post(f"{path}/touch")).ok()
    assert touched["expiresAt"] >= shown["expiresAt"]
    assert (await project.client.get(path)).ok()["expiresAt"] == touched["expiresAt"]
    assert (await project.client.delete(path)).status == 204
    (await project.client.get(path)).problem(404, "session-not-found")
    (await project.client.post(f"{path}/touch")).problem(404, "session-not-found")
    (await project.client.get(made["sessionStreamPath"])).problem(404, "stream-not-found")


async def test_the_session_stream_is_read_live_from_the_beginning(project: Project) -> None:
    await create(project, "chat")
    (await subscribe(project, "alice", "chat")).ok()
    await publish(project, "chat", b"first")
    async with project.client.events(f"/v1/{project.id}/stream/session:alice?live=sse") as reader:
        first = await reader.next(30)
        assert first is not None and (first.event, first.data) == ("data", "first")
        await publish(project, "chat", b"second")
        while (event := await reader.next(30)) is not None and event.event != "data":
            continue
        assert event is not None and event.data == "second"


# Health, scopes and constants


async def test_health_needs_no_credentials(project: Project) -> None:
    anonymous = Client(project.client.url, project.client.session)
    assert (await anonymous.get("/health")).status == 200
    (await anonymous.post(f"{project.root}/subscribe", {"sessionId": "s", "streamId": "x"})).problem(401, "unauthenticated")


async def calls(project: Project, client: Client) -> dict[str, int]:
    """The status of each action for a client."""
    body = {"sessionId": "s", "streamId": "chat"}
    root = project.root
    return {
        "subscribe": (await client.post(f"{root}/subscribe", body)).status,
        "getSession": (await client.get(f"{root}/session/s")).status,
        "touchSession": (await client.post(f"{root}/session/s/touch")).status,
        "publish": (await client.post(f"{root}/publish/chat", data=b"x", headers=TEXT)).status,
        "unsubscribe": (await client.delete(f"{root}/unsubscribe", body=body)).status,
        "deleteSession": (await client.delete(f"{root}/session/s")).status,
    }


@pytest.mark.parametrize("credential", ["key", "jwt"])
async def test_the_scopes_of_actions(project: Project, credential: str) -> None:
    await create(project, "chat")
    if credential == "jwt":
        (
            await project.client.post(
                "/api/control/jwt-secrets", {"name": "backend", "secret": SECRET, "scopes": ["read", "write"]}
            )
        ).ok(201)

    async def client(scope: str) -> Client:
        if credential == "key":
            return await project.key(scope)
        token = jwt.encode({"scope": scope, "sub": "alice", "exp": int(time.time()) + 600}, SECRET, "HS256")
        return Client(project.client.url, project.client.session, {"Authorization": f"Bearer {token}"})

    async def is_known() -> bool:  # the other worker follows within a second
        answers = [await (await client("read")).get(f"{project.root}/session/none") for _ in range(4)]
        return all(answer.status == 404 for answer in answers)

    await eventually(is_known, 30)
    both = {"subscribe": 200, "getSession": 200, "touchSession": 200}
    read_only = {**both, "publish": 403, "unsubscribe": 403, "deleteSession": 403}
    assert await calls(project, await client("read")) == read_only
    everything = {**both, "publish": 204, "unsubscribe": 200, "deleteSession": 204}
    assert await calls(project, await client("write")) == everything


def test_the_constants() -> None:
    settings = SessionsSettings()
    assert settings.session_ttl_seconds == 1800
    assert (settings.fanout_queue_threshold, settings.fanout_inline_max) == (200, 1000)
    assert (service._BREAKER_FAILURES, service.BREAKER_RECOVERY_MS) == (5, 60_000)
    assert service._INLINE_SECONDS_MAX == 10
    assert settings.session_clean_seconds == 300, "every five minutes"
