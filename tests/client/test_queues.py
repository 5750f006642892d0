"""Queues, dead letters, tasks and jobs with both clients, against a running server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroad.api.queue_purging import WaitingFilter
from postroad.client import Message, Task
from postroad.client.errors import (
    BodyInvalid,
    Forbidden,
    JobEnded,
    JobInProgress,
    JobNotFound,
    JobWasCancelled,
    LeaseExpired,
    MessageNotFound,
    PayloadGone,
    PreconditionFailed,
    SchemaMismatch,
    TaskNotFound,
    TooLarge,
)
from tests.client.conftest import Sdk, opened
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


async def pull(sdk: Sdk, count: int = 1, queue: str = "orders") -> list[Message]:
    pulled = await sdk("queues.pull", queue, max_messages=count, wait_ms=5000, visibility_timeout_ms=60_000)
    return pulled.messages  # type: ignore[no-any-return]


async def dead_letter(sdk: Sdk, *payloads: Any, reason: str = "broken", queue: str = "orders", **more: Any) -> list[str]:
    """Publish and dead-letter messages; return their ids."""
    ids = []
    for payload in payloads:
        ids.append((await sdk("queues.publish", queue, payload, **more)).message_id)
        [message] = await pull(sdk, queue=queue)
        await sdk("queues.nack", queue, message, action="dlq", reason=reason)
    return ids


# Settings and stats


async def test_a_queue_has_all_its_settings(sdk: Sdk) -> None:
    schema = {"type": "object", "required": ["id"]}
    queue = await sdk(
        "queues.put",
        "orders",
        max_attempts=3,
        retry_delays_ms=[100, 200],
        schema=schema,
        expected_drain_seconds=60,
    )
    settings = queue.settings
    assert (settings.max_attempts, settings.retry_delays_ms, settings.schema) == (3, (100, 200), schema)
    assert (settings.expected_drain_seconds, settings.archive, settings.geo, queue.paused) == (60, False, None, False)
    with pytest.raises(SchemaMismatch):
        await sdk("queues.publish", "orders", {"name": 1})


async def test_settings_can_be_changed_singly(sdk: Sdk) -> None:
    await sdk("queues.put", "orders", max_attempts=3, max_messages=7, replicas=3)
    queue = await sdk("queues.update", "orders", max_attempts=5, max_messages=None)
    assert (queue.settings.max_attempts, queue.settings.max_messages) == (5, 0)
    assert (queue.settings.replicas, queue.replicas) == (3, 1)


async def test_the_backend_is_chosen_at_creation_and_says_what_it_supports(sdk: Sdk) -> None:
    await sdk("queues.put", "orders", backend="engine")
    queue = await sdk("queues.get", "orders")
    assert queue.settings.backend == "engine" and {"peek", "priority", "longLeases"} <= set(queue.features)
    with pytest.raises(BodyInvalid, match="backend"):
        await sdk("queues.put", "orders", backend="rabbitmq")


async def test_a_page_of_queues_has_the_total(sdk: Sdk) -> None:
    for name in ("orders", "orders-old", "billing"):
        await sdk("queues.put", name)
    page = await sdk("queues.list_page", prefix="orders", sort="-name", page_size=1)
    assert ([one.name for one in page.items], page.total) == (["orders-old"], 2)
    assert [one.name for one in await sdk("queues.list", search="orders", sort="-name", page_size=1)] == ["orders-old", "orders"]


async def test_a_list_has_stats_on_request(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    await sdk("queues.publish", "orders", 1)
    [without] = await sdk("queues.list")
    assert without.stats is None
    [queue] = await sdk("queues.list", stats=True)
    assert (queue.stats.ready, queue.stats.leased, queue.stats.dead) == (1, 0, 0)
    assert queue.stats.oldest_age_ms is not None


async def test_a_paused_queue_delivers_when_it_is_resumed(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    assert (await sdk("queues.pause", "orders")).paused
    await sdk("queues.publish", "orders", 1)
    assert (await sdk("queues.pull", "orders")).messages == []
    assert not (await sdk("queues.resume", "orders")).paused
    assert len(await pull(sdk)) == 1


async def test_a_dry_purge_counts_messages(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    await sdk("queues.publish", "orders", 1)
    await sdk("queues.publish", "orders", 2, delay_ms=60_000)
    dry = await sdk("queues.purge", "orders", dry_run=True)
    assert (dry.count, dry.dry_run) == (2, True)
    assert (await sdk("queues.purge", "orders")).count == 2
    assert (await sdk("queues.purge", "orders")).count == 0


# Nack and extend


async def test_a_rejected_message_is_delivered_again(sdk: Sdk) -> None:
    await sdk("queues.put", "orders", retry_delays_ms=[0])
    await sdk("queues.publish", "orders", 1)
    choices: list[dict[str, Any]] = [{}, {"action": "requeue"}, {"action": "retry", "delay_ms": 0, "reason": "busy"}]
    for attempt, choice in enumerate(choices, 1):
        [message] = await pull(sdk)
        assert message.attempt == attempt
        assert (await sdk("queues.nack", "orders", message, **choice)).ok
    [message] = await pull(sdk)
    assert message.attempt == 4


async def test_a_nack_of_many_messages_has_a_result_for_each(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    await sdk("queues.publish_batch", "orders", [{"payload": 1}, {"payload": 2}])
    messages = await pull(sdk, 2)
    answer = await sdk("queues.nack_many", "orders", [*messages, "forged"], action="dlq", reason="no")
    assert [result.ok for result in answer.results] == [True, True, False]
    assert answer.results[2].problem.code == "receipt-invalid"
    assert [letter.reason for letter in await sdk("queues.dead_letters.list", "orders")] == ["no", "no"]


async def test_the_result_of_an_extension_acknowledges_the_message(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    await sdk("queues.publish_batch", "orders", [{"payload": 1}, {"payload": 2}])
    first, second = await pull(sdk, 2)
    one = await sdk("queues.extend", "orders", first, 50_000)
    assert one.new_receipt_id != first.receipt_id and one.lease_until > first.enqueued_at
    many = await sdk("queues.extend_many", "orders", [one, second, "forged"], 50_000)
    assert [result.ok for result in many.results] == [True, True, False]
    with pytest.raises(ValueError, match="not extended"):
        await sdk("queues.ack", "orders", many.results[2])
    assert (await sdk("queues.ack_many", "orders", many.results[:2])).ok
    assert (await sdk("queues.get", "orders")).stats.leased == 0


async def test_a_payload_is_available_decoded_and_as_sent(sdk: Sdk, tenant: Tenant) -> None:
    await tenant.queue("orders")
    text = b'{"payload": {"price": 1.10, "big": 123456789012345678901234567890}}'
    headers = {"Content-Type": "application/json"}
    (await tenant.client.call("POST", "/v1/queues/orders/messages", data=text, headers=headers)).ok(201)
    [message] = await pull(sdk)
    assert message.payload == {"price": 1.1, "big": 123456789012345678901234567890}
    assert bytes(message.raw_payload) == b'{"price": 1.10, "big": 123456789012345678901234567890}'
    assert "1.1" in repr(message)


# Peek


async def test_messages_are_peeked_and_searched(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    for number in range(5):
        await sdk(
            "queues.publish", "orders", {"n": number, "long": "x" * 600}, headers={"parity": "odd" if number % 2 else "even"}
        )
    await sdk("queues.publish", "orders", "later", delay_ms=60_000)

    peeked = await sdk("queues.peek", "orders", page_size=2, body_max=1000)
    assert [message.payload["n"] for message in peeked] == [0, 1, 2, 3, 4]
    assert [message.payload for message in await sdk("queues.peek", "orders", state="delayed")] == ["later"]
    [found] = await sdk("queues.peek", "orders", field="n=3", header="parity=odd")
    assert (found.payload, found.payload_start[:8], found.state) == (None, '{"n":3,"', "ready")

    page = await sdk("queues.peek_page", "orders", header="parity=even", page_size=2)
    assert (page.scanned, page.matched, len(page.items)) == (3, 2, 2)
    rest = await sdk("queues.peek_page", "orders", header="parity=even", page_size=2, cursor=page.next_cursor)
    assert (rest.scanned, rest.matched, rest.next_cursor) == (2, 1, None)


async def test_a_search_continues_over_pages_without_a_match(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.queues.scan._SECONDS_MAX", 0.0)
    monkeypatch.setattr("postroad.queues.scan._PAGE_SIZE", 10)
    await sdk("queues.put", "orders")
    await sdk("queues.publish_batch", "orders", [{"payload": f"m-{number}"} for number in range(25)])
    first = await sdk("queues.peek_page", "orders", search="m-24")
    assert (first.items, first.matched) == ([], 0) and first.next_cursor is not None
    assert [message.payload for message in await sdk("queues.peek", "orders", search="m-24")] == ["m-24"]


# Dead letters


async def test_dead_letters_are_listed_grouped_shown_and_deleted(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    first, *_ = await dead_letter(sdk, {"n": 1}, {"n": 2}, reason="broken", correlation_id="c")
    await dead_letter(sdk, {"n": 3}, reason="too old")

    letters = await sdk("queues.dead_letters.list", "orders", page_size=2)
    assert [(letter.payload["n"], letter.reason, letter.state) for letter in letters] == [
        (1, "broken", "dead"),
        (2, "broken", "dead"),
        (3, "too old", "dead"),
    ]
    page = await sdk("queues.dead_letters.list_page", "orders", reason="broken", page_size=1)
    assert (page.total, page.matched) == (3, 1) and page.next_cursor is not None
    groups = await sdk("queues.dead_letters.groups", "orders")
    assert [(group.reason, group.count) for group in groups.groups] == [("broken", 2), ("too old", 1)]
    assert (groups.total, groups.matched) == (3, 3)
    shown = await sdk("queues.dead_letters.get", "orders", first)
    assert (shown.payload, shown.attempts, shown.last_error, shown.correlation_id) == ({"n": 1}, 1, "broken", "c")

    await sdk("queues.dead_letters.delete", "orders", first)
    with pytest.raises(MessageNotFound):
        await sdk("queues.dead_letters.get", "orders", first)
    selection = [letter.message_id for letter in letters]
    assert (await sdk("queues.dead_letters.redrive", "orders", message_ids=selection, dry_run=True)).count == 2
    assert (await sdk("queues.dead_letters.purge", "orders", message_ids=selection, reason="broken", dry_run=True)).count == 1
    assert (await sdk("queues.dead_letters.purge", "orders", reason="broken", dry_run=True)).count == 1
    assert (await sdk("queues.dead_letters.purge", "orders", reason="broken")).count == 1
    assert (await sdk("queues.dead_letters.purge", "orders")).count == 1


async def test_messages_of_all_queues_are_searched_shown_and_removed(sdk: Sdk) -> None:
    for name in ("emails", "orders"):
        await sdk("queues.put", name)
        await sdk("queues.publish", name, {"order": 10003}, headers={"shop": name})
    found = await sdk("queues.search", search="10003", page_size=1)
    assert [(one.queue, one.state, one.payload) for one in found] == [
        ("emails", "ready", {"order": 10003}),
        ("orders", "ready", {"order": 10003}),
    ]
    page = await sdk("queues.search_page", search="10003", page_size=1)
    assert (page.matched, page.queues_total) == (1, 2) and page.next_cursor is not None
    shown = await sdk("queues.get_message", "orders", found[1].message_id)
    assert shown.payload == {"order": 10003}
    await sdk("queues.delete_message", "orders", found[1].message_id)
    with pytest.raises(MessageNotFound):
        await sdk("queues.get_message", "orders", found[1].message_id)
    assert (await sdk("queues.purge", "emails", filter=WaitingFilter(header="shop=orders"))).count == 0
    assert (await sdk("queues.purge", "emails", filter=WaitingFilter(header="shop=emails"))).count == 1


async def test_clients_of_a_queue_and_traffic(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    await sdk("queues.publish", "orders", 1)
    assert (await sdk("traffic.consumers", "orders")).summary
    assert isinstance((await sdk("traffic.publishers", "orders")).publishers, list)
    assert (await sdk("traffic.get", by="key")).total >= 0


# Tasks and jobs, which need the control role


@pytest.fixture
async def owner(control: Gateway) -> Tenant:
    return await control.tenant()


@pytest.fixture
async def whole(kind: str, owner: Tenant) -> AsyncIterator[Sdk]:
    """A new tenant's client of a server with all roles."""
    async with opened(kind, owner.client.url, owner.key) as call:
        yield call


