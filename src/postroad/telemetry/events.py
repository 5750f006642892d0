"""Event types of telemetry: samples of processes, traffic and storage."""

from postroad.kernel.event import Event


class StorageSampled(Event, frozen=True, kw_only=True, tag="storage.sampled"):
    """What a tenant has stored, in all its queues and streams; it counts for the `seconds` since the sample before."""

    version: int = 1
    bytes: int
    messages: int
    queues: int
    streams: int
    seconds: float


class TrafficSampled(Event, frozen=True, kw_only=True, tag="traffic.sampled"):
    """What one process did for a tenant in the last `seconds`. Only processes that did something say so."""

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


class ProcessSampled(Event, frozen=True, kw_only=True, tag="process.sampled"):
    """How a process of Postroad is; the tenant is `_platform`. `loop_lag_ms`: the longest that its work waited for its turn."""

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
    """A process of Postroad is ready. The tenant is `_platform`."""

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
