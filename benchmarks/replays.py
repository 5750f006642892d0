"""Cost of the archive of commands, and of a replay beside live commands.

    .venv/bin/python -m benchmarks.replays [archive|replay …] [--commands 2000] [--replayed 100000] [--rounds 5]

`archive`: processor time of a command with 300 bytes of payload, in turns with and without `archive` of its route. `replay`:
processor time of a replayed command (control process and engine) in turns with live commands of the slow path (gateway and
engine), then one replay of `--replayed` commands. The selection is published like the pipeline's, and is not counted.
"""

import argparse
import asyncio
import statistics
import time
import uuid
from typing import Any

import msgspec
import uvloop

from benchmarks.command_senders import Api, api_of, in_turns, seconds_by_role
from benchmarks.harness import Server, postroad, table
from postroad.api.replays import RATE_MAX
from postroad.contracts.replays import REPLAYS, ReplayMessage, SelectedCommand, SelectionEnd
from postroad.jetstream.connection import Connection

PARTS = ("archive", "replay")
PAYLOAD = {"order": 10003, "text": "x" * 272}  # 300 bytes of JSON
_PUBLISHED = 500  # messages of a selection at once


async def measure_archive(server: Server, count: int, rounds: int) -> None:
    costs: dict[str, list[tuple[float, float]]] = {"archive": [], "no archive": []}
    async with api_of(server) as api:
        secret = await api.register_sender()
        await api.register_route("kept")
        await api.register_route("plain", archive=False)
        for command in ("kept", "plain"):
            await api.send(secret, command, 500, PAYLOAD)
        for name in in_turns(list(costs), rounds):
            before = seconds_by_role(server)
            await api.send(secret, "kept" if name == "archive" else "plain", count, PAYLOAD)
            after = seconds_by_role(server)
            used = [(after[role] - before[role]) / count * 1e6 for role in ("gateway", "nats-server")]
            costs[name].append((used[0], used[1]))
    medians = {name: [statistics.median(one[part] for one in some) for part in (0, 1)] for name, some in costs.items()}
    rows: list[list[object]] = [[name, f"{one[0]:.0f}", f"{one[1]:.0f}"] for name, one in medians.items()]
    print(table(["processor time per command (µs)", "gateway", "engine"], rows))
    pairs = [sum(plain) / sum(kept) for kept, plain in zip(costs["archive"], costs["no archive"], strict=True)]
    print(f"rate with archive / without, median of {rounds} pairs: {statistics.median(pairs):.2f}")


async def measure_replay(server: Server, count: int, rounds: int, replayed: int) -> None:
    connection = Connection(server.engine)
    await connection.open()
    live: list[float] = []
    again: list[float] = []
    try:
        async with api_of(server) as api:
            secret = await api.register_sender()
            await api.register_route("post", acl_check="sync")
            tenant = (await api.call("GET", "/v1/whoami"))["tenant"]
            await api.send(secret, "post", 500, PAYLOAD)
            for kind in in_turns(["live", "replay"], rounds):
                if kind == "live":
                    before = seconds_by_role(server)
                    await api.send(secret, "post", count, PAYLOAD)
                    live.append(_used(server, before, "gateway") / count * 1e6)
                else:
                    again.append((await _replay(server, api, connection, tenant, count))[0])
            whole, seconds = await _replay(server, api, connection, tenant, replayed) if replayed else (0.0, 1.0)
    finally:
        await connection.close()
    rows: list[list[object]] = [
        ["live command, slow path", f"{statistics.median(live):.0f}"],
        ["replayed command", f"{statistics.median(again):.0f}"],
    ]
    print(table(["processor time (µs)", "process and engine"], rows))
    pairs = [one / two for one, two in zip(live, again, strict=True)]
    print(f"rate of a replay / of the slow path, median of {rounds} pairs: {statistics.median(pairs):.2f}")
    if replayed:
        ratio = statistics.median(live) / whole
        print(f"replay of {replayed:,} commands: {whole:.0f} µs each, ratio {ratio:.2f}; {replayed / seconds:,.0f} per second")


async def _replay(server: Server, api: Api, connection: Connection, tenant: str, count: int) -> tuple[float, float]:
    """Replay as many commands; return the processor time of one in microseconds, and the seconds of all."""
    selection = {"from": "2020-01-01T00:00:00Z"}
    body = {"selection": selection, "reason": "benchmark", "ratePerSecond": RATE_MAX, "dryRun": True}
    replay = (await api.call("POST", "/v1/replays", body))["id"]
    await _select(connection, tenant, replay, count)
    await _reached(api, replay, "selected")
    before, started = seconds_by_role(server), time.monotonic()
    await api.call("POST", f"/v1/replays/{replay}/resume")
    done = await _reached(api, replay, "done")
    seconds = time.monotonic() - started
    if done["counts"]["delivered"] != count:
        raise SystemExit(f"not all were delivered: {done['counts']}")
    return _used(server, before, "control") / count * 1e6, seconds


async def _select(connection: Connection, tenant: str, replay: str, count: int) -> None:
    subject, payload = REPLAYS.subject_of(tenant=tenant, replay=replay), msgspec.json.encode(PAYLOAD).decode()

    async def publish(index: int) -> None:
        command = SelectedCommand(
            command_id=str(uuid.uuid4()), source=f"{tenant}/sender", target=f"{tenant}/bot", name="post", payload=payload
        )
        message = ReplayMessage(v=1, replay=replay, index=index, command=command)
        await connection.request(subject, msgspec.json.encode(message), timeout=60)

    for first in range(0, count, _PUBLISHED):
        await asyncio.gather(*(publish(index) for index in range(first, min(first + _PUBLISHED, count))))
    end = ReplayMessage(v=1, replay=replay, index=count, end=SelectionEnd(count=count))
    await connection.request(subject, msgspec.json.encode(end))


async def _reached(api: Api, replay: str, state: str) -> Any:
    while (found := await api.call("GET", f"/v1/replays/{replay}"))["state"] != state:
        if found["state"] in ("failed", "cancelled"):
            raise SystemExit(f"the replay ended: {found}")
        await asyncio.sleep(0.25)
    return found


def _used(server: Server, before: dict[str, float], role: str) -> float:
    after = seconds_by_role(server)
    return sum(after[one] - before[one] for one in (role, "nats-server"))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    arguments.add_argument("--commands", type=int, default=2000, help="per measurement")
    arguments.add_argument("--replayed", type=int, default=100_000, help="commands of the last replay; 0 for none")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    for part in given.parts or PARTS:
        with postroad() as server:
            if part == "archive":
                uvloop.run(measure_archive(server, given.commands, given.rounds))
            else:
                uvloop.run(measure_replay(server, given.commands, given.rounds, given.replayed))
        print()


if __name__ == "__main__":
    main()
