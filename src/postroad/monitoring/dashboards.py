"""The dashboards: panels with their queries."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["short", "s", "reqps", "bytes", "percentunit", "dateTimeAsIso"]
Kind = Literal["timeseries", "stat", "table"]

_QUEUE = 'tenant=~"$tenant",queue=~"$queue"'
_TENANT = 'tenant=~"$tenant"'
_BY_QUEUE = "max by (tenant, queue)"


@dataclass(frozen=True, slots=True)
class Panel:
    """`legend` is the name of a series: a text with labels in braces."""

    title: str
    query: str
    unit: Unit = "short"
    legend: str = ""
    kind: Kind = "timeseries"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice of label values, by default all of them."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()


_TENANTS = Variable("tenant", "label_values(postroad_queue_ready, tenant)")
_QUEUES = Variable("queue", 'label_values(postroad_queue_ready{tenant=~"$tenant"}, queue)')


def _rate(metric: str, labels: str = "") -> str:
    return (
        f"sum(rate({metric}{{{labels}}}[$__rate_interval])) or vector(0)" if labels else f"sum(rate({metric}[$__rate_interval]))"
    )


def _quantile(share: float, metric: str, labels: str = "") -> str:
    chosen = f"{{{labels}}}" if labels else ""
    return f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{chosen}[$__rate_interval])))"


OVERVIEW = Dashboard(
    "overview",
    "Postroad: overview",
    (
        Panel("Gateways that answer", 'sum(up{job="postroad"})', kind="stat"),
        Panel("Ready messages", f"sum({_BY_QUEUE} (postroad_queue_ready))", kind="stat"),
        Panel("Dead letters", f"sum({_BY_QUEUE} (postroad_queue_dead))", kind="stat"),
        Panel("Oldest message", "max(postroad_queue_oldest_age_seconds)", "s", kind="stat"),
        Panel("Open alerts", "sum(postroad_alerts_open) or vector(0)", kind="stat"),
        Panel("Store left", "min(postroad_store_available_bytes) / max(postroad_store_limit_bytes)", "percentunit", kind="stat"),
        Panel("Requests", "sum by (status) (rate(postroad_http_requests_total[$__rate_interval]))", "reqps", "{{status}}"),
        Panel("Messages published", _rate("postroad_messages_published_total"), "reqps", "published"),
        Panel("Messages acknowledged", _rate("postroad_messages_acked_total"), "reqps", "acknowledged"),
        Panel(
            "Time of a publish, 99th percentile",
            _quantile(0.99, "postroad_http_request_seconds", 'method="POST",route="/v1/queues/{queue}/messages"'),
            "s",
        ),
        Panel("Refused requests", "sum by (limit) (rate(postroad_http_refusals_total[$__rate_interval])) or vector(0)", "reqps"),
        Panel("Live readers", "sum(postroad_http_live_readers)"),
    ),
)

QUEUE = Dashboard(
    "queue",
    "Postroad: queues",
    (
        Panel("Ready", f"{_BY_QUEUE} (postroad_queue_ready{{{_QUEUE}}})", legend="{{tenant}}/{{queue}}"),
        Panel("Oldest message", f"{_BY_QUEUE} (postroad_queue_oldest_age_seconds{{{_QUEUE}}})", "s", "{{tenant}}/{{queue}}"),
        Panel("Published", f"{_BY_QUEUE} (postroad_queue_in_per_second{{{_QUEUE}}})", "reqps", "{{tenant}}/{{queue}}"),
        Panel("Acknowledged", f"{_BY_QUEUE} (postroad_queue_out_per_second{{{_QUEUE}}})", "reqps", "{{tenant}}/{{queue}}"),
        Panel("Leased", f"{_BY_QUEUE} (postroad_queue_leased{{{_QUEUE}}})", legend="{{tenant}}/{{queue}}"),
        Panel("Waiting pulls", f"{_BY_QUEUE} (postroad_queue_waiting_pulls{{{_QUEUE}}})", legend="{{tenant}}/{{queue}}"),
        Panel("Waiting for a retry", f"{_BY_QUEUE} (postroad_queue_retrying{{{_QUEUE}}})", legend="{{tenant}}/{{queue}}"),
        Panel("Delayed", f"{_BY_QUEUE} (postroad_queue_delayed{{{_QUEUE}}})", legend="{{tenant}}/{{queue}}"),
        Panel("Dead letters", f"{_BY_QUEUE} (postroad_queue_dead{{{_QUEUE}}})", legend="{{tenant}}/{{queue}}"),
        Panel(
            "Leases that ended without an ack", f"{_BY_QUEUE} (postroad_queue_overdue{{{_QUEUE}}})", legend="{{tenant}}/{{queue}}"
        ),
        Panel("Time in a queue, 95th percentile", _quantile(0.95, "postroad_queue_wait_seconds"), "s"),
        Panel(
            "Queues without a series of their own",
            "max(postroad_queue_metrics_left_out)",
            kind="stat",
            text="POSTROAD_QUEUE_METRICS_MAX limits them; the others are added up under tenant and queue `other`.",
        ),
    ),
    (_TENANTS, _QUEUES),
)

ENGINE = Dashboard(
    "engine",
    "Postroad: engine",
    (
        Panel("Age of the registry", "max by (instance) (postroad_registry_age_seconds)", "s", "{{instance}}"),
        Panel("Clock skew", "max by (instance) (postroad_clock_skew_seconds)", "s", "{{instance}}"),
        Panel("Store used", "max(postroad_store_used_bytes)", "bytes"),
        Panel("Store available", "min(postroad_store_available_bytes)", "bytes"),
        Panel("Writes refused for want of space", "max(postroad_store_refuses_writes)", kind="stat"),
        Panel("Messages in batches", _rate("postroad_commit_messages_total"), "reqps"),
        Panel("Writes sent again", _rate("postroad_commit_retries_total"), "reqps"),
        Panel("Batches rejected", _rate("postroad_commit_rejected_batches_total"), "reqps"),
        Panel("Changes of the server", _rate("postroad_engine_server_changes_total"), "reqps"),
        Panel("Events stored", "sum by (stream) (rate(postroad_events_total[$__rate_interval]))", "reqps", "{{stream}}"),
        Panel("Events dropped", "sum(rate(postroad_events_dropped_total[$__rate_interval])) or vector(0)", "reqps"),
        Panel("Index of jobs behind", "max(postroad_jobs_behind_seconds)", "s"),
    ),
)

RABBITMQ = Dashboard(
    "rabbitmq",
    "Postroad: queues in RabbitMQ",
    (
        Panel("Calls that failed", _rate("postroad_rabbitmq_failed_calls_total"), "reqps", "failed", text="Each is a 503."),
        Panel("Messages confirmed", _rate("postroad_rabbitmq_published_total"), "reqps", "confirmed"),
        Panel("Deliveries held", "sum(postroad_rabbitmq_leases)"),
        Panel("Leases that ended without an ack", _rate("postroad_rabbitmq_leases_expired_total"), "reqps"),
        Panel("Operations on leases of another worker", _rate("postroad_rabbitmq_forwarded_total"), "reqps"),
        Panel("Deliveries of settled messages, dropped", _rate("postroad_rabbitmq_suppressed_total"), "reqps"),
        Panel("Deliveries that no pull waited for", _rate("postroad_rabbitmq_strays_total"), "reqps"),
        Panel("Dead letters of RabbitMQ, moved", _rate("postroad_rabbitmq_dead_lettered_total"), "reqps"),
    ),
)

PIPELINE = Dashboard(
    "pipeline",
    "Postroad: pipeline",
    (
        Panel("Messages not read yet", "max by (stream) (postroad_pipeline_lag_messages)", legend="{{stream}}"),
        Panel("Age of the results", "max(postroad_pipeline_freshness_seconds)", "s"),
        Panel("Time since the last batch", "time() - max(postroad_pipeline_last_batch_timestamp_seconds)", "s", kind="stat"),
        Panel("Quarantined lines", "max(postroad_pipeline_quarantined_lines)", kind="stat"),
        Panel("Results that could not be decoded", _rate("postroad_insights_unreadable_total"), "reqps"),
        Panel("Frames removed after they were read", _rate("postroad_frames_trimmed_total"), "reqps"),
    ),
)

TENANT = Dashboard(
    "tenant",
    "Postroad: tenants",
    (
        Panel(
            "Published",
            f"sum by (tenant) (rate(postroad_messages_published_total{{{_TENANT}}}[$__rate_interval]))",
            "reqps",
            "{{tenant}}",
        ),
        Panel(
            "Acknowledged",
            f"sum by (tenant) (rate(postroad_messages_acked_total{{{_TENANT}}}[$__rate_interval]))",
            "reqps",
            "{{tenant}}",
        ),
        Panel(
            "Dead-lettered",
            f"sum by (tenant) (rate(postroad_messages_dead_total{{{_TENANT}}}[$__rate_interval])) or vector(0)",
            "reqps",
            "{{tenant}}",
        ),
        Panel("Ready", f"sum by (tenant) ({_BY_QUEUE} (postroad_queue_ready{{{_TENANT}}}))", legend="{{tenant}}"),
        Panel("Dead letters", f"sum by (tenant) ({_BY_QUEUE} (postroad_queue_dead{{{_TENANT}}}))", legend="{{tenant}}"),
        Panel("Oldest message", f"max by (tenant) (postroad_queue_oldest_age_seconds{{{_TENANT}}})", "s", "{{tenant}}"),
        Panel(
            "Busiest queues",
            f"topk(10, {_BY_QUEUE} (postroad_queue_in_per_second{{{_TENANT}}}))",
            "reqps",
            "{{tenant}}/{{queue}}",
            "table",
        ),
    ),
    (_TENANTS,),
)

DASHBOARDS = (OVERVIEW, QUEUE, ENGINE, RABBITMQ, PIPELINE, TENANT)
