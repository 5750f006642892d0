"""One queue, one stream and one source with sessions, worked by many clients; at the end all of it is held against the model."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.clients import Appender, Client, Endpoints, Follower, Line, Publisher, Worker, read_all
from tests.chaos.model import Message, QueueModel, StreamModel, reader_violations
from tests.waiting import eventually

PUBLISHERS, WORKERS, APPENDERS = 4, 3, 4  # half of the publishers and appenders send each thing once
SESSIONS = 3
SETTINGS = {"POSTROAD_FANOUT_COMPLETE_SECONDS": "2", "POSTROAD_SESSION_TTL_SECONDS": "86400"}


@dataclass(slots=True)
class Campaign:
    endpoints: Endpoints
    name: str = "chaos"
    settings: dict[str, object] = field(default_factory=dict)  # of the queue
    worker_count: int = WORKERS
    queue: QueueModel = field(default_factory=QueueModel)
    log: StreamModel = field(default_factory=lambda: StreamModel("log"))
    news: StreamModel = field(default_factory=lambda: StreamModel("news"))
    writers: list[Client] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)
    _lines: list[Line] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def log_path(self) -> str:
        return f"/v1/default/stream/{self.name}:log"

    @property
    def news_path(self) -> str:
        return f"/v1/default/stream/{self.name}:news"

    def _session(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _session_path(self, number: int) -> str:
        return f"/v1/default/stream/session:{self._session(number)}"

    def line(self) -> Line:
        line = Line(self.endpoints, len(self._lines))
        self._lines.append(line)
        return line

    @property
    def clients(self) -> list[Client]:
        return [*self.writers, *self.workers, *self.followers]

    # Setting out

    async def begin(self) -> None:
        """Make what is worked on, and have everyone begin."""
        await self._prepare()
        self._create_clients()
        self._tasks = [asyncio.create_task(client.run(), name=client.name) for client in self.clients]

    async def _prepare(self) -> None:
        line = self.line()
        await self._until(line, "PUT", f"/v1/queues/{self.name}", {"maxAttempts": 0, **self.settings})
        for path in (self.log_path, self.news_path):
            await self._until(line, "PUT", path, headers={"Content-Type": "application/json"})
        for number in range(SESSIONS):
            body = {"sessionId": self._session(number), "streamId": f"{self.name}:news"}
            await self._until(line, "POST", "/v1/default/subscribe", body)

    async def _until(
        self, line: Line, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> None:
        async def is_made() -> bool:
            answer = await line.call(method, path, body, headers)
            return answer is not None and answer.status < 300

        await eventually(is_made, 30)

    def _create_clients(self) -> None:
        numbers = itertools.count()
        for at in range(PUBLISHERS):
            self.writers.append(
                Publisher(self.line(), f"publisher-{at}", queue=self.name, model=self.queue, numbers=numbers, has_key=at % 2 == 0)
            )
        for path, model in ((self.log_path, self.log), (self.news_path.replace("/stream/", "/publish/"), self.news)):
            for at in range(APPENDERS // 2):
                self.writers.append(Appender(self.line(), f"{model.name}-{at}", path=path, model=model, is_numbered=at % 2 == 0))
        for at in range(self.worker_count):
            self.workers.append(Worker(self.line(), f"worker-{at}", queue=self.name, model=self.queue, most=1 if at == 0 else 20))
        for at, path in enumerate((self.log_path, self.log_path, self._session_path(0))):
            self.followers.append(Follower(self.line(), f"follower-{at}", path=path))

    # On the way

    async def makes_progress(self, count: int = 3, seconds: float = 15, *, of: Callable[[Client], bool] = lambda _: True) -> None:
        """Everyone has got `count` things more done; AssertionError says who has not."""
        before = {client.name: client.done for client in self.clients if of(client)}

        def stuck() -> list[str]:
            return [client.name for client in self.clients if client.name in before and client.done < before[client.name] + count]

        try:
            await eventually(lambda: not stuck(), seconds)
        except AssertionError:
            raise AssertionError(f"not within {seconds} s: {stuck()}; {dict(self.endpoints.answers.counted)}") from None

    # Coming home

    async def end(self, seconds: float = 60) -> list[str]:
        """Let everyone finish, empty the queue, read the streams; what was broken."""
        for client in (*self.writers, *self.workers):
            client.is_stopping = True
        try:
            finishing = [task for task in self._tasks if not task.get_name().startswith("follower")]
            _, late = await asyncio.wait(finishing, timeout=seconds)
            found = [f"{task.get_name()} is stuck" for task in late]
            found += [f"{task.get_name()}: {task.exception()!r}" for task in finishing if task.done() and task.exception()]
            found += await self._drained(seconds)
            return found + self.queue.violations() + await self._compared(seconds) + self.endpoints.answers.violations()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in self._lines:
            await line.close()

    async def _drained(self, seconds: float) -> list[str]:
        """Until nothing is left: leases of those that were killed run out first."""
        worker = Worker(self.line(), "drain", queue=self.name, model=self.queue, most=200, wait_ms=200)

        async def is_empty() -> bool:
            while await worker.work():
                pass
            answer = await worker.line.call("GET", f"/v1/queues/{self.name}")
            stats = answer.json.get("stats", {}) if answer is not None and answer.status == 200 else {}
            return bool(stats.get("ready") == stats.get("leased") == stats.get("delayed") == 0)

        try:
            await eventually(is_empty, seconds)
        except AssertionError:
            return [f"the queue was not empty after {seconds} s"]
        return []

    async def _compared(self, seconds: float) -> list[str]:
        line = self.line()
        found: list[str] = []
        contents: dict[str, list[list[object]]] = {}
        for path, model in ((self.log_path, self.log), (self.news_path, self.news)):
            contents[path] = await read_all(line, path)
            messages: list[Message] = [(str(who), int(str(number))) for who, number in contents[path]]
            found += model.violations(messages)
        for number in range(SESSIONS):
            contents[self._session_path(number)] = contents[self.news_path]
        for follower in self.followers:
            content = contents[follower.path]
            found += await self._read(follower.name, lambda one=follower: one.seen, content, seconds)  # type: ignore[misc]
        for number in range(SESSIONS):
            found += await self._copied(line, number, contents[self.news_path], seconds)
        return found

    async def _read(self, who: str, seen: Callable[[], list[object]], content: list[list[object]], seconds: float) -> list[str]:
        with contextlib.suppress(AssertionError):  # what it has not seen by then is told below
            await eventually(lambda: len(seen()) >= len(content), seconds)
        return reader_violations(who, seen(), content)

    async def _copied(self, line: Line, number: int, content: list[list[object]], seconds: float) -> list[str]:
        got: list[object] = []

        async def is_complete() -> bool:
            got[:] = await read_all(line, self._session_path(number))
            return len(got) >= len(content)

        with contextlib.suppress(AssertionError):  # what it has not seen by then is told below
            await eventually(is_complete, seconds)
        return reader_violations(f"session {number}", got, content)

    async def unfinished_jobs(self, seconds: float = 300) -> list[str]:
        """Jobs of the queue that are not done after a while, although the queue is empty: the leader reconciles them."""
        line, counts = self.line(), {}

        async def are_finished() -> bool:
            for status in ("queued", "delayed", "leased", "retrying"):
                answer = await line.call("GET", f"/v1/jobs?queue={self.name}&status={status}&limit=1000")
                jobs = answer.json["jobs"] if answer is not None and answer.status == 200 else None
                counts[status] = "?" if jobs is None else len(jobs)
            return not any(counts.values())

        try:
            await eventually(are_finished, seconds)
        except AssertionError:
            return [f"unfinished jobs after {seconds:.0f} s: {counts}"]
        finally:
            await line.close()
        return []

    def summary(self) -> str:
        written = {
            kind: sum(one.done for one in self.writers if one.name.startswith(kind)) for kind in ("publisher", "log", "news")
        }
        return (
            f"{written['publisher']} published, {len(self.queue.acked)} acked, {written['log']} appended, "
            f"{written['news']} fanned out to {SESSIONS} sessions; "
            f"refused {dict(self.endpoints.answers.counted)}, unanswered {dict(self.endpoints.answers.unanswered)}"
        )