@pytest.fixture
async def operator(kind: str, control: Gateway) -> AsyncIterator[Sdk]:
    async with opened(kind, control.url, control.admin_key) as call:
        yield call


async def test_a_redrive_moves_dead_letters_and_can_be_waited_for(whole: Sdk) -> None:
    await whole("queues.put", "orders")
    await whole("queues.put", "elsewhere")
    await dead_letter(whole, 1, 2, reason="a")
    await dead_letter(whole, 3, reason="b")

    dry = await whole("queues.dead_letters.redrive", "orders", reason="a", dry_run=True)
    assert (dry.count, dry.task) == (2, None)
    redriven = await whole("queues.dead_letters.redrive", "orders", reason="a", to="elsewhere", rate_per_second=1000)
    states: list[Task] = []
    ended = await whole("tasks.wait", redriven.task, 20, on_progress=states.append)
    assert (ended.state, ended.has_ended, ended.progress.moved, states[-1]) == ("done", True, 2, ended)
    assert (ended.kind, ended.target, ended.wanted["to"]) == ("redrive", "orders", "elsewhere")
    assert sorted(message.payload for message in await pull(whole, 2, "elsewhere")) == [1, 2]
    assert await whole("tasks.get", ended.id) == ended
    assert [task.id for task in await whole("tasks.list", state="done")] == [ended.id]
    assert await whole("tasks.list", state="running") == []
    with pytest.raises(TaskNotFound):
        await whole("tasks.get", "nowhere")


