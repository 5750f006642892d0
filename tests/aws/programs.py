"""Programs that use the AWS protocols, run as processes of their own."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.aws.clients import REGION, AwsTenant

ROOT = Path(__file__).parent.parent.parent
JAVASCRIPT = Path(__file__).parent / "javascript"
QUERY_SDK = Path(__file__).parent / "query_sdk"


def environment(aws: AwsTenant) -> dict[str, str]:
    """The variables that SDKs and the AWS CLI read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "POSTROAD_"))}
    return kept | {
        "AWS_ENDPOINT_URL": aws.gateway.url,
        "AWS_ACCESS_KEY_ID": aws.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": aws.credentials.secret_access_key,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_PAGER": "",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
    }


async def run(command: list[str], variables: dict[str, str]) -> str:
    """What the program prints. AssertionError with its errors if it fails."""

    def call() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, check=False)

    done = await asyncio.to_thread(call)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


async def run_javascript(aws: AwsTenant, script: str, **more: str) -> dict[str, Any]:
    """The JSON that a script of `javascript/` prints. Installs its locked packages first."""
    await run(["sh", str(ROOT / "scripts" / "setup-node"), "tests/aws/javascript"], dict(os.environ))
    node = str(Path(sys.executable).parent / "node")
    printed: dict[str, Any] = json.loads(await run([node, str(JAVASCRIPT / script)], environment(aws) | more))
    return printed


async def run_old_boto3(aws: AwsTenant, folder: Path) -> dict[str, Any]:
    """The JSON that `query_sdk/calls.py` prints with the packages of its own requirements, installed into `folder`."""
    wanted = str(QUERY_SDK / "requirements.txt")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "--target", str(folder)]
    await run([*install, "-r", wanted], dict(os.environ))
    variables = environment(aws) | {"PYTHONPATH": str(folder)}
    printed: dict[str, Any] = json.loads(await run([sys.executable, str(QUERY_SDK / "calls.py")], variables))
    return printed


async def aws_cli(aws: AwsTenant, *arguments: str) -> Any:
    """The JSON that a call of the AWS CLI prints, None if it prints nothing."""
    command = [
        sys.executable,
        str(Path(sys.executable).parent / "aws"),
        *arguments,
        "--output",
        "json",
        "--endpoint-url",
        aws.gateway.url,
    ]
    printed = await run(command, environment(aws))
    return json.loads(printed) if printed.strip() else None
