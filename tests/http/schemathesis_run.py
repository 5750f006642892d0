"""schemathesis over the whole API: requests made from its OpenAPI description, right ones and wrong ones, to a gateway on an
engine of its own; every answer is held against the description. First with a tenant's key, then with the platform's.

    python -m tests.http.schemathesis_run --examples 500      # by hand, longer and with other examples each time
"""

import argparse
import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from postroad.container import Role
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server

_HOOKS = Path(__file__).with_name("schemathesis_hooks.py")

_CONFIG = """
hooks = "{hooks}"
continue-on-failure = true
request-timeout = 15
headers = {{ Authorization = "Bearer {key}" }}
warnings = false

[parameters]
"header.X-Postroad-Tenant" = "{tenant}"     # any other is 403 or 404, whatever else is right about the request
"path.queue" = {{ dictionary = "queues", probability = 0.6 }}
"path.topic" = {{ dictionary = "topics", probability = 0.6 }}
"path.bucket" = {{ dictionary = "buckets", probability = 0.6 }}
"path.bucket_key" = {{ dictionary = "bucket_keys", probability = 0.6 }}
"path.service" = {{ dictionary = "services", probability = 0.6 }}
"path.command" = {{ dictionary = "commands", probability = 0.6 }}
"path.source" = {{ dictionary = "sources", probability = 0.6 }}
"header.X-Postroad-Service" = "sender"      # with any other it is 403
"path.key" = {{ dictionary = "keys", probability = 0.6 }}
"path.secret" = {{ dictionary = "secrets", probability = 0.6 }}
"path.tenant" = {{ dictionary = "tenants", probability = 0.6 }}
"path.invite" = {{ dictionary = "invites", probability = 0.6 }}
"path.stream" = {{ dictionary = "streams", probability = 0.6 }}
"path.project" = "{tenant}"

[dictionaries]                              # what is there, so that not everything is 404
queues = {{ values = ["orders", "few"] }}
topics = {{ values = ["events", "full"] }}
buckets = {{ values = ["cart", "small"] }}
services = {{ values = ["sender", "bot"] }}
commands = {{ values = ["post"] }}
sources = {{ values = ["sender", "other/*"] }}
bucket_keys = {{ values = ["a.b", "c/d"] }}
keys = {{ values = ["{a_key}"] }}
secrets = {{ values = ["{a_secret}"] }}
tenants = {{ values = ["{a_tenant}"] }}
invites = {{ values = ["{an_invite}"] }}
streams = {{ values = ["notes/json", "notes/text", "notes/closed"] }}

[phases]                                    # ids from answers are new each time, and so would be the requests
coverage.extra-data-sources.responses = {from_answers}
fuzzing.extra-data-sources.responses = {from_answers}

[checks]
# A queue at its limit answers 507, as described. Other answers from 500 on are faults.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "507"]
# A media type that a route does not take is 415, a path with a slash or nothing in it another path or none.
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "413", "415", "422"]
# It sends the request once more without the key, but takes the headers above along. tests/access/test_matrix.py asks that.
ignored_auth.enabled = false

[[operations]]
include-operation-id = "stream"             # its answer does not end: tests/telemetry/test_routes.py has it
enabled = false

[[operations]]
include-operation-id = "watch_bucket"       # nor does this: tests/buckets/test_watching.py has it
enabled = false

[[operations]]
include-operation-id = "follow_topic"       # likewise: tests/topics/test_live.py
enabled = false

[[operations]]
include-operation-id = "follow_subscription"  # likewise: tests/subscriptions/test_live.py
enabled = false

[[operations]]
include-operation-id = "open_live_socket"   # a WebSocket: a plain request is 426. tests/topics/test_live_socket.py has it
enabled = false

[[operations]]
include-operation-id = "open_subscription_socket"  # likewise: tests/subscriptions/test_live.py
enabled = false
"""


# The operations of a tenant in parts, each of which ends within minutes on a busy machine: regular expressions of their paths.
OTHERS = "others"
PARTS = {
    "queues": r"^/v1/(queues|jobs|tasks)",
    "streams": r"^/v1/(stream|\{project\})",
    "topics": r"^/v1/(topics|buckets)",
    "triggers": r"^/v1/(subscriptions|schedules)",
    "commands": r"^/v1/(commands|services|routes|grants|bans|quotas|registry|tenant-config)",
    OTHERS: "",
}

