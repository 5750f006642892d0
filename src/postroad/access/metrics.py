"""Metrics of authentication. Credentials, and values derived from them, are never labels."""

from postroad.kernel.buffered_metrics import Counter

refused = Counter("postroad_auth_refused_total", "Requests with invalid credentials.")
