"""Settings of subscriptions."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionsSettings(Section):
    subscriptions_max: int = setting(10_000, "Maximum number of subscriptions of a tenant.", positive)
    delivery_slots: int = setting(512, "Attempts to deliver messages of topics at the same time, per delivery process.", positive)
    delivery_cache_bytes: int = setting(
        64 * 1024 * 1024, "Messages of topics that a delivery process keeps in memory for pending attempts.", positive
    )
