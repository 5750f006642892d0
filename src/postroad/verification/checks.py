"""The guarantees, each checked by requests. `checks.json` has names, promises and scopes; the web console uses it, too."""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from postroad.verification.installation import Installation, expect, in_minutes, until

Run = Callable[[Installation], None]
CLEANUP = "cleanup"
_TOO_LARGE = 12_000_000


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    promise: str
    needs: tuple[str, ...]
    is_platform: bool
    run: Run


def ready(where: Installation) -> None:
    response = where.caller.send("GET", "/readyz")
    expect(response.is_success, f"/readyz: {response.text[:500]}")


def publish_is_durable(where: Installation) -> None:
    stored = where.publish({"step": 1})
    expect(stored.get("messageId") and stored.get("enqueuedAt"), "the response has no id and time of the commit")


def idempotency(where: Installation) -> None:
    key = str(uuid.uuid4())
    first = where.publish({"n": 1}, idempotencyKey=key)
    again = where.publish({"n": 1}, idempotencyKey=key)
    expect(first["messageId"] == again["messageId"], "the second publish was stored again")
    where.caller.refused(422, "POST", f"{where.queue}/messages", {"payload": {"n": 2}, "idempotencyKey": key})
    where.ack(where.pull_one())


def a_lease_hides_the_message(where: Installation) -> None:
    one = where.pull_one()
    others = where.pull(wait_ms=0)
    expect(all(other["messageId"] != one["messageId"] for other in others), "the leased message was delivered again")
    for message in (one, *others):
        where.ack(message)


def an_expired_receipt_is_refused(where: Installation) -> None:
    where.publish({"step": 2})
    first = where.pull_one(visibility_ms=1000)
    second = where.pull_one(wait_ms=6000)
    expect(second["messageId"] == first["messageId"], "the message did not return after its lease")
    where.caller.refused((409, 410), "POST", f"{where.queue}/ack", {"receiptId": first["receiptId"]})
    where.ack(second)


def an_acknowledged_message_is_gone(where: Installation) -> None:
    stored = where.publish({"step": 3})
    one = where.pull_one(visibility_ms=1000)  # without the acknowledgement it would return when this lease ends
    expect(one["messageId"] == stored["messageId"], "another message was delivered")
    where.ack(one)
    expect(not where.pull(wait_ms=1500), "a message was delivered after its acknowledgement")


def retry_follows_the_schedule(where: Installation) -> None:
    where.publish({"step": 4})
    first = where.pull_one()
    failed_at = time.monotonic()
    where.retry(first, "verify")
    second = where.pull_one(wait_ms=5000)
    expect(second["attempt"] == 2, "the second attempt did not come")
    expect(time.monotonic() - failed_at > 0.15, "the retry came before its delay of 200 ms")
    where.ack(second)


def dead_letter_with_its_reason(where: Installation) -> None:
    stored = where.publish({"step": 5, "text": where.name})
    for _ in range(2):
        where.retry(where.pull_one(wait_ms=5000), "verify: failed on purpose")
    path = f"{where.queue}/dlq/{stored['messageId']}"

    def dead() -> str:
        response = where.caller.send("GET", path)
        return response.text if response.is_success else ""

    found = until(dead, "the message did not become a dead letter")
    expect("failed on purpose" in found, "the dead letter does not have the reported error")
    where.dead_id = stored["messageId"]


def search_finds_it(where: Installation) -> None:
    page = where.caller.call("GET", f"{where.queue}/dlq?search={where.name}&limit=10")
    expect(any(one["messageId"] == where.dead_id for one in page["messages"]), "the search did not find it")


def redrive_returns_it(where: Installation) -> None:
    where.caller.call("POST", f"{where.queue}/dlq/redrive", {"filter": {"messageId": where.dead_id}})
    one = where.pull_one(wait_ms=10_000)
    expect(one["messageId"] == where.dead_id, "another message returned")
    expect(one["attempt"] == 1, "attempts did not restart at 1")
    where.ack(one)


