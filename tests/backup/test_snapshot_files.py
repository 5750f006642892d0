"""Files of a backup: checksums and encryption."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.installation import BackupInvalid
from postroad.backup import snapshot_files
from postroad.backup.manifest import StreamFile
from postroad.backup.snapshot_files import BackupCipher, SnapshotWriter, read_chunks, verify_file
from tests.scratch import scratch_folder

PASSPHRASE = "a passphrase of the tests"


@pytest.fixture(scope="module")
def cipher() -> BackupCipher:
    return BackupCipher.create(PASSPHRASE)


def write(folder: Path, pieces: list[bytes], cipher: BackupCipher | None) -> StreamFile:
    writer = SnapshotWriter(folder / "file", "JOBS", cipher)
    for piece in pieces:
        writer.write(piece)
    checksum = writer.close()
    return StreamFile(
        name="JOBS", file="file", bytes=writer.bytes, sha256=checksum, messages=0, last_sequence=0, config={}, state={}
    )


@pytest.mark.parametrize("is_encrypted", [False, True])
@given(pieces=st.lists(st.binary(max_size=300), max_size=12))
def test_a_file_is_read_as_it_was_written(cipher: BackupCipher, is_encrypted: bool, pieces: list[bytes]) -> None:
    chosen = cipher if is_encrypted else None
    with pytest.MonkeyPatch.context() as patch:
        folder = scratch_folder()
        patch.setattr(snapshot_files, "_FRAME_BYTES", 256)
        stream = write(folder, pieces, chosen)
        verify_file(folder, stream)
        assert b"".join(read_chunks(folder, stream, chosen)) == b"".join(pieces)


def test_an_encrypted_file_does_not_show_its_content(tmp_path: Path, cipher: BackupCipher) -> None:
    write(tmp_path, [b"the secret of the customer" * 10], cipher)
    assert b"secret" not in (tmp_path / "file").read_bytes()


def test_a_damaged_or_missing_file_is_refused(tmp_path: Path) -> None:
    stream = write(tmp_path, [b"content"], None)
    (tmp_path / "file").write_bytes(b"c0ntent")
    with pytest.raises(BackupInvalid, match="damaged"):
        verify_file(tmp_path, stream)
    (tmp_path / "file").unlink()
    with pytest.raises(BackupInvalid, match="cannot be read"):
        verify_file(tmp_path, stream)


def test_a_truncated_or_altered_encrypted_file_is_refused(
    tmp_path: Path, cipher: BackupCipher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_files, "_FRAME_BYTES", 64)
    stream = write(tmp_path, [bytes(range(200))], cipher)
    whole = (tmp_path / "file").read_bytes()
    frame = 4 + 64 + 16
    for changed, expected in (
        (whole[: 2 * frame], "truncated"),
        (whole[: frame + 7], "cannot be decrypted"),
        (whole[frame : 2 * frame] + whole[:frame] + whole[2 * frame :], "cannot be decrypted"),
        (whole[:10] + b"\0" + whole[11:], "cannot be decrypted"),
        (whole + whole[:frame], "cannot be decrypted"),
    ):
        (tmp_path / "file").write_bytes(changed)
        with pytest.raises(BackupInvalid, match=expected):
            list(read_chunks(tmp_path, stream, cipher))


def test_another_passphrase_is_refused(cipher: BackupCipher) -> None:
    BackupCipher.open(PASSPHRASE, cipher.encryption)
    with pytest.raises(BackupInvalid, match="passphrase"):
        BackupCipher.open("another passphrase", cipher.encryption)
