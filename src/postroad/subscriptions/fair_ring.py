"""Round robin over tenants, then over the subscriptions of each. Pure."""

from collections import deque


class FairRing:
    """Subscriptions that want to start an attempt. A tenant with many of them gets no more turns than one with few."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[str]] = {}
        self._tenants: deque[str] = deque()
        self._members: set[str] = set()

    def __len__(self) -> int:
        return len(self._members)

    def add(self, tenant: str, subscription: str) -> None:
        """Add a subscription at the end; one that waits already keeps its place."""
        if subscription in self._members:
            return
        self._members.add(subscription)
        if tenant not in self._waiting:
            self._waiting[tenant] = deque()
            self._tenants.append(tenant)
        self._waiting[tenant].append(subscription)

    def pop(self) -> str | None:
        """Remove the next subscription; None if none waits."""
        if not self._tenants:
            return None
        tenant = self._tenants.popleft()
        waiting = self._waiting[tenant]
        subscription = waiting.popleft()
        self._members.discard(subscription)
        if waiting:
            self._tenants.append(tenant)
        else:
            del self._waiting[tenant]
        return subscription
