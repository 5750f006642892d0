"""Workers that consume a queue: pull, renew leases, ack or nack, drain. `Worker` runs coroutines, `SyncWorker` functions.

async def ship(message: Message) -> None:
    ...

async with AsyncPostroad() as postroad:
    await Worker(postroad, "orders", ship, concurrency=10).run()
"""

from postroad.client.worker.leases import Lease, current_lease
from postroad.client.worker.outcomes import DeadLetter, Ended, LeaseLost, Outcome, Retry
from postroad.client.worker.receivers import CommandReceiver, ReceivedCommand
from postroad.client.worker.threads import SyncWorker, run_worker
from postroad.client.worker.workers import Worker, WorkerOptions

__all__ = [
    "CommandReceiver",
    "DeadLetter",
    "Ended",
    "Lease",
    "LeaseLost",
    "Outcome",
    "ReceivedCommand",
    "Retry",
    "SyncWorker",
    "Worker",
    "WorkerOptions",
    "current_lease",
    "run_worker",
]
