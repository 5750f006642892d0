"""The built console: `static/`, which `make console` writes, with a compressed copy of each file."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"

_MEDIA = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file. `compressed` is empty if there is no compressed copy."""

    content: bytes
    compressed: bytes
    media: bytes
    etag: bytes


def load(folder: Path = FOLDER) -> Mapping[str, StaticFile]:
    """All files by their path in the folder; none if the console is not built."""
    if not (folder / INDEX).is_file():
        return {}
    paths = [path for path in folder.rglob("*") if path.suffix in _MEDIA and path.is_file()]
    return {path.relative_to(folder).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> StaticFile:
    content, compressed = path.read_bytes(), path.with_name(path.name + ".gz")
    tag = urlsafe_b64encode(sha256(content).digest()[:15])
    return StaticFile(content, compressed.read_bytes() if compressed.is_file() else b"", _MEDIA[path.suffix], b'"%b"' % tag)
