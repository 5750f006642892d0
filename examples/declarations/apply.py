"""Keep the resources of a tenant in a file: apply it, find a change that was made by hand, undo it, and remove what the file has
no more. The console's page *Manifests* shows what a name has created.

POSTROAD_KEY=… python examples/declarations/apply.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from postroad.client import Postroad

FILE = Path(__file__).with_name("shop.yaml")
DRIFT = 6  # exit code of `postroad diff` if the server differs


def postroad(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "postroad", *arguments], stdout=subprocess.DEVNULL, check=False).returncode


def main() -> None:
    with Postroad() as client, tempfile.TemporaryDirectory() as folder:
        print("applied:", postroad("apply", "-f", str(FILE), "--yes") == 0)
        print("the server is as the file says:", postroad("diff", "-f", str(FILE)) == 0)
        client.queues.update("example-shop-orders", max_attempts=9)
        print("changed by hand:", postroad("diff", "-f", str(FILE)) == DRIFT)
        postroad("apply", "-f", str(FILE), "--yes")
        print("attempts after the next apply:", client.queues.get("example-shop-orders").settings.max_attempts)
        print("resources of the manifest:", len(client.manifests.get("example-shop").resources))
        empty = Path(folder, "shop.yaml")
        empty.write_text("name: example-shop\n")
        postroad("apply", "-f", str(empty), "--prune", "--yes")
        print("resources after an apply of an empty file with --prune:", len(client.manifests.get("example-shop").resources))


if __name__ == "__main__":
    main()
