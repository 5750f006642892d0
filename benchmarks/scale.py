"""Cost of a publish and a pull with many waiting messages, and with many queues.

    .venv/bin/python -m benchmarks.scale [seconds per measurement] [messages waiting] [queues]

Depth: one installation with two queues, one holding 1,000 messages and one a million; publish and pull+ack are measured on
each in turns, so that both see the same machine. Breadth: one installation, measured with one queue and again after the others
were created and filled; then with the load spread over all of them, which is slower because writers of different queues share
no fsync.
"""

import sys
import time
from collections.abc import Iterable

import httpx

from benchmarks.harness import Server, postroad, table, wrk
from benchmarks.publish import BODY
from benchmarks.queues import CONNECTIONS, PULL_ACK, checked, drained, headers_script, settle_audit

_PUBLISH = """
local names, turn = {%(names)s}, 0
function request()
  turn = turn %% #names + 1
  return wrk.format("POST", "/v1/queues/" .. names[turn] .. "/messages", wrk.headers, '%(body)s')
end
"""


def fill(server: Server, name: str, count: int) -> None:
    body = '{"messages":[' + ",".join([BODY] * 1000) + "]}"
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        for _ in range(count // 1000):
            client.post(f"/v1/queues/{name}/messages/batch", content=body).raise_for_status()


def make(server: Server, names: Iterable[str]) -> None:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        for name in names:
            client.post(f"/v1/queues/{name}/messages", content=BODY).raise_for_status()


def rates(server: Server, name: str, seconds: float) -> dict[str, float]:
    publish = headers_script(server) + _PUBLISH % {"names": f'"{name}"', "body": BODY}
    pull = headers_script(server) + PULL_ACK % {"names": f'"{name}"', "size": 1}
    return {
        "publish": checked(wrk(server.url, CONNECTIONS, seconds, publish)).per_second,
        "pull + ack": drained(server, [name], CONNECTIONS, seconds, pull),
    }


def mean(runs: list[dict[str, float]], what: str) -> float:
    return sum(run[what] for run in runs) / len(runs)


def compared(head: str, few: list[dict[str, float]], many: list[dict[str, float]]) -> list[list[object]]:
    rows: list[list[object]] = []
    for what in many[0]:
        one, other = mean(few, what), mean(many, what)
        rows.append([f"{what}, {head}", f"{one:,.0f}", f"{other:,.0f}", f"{other / one:.2f}"])
    return rows


def depth(seconds: float, waiting: int, sync: str) -> list[list[object]]:
    with postroad(POSTROAD_SYNC=sync) as server:
        settle_audit(server, "off")
        fill(server, "shallow", 1000)
        started = time.perf_counter()
        fill(server, "deep", waiting)
        print(f"filled in {time.perf_counter() - started:.0f} s", flush=True)
        settle_audit(server, "full")
        shallow, deep = [], []
        for _ in range(3):
            shallow.append(rates(server, "shallow", seconds))
            deep.append(rates(server, "deep", seconds))
    return compared(f"1,000 waiting beside {waiting:,}, sync {sync}", shallow, deep)


def breadth(seconds: float, queues: int, sync: str) -> list[list[object]]:
    with postroad(POSTROAD_SYNC=sync, POSTROAD_QUEUES_PER_TENANT_MAX=str(queues + 10)) as server:
        make(server, ["only"])
        fill(server, "only", 1000)
        one = [rates(server, "only", seconds) for _ in range(3)]
        started = time.perf_counter()
        names = [f"q{number}" for number in range(queues)]
        make(server, names)
        print(f"{queues} queues made in {time.perf_counter() - started:.0f} s", flush=True)
        many = [rates(server, "only", seconds) for _ in range(3)]
        quoted = ",".join(f'"{name}"' for name in names)
        lua = headers_script(server) + _PUBLISH % {"names": quoted, "body": BODY}
        spread = [{"publish": checked(wrk(server.url, CONNECTIONS, seconds, lua)).per_second}]
    rows = compared(f"one queue of 1 beside one of {queues:,}, sync {sync}", one, many)
    return rows + compared(f"one queue beside load spread over {queues:,}, sync {sync}", one, spread)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    waiting = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    queues = int(sys.argv[3]) if len(sys.argv) > 3 else 2_000
    rows = breadth(seconds, queues, "always") + depth(seconds, waiting, "always")
    print(table(["what", "few/s", "many/s", "ratio"], rows))


if __name__ == "__main__":
    main()
