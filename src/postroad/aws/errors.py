"""Errors as AWS reports them, and Postroad's errors in these terms."""

from dataclasses import dataclass

from postroad.api.queues import (
    AlreadySettled,
    JobWasCancelled,
    LeaseExpired,
    QueueNotFound,
    ReceiptInvalid,
    SchemaMismatch,
    SchemaTooSlow,
)
from postroad.aws.model import ServiceModel
from postroad.kernel.errors import (
    BodyTooSlow,
    Draining,
    EngineFull,
    Forbidden,
    InvalidRequest,
    Overloaded,
    PostroadError,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

QUEUE_MISSING = "The specified queue does not exist."


class AwsError(Exception):
    """An error with the code of AWS: the name of an error shape of the service, or a common code."""

    def __init__(self, code: str, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.status, self.retry_after = code, message, status, retry_after


@dataclass(frozen=True, slots=True)
class ErrorView:
    """An error as a response shows it: `shape` in the JSON protocol, `code` in the query protocol."""

    shape: str
    code: str
    message: str
    status: int
    is_modelled: bool
    retry_after: float | None = None

    @property
    def fault(self) -> str:
        return "Sender" if self.status < 500 else "Receiver"


_STATUSES = {
    "AccessDenied": 403,
    "InvalidClientTokenId": 403,
    "MissingAuthenticationToken": 403,
    "OptInRequired": 403,
    "SignatureDoesNotMatch": 403,
    "ExpiredToken": 403,
    "RequestExpired": 400,
    "ServiceUnavailable": 503,
    "InternalFailure": 500,
    "RequestThrottled": 429,
    "InvalidAction": 400,
    "InvalidAddress": 404,
    "OverLimit": 507,
}


def status_of(code: str, model: ServiceModel | None) -> int:
    """The status that an error is sent with, unless it was raised with another one."""
    known = model.errors.get(code) if model is not None else None
    return _STATUSES.get(code) or (known[1] if known else 400)


def view_of(error: AwsError, model: ServiceModel | None) -> ErrorView:
    known = model.errors.get(error.code) if model is not None else None
    message = error.message.encode("utf-8", "backslashreplace").decode()  # it may quote half a surrogate pair of the request
    status = error.status or status_of(error.code, model)
    return ErrorView(error.code, known[0] if known else error.code, message, status, known is not None, error.retry_after)


def aws_error(problem: PostroadError) -> AwsError:
    """The error of AWS for one of Postroad's. An outcome that is not known is 503, which clients repeat."""
    detail = problem.detail or problem.title
    if isinstance(problem, QueueNotFound):
        return AwsError("QueueDoesNotExist", QUEUE_MISSING)
    if isinstance(problem, ReceiptInvalid):
        return AwsError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
    if isinstance(problem, LeaseExpired | AlreadySettled | JobWasCancelled):
        return AwsError("MessageNotInflight", f"The message is not in flight: {detail}")
    if isinstance(problem, RateLimited):
        return AwsError("RequestThrottled", f"Rate exceeded: {detail}", retry_after=problem.retry_after)
    if isinstance(problem, Unauthenticated):
        return AwsError("InvalidClientTokenId", "The security token included in the request is invalid.")
    if isinstance(problem, Forbidden):
        return AwsError("AccessDenied", f"Access to the resource is denied: {detail}")
    if isinstance(problem, BodyTooSlow):
        return AwsError("RequestTimeout", detail, 408)  # a code that the SDKs repeat
    if isinstance(problem, TooLarge):
        return AwsError("RequestEntityTooLarge", detail, 413)
    if isinstance(problem, SchemaMismatch | SchemaTooSlow):
        return AwsError("InvalidParameterValue", f"The message does not match the schema of the queue: {detail}")
    if isinstance(problem, EngineFull):
        return AwsError("OverLimit", detail, problem.status, problem.retry_after)
    if isinstance(problem, Overloaded | Draining | Unavailable):
        return AwsError("ServiceUnavailable", detail, 503, problem.retry_after)
    if isinstance(problem, InvalidRequest):
        return AwsError("InvalidParameterValue", detail, 400)
    if problem.status >= 500:
        return AwsError("InternalFailure", "The request failed because of an internal error.", 500)
    return AwsError("InvalidParameterValue", detail)
