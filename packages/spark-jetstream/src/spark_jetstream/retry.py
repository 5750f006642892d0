"""Retry policy of all operations: five attempts with exponential backoff."""

ATTEMPTS_MAX = 5


def backoff_seconds(failures: int) -> float:
    """Delay before the next attempt after this many failures: 0.1 s, doubled each time, at most 1 s."""
    return min(0.05 * 2.0**failures, 1.0)
