"""What access counts. No credential, and nothing made of one, is ever a label."""

from postroad.kernel.buffered_metrics import Counter

refused = Counter("postroad_auth_refused_total", "Requests whose credential was not good.")