async def test_a_timeout_of_wait_does_not_stop_the_task(whole: Sdk) -> None:
    await whole("queues.put", "orders")
    await dead_letter(whole, *range(4))
    redriven = await whole("queues.dead_letters.redrive", "orders", rate_per_second=1, limit=3)
    assert redriven.count == 3
    with pytest.raises(TimeoutError, match="may continue"):
        await whole("tasks.wait", redriven.task.id, timeout=0)
    with pytest.raises(PreconditionFailed, match=redriven.task.id):
        await whole("queues.dead_letters.redrive", "orders")
    assert (await whole("tasks.pause", redriven.task)).is_pause_wanted
    assert not (await whole("tasks.resume", redriven.task)).is_pause_wanted
    assert (await whole("tasks.cancel", redriven.task)).is_cancel_wanted
    assert (await whole("tasks.wait", redriven.task, 20)).state == "cancelled"
    assert (await whole("tasks.cancel", redriven.task)).state == "cancelled"


async def test_a_job_shows_its_status_from_publish_to_done(whole: Sdk) -> None:
    await whole("queues.put", "orders", retry_delays_ms=[0])
    published = await whole("queues.publish", "orders", 1, correlation_id="c-1")
    job = await whole("jobs.get", published.job_id)
    assert (job.status, job.queue, job.message_id, job.correlation_id) == ("queued", "orders", published.message_id, "c-1")
    [message] = await pull(whole)
    await whole("queues.nack", "orders", message, reason="busy")
    [message] = await pull(whole)
    await whole("queues.ack", "orders", message)

    job = await whole("jobs.get", published.job_id)
    assert (job.status, job.attempts, job.last_error) == ("done", 2, "busy")
    for choice in ({"queue": "orders"}, {"status": "done"}, {"correlation_id": "c-1"}, {"message_id": published.message_id}):
        assert [one.job_id for one in await whole("jobs.list", **choice)] == [job.job_id]
    assert await whole("jobs.list", status="dead") == []
    names = [event["event"] for event in await whole("jobs.events", job.job_id, page_size=2)]
    assert names == ["job.queued", "job.leased", "job.retried", "job.leased", "job.done"]
    with pytest.raises(JobNotFound):
        await whole("jobs.get", "nowhere")


