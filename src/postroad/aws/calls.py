"""One call of an AWS operation, and the declaration of operations that are served."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from postroad.aws.authentication import Identity
from postroad.aws.errors import AwsError
from postroad.aws.model import Operation, Values
from postroad.http.request import Request
from postroad.http.routing import Route
from postroad.kernel.context import RequestContext
from postroad.kernel.identity import RouteRequirement, Scope


@dataclass(frozen=True, slots=True)
class Call:
    """A call, authenticated and authorized. `queue`, `topic` and `subscription` are what it is for, else empty.

    `is_signed` is false for the few calls of SNS that need no credential, but a token.
    """

    request: Request
    context: RequestContext
    values: Values
    queue: str
    identity: Identity
    account: str
    base_url: str
    topic: str = ""
    subscription: str = ""
    is_signed: bool = True
    request_form: Mapping[str, str] = field(default_factory=dict)

    @property
    def region(self) -> str:
        return self.identity.region

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def queue_url(self, name: str) -> str:
        return f"{self.base_url}/{self.account}/{name}"

    def integer(self, name: str, low: int, high: int, reason: str) -> int | None:
        """An integer of the input within its range. Raises AwsError."""
        value = self.values.get(name)
        if value is not None and not low <= value <= high:
            raise AwsError("InvalidParameterValue", f"Value {value} for parameter {name} is invalid. Reason: {reason}")
        return None if value is None else int(value)


Run = Callable[[Call], Awaitable[Values | None]]
OnResult = Callable[[Values | Exception | None], None]
StartCall = Callable[[OnResult], None]
Prepare = Callable[[Call], StartCall | None]


@dataclass(frozen=True, slots=True)
class Action:
    """A served operation. `route` has what authorization needs: the scope of the equivalent native operation. The dispatcher
    checks the restrictions of the key: queues and topics outside do not exist.

    `arn`: the parameter with the ARN of a topic or subscription; `name`: that with the name or ARN of what the call is for, which
    the policy of a session is compared with. `allows_unsigned`: a token may replace the signature.

    `prepare` serves ordinary calls without a task, as that of a `Route`: it has no effect, and returns None, or raises, for a
    call that `run` must serve. What it returns calls `OnResult` once, later.
    """

    operation: Operation
    run: Run
    route: Route
    has_queue: bool
    arn: str = ""
    allows_unsigned: bool = False
    name: str = ""
    prepare: Prepare | None = None


def action(
    operation: Operation,
    run: Run,
    scope: Scope | RouteRequirement,
    *,
    allows_admin: bool = False,
    has_queue: bool = True,
    arn: str = "",
    allows_unsigned: bool = False,
    name: str = "",
    prepare: Prepare | None = None,
) -> Action:
    route = Route(
        "POST",
        f"/aws/{operation.model.service}/{operation.name}",
        _unused,
        scope,
        operation.name,
        "AWS",
        action=operation.label,
        allows_admin=allows_admin,
    )
    return Action(operation, run, route, has_queue, arn, allows_unsigned, name, prepare)


async def _unused(_request: Request) -> Any:
    raise TypeError("the dispatcher runs the operation")


def check_required(operation: Operation, values: Values) -> None:
    """Raises AwsError."""
    if operation.input is None:
        return
    shape = operation.model.shapes[operation.input]
    missing = next((name for name in shape.required if name not in values), None)
    if missing is not None:
        raise AwsError("MissingParameter", f"The request must contain the parameter {missing}.")
