"""A node that serves the API and delivers, a tenant with AWS credentials, and a receiver."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.aws.clients import REGION, AwsTenant, Client, aws_tenant
from tests.gateway import Gateway
from tests.subscriptions.conftest import _clock, engine_url, node, receiver

__all__ = ["_clock", "engine_url", "node", "receiver"]


@dataclass(frozen=True, slots=True)
class SnsTenant:
    """A tenant with clients of SNS and SQS."""

    aws: AwsTenant
    sns: Client

    @property
    def account(self) -> str:
        return self.aws.account

    async def topic(self, name: str = "t", **attributes: str) -> str:
        """Create a topic; its ARN."""
        arn: str = (await self.sns.create_topic(Name=name, Attributes=attributes))["TopicArn"]
        return arn

    async def queue(self, name: str = "q") -> tuple[str, str]:
        """Create a queue; its URL and ARN."""
        return await self.aws.queue(name), f"arn:aws:sqs:{REGION}:{self.account}:{name}"

    async def subscribe(self, topic: str, queue_arn: str, **attributes: str) -> str:
        """Subscribe a queue; the subscription's ARN."""
        found = await self.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn, Attributes=attributes)
        arn: str = found["SubscriptionArn"]
        return arn

    async def attributes(self, subscription: str) -> dict[str, str]:
        found = await self.sns.get_subscription_attributes(SubscriptionArn=subscription)
        attributes: dict[str, str] = found["Attributes"]
        return attributes

    async def receive(self, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
        return await self.aws.receive(url, count, MessageAttributeNames=["All"], AttributeNames=["All"], **more)


@pytest.fixture
async def tenant(node: Gateway) -> SnsTenant:
    made = await aws_tenant(node)
    return SnsTenant(made, made.client("sns"))


@pytest.fixture
async def creating_tenant(node: Gateway) -> SnsTenant:
    """A tenant whose native API creates queues with their first use."""
    made = await aws_tenant(node, auto_create_queues=True)
    return SnsTenant(made, made.client("sns"))
