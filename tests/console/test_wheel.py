"""The wheel includes the built web console."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from postroad.console.static_files import FOLDER, INDEX
from tests.architecture.source import ROOT

pytestmark = pytest.mark.browser  # needs the built console


def test_the_wheel_includes_the_console_and_its_licences(tmp_path: Path) -> None:
    subprocess.run(["sh", "scripts/build-wheel", str(tmp_path)], cwd=ROOT, check=True)
    [wheel] = tmp_path.glob("postroad-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        built = {f"postroad/console/static/{path.relative_to(FOLDER)}" for path in FOLDER.rglob("*") if path.is_file()}
        assert {name for name in built if not Path(name).name.startswith(".")} <= names
        assert archive.read(f"postroad/console/static/{INDEX}") == (FOLDER / INDEX).read_bytes()
        assert b"svelte" in archive.read("postroad/console/static/THIRD_PARTY_LICENSES.txt")
