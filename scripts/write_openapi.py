"""Write the OpenAPI document of the route table to a file, for the types of clients in TypeScript.

Without a server, without the twins `…/projects/{project}/…`, and without the CloudEvents that some routes take and return, too:
these clients ask for JSON. With `--successes` operations have no error responses: clients throw them as problems. The file
is left alone if it is the same.
"""

import sys
from pathlib import Path
from typing import Any

from postroad.container import openapi
from postroad.kernel.json import encode

_JSON = "application/json"


def without_cloudevents(part: Any) -> Any:
    """The part of a document with the JSON of each body and response only, if CloudEvents are another form of it."""
    if isinstance(part, list):
        return [without_cloudevents(one) for one in part]
    if not isinstance(part, dict):
        return part
    content = part.get("content")
    if isinstance(content, dict) and _JSON in content and any("cloudevents" in name for name in content):
        part = {**part, "content": {_JSON: content[_JSON]}}
    return {name: without_cloudevents(value) for name, value in part.items()}


if __name__ == "__main__":
    document = openapi()
    paths = document["paths"]
    document["paths"] = {
        path: without_cloudevents(paths[path])
        for path in paths
        if path.replace("/{project}", "") == path or path.replace("/{project}", "") not in paths
    }
    if "--successes" in sys.argv:
        for methods in document["paths"].values():
            for operation in methods.values():
                if isinstance(operation, dict) and "responses" in operation:
                    kept = {status: response for status, response in operation["responses"].items() if status < "4"}
                    operation["responses"] = kept
    target, content = Path(sys.argv[1]), encode(document)
    if not target.exists() or target.read_bytes() != content:
        target.write_bytes(content)
