"""Large responses are encoded and sent in slices, between which the event loop serves other requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.http.admission import Admission, RequestSlot
from postroad.http.request import Request
from postroad.http.response import SLICE_BYTES_MAX, Response, encode_list
from postroad.kernel import json
from postroad.kernel.errors import RateLimited
from tests.http.small import client_of, route, settings_of, small_app


class Item(msgspec.Struct):
    text: str


class Items(msgspec.Struct, rename="camel", omit_defaults=True):
    found_items: list[Item]
    note: str | None = None
    count: int = 0


LARGE = Items([Item("x" * 200_000) for _ in range(20)], note='"foundItems":[]', count=20)


@asynccontextmanager
async def iterations() -> AsyncIterator[list[int]]:
    """Counts the iterations of the event loop."""
    counted = [0]

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            counted[0] += 1

    counting = asyncio.create_task(count())
    try:
        yield counted
    finally:
        counting.cancel()


@given(st.lists(st.builds(Item, st.text(max_size=5)), max_size=5), st.none() | st.text(), st.integers(0, 9))
def test_a_list_encoded_item_by_item_is_the_same_json(found: list[Item], note: str | None, count: int) -> None:
    body = Items(found, note, count)
    slices = asyncio.run(encode_list(body, "found_items"))
    assert b"".join(slices) == json.encode(body)


async def test_encoding_a_large_list_lets_the_event_loop_run() -> None:
    async with iterations() as counted:
        slices = await Response(LARGE, list_field="found_items").slices()
    assert b"".join(slices) == json.encode(LARGE)
    assert max(map(len, slices)) < 2 * SLICE_BYTES_MAX
    assert counted[0] >= len(slices) - 2 > 5


async def test_a_small_list_is_one_slice() -> None:
    async with iterations() as counted:
        slices = await Response(Items([Item("a"), Item("b")]), list_field="found_items").slices()
    assert (slices, counted) == ([b'{"foundItems":[{"text":"a"},{"text":"b"}]}'], [0])


@pytest.mark.parametrize("body", [LARGE, json.encode(LARGE)])
async def test_a_large_response_is_sent_in_slices(body: Any) -> None:
    async def large(_request: Request) -> Response:
        return Response(body, list_field="" if isinstance(body, bytes) else "found_items")

    app, sent = small_app(route("/large", large)), []

    async def counting_app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        async def count(message: Any) -> None:
            sent.append((counted[0], len(message.get("body", b""))))
            await send(message)

        await app(scope, receive, count)

    counting_app.drain = app.drain  # type: ignore[attr-defined]
    async with iterations() as counted, client_of(counting_app) as client:  # type: ignore[arg-type]
        answer = await client.get("/large")
    assert answer.body == json.encode(LARGE)
    assert answer.headers["content-length"] == str(len(answer.body))
    parts = sent[1:]
    assert max(size for _, size in parts) < 2 * SLICE_BYTES_MAX
    assert len({iteration for iteration, _ in parts}) == len(parts) > 5, "other callbacks ran between any two slices"


async def test_the_response_to_head_has_the_length_of_all_slices() -> None:
    async def large(_request: Request) -> Response:
        return Response(LARGE, list_field="found_items")

    async with client_of(small_app(route("/large", large))) as client:
        answer = await client.call("HEAD", "/large")
        assert answer.headers["content-length"] == str(len(json.encode(LARGE)))


def test_a_tenant_with_many_unread_bytes_is_refused_until_they_are_read() -> None:
    admission = Admission(settings_of(body_buffer_bytes_max=8_000_000).limits)

    def request_of(tenant: str) -> RequestSlot:
        slot = admission.open()
        slot.assign_tenant(tenant)
        return slot

    first = request_of("one")
    first.add_response(2_000_001)
    with pytest.raises(RateLimited, match="unread responses"):
        request_of("one")
    request_of("two").close()
    first.close()
    request_of("one").close()