_CLOSED = {"Stream-Closed": "true"}
# Live answers end at once, so that they can be held against the description too; load tests are small.
SETTINGS = {"stream_long_poll_seconds": 0.05, "stream_sse_seconds": 0.05, "loadtest_seconds_max": 10, "loadtest_rate_max": 20}


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    output: str


async def schemathesis(gateway: Gateway, *, is_platform: bool, examples: int, is_same_each_time: bool, part: str = "") -> Outcome:
    """`part`: one of `PARTS`, of the operations of a tenant; all of them if it is empty."""
    tenant = await gateway.tenant(auto_create_queues=True)
    key = gateway.admin_key if is_platform else tenant.key
    platforms = "/x-postroad-scope == platform"
    chosen = ["--include-by", platforms, "--include-tag", "Keys"] if is_platform else ["--exclude-by", platforms]
    excluded = list[str]()
    if is_same_each_time:  # the short run: `test_routing` says that these are as those without a project
        excluded.append(r"^/v1/\{project\}/stream/")
    if part == OTHERS:
        excluded += [one for one in PARTS.values() if one]
    elif part:
        chosen += ["--include-path-regex", PARTS[part]]
    if excluded:
        chosen += ["--exclude-path-regex", "|".join(excluded)]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        from_answers = "false" if is_same_each_time else "true"
        things = await _resources(gateway, tenant)
        config.write_text(_CONFIG.format(hooks=_HOOKS, key=key, tenant=tenant.id, from_answers=from_answers, **things))
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / "schemathesis"),
            *("--config-file", str(config), "run", f"{gateway.url}/openapi.json", "--no-color", "--output-sanitize", "false"),
            *("--phases", "coverage,fuzzing", "--max-examples", str(examples)),
            *(("--generation-deterministic",) if is_same_each_time else ("--generation-database", "none")),
            *chosen,
            cwd=folder,  # where it leaves what it wants to remember
            env={
                **os.environ,
                "POSTROAD_PROTECTED": f"{key[len('pr_admin_' if is_platform else 'pr_live_') :][:16]},{tenant.id}",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode is not None
    return Outcome(process.returncode, output.decode())


async def _resources(gateway: Gateway, tenant: Tenant) -> dict[str, str]:
    """One resource of each kind, by its name in the configuration."""
    for name, settings in (("orders", {}), ("few", {"maxMessages": 1})):
        await tenant.publish(await tenant.queue(name, **settings), {"a": 1})
    for name, limits in (("events", {}), ("full", {"maxMessages": 1, "onFull": "refuse"})):
        (await tenant.client.put(f"/v1/topics/{name}", limits)).ok(201)
        (await tenant.client.post(f"/v1/topics/{name}/messages", {"subject": "a.b", "payload": 1})).ok(201)
    for name, more in (("cart", {"history": 3}), ("small", {"maxValueBytes": 10})):
        (await tenant.client.post("/v1/buckets", {"name": name, **more})).ok(201)
        (await tenant.client.put(f"/v1/buckets/{name}/keys/a.b", 1)).ok()
    for name, media, headers in (("json", "application/json", {}), ("text", "text/plain", {}), ("closed", "text/plain", _CLOSED)):
        headers = {"Content-Type": media, **headers}
        (await tenant.client.call("PUT", f"/v1/stream/notes/{name}", headers=headers, data=b'"a"')).ok(201)
    (await tenant.client.put("/v1/services/sender", {"trustedKeys": [tenant.record.id]})).ok(201)
    (await tenant.client.put("/v1/services/bot", {})).ok(201)
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "orders"})).ok(201)
    (await tenant.client.put("/v1/grants/bot/post/sender", {})).ok(201)
    secret = (await tenant.client.post("/api/control/jwt-secrets", {"name": "one"})).ok(201)
    invite = (await gateway.admin.post("/api/control/invites", {})).ok(201)
    return {
        "a_key": (await tenant.another_key()).record.id,
        "a_secret": secret["record"]["id"],
        "a_tenant": (await gateway.tenant()).id,
        "an_invite": invite["invite"]["id"],
    }


async def _main(examples: int) -> int:
    codes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(EmbeddedServerSettings(Path(folder)))
        try:
            async with running_gateway(gateway_settings(server.start().url, **SETTINGS), Role.ALL) as gateway:
                for is_platform in (False, True):
                    outcome = await schemathesis(gateway, is_platform=is_platform, examples=examples, is_same_each_time=False)
                    print(outcome.output)
                    codes.append(outcome.code)
        finally:
            server.stop()
    return max(codes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="requests per operation, beside those that cover its schemas")
    sys.exit(asyncio.run(_main(parser.parse_args().examples)))
