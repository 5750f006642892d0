"""Export of spans to an OpenTelemetry collector, and the spans of messages. Off unless an endpoint is set (docs/tracing.md)."""
