"""Postroad's errors as SNS reports them."""

from postroad.api.queues import IdempotencyMismatch, QueueNotFound, SchemaMismatch, SchemaTooSlow
from postroad.api.stream_subscriptions import SubscriptionNotFound, WebhookRefused
from postroad.api.subscriptions import FilterInvalid
from postroad.api.topics import TopicFed, TopicNotFound
from postroad.aws.errors import AwsError
from postroad.kernel.errors import ConflictError, Forbidden, InvalidRequest, PostroadError, RateLimited, TooLarge

TOPIC_MISSING = "Topic does not exist"
SUBSCRIPTION_MISSING = "Subscription does not exist"


def invalid(message: str) -> AwsError:
    return AwsError("InvalidParameterException", f"Invalid parameter: {message}")


def topic_missing() -> AwsError:
    return AwsError("NotFoundException", TOPIC_MISSING)


def subscription_missing() -> AwsError:
    return AwsError("NotFoundException", SUBSCRIPTION_MISSING)


def sns_error(problem: PostroadError) -> AwsError | None:
    """None for an error that all services report alike."""
    detail = problem.detail or problem.title
    if isinstance(problem, TopicNotFound):
        return topic_missing()
    if isinstance(problem, SubscriptionNotFound):
        return subscription_missing()
    if isinstance(problem, FilterInvalid):
        return invalid(f"FilterPolicy: {detail}")
    if isinstance(problem, WebhookRefused):
        return invalid(f"Endpoint: {detail}")
    if isinstance(problem, QueueNotFound):
        return invalid(f"the queue does not exist: {detail}")
    if isinstance(problem, TooLarge):
        return invalid(f"Message too long: {detail}")
    if isinstance(problem, SchemaMismatch | SchemaTooSlow | IdempotencyMismatch | TopicFed):
        return invalid(detail)
    if isinstance(problem, RateLimited):
        return AwsError("ThrottledException", f"Rate exceeded: {detail}", 429, problem.retry_after)
    if isinstance(problem, Forbidden):
        return AwsError("AuthorizationErrorException", f"Not authorized: {detail}")
    if isinstance(problem, InvalidRequest | ConflictError):
        return invalid(detail)
    return None
