"""The alert rules on the metrics of Postroad. Every gateway reports the same numbers of queues: hence `max by`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["info", "warning", "critical"]
_QUEUE = '{tenant="shop",queue="orders"}'
_BY_QUEUE = "max by (tenant, queue)"


@dataclass(frozen=True, slots=True)
class Alert:
    """Fires if `value` fulfils `condition` for the time `lasts`.

    `example` has series, in the notation of `promtool test rules` with one value a minute, that fire it within an hour.
    """

    name: str
    group: str
    value: str
    condition: str
    summary: str
    example: Mapping[str, str] = field(hash=False)
    severity: Severity = "warning"
    lasts: str = ""

    @property
    def expression(self) -> str:
        return f"{self.value} {self.condition}".strip()


def _queue(name: str) -> str:
    return f"postroad_queue_{name}{_QUEUE}"


ALERTS: tuple[Alert, ...] = (
    # Queues
    Alert(
        "PostroadQueueOld",
        "queues",
        f"{_BY_QUEUE} (postroad_queue_oldest_age_seconds)",
        f"> 2 * {_BY_QUEUE} (postroad_queue_expected_drain_seconds)",
        "The oldest message of {{ $labels.tenant }}/{{ $labels.queue }} is {{ $value }} s old.",
        {_queue("oldest_age_seconds"): "130x60", _queue("expected_drain_seconds"): "60x60"},
        lasts="1m",
    ),
    Alert(
        "PostroadQueueUnpolled",
        "queues",
        f"{_BY_QUEUE} (postroad_queue_ready)",
        f"> 0 and {_BY_QUEUE} (postroad_queue_waiting_pulls + postroad_queue_leased + postroad_queue_out_per_second) == 0",
        "{{ $labels.tenant }}/{{ $labels.queue }} has {{ $value }} ready messages, and nothing pulls them.",
        {
            _queue("ready"): "5x60",
            _queue("waiting_pulls"): "0x60",
            _queue("leased"): "0x60",
            _queue("out_per_second"): "0x60",
        },
        lasts="10m",
    ),
    Alert(
        "PostroadQueueGrowing",
        "queues",
        f"{_BY_QUEUE} (postroad_queue_in_per_second)",
        f"> 1.2 * {_BY_QUEUE} (postroad_queue_out_per_second) and {_BY_QUEUE} (deriv(postroad_queue_ready[15m])) > 0 "
        f"and {_BY_QUEUE} (postroad_queue_ready) > 1000",
        "{{ $labels.tenant }}/{{ $labels.queue }} gets {{ $value }} messages per second, more than leave it.",
        {_queue("in_per_second"): "20x60", _queue("out_per_second"): "10x60", _queue("ready"): "2000+600x60"},
        lasts="15m",
    ),
    Alert(
        "PostroadQueueLeasesExpire",
        "queues",
        f"{_BY_QUEUE} (postroad_queue_overdue)",
        "> 0",
        "{{ $value }} leases of {{ $labels.tenant }}/{{ $labels.queue }} ended without an ack: consumers crash or take too long.",
        {_queue("overdue"): "1x60"},
        lasts="5m",
    ),
    Alert(
        "PostroadDeadLetters",
        "queues",
        f"{_BY_QUEUE} (delta(postroad_queue_dead[15m]))",
        "> 0",
        "{{ $labels.tenant }}/{{ $labels.queue }} has {{ $value }} more dead letters than 15 minutes ago.",
        {_queue("dead"): "0+1x60"},
    ),
    Alert(
        "PostroadRetriesPileUp",
        "queues",
        f"{_BY_QUEUE} (postroad_queue_retrying)",
        f"> 100 and {_BY_QUEUE} (postroad_queue_out_per_second) == 0",
        "{{ $value }} messages of {{ $labels.tenant }}/{{ $labels.queue }} wait for a retry, and none is done.",
        {_queue("retrying"): "200x60", _queue("out_per_second"): "0x60"},
        lasts="5m",
    ),
    Alert(
        "PostroadQueueMetricsMissing",
        "queues",
        "max(postroad_queue_metrics_left_out or vector(-1))",
        "< 0",
        "No process samples the queues: is the control role running?",
        {"unrelated": "1x60"},
        "critical",
        "5m",
    ),
    # Engine
    Alert(
        "PostroadDown",
        "engine",
        'up{job="postroad"}',
        "== 0",
        "{{ $labels.instance }} does not answer the scrape.",
        {'up{job="postroad",instance="gateway:8080"}': "0x60"},
        "critical",
        "1m",
    ),
    Alert(
        "PostroadRabbitUnavailable",
        "engine",
        "sum(increase(postroad_rabbitmq_failed_calls_total[5m]))",
        "> 10",
        "{{ $value }} calls of RabbitMQ failed in 5 minutes: it is unreachable, silent, blocked or without a leader.",
        {'postroad_rabbitmq_failed_calls_total{instance="gateway:8080"}': "0+10x60"},
        "critical",
        "2m",
    ),
    Alert(
        "PostroadRegistryStale",
        "engine",
        "max by (instance) (postroad_registry_age_seconds)",
        "> 5",
        "{{ $labels.instance }} has not heard of the registry for {{ $value }} s: it reports not ready.",
        {'postroad_registry_age_seconds{instance="gateway:8080"}': "30x60"},
        "critical",
        "1m",
    ),
    Alert(
        "PostroadCommitSlow",
        "engine",
        "histogram_quantile(0.99, sum by (le) (rate("
        'postroad_http_request_seconds_bucket{method="POST",route="/v1/queues/{queue}/messages"}[5m])))',
        "> 0.5",
        "A hundredth of the publishes takes longer than {{ $value }} s.",
        {
            'postroad_http_request_seconds_bucket{method="POST",route="/v1/queues/{queue}/messages",le="0.25"}': "0x60",
            'postroad_http_request_seconds_bucket{method="POST",route="/v1/queues/{queue}/messages",le="1"}': "0+60x60",
            'postroad_http_request_seconds_bucket{method="POST",route="/v1/queues/{queue}/messages",le="+Inf"}': "0+60x60",
        },
        lasts="10m",
    ),
    Alert(
        "PostroadWritesRefused",
        "engine",
        "max(postroad_store_refuses_writes)",
        "> 0",
        "The store is full up to its reserve: writes are answered with 507.",
        {"postroad_store_refuses_writes": "1x60"},
        "critical",
        "1m",
    ),
    Alert(
        "PostroadDiskFillsUp",
        "engine",
        "min(postroad_store_available_bytes) / max(postroad_store_limit_bytes)",
        "< 0.15",
        "{{ $value | humanizePercentage }} of the store is left.",
        {"postroad_store_available_bytes": "100x60", "postroad_store_limit_bytes": "1000x60"},
        lasts="5m",
    ),
    Alert(
        "PostroadErrors",
        "engine",
        'sum(rate(postroad_http_requests_total{status=~"5.."}[5m])) or vector(0)',
        "> 0.05 * sum(rate(postroad_http_requests_total[5m]))",
        "{{ $value }} requests per second fail with a 5xx, more than 5 %.",
        {
            'postroad_http_requests_total{status="503"}': "0+60x60",
            'postroad_http_requests_total{status="200"}': "0+60x60",
        },
        lasts="5m",
    ),
    Alert(
        "PostroadClocksDiffer",
        "engine",
        "max by (instance) (abs(postroad_clock_skew_seconds))",
        "> 1",
        "The clock of {{ $labels.instance }} differs from the engine's by {{ $value }} s.",
        {'postroad_clock_skew_seconds{instance="gateway:8080"}': "-2x60"},
        lasts="5m",
    ),
    Alert(
        "PostroadAuditDamaged",
        "engine",
        "sum(increase(postroad_audit_damaged_total[1h])) or vector(0)",
        "> 0",
        "{{ $value }} entries of the audit log are missing or altered: postroad audit verify.",
        {"postroad_audit_damaged_total": "0+1x60"},
        "critical",
    ),
    # Commands
    Alert(
        "PostroadDispatchSlow",
        "commands",
        "histogram_quantile(0.95, sum by (le) (rate(postroad_commands_dispatch_seconds_bucket[5m])))",
        "> 0.15",
        "The 95th percentile of dispatch is {{ $value }} s.",
        {
            'postroad_commands_dispatch_seconds_bucket{le="0.1"}': "0x60",
            'postroad_commands_dispatch_seconds_bucket{le="0.5"}': "0+60x60",
            'postroad_commands_dispatch_seconds_bucket{le="+Inf"}': "0+60x60",
        },
        lasts="5m",
    ),
    Alert(
        "PostroadCommandErrors",
        "commands",
        'sum(rate(postroad_commands_total{outcome=~"failed|invalid|unavailable"}[5m])) or vector(0)',
        "> 0.05 * sum(rate(postroad_commands_total[5m]))",
        "More than 5 % of the commands are not delivered.",
        {'postroad_commands_total{outcome="failed"}': "0+60x60"},
        lasts="10m",
    ),
    Alert(
        "PostroadHmacFailures",
        "commands",
        'sum(rate(postroad_commands_total{outcome="invalid",reason=~"hmac-.*"}[5m])) or vector(0)',
        "> 1",
        "{{ $value }} commands per second have no valid HMAC.",
        {'postroad_commands_total{outcome="invalid",reason="hmac-mismatch"}': "0+120x60"},
        lasts="5m",
    ),
    Alert(
        "PostroadCommandsThrottled",
        "commands",
        'sum(rate(postroad_commands_total{reason=~"rate-limit-exceeded|fairness-violation"}[5m])) or vector(0)',
        "> 1",
        "{{ $value }} commands per second are throttled.",
        {'postroad_commands_total{outcome="failed",reason="rate-limit-exceeded"}': "0+120x60"},
        "info",
        "10m",
    ),
    Alert(
        "PostroadRegistryCacheOld",
        "commands",
        "max(postroad_commands_cache_age_seconds)",
        "> 60",
        "A cache of routes, grants or secrets is {{ $value }} s old; from 180 s on commands wait for the engine.",
        {"postroad_commands_cache_age_seconds": "90x60"},
        lasts="1m",
    ),
    Alert(
        "PostroadRoutesUnhealthy",
        "commands",
        "max by (target, command, queue) (postroad_route_unhealthy)",
        "> 0",
        "The queue {{ $labels.queue }} of {{ $labels.target }}/{{ $labels.command }} is not drained.",
        {'postroad_route_unhealthy{target="shop/bot",command="post",queue="bot"}': "1x60"},
        lasts="5m",
    ),
    # Telemetry
    Alert(
        "PostroadEventsDropped",
        "telemetry",
        "sum(increase(postroad_events_dropped_total[5m])) or vector(0)",
        "> 0",
        "{{ $value }} events could not be stored.",
        {'postroad_events_dropped_total{stream="JOBS"}': "0+1x60"},
        "critical",
    ),
    Alert(
        "PostroadTelemetryUnread",
        "telemetry",
        "sum(increase(postroad_telemetry_dropped_total[1h])) or vector(0)",
        "> 0",
        "{{ $value }} events of telemetry queues were not read before they left the stream.",
        {"postroad_telemetry_dropped_total": "0+1x60"},
        "info",
    ),
    Alert(
        "PostroadTelemetryEvicted",
        "telemetry",
        "sum(increase(postroad_telemetry_evicted_frames_total[1h])) or vector(0)",
        "> 0",
        "Events of commands leave before their 14 days for lack of room: {{ $value }} frames.",
        {"postroad_telemetry_evicted_frames_total": "0+1x60"},
    ),
    Alert(
        "PostroadAlertsWithoutDestination",
        "telemetry",
        "sum(increase(postroad_alerts_without_destination_total[15m])) or vector(0)",
        "> 0",
        "Critical alerts of tenants without a channel: GET /api/control/alerts.",
        {"postroad_alerts_without_destination_total": "0+1x60"},
    ),
    Alert(
        "PostroadAlertChannelsFail",
        "telemetry",
        'sum(rate(postroad_alert_notifications_total{outcome!="delivered"}[15m])) or vector(0)',
        "> 0.1",
        "{{ $value }} notifications per second fail.",
        {'postroad_alert_notifications_total{kind="email",outcome="failed"}': "0+60x60"},
        lasts="15m",
    ),
    # Pipeline
    Alert(
        "PostroadPipelineStopped",
        "pipeline",
        "time() - max(postroad_pipeline_last_batch_timestamp_seconds)",
        "> 600",
        "The last batch of the pipeline is {{ $value }} s old.",
        {"postroad_pipeline_last_batch_timestamp_seconds": "0x60"},
        lasts="5m",
    ),
    Alert(
        "PostroadPipelineLags",
        "pipeline",
        "sum(max by (stream) (postroad_pipeline_lag_messages))",
        "> 10000",
        "The pipeline is {{ $value }} messages behind.",
        {'postroad_pipeline_lag_messages{stream="JOBS"}': "20000x60"},
        lasts="15m",
    ),
    Alert(
        "PostroadPipelineQuarantines",
        "pipeline",
        "sum(delta(postroad_pipeline_quarantined_lines[15m])) or vector(0)",
        "> 0",
        "{{ $value }} lines could not be read: postroad pipeline quarantine.",
        {'postroad_pipeline_quarantined_lines{reason="json"}': "0+1x60"},
    ),
)