async def test_a_job_is_cancelled_retried_and_run_at_once(whole: Sdk) -> None:
    await whole("queues.put", "orders")
    published = await whole("queues.publish", "orders", 1, run_at="2020-01-01T00:00:00Z")
    cancelled = await whole("jobs.cancel", published.job_id, reason="not needed")
    assert (cancelled.status, cancelled.last_error) == ("cancelled", "not needed")
    with pytest.raises(JobEnded):
        await whole("jobs.run_now", published.job_id)
    assert (await whole("jobs.retry", published.job_id)).status == "queued"
    [message] = await pull(whole)

    async def is_leased() -> bool:
        return bool((await whole("jobs.get", published.job_id)).status == "leased")

    await eventually(is_leased)
    with pytest.raises(JobInProgress):
        await whole("jobs.run_now", published.job_id)
    await whole("queues.ack", "orders", message)
    with pytest.raises(PayloadGone):
        await whole("jobs.retry", published.job_id)
    later = await whole("queues.publish", "orders", 2, delay_ms=3_600_000)
    assert (await whole("jobs.run_now", later.job_id)).status == "queued"


async def test_messages_with_priorities_are_delivered_in_their_order(sdk: Sdk) -> None:
    await sdk("queues.put", "orders")
    for priority in ("low", "normal", "high"):
        await sdk("queues.publish", "orders", priority, priority=priority)
    messages = (await sdk("queues.pull", "orders", max_messages=3)).messages
    assert [message.priority for message in messages] == ["high", "normal", "low"]
    page = await sdk("queues.peek_page", "orders", priority="low")
    assert [(message.payload, message.priority) for message in page.items] == [("low", "low")]


