"""Cost of route health, alert rules and the telemetry queue.

    .venv/bin/python -m benchmarks.telemetry [health|rules|pull|flood …] [--queues 1000] [--commands 2000] [--rounds 5]

`health`: processor time of the control process per second, with queues that have a route and a message each, sampled every 15
seconds, beside the same installation without them. `rules`: processor time of a command (gateway, engine, delivery process)
without alert rules besides the built-in ones, with 20 rules that compare each event and match none, and with 20 that count each.
`pull`: events per second of the gateway's processor time, and of time, when one client pulls and acknowledges the telemetry
queue. `flood`: processor time of valid and of invalid commands, and what 10,000 invalid ones a minute leave to other senders.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import uvloop

from benchmarks.command_senders import CONNECTIONS, Api, api_of, in_turns, seconds_by_role, signed
from benchmarks.harness import Server, postroad, table
from benchmarks.peers.peer import PAYLOAD

PARTS = ("health", "rules", "pull", "flood")
RULES = 20
INVALID_PER_SECOND = 10_000 / 60
_SAMPLE_SECONDS = 15
_FOLLOWED_SECONDS = 1.5  # the delivery process has applied the events, and stored the alerts, by then
_BATCH = 100
_CREATED_AT_ONCE = 8


async def measure_health(server: Server, queues: int, seconds: float) -> None:
    async with api_of(server) as api:
        before = await per_second(server, seconds)
        await api.register_sender()
        await api.call("PUT", "/v1/services/bot", {})
        left = iter(range(queues))
        await asyncio.gather(*(_queues_with_routes(api, left) for _ in range(_CREATED_AT_ONCE)))
        await asyncio.sleep(2 * _SAMPLE_SECONDS)
        after = await per_second(server, seconds)
        routes = (await api.call("GET", "/v1/route-health?limit=1000"))["routes"]
    states = {status: sum(one["status"] == status for one in routes) for status in ("healthy", "unhealthy", "unknown")}
    rows: list[list[object]] = [
        ["no queue", f"{before['control'] * 100:.2f} %", f"{before['nats-server'] * 100:.2f} %"],
        [f"{queues:,} queues with routes", f"{after['control'] * 100:.2f} %", f"{after['nats-server'] * 100:.2f} %"],
    ]
    print(table(["share of a core", "control process", "engine"], rows))
    print(f"routes by status: {states}")


async def _queues_with_routes(api: Api, left: Iterator[int]) -> None:
    for number in left:
        await api.call("PUT", f"/v1/queues/bot-c{number}", {"maxAttempts": 5})
        await api.call("PUT", f"/v1/routes/bot/c{number}", {"queue": f"bot-c{number}"})
        await api.call("POST", f"/v1/queues/bot-c{number}/messages", {"payload": number})


async def per_second(server: Server, seconds: float) -> dict[str, float]:
    before, started = seconds_by_role(server), time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - started
    return {role: (now - before[role]) / passed for role, now in seconds_by_role(server).items()}


async def measure_rules(server: Server, count: int, rounds: int) -> None:
    payload = msgspec.json.decode(PAYLOAD)
    kinds: dict[str, dict[str, Any] | None] = {
        "no rules": None,
        f"{RULES} rules that match nothing": {"events": "snavio.command.*", "reason": "acl-deny", "severity": "info"},
        f"{RULES} rules that count each": {"events": "snavio.command.*", "severity": "info"},
    }
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    async with api_of(server) as api:
        secret = await api.register_sender()
        await api.register_route("post")
        await api.send(secret, "post", 1000, payload)
        idle = await per_second(server, 3)
        for name in in_turns(list(kinds), rounds):
            definition = kinds[name]
            for number in range(RULES if definition is not None else 0):
                await api.call("PUT", f"/v1/alert-rules/bench-{number}", definition)
            await asyncio.sleep(_FOLLOWED_SECONDS)
            before, started = seconds_by_role(server), time.monotonic()
            await api.send(secret, "post", count, payload)
            await asyncio.sleep(_FOLLOWED_SECONDS)
            passed = time.monotonic() - started
            used = {role: now - before[role] - idle[role] * passed for role, now in seconds_by_role(server).items()}
            costs[name].append({role: one / count * 1e6 for role, one in used.items()})
            for number in range(RULES if definition is not None else 0):
                await api.call("DELETE", f"/v1/alert-rules/bench-{number}")
    roles = ("gateway", "nats-server", "delivery")
    medians = {name: {role: statistics.median(one[role] for one in some) for role in roles} for name, some in costs.items()}
    base = medians["no rules"]
    rows = [
        [
            name,
            *(f"{one[role]:.0f}" for role in roles),
            f"{base['gateway'] / one['gateway']:.2f}",
            f"{sum(base.values()) / sum(one.values()):.2f}",
        ]
        for name, one in medians.items()
    ]
    head = ["processor time per command (µs)", "gateway", "engine", "delivery", "rate of the gateway", "of all three"]
    print(table(head, rows))


async def measure_pull(server: Server, count: int) -> None:
    payload, rows = msgspec.json.decode(PAYLOAD), []
    async with api_of(server) as api:
        secret = await api.register_sender()
        await api.register_route("post")
        for kind in ("single requests", "batches of 100"):
            await _fill(api, secret, payload, count, is_batched=kind != "single requests")
            before, started = seconds_by_role(server), time.monotonic()
            events, messages = await _drain(api)
            passed = time.monotonic() - started
            used = {role: now - before[role] for role, now in seconds_by_role(server).items()}
            rate = f"{events / used['gateway']:,.0f}"
            rows.append(
                [kind, events, f"{events / messages:.0f}", rate, f"{events / passed:,.0f}", f"{used['nats-server']:.2f} s"]
            )
    head = ["sent as", "events", "per message", "events per second of the gateway", "per second", "engine"]
    print(table(head, rows))


async def _fill(api: Api, secret: str, payload: object, count: int, *, is_batched: bool) -> None:
    if not is_batched:
        await api.send(secret, "post", count, payload)
        return
    left = iter(range(0, count, _BATCH))

    async def client() -> None:
        for _ in left:
            commands = [msgspec.Raw(signed(secret, "post", payload)) for _ in range(_BATCH)]
            await api.call("POST", "/v1/commands/batch", {"commands": commands})

    await asyncio.gather(*(client() for _ in range(8)))


async def _drain(api: Api) -> tuple[int, int]:
    """Pull and acknowledge until the queue is empty; return the number of events and of messages."""
    events = messages = 0
    while True:
        found = (await api.call("POST", "/v1/queues/_telemetry/pull", {"maxMessages": 100}))["messages"]
        if not found:
            return events, messages
        events += sum(len(one["payload"]) for one in found)
        messages += len(found)
        await api.call("POST", "/v1/queues/_telemetry/ack", {"receiptIds": [one["receiptId"] for one in found]})


async def measure_flood(server: Server, count: int, rounds: int) -> None:
    payload = msgspec.json.decode(PAYLOAD)
    costs: dict[str, list[dict[str, float]]] = {"valid": [], "invalid": []}
    async with api_of(server) as api:
        secret = await api.register_sender()
        await api.register_sender("noisy")
        await api.register_route("post")
        await api.send(secret, "post", 500, payload)
        for name in in_turns(list(costs), rounds):
            before = seconds_by_role(server)
            if name == "valid":
                await api.send(secret, "post", count, payload)
            else:
                await _send_invalid(api, count)
            costs[name].append({role: (now - before[role]) / count * 1e6 for role, now in seconds_by_role(server).items()})
    roles = ("gateway", "nats-server")
    medians = {name: {role: statistics.median(one[role] for one in some) for role in roles} for name, some in costs.items()}
    rows = [[name, *(f"{one[role]:.0f}" for role in roles)] for name, one in medians.items()]
    print(table(["processor time per command (µs)", "gateway", "engine"], rows))
    left = {role: 1 - medians["invalid"][role] * INVALID_PER_SECOND / 1e6 for role in roles}
    print(f"left of a core beside 10,000 invalid ones a minute: gateway {left['gateway']:.3f}, engine {left['nats-server']:.3f}")


async def _send_invalid(api: Api, count: int) -> None:
    headers, left = {"X-Postroad-Service": "noisy"}, iter(range(count))

    async def client() -> None:
        for _ in left:
            async with api.session.post("/v1/commands", data=b"{}", headers=headers) as answer:
                if answer.status != 400:
                    raise SystemExit(await answer.text())
                await answer.read()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    arguments.add_argument("--queues", type=int, default=1000)
    arguments.add_argument("--commands", type=int, default=2000, help="per measurement")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=60.0, help="that the control process is watched")
    given = arguments.parse_args()
    for part in given.parts or PARTS:
        with postroad(POSTROAD_SAMPLE_SECONDS=str(_SAMPLE_SECONDS)) as server:
            if part == "health":
                uvloop.run(measure_health(server, given.queues, given.seconds))
            elif part == "rules":
                uvloop.run(measure_rules(server, given.commands, given.rounds))
            elif part == "pull":
                uvloop.run(measure_pull(server, given.commands * 10))
            else:
                uvloop.run(measure_flood(server, given.commands, given.rounds))
        print()


if __name__ == "__main__":
    main()
