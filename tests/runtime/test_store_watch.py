"""Detection of writes that the embedded server could not make."""

from pathlib import Path

import pytest

from postroad.runtime import store_watch
from postroad.runtime.embedded_server import default_store_bytes
from postroad.runtime.store_watch import DiskFailure


def _has_failed(failure: DiskFailure) -> bool:
    failure.check()
    return failure.has_failed


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "nats.log"
    path.write_text("[ERR] write x.blk: no space left on device, of an earlier start\n")
    return path


def test_a_failed_write_in_the_log_is_found_once(tmp_path: Path, log_file: Path) -> None:
    failure = DiskFailure(tmp_path, log_file)
    assert not _has_failed(failure)
    assert failure.free_bytes > 0
    with log_file.open("a") as opened:
        opened.write("[ERR] write x.blk: no space left on device\n")
    assert _has_failed(failure)
    failure.has_failed = False
    assert not _has_failed(failure)


def test_a_rotated_log_is_read_from_its_start(tmp_path: Path, log_file: Path) -> None:
    failure = DiskFailure(tmp_path, log_file)
    log_file.write_text("[ERR] no space left on device\n")
    assert _has_failed(failure)


def test_a_disk_without_space_counts_as_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = DiskFailure(tmp_path, tmp_path / "missing.log")
    monkeypatch.setattr(store_watch, "_FULL_BYTES", 1 << 60)
    assert _has_failed(failure)


def test_the_default_size_of_a_store_does_not_shrink_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stream").mkdir()
    (tmp_path / "stream" / "1.blk").write_bytes(b"x" * 4000)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 6000})())
    assert default_store_bytes(tmp_path) == 7500
