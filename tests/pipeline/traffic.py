"""Seeded traffic as frames on the engine, and an engine of one's own to put them on."""

import asyncio
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from postroad.container import prepare_engine, running_platform
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.pipeline.jetstream import Engine, engine_options
from postroad.queues.events import JobDead, JobDone, JobLeased, JobQueued, QueueSampled
from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.sessions.events import SessionEnded, SessionSubscribed, SessionTouched
from postroad.settings import Secret, Settings
from postroad.telemetry.events import StorageSampled, TrafficSampled
from postroad.telemetry.frames import frame_subject, pack
from spark_jetstream.client import Client
from spark_jetstream.options import write_options
from spark_jetstream.protocol import encode_headers
from spark_jetstream.publisher import Message, Publisher
from tests.servers import Server

NOON = 1_793_534_400_000  # 2026-11-01T12:00:00Z
REASONS = ("timeout", "bad address", "max-attempts")


@contextmanager
def own_engine(folder: Path) -> Iterator[Settings]:
    """A server with Postroad's streams and nothing on them."""
    server = Server(EmbeddedServerSettings(folder / "engine"))
    try:
        settings = Settings(nats_url=Secret(server.start().url), platform_key=Secret("k" * 32), data_dir=folder)
        asyncio.run(_prepare(settings))
        yield settings
    finally:
        server.stop()


async def _prepare(settings: Settings) -> None:
    async with running_platform(settings, "tests") as engine:
        await prepare_engine(engine)


def engine_of(settings: Settings) -> Engine:
    return Engine(engine_options(settings))


@dataclass(frozen=True, slots=True)
class Frame:
    stream: str
    tenant: str
    lines: tuple[bytes, ...]

    @property
    def message(self) -> Message:
        headers = f"Postroad-Frame: 1\r\nPostroad-Events: {len(self.lines)}\r\n".encode()
        return Message(frame_subject(self.stream, self.tenant).encode(), encode_headers(headers), pack(self.lines))


def send(settings: Settings, frames: Iterable[Frame]) -> None:
    send_raw(settings, (frame.message for frame in frames))


def send_raw(settings: Settings, messages: Iterable[Message]) -> None:
    options = write_options(engine_options(settings))
    with Client(options.connection) as client:
        Publisher(client, options.max_pending).publish(messages)


def framed(events: Sequence[Event], size: int = 50) -> list[Frame]:
    """By stream and tenant, in order, `size` to a frame."""
    lanes: dict[tuple[str, str], list[bytes]] = {}
    for event in events:
        lanes.setdefault((event.stream, event.tenant), []).append(msgspec.json.encode(event))
    return [
        Frame(stream, tenant, tuple(lines[begin : begin + size]))
        for (stream, tenant), lines in lanes.items()
        for begin in range(0, len(lines), size)
    ]


class Traffic:
    """Jobs, samples and sessions of some tenants over some minutes. The same seed gives the same events."""

    def __init__(self, seed: int, tenants: Sequence[str] = ("acme", "globex"), start: int = NOON) -> None:
        self._random = random.Random(seed)
        self._tenants, self._start = tenants, start

    def _id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128)))

    def jobs(self, count: int, minutes: int = 5) -> list[Event]:
        """Each is queued, leased, and done or dead: three events."""
        events: list[Event] = []
        for _ in range(count):
            tenant, queue = self._random.choice(self._tenants), self._random.choice(("orders", "mails"))
            at = self._start + self._random.randrange(minutes * 60_000)
            wait, work = self._random.randrange(3000), self._random.randrange(1, 60_000)
            job: dict[str, Any] = {
                "job_id": self._id(),
                "message_id": self._id(),
                "queue": queue,
                "tenant": tenant,
                "key_id": "k",
            }
            events.append(
                JobQueued(event_id=self._id(), timestamp=rfc3339(at), payload_bytes=self._random.randrange(2000), **job)
            )
            leased_at = at + wait
            lease: dict[str, Any] = {"attempt": 1, "lease_until": rfc3339(leased_at + 30_000), "wait_ms": wait}
            events.append(JobLeased(event_id=self._id(), timestamp=rfc3339(leased_at), **lease, **job))
            ended: dict[str, Any] = {"event_id": self._id(), "timestamp": rfc3339(leased_at + work), **job}
            if self._random.random() < 0.9:
                events.append(JobDone(attempt=1, processing_ms=work, **ended))
            else:
                attempt = self._random.choice((1, 3))
                events.append(JobDead(attempt=attempt, reason=self._random.choice(REASONS), **ended))
        return events

    def samples(self, minutes: int = 5) -> list[Event]:
        events: list[Event] = []
        for tenant in self._tenants:
            for second in range(0, minutes * 60, 10):
                head: dict[str, Any] = {"tenant": tenant, "timestamp": rfc3339(self._start + second * 1000)}
                events.append(
                    QueueSampled(
                        event_id=self._id(),
                        queue="orders",
                        ready=second,
                        leased=1,
                        delayed=0,
                        dead=2,
                        waiting=0,
                        oldest_age_ms=second * 1000,
                        expected_drain_seconds=60,
                        in_per_second=1.5,
                        out_per_second=0.5,
                        seconds=10.0,
                        **head,
                    )
                )
                events.append(
                    TrafficSampled(event_id=self._id(), worker="w1", seconds=10.0, requests=self._random.randrange(100), **head)
                )
                events.append(
                    StorageSampled(
                        event_id=self._id(), bytes=1000 + second, messages=5, queues=2, streams=1, seconds=10.0, **head
                    )
                )
        return events

    def sessions(self, count: int, ttl_ms: int = 1_800_000) -> list[Event]:
        """Some are touched, some end, some are never heard of again."""
        events: list[Event] = []
        for number in range(count):
            tenant, session = self._tenants[number % len(self._tenants)], f"s{number}"
            at = self._start + number * 100

            def head(later: int = 0, tenant: str = tenant, session: str = session, at: int = at) -> dict[str, Any]:
                return {"event_id": self._id(), "timestamp": rfc3339(at + later), "tenant": tenant, "session_id": session}

            events.append(SessionSubscribed(stream_id="news", is_new=True, expires_at=rfc3339(at + ttl_ms), **head()))
            if number % 3 == 0:
                events.append(SessionTouched(expires_at=rfc3339(at + 10 + ttl_ms), **head(10)))
            if number % 2 == 0:
                events.append(SessionEnded(is_expired=number % 4 == 0, subscriptions=1, **head(20)))
        return events
