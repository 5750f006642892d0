import os
import stat
from pathlib import Path

from postroad.runtime.private_files import write_private


def test_a_private_file_is_restricted_to_its_owner_for_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "below" / "secret", "one")
    finally:
        os.umask(before)
    assert (tmp_path / "below" / "secret").read_text() == "one"
    assert stat.S_IMODE((tmp_path / "below" / "secret").stat().st_mode) == 0o600


def test_a_private_file_is_replaced_atomically_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("a longer text that was here before")
    path.chmod(0o644)
    with path.open() as reader:
        write_private(path, "new")
        assert reader.read() == "a longer text that was here before", (
            "a reader that has the old file open still reads the old text"
        )
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret"]  # noqa: PTH208
