"""Metrics of the AWS protocols."""

from postroad.kernel.buffered_metrics import Counter

calls = Counter("postroad_aws_calls_total", "Successful calls of AWS operations.", ["service", "operation"])
errors = Counter("postroad_aws_errors_total", "Errors of AWS operations, by code.", ["code"])
