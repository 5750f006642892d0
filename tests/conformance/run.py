"""The public Durable Streams suite and the official client against a Postroad of their own, on free ports and a fresh directory.

    python -m tests.conformance.run                    # what `make conformance` does, once scripts/setup-node has run
    python -m tests.conformance.run --url http://…     # against a server that is running already
    python -m tests.conformance.run --reference        # against the reference server: does the harness itself work?
    python -m tests.conformance.run -t "SSE Mode"      # what it does not know itself goes to vitest

Exits with the suite's status.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.reference import HERE, reference_server
from tests.installation import Installation
from tests.node import NODE

_SECONDS_MAX = 600
_LOG_LINES = 30


def run_suite(url: str, arguments: list[str]) -> int:
    env = {**os.environ, "CONFORMANCE_TEST_URL": url}
    if not sys.stdout.isatty():
        env["NO_COLOR"] = "1"
    vitest = [NODE, str(HERE / "node_modules" / "vitest" / "vitest.mjs"), "run", *arguments]
    return subprocess.run(vitest, cwd=HERE, env=env, check=False, timeout=_SECONDS_MAX).returncode


def run_on_postroad(arguments: list[str]) -> int:
    """Anonymous callers may use the default project's streams, and a page of the suite's origin; long polls are short, since some
    tests wait for their end."""
    with tempfile.TemporaryDirectory(prefix="postroad-conformance-") as folder:
        settings = {"POSTROAD_CORS_ORIGIN": "https://example.com", "POSTROAD_STREAM_LONG_POLL_SECONDS": "2"}
        running = Installation(Path(folder), "up", "--open", **settings)
        try:
            asyncio.run(running.start().ready(60))
            code = run_suite(running.url, arguments)
            log = running.log()
            if code or "ERROR" in log or "Traceback" in log:
                print("\n".join(["The end of Postroad's log:", *log.splitlines()[-_LOG_LINES:]]))
            return code
        finally:
            running.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that is running already")
    parser.add_argument("--reference", action="store_true", help="the reference server")
    chosen, arguments = parser.parse_known_args()
    if not (HERE / "node_modules").exists():
        raise SystemExit("the suite is not installed: sh scripts/setup-node")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended on this way out too
    if chosen.url:
        return run_suite(chosen.url, arguments)
    if chosen.reference:
        with reference_server(webhooks=True) as (url, _pid):
            return run_suite(url, arguments)
    return run_on_postroad(arguments)


if __name__ == "__main__":
    sys.exit(main())
