"""Where group sync is the default: on ext4 whose journal orders data before metadata."""

from pathlib import Path

import pytest
from tests.faults.loop_disk import loop_disk

from postroad.jetstream import kernel_aio
from postroad.runtime import sync_mode
from postroad.runtime.sync_mode import Filesystem, choose_sync, filesystem_of, objection

OPTIONS = frozenset({"rw", "barrier", "auto_da_alloc", "data=ordered"})
SAFE = Filesystem("ext4", OPTIONS, has_journal=True)


@pytest.mark.parametrize(
    ("filesystem", "reason"),
    [
        (Filesystem("xfs"), "xfs"),
        (Filesystem(), "unknown"),
        (Filesystem("ext4", OPTIONS - {"data=ordered"}, has_journal=False), "no journal"),
        (Filesystem("ext4", OPTIONS - {"data=ordered"} | {"data=writeback"}, has_journal=True), "data=ordered"),
        (Filesystem("ext4", OPTIONS - {"barrier"}, has_journal=True), "without barrier"),
        (Filesystem("ext4", OPTIONS - {"auto_da_alloc"}, has_journal=True), "without auto_da_alloc"),
    ],
)
def test_a_filesystem_that_was_not_proven_to_be_safe_is_objected_to(filesystem: Filesystem, reason: str) -> None:
    assert reason in (objection(filesystem) or "")


def test_ext4_with_a_journal_is_safe() -> None:
    assert objection(SAFE) is None
    assert objection(Filesystem("ext4", OPTIONS - {"data=ordered"} | {"data=journal"}, has_journal=True)) is None


@pytest.mark.parametrize(
    ("chosen", "filesystem", "is_supported", "result"),
    [
        ("auto", SAFE, True, "group"),
        ("auto", SAFE, False, "always"),
        ("auto", Filesystem("btrfs"), True, "always"),
        ("group", Filesystem("btrfs"), True, "group"),
        ("group", SAFE, False, "always"),
        ("always", SAFE, True, "always"),
        ("2s", SAFE, True, "2s"),
    ],
)
def test_the_choice(
    chosen: str, filesystem: Filesystem, is_supported: bool, result: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sync_mode, "filesystem_of", lambda _directory: filesystem)
    monkeypatch.setattr(kernel_aio, "is_supported", lambda: is_supported)

    assert choose_sync(chosen, tmp_path) == result


def test_the_options_are_those_of_the_mounted_device(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{device >> 8 & 0xFFF}:{device & 0xFF}"
    proc, sys_dir = tmp_path / "proc", tmp_path / "sys"
    (sys_dir / "dev" / "block").mkdir(parents=True)
    (sys_dir / "devices" / "sda1").mkdir(parents=True)
    (sys_dir / "dev" / "block" / number).symlink_to(sys_dir / "devices" / "sda1")
    (proc / "fs" / "ext4" / "sda1").mkdir(parents=True)
    (proc / "fs" / "ext4" / "sda1" / "options").write_text("\n".join(sorted(OPTIONS)) + "\n")
    (proc / "fs" / "jbd2" / "sda1-8").mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "self" / "mountinfo").write_text(
        f"20 1 0:19 / /proc rw - proc proc rw\n26 1 {number} / / rw,relatime shared:1 - ext4 /dev/root rw\n"
    )

    assert objection(filesystem_of(tmp_path, proc, sys_dir)) is None
    (proc / "self" / "mountinfo").write_text(f"26 1 {number} / / rw - xfs /dev/root rw\n")
    assert filesystem_of(tmp_path, proc, sys_dir).kind == "xfs"
    (proc / "self" / "mountinfo").unlink()
    assert filesystem_of(tmp_path, proc, sys_dir) == Filesystem()


@pytest.mark.slow
def test_a_real_ext4_with_a_journal_is_recognized(tmp_path: Path) -> None:
    with loop_disk(tmp_path, 64) as disk:
        assert objection(filesystem_of(disk.folder)) is None
