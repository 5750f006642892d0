"""Fan-out of a publish to many sessions, compared with as many appends to the reference server.

    .venv/bin/python -m benchmarks.sessions [--sessions 1000 10000] [--publishes 15] [--sync always]

wrk creates the sessions, one subscribe each. The time of a fan-out is from sending the publish to the moment when a reader of the
last session (in the order in which copies are written) has it: everyone else had it, durably, before. The reference server has
no fan-out: its row is what it would take to append the same message to as many streams over 64 connections, in files.
Needs `sh scripts/setup-node` once, and wrk.
"""

import argparse
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from benchmarks.harness import table, wrk
from benchmarks.queues import checked
from benchmarks.streams import BODY, JSON, Peer, append_script, ours, reference

SOURCE = "bench"
LAST = "zzzzzz"


def made(peer: Peer, sessions: int) -> float:
    """Subscribe `sessions` sessions. Returns the rate per second."""
    headers = ",".join(f'["{name}"]="{value}"' for name, value in peer.headers.items())
    lua = f"""
local next = 0
function request()
  next = next + 1
  local body = string.format('{{"sessionId":"s%08d","streamId":"{SOURCE}"}}', next)
  return wrk.format("POST", "/v1/default/subscribe", {{{headers}}}, body)
end
"""
    started, done = time.perf_counter(), subscribers(peer)
    while sessions - done > 1500:
        before = done
        script = lua.replace("local next = 0", f"local next = {done + 1000}")
        seconds = max(1, min(10, (sessions - done) // 400))
        checked(wrk(peer.url, 64, seconds, script))
        done = subscribers(peer)
        if done == before:
            raise SystemExit("no sessions are made")
    with ThreadPoolExecutor(16) as pool:  # the remaining sessions
        list(pool.map(lambda number: subscribe(peer, f"r{number:08d}"), range(sessions - 1 - done)))
    return (sessions - 1) / (time.perf_counter() - started)


def subscribers(peer: Peer) -> int:
    answer = httpx.get(f"{peer.url}/v1/default/fanout/{SOURCE}", headers=peer.headers, timeout=60).raise_for_status()
    return int(answer.json()["subscribers"])


def subscribe(peer: Peer, session: str) -> None:
    body = {"sessionId": session, "streamId": SOURCE}
    httpx.post(f"{peer.url}/v1/default/subscribe", json=body, headers=peer.headers).raise_for_status()


class LastReader:
    """Waits for messages of the last session, by long polls."""

    def __init__(self, peer: Peer) -> None:
        self._client = httpx.Client(base_url=peer.url, headers=peer.headers, timeout=60)
        self._offset = "now"

    def wait(self) -> None:
        while True:
            answer = self._client.get(
                f"/v1/default/stream/session:{LAST}", params={"offset": self._offset, "live": "long-poll"}
            ).raise_for_status()
            self._offset = answer.headers["Stream-Next-Offset"]
            if answer.status_code == 200:
                return


def published(peer: Peer, publishes: int) -> tuple[list[float], list[float], str]:
    """Time of each publish until its response and until the last session has it, and the delivery mode."""
    answered, reached, mode = [], [], ""
    reader = LastReader(peer)
    with httpx.Client(base_url=peer.url, headers=peer.headers, timeout=60) as client:
        for number in range(publishes):
            waiting = threading.Thread(target=reader.wait)
            waiting.start()
            time.sleep(0.2)  # so that the poll arrives before the message
            started = time.perf_counter()
            answer = client.post(f"/v1/default/publish/{SOURCE}", content=BODY).raise_for_status()
            answered.append(time.perf_counter() - started)
            waiting.join()
            reached.append(time.perf_counter() - started)
            mode = answer.headers["Stream-Fanout-Mode"]
            if number == 0:
                answered, reached = [], []  # discard the first, which loads the subscriber list
    return answered, reached, mode


def row(sessions: int, publishes: int, sync: str) -> list[object]:
    with ours(POSTROAD_SYNC=sync) as peer:
        peer.create(SOURCE)
        empty = peer.memory_kib
        rate = made(peer, sessions)
        subscribe(peer, LAST)
        count = subscribers(peer)
        answered, reached, mode = published(peer, publishes + 1)
        memory = (peer.memory_kib - empty) * 1024 / count
    quick, whole = statistics.median(answered) * 1000, statistics.median(reached) * 1000
    worst = max(reached) * 1000
    return [f"{count:,}", sync, mode, f"{rate:,.0f}", f"{quick:.1f}", f"{whole:.0f}", f"{worst:.0f}", f"{memory:,.0f}"]


def reference_row(sessions: int) -> list[object]:
    """Append to `sessions` streams of the file-backed reference server, 64 at a time."""
    with reference("files") as peer:
        names = [f"session-{number}" for number in range(min(sessions, 1000))]
        with httpx.Client(base_url=peer.url, headers=JSON, timeout=60) as client:
            for name in names:
                client.put(peer.path(name)).raise_for_status()
        load = wrk(peer.url, 64, 4, append_script(peer, names))
    stored = load.per_second - load.failed / 4  # the file-backed server sometimes answers 404 for a stream it has just created
    return [f"{sessions:,}", "reference, files", "appends", "", "", f"{sessions / stored * 1000:.0f}", "", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--publishes", type=int, default=15)
    parser.add_argument("--sync", default="always")
    chosen = parser.parse_args()
    rows = []
    for sessions in chosen.sessions:
        rows += [row(sessions, chosen.publishes, chosen.sync), reference_row(sessions)]
        print(rows[-2:], flush=True)
    head = ["sessions", "sync", "mode", "subscribes/s", "publish ms", "to the last ms", "worst ms", "bytes a session"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