def a_stream_resumes(where: Installation) -> None:
    caller, text = where.caller, "text/plain"
    caller.ok("PUT", where.stream, media=text)
    where.undo.append(lambda: caller.ok("DELETE", where.stream))
    caller.ok("POST", where.stream, data=b"one,", media=text)
    first = caller.ok("GET", f"{where.stream}?offset=-1")
    offset = first.headers.get("stream-next-offset", "")
    caller.ok("POST", where.stream, data=b"two", media=text)
    rest = caller.ok("GET", f"{where.stream}?offset={offset}")
    expect(first.text + rest.text == "one,two", f"read {first.text + rest.text!r}")


def a_session_gets_its_copy(where: Installation) -> None:
    caller, session = where.caller, str(uuid.uuid4())
    caller.call("POST", f"/v1/{where.project}/subscribe", {"sessionId": session, "streamId": where.name})
    where.undo.append(lambda: caller.call("DELETE", f"/v1/{where.project}/session/{session}"))
    caller.ok("POST", f"/v1/{where.project}/publish/{where.name}", data=b"three", media="text/plain")
    path = caller.call("GET", f"/v1/{where.project}/session/{session}")["sessionStreamPath"]
    until(lambda: "three" in caller.ok("GET", f"{path}?offset=-1").text, "the copy did not arrive")


def a_token_works_once(where: Installation) -> None:
    wanted = {"resource": f"stream/{where.name}", "once": True, "expiresInSeconds": 60}
    token = where.caller.with_key(where.caller.call("POST", "/v1/tokens", wanted)["token"])
    token.ok("GET", f"{where.stream}?offset=-1")
    token.refused(401, "GET", f"{where.stream}?offset=-1")


def a_disabled_key_is_refused(where: Installation) -> None:
    made = where.caller.call("POST", "/api/control/keys", {"name": where.name, "scopes": ["read"], "expiresAt": in_minutes(5)})
    path, key = f"/api/control/keys/{made['record']['id']}", where.caller.with_key(made["key"])
    where.undo.append(lambda: where.caller.call("DELETE", path))
    until(lambda: key.send("GET", "/v1/whoami").is_success, "the new key is not accepted")
    where.caller.call("PATCH", path, {"enabled": False})
    until(lambda: key.send("GET", "/v1/whoami").status_code in (401, 403), "the disabled key is still accepted", 1.0)


def refusals_are_precise(where: Installation) -> None:
    path, body = f"{where.queue}/messages", b'{"payload": 1, "delayMs": "soon"}'
    problem = where.caller.refused(422, "POST", path, data=body, media="application/json")
    expect("delayMs" in json.dumps(problem), "the problem does not name the field")
    where.caller.refused(413, "POST", path, {"payload": "x" * _TOO_LARGE})


def another_tenant_is_not_visible(where: Installation) -> None:
    other = where.other_tenant()
    other.call("PUT", where.queue_of_other, {})
    where.caller.refused(404, "GET", where.queue_of_other)


def clean_up(where: Installation) -> None:
    where.clean_up()


_RUNS: tuple[Run, ...] = (
    ready,
    publish_is_durable,
    idempotency,
    a_lease_hides_the_message,
    an_expired_receipt_is_refused,
    an_acknowledged_message_is_gone,
    retry_follows_the_schedule,
    dead_letter_with_its_reason,
    search_finds_it,
    redrive_returns_it,
    a_stream_resumes,
    a_session_gets_its_copy,
    a_token_works_once,
    a_disabled_key_is_refused,
    refusals_are_precise,
    another_tenant_is_not_visible,
    clean_up,
)


@cache
def checks() -> tuple[Check, ...]:
    """In the order of the list; the last one cleans up."""
    listed = json.loads(files("postroad.verification").joinpath("checks.json").read_text(encoding="utf-8"))
    return tuple(
        Check(one["name"], one["promise"], tuple(one["needs"]), one.get("platform", False), run)
        for one, run in zip(listed, _RUNS, strict=True)
    )
