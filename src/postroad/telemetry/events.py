"""Event types of telemetry: samples of processes, traffic and storage."""

from postroad.kernel.event import Event


class StorageSampled(Event, frozen=True, kw_only=True, tag="storage.sampled"):
    """The storage of a tenant in all its queues, topics, buckets and streams. It covers the `seconds` since the previous
    sample."""

    version: int = 1
    bytes: int
    messages: int
    queues: int
    streams: int
    topics: int = 0
    buckets: int = 0
    seconds: float


class TrafficSampled(Event, frozen=True, kw_only=True, tag="traffic.sampled"):
    """The requests that one process served for a tenant in the last `seconds`. Idle processes send no sample."""

    version: int = 1
    worker: str
    seconds: float
    requests: int = 0
    failures: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    appends: int = 0
    append_bytes: int = 0
    fanout_messages: int = 0
    topic_messages: int = 0
    topic_bytes: int = 0
    bucket_writes: int = 0
    bucket_bytes: int = 0


class ProcessSampled(Event, frozen=True, kw_only=True, tag="process.sampled"):
    """The state of a Postroad process; the tenant is `_platform`. `loop_lag_ms` is the longest delay of its event loop."""

    version: int = 1
    worker: str
    role: str
    seconds: float
    requests: int
    client_errors: int
    server_errors: int
    open_requests: int
    loop_lag_ms: int
    memory_bytes: int
    events_dropped: int


class WorkerStarted(Event, frozen=True, kw_only=True, tag="worker.started"):
    """A Postroad process is ready. The tenant is `_platform`."""

    version: int = 1
    worker: str
    role: str
    postroad_version: str


EVENTS: tuple[type[Event], ...] = (
    StorageSampled,
    TrafficSampled,
    ProcessSampled,
    WorkerStarted,
)
