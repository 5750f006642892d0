"""Which resolved alerts are kept: the newest of each tenant. Pure."""

from collections.abc import Sequence

RESOLVED_MAX = 10_000  # of a tenant; every gateway worker has them in memory


class History:
    """The keys of the resolved alerts that are stored, oldest first."""

    def __init__(self, most: int = RESOLVED_MAX) -> None:
        self._most = most
        self._keys: dict[str, dict[str, None]] = {}
        self._excess: dict[str, None] = {}

    def add(self, tenant: str, key: str) -> None:
        """An alert was stored as resolved, perhaps not for the first time."""
        known = self._keys.setdefault(tenant, {})
        self._excess.pop(key, None)
        known[key] = None
        while len(known) > self._most:
            oldest = next(iter(known))
            del known[oldest]
            self._excess[oldest] = None

    def excess(self, limit: int) -> Sequence[str]:
        """Keys to be removed."""
        return list(self._excess)[:limit]

    def removed(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._excess.pop(key, None)
