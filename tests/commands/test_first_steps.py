"""The first steps of docs/commands.md work as they are written there."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.gateway import Tenant

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def blocks(language: str) -> list[str]:
    """The code of the section, in order."""
    section = PAGE.read_text().partition("## Five minutes")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


async def run(tenant: Tenant, home: Path, *command: str) -> str:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "POSTROAD_URL": tenant.client.url,
        "POSTROAD_KEY": tenant.key,
    }
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=home, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.timeout(300)
async def test_the_first_command_is_sent_and_pulled_as_the_page_says(tenant: Tenant, tmp_path: Path) -> None:
    """Requirements 2, 165, 167: with one key and nothing to provision."""
    steps = next(one for one in blocks("sh") if "services put" in one)
    output = await run(tenant, tmp_path, "sh", "-euc", steps)
    assert '{"text":"hi"}' in output.splitlines()[-1]
    sender = next(one for one in blocks("python") if "commands.send" in one)
    await run(tenant, tmp_path, sys.executable, "-c", sender)
    assert (await tenant.stats("/v1/queues/bot-commands"))["ready"] == 1