async def test_a_consumer_reports_progress_and_learns_of_a_cancellation(whole: Sdk) -> None:
    await whole("queues.put", "orders")
    published = await whole("queues.publish", "orders", 1, unique_key="k", expires_at="2030-01-01T00:00:00Z")
    assert not published.duplicate
    again = await whole("queues.publish", "orders", 2, unique_key="k")
    assert (again.duplicate, again.job_id) == (True, published.job_id)
    [message] = await pull(whole)
    assert (await whole("queues.report_progress", "orders", message, percent=40, note="half")).ok

    async def is_shown() -> bool:
        progress = (await whole("jobs.get", published.job_id)).progress
        return bool(progress is not None and (progress.percent, progress.note) == (40, "half"))

    await eventually(is_shown)
    await whole("jobs.cancel", published.job_id)
    with pytest.raises(JobWasCancelled):
        await whole("queues.report_progress", "orders", message, percent=50)


async def test_jobs_are_listed_page_by_page_newest_first(whole: Sdk) -> None:
    await whole("queues.put", "orders")
    made = [(await whole("queues.publish", "orders", number)).job_id for number in range(5)]
    assert [job.job_id for job in await whole("jobs.list", page_size=2)] == made[::-1]


async def test_the_operator_rebuilds_the_job_index(operator: Sdk, whole: Sdk) -> None:
    await whole("queues.put", "orders")
    published = await whole("queues.publish", "orders", 1)
    with pytest.raises(Forbidden):
        await whole("jobs.status")
    status = await operator("jobs.status")
    assert status.target >= status.position >= 0
    started = await operator("jobs.rebuild")
    assert started.target >= status.target
    states: list[Any] = []
    done = await operator("jobs.wait_rebuilt", 30, on_progress=states.append)
    assert not done.rebuilding and states[-1] == done

    async def is_rebuilt() -> bool:
        return bool((await whole("jobs.get", published.job_id)).status == "queued")

    await eventually(is_rebuilt)


async def test_a_body_over_the_limit_raises_too_large(sdk: Sdk) -> None:
    """The gateway responds at once, while the client still sends."""
    await sdk("queues.put", "orders")
    for _ in range(2):
        with pytest.raises(TooLarge, match="is the limit"):
            await sdk("queues.publish", "orders", "x" * 20_000_000)
    await sdk("queues.publish", "orders", "small")


async def test_messages_are_moved_back_from_a_dead_letter_queue(whole: Sdk) -> None:
    await whole("queues.put", "dead")
    await whole("queues.put", "orders", dead_letter_queue="dead", max_attempts=1, tags={"team": "a"})
    await whole("queues.publish", "orders", 1, headers={"a": "1"}, header_types={"a": "Number"})
    [message] = await pull(whole, 1)
    await whole("queues.nack", "orders", message, action="dlq", reason="no stock")
    task = await whole("queues.move", "dead", rate_per_second=500)
    assert (await whole("tasks.wait", task, 20)).progress.moved == 1
    [again] = await pull(whole, 1)
    assert (again.message_id, again.header_types, again.dead_letter) == (message.message_id, {"a": "Number"}, None)
    assert (await whole("queues.ack", "orders", message, expired=True)).ok


async def test_an_ack_accepts_expired_receipts_on_request(whole: Sdk) -> None:
    await whole("queues.put", "orders")
    await whole("queues.publish", "orders", 1)
    [first] = (await whole("queues.pull", "orders", visibility_timeout_ms=0)).messages
    [second] = (await whole("queues.pull", "orders", wait_ms=20_000)).messages
    assert (second.attempt, second.first_leased_at is not None, first.first_leased_at) == (2, True, None)
    with pytest.raises(LeaseExpired):
        await whole("queues.ack", "orders", first)
    assert (await whole("queues.ack_many", "orders", [first], expired=True)).ok
    assert (await whole("queues.get", "orders")).stats.leased == 0
