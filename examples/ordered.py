"""Transfers over 1,000 accounts in an ordered queue, with workers that are killed: every balance is right in the end.

POSTROAD_KEY=… python examples/ordered.py [transfers]

Each account is a group. A withdrawal that exceeds the balance is refused, so the balance depends on the order of the transfers of
an account. Workers keep balances in a database, with the number of the last transfer of each account: one that was applied by a
worker that died before its acknowledgement is not applied again, and one that comes too early would be noticed.
"""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

from postroad.client import AsyncPostroad, Message
from postroad.client.worker import Worker

QUEUE = "transfers"
ACCOUNTS = 1000
WORKERS = 3
KILLS = 6


def after(balance: int, amount: int) -> int:
    """The balance after a transfer. A withdrawal that exceeds it is refused."""
    return balance + amount if balance + amount >= 0 else balance


def apply(database: sqlite3.Connection, account: int, number: int, amount: int) -> None:
    with database:
        database.execute("BEGIN IMMEDIATE")
        last, balance = database.execute("SELECT last, balance FROM accounts WHERE account = ?", (account,)).fetchone()
        if number <= last:
            return  # applied before, by a worker that could not acknowledge it
        if number != last + 1:
            raise SystemExit(f"transfer {number} of account {account} came before transfer {last + 1}")
        new = after(balance, amount)
        database.execute("UPDATE accounts SET last = ?, balance = ? WHERE account = ?", (number, new, account))


async def work(path: str) -> None:
    def transfer(message: Message) -> None:
        with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database:
            apply(database, **message.payload)

    async def handle(message: Message) -> None:
        await asyncio.to_thread(transfer, message)

    async with AsyncPostroad() as postroad:
        await Worker(postroad, QUEUE, handle, concurrency=20, visibility_timeout_ms=3000, wait_ms=1000).run()


async def start_worker(path: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, __file__, "work", path)


async def publish(postroad: AsyncPostroad, transfers: int) -> dict[int, int]:
    """Publish random transfers, and return the balances that must result."""
    numbers, balances = dict.fromkeys(range(ACCOUNTS), 0), dict.fromkeys(range(ACCOUNTS), 0)
    batch = []
    for _ in range(transfers):
        account, amount = random.randrange(ACCOUNTS), random.randint(-60, 50)
        numbers[account] += 1
        balances[account] = after(balances[account], amount)
        payload = {"account": account, "number": numbers[account], "amount": amount}
        batch.append({"payload": payload, "groupId": f"account-{account}", "dedupeId": f"{account}/{numbers[account]}"})
    for start in range(0, transfers, 500):
        result = await postroad.queues.publish_batch(QUEUE, batch[start : start + 500], idempotency_key=f"{os.getpid()}-{start}")
        assert result.failed == 0
    return balances


async def main(transfers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "accounts.db")
        database = sqlite3.connect(path, timeout=30, isolation_level=None)
        database.execute("CREATE TABLE accounts (account INTEGER PRIMARY KEY, last INTEGER, balance INTEGER)")
        database.executemany("INSERT INTO accounts VALUES (?, 0, 0)", [(account,) for account in range(ACCOUNTS)])
        async with AsyncPostroad() as postroad:
            await postroad.queues.put(QUEUE, ordered=True, retry_delays_ms=[0], max_attempts=0)
            await postroad.queues.purge(QUEUE)
            workers = [await start_worker(path) for _ in range(WORKERS)]
            expected = await publish(postroad, transfers)
            kills = 0
            while database.execute("SELECT sum(last) FROM accounts").fetchone()[0] < transfers:
                await asyncio.sleep(0.5)
                if kills < KILLS:
                    kills += 1
                    victim = workers.pop(0)
                    with contextlib.suppress(ProcessLookupError):
                        victim.kill()
                    await victim.wait()
                    workers.append(await start_worker(path))
            for one in workers:
                one.send_signal(signal.SIGTERM)
            await asyncio.gather(*(one.wait() for one in workers))
        found = dict(database.execute("SELECT account, balance FROM accounts"))
        database.close()
    print(f"{transfers} transfers, {kills} workers killed; balances are right:", found == expected)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        asyncio.run(work(sys.argv[2]))
    else:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000))
