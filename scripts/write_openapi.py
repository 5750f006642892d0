"""Write the OpenAPI document of the route table to a file, without a server and without the twins `…/projects/{project}/…`.

The file is left alone if it is the same.
"""

import sys
from pathlib import Path

from postroad.container import openapi
from postroad.kernel.json import encode

if __name__ == "__main__":
    document = openapi()
    paths = document["paths"]
    document["paths"] = {
        path: paths[path]
        for path in paths
        if path.replace("/{project}", "") == path or path.replace("/{project}", "") not in paths
    }
    target, content = Path(sys.argv[1]), encode(document)
    if not target.exists() or target.read_bytes() != content:
        target.write_bytes(content)
