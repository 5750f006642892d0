"""Rules of the API that its OpenAPI document cannot express. Loaded by the process that `schemathesis_run` starts."""

import os
from typing import Any

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.openapi.checks import AllowHeaderMismatch, RejectedPositiveData, UnsupportedMethodResponse

Case = schemathesis.Case[Any]

_PROTECTED = frozenset(os.environ["POSTROAD_PROTECTED"].split(","))
_WAIT_MS = 20
_HEADERS_TOO_LARGE = 431  # a long text, percent-encoded; refused before there is a route

# Refusals of requests that are as described, by the problem's code: they depend on what is there, which no schema can say.
_STATE = {
    "receipt-invalid",  # a receipt is any text until it is opened
    "idempotency-mismatch",  # the same key came with another body
    "invite-ended",
    "filter-invalid",  # the grammar of content filters
    "webhook-refused",
    "revision-mismatch",
    "too-large",  # the tenant chose its own limit
    "command-invalid",  # a signature and a time in the window, which no generator can make
}
# And by a part of the problem's detail.
_MEANING = (
    "must have one of the forms",  # the resources are those of the route table, which grows
    "is in the past",
    "is a setting of deliveries, and not for",
    "is required for `",  # the target of a delivery type
    "is required with `startFrom",
    "is for `http_push` only",
    "is set by the delivery",
    "give `fromSequence` or `fromTime`",
    "send `fromSequence` or `fromTime`, not both",
    "the range has no messages",
    "a subject is tokens",
    "a pattern is tokens",
    "is reserved and not allowed in a subject",
    "a subject has at most",
    "can be tested; publish",
    "is after the year 9999",
    "is a word of the API",
    "differs from the header Idempotency-Key",
    "names that start with '_' are reserved",
    "names and values are over",  # bytes of all headers together
    "headers; at most",
    "at $.maxMessages",  # the tenant chose its own limits
    "at $.visibilityTimeoutMs",
    "this invite",
    "the tenant has no key",  # trusted keys
    "must be in the future",  # the end of a route or a grant
    "this stream id is not allowed",
    "a stream has either Stream-TTL or Stream-Expires-At",
    "send either `cron` or `everyMs`",
    "(at $.cron)",  # the grammar of cron expressions
    "is not a time zone of the IANA database",
    "the shortest interval is",  # the operator chose it
    "the schedule has no run",
    "must be sent together",  # the headers of a producer
    "need Stream-Forked-From",
    "needs Stream-Fork-Offset",
    "needs `offset`",  # what `live` does
    "is not the path of one of your streams",
    "is beyond the",  # end of the stream that is forked
    "cannot be forked from itself",
    "an empty array has no messages",
    "a dead letter has no delay",
    "not an offset",  # in `Last-Event-ID`, which counts in one kind of answer only
    "a stream id has",  # in a body
    "`from` must be before `to`",
    "must not be after `to`",
    "has at most",  # days by the minute or hour, streams, ancestors of a fork
    "not a cursor of this report",
    "the cursor was not returned by this",  # list or search
    "Last-Event-ID was not sent by this stream",
    "so many copies",  # as there are servers
    "cannot place the queue there",
    "(at $.backend)",  # fixed at creation, and one that is not configured
    "(at $.geo)",  # unknown, or with too few servers
    "(at $.maxBytes)",  # as much as the engine, or the tenant's quota, has left
    "the cursor is of a topic that was deleted",
    "the cursor is of a bucket that was deleted",
    "a key has 1 to",  # `_kv` at its start
    "the key is written twice",
    "no key can start with",
    "If-Match is a revision in quotes",
    "If-None-Match of a write is",
    "send If-Match or If-None-Match",
    "a `delete` has no value",
    "send either `value` or `valueB64`",
    "of a `value` is a JSON type",
    "send `ifRevision` or `ifAbsent`",
    "in a bucket with a `history` above 1",
    "the content type is not valid",
    "send either `payload` or `body_b64`",
    "is not base64",
    "is not JSON, and `datacontenttype` is",  # the data of an event
    "is a string; or send `data_base64`",
    "of a `payload` is a JSON type",
    "is not a header name",
    "has a control character, or a space at its start or end",
    "so many overlapping patterns cannot be counted",
    "a platform key has all scopes",
    "it is not one of a list with this order",  # a cursor
    "must be later than now and than the first delivery",
    "send `percent`, `note` or both",
    "a queue cannot be its own dead-letter queue",
    "there is no queue '",  # the dead-letter queue
    "there is no header '",  # that `headerTypes` has a type for
    "ms ahead",  # from now, of `runAt` and `expiresAt`
    "which excludes priorities",
    "excludes priorities, and the queue has had messages with a priority",
    "is not ordered",  # a queue, for `dedupeId`, `receiveId` and `maxPerGroup`
    "an ordered queue",  # has no delays, priorities and unique keys of messages
    "name both `target` and `command`",  # of a ban
    "watch: there is no section",
    "are for dead letters; use `selection`",  # of a replay
    "is for the archive; use `queue`",
    "give `from` or `ids`",
    "name the queue of the dead letters",
    "the sender must be a service of the tenant",
    "channel needs",  # an address or a URL
    "there is no alert channel",
    "no event that raises alerts has a type like",
    "must be <service> or <tenant>/<service>",
    "no event of the queue `_telemetry` has a type like",
    "the limit of this installation is",  # of load tests: the operator chose it
    "must be 0 with a queue of your own",
)


@schemathesis.hook
def filter_case(context: Any, case: Case) -> bool:
    """The run must not delete its own key and tenant."""
    given = (case.path_parameters or {}).items()
    return _PROTECTED.isdisjoint(str(value) for name, value in given if name != "project")  # which only says whose the rest is


@schemathesis.hook
def map_case(context: Any, case: Case) -> Case:
    case.body = _as_clients_write(case.body)
    if isinstance(case.body, dict) and isinstance(wait := case.body.get("waitMs"), int) and _WAIT_MS < wait <= 60_000:
        case.body["waitMs"] = _WAIT_MS
    return case


def _as_clients_write(value: Any) -> Any:
    """In JSON Schema 5.0 is an integer, in the API it is not: clients do not write integers so."""
    if isinstance(value, dict):
        return {name: _as_clients_write(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_clients_write(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def filter_failure(context: Any, failure: Failure, case: Case, response: schemathesis.Response) -> bool:
    if response.status_code == _HEADERS_TOO_LARGE:
        return False
    if isinstance(failure, AcceptedNegativeData):
        if case.operation.path.endswith("/pull") and not response.request.body:  # an invalid body that was not sent
            return False
        if "Invalid component: positive test case" in failure.message:  # a raw body, which cannot be invalid
            return False
        # A wrong X-Postroad-Tenant, which the run's own has taken the place of, alone or among headers that are right.
        return not any(part in failure.message for part in ("component: in header - ", "parameter `X-Postroad-Tenant` in header"))
    if isinstance(failure, AllowHeaderMismatch | UnsupportedMethodResponse):
        return not _is_aws_protocol(failure, case)
    if not isinstance(failure, RejectedPositiveData):
        return True
    problem = response.json()
    if problem.get("error", {}).get("code") == "INVALID_REQUEST":  # the streams protocol has rules of its own for these bodies
        return False
    return problem["code"] not in _STATE and not any(part in problem["detail"] for part in _MEANING)


def _is_aws_protocol(failure: AllowHeaderMismatch | UnsupportedMethodResponse, case: Case) -> bool:
    """True for POST of `/`, which is the AWS protocol and by design not described: tests/aws has it."""
    if case.operation.path != "/":
        return False
    if isinstance(failure, AllowHeaderMismatch):
        return not failure.missing_methods and [one.upper() for one in failure.undocumented_methods] == ["POST"]
    return failure.method == "POST" and failure.status_code == 400  # no `Action`
