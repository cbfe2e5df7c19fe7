from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rewa import files


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    files.write_atomically(path, "old")
    assert path.read_text() == "old"
    files.write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"

    def full_disk(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(path), "replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        files.write_atomically(path, "half")
    assert path.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def umask():
    """A umask that leaves the group what many systems take from it."""
    previous = os.umask(0o002)
    yield
    os.umask(previous)


def private(path, content):
    """Write as libraries do that make their own temporary file: with mode 0600, whatever the umask."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)


def test_the_mode_is_that_of_the_umask_or_of_the_file_replaced(tmp_path, umask):
    path = tmp_path / "model"
    with files.replacing(path) as scratch:
        private(scratch, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    path.chmod(0o640)
    with files.replacing(path) as scratch:
        private(scratch, b"newer")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_bytes() == b"newer"


def test_a_symbolic_link_stays(tmp_path):
    (tmp_path / "store").mkdir()
    store, link, other = tmp_path / "store" / "v1", tmp_path / "latest", tmp_path / "lost"
    store.write_text("old")
    link.symlink_to(Path("store") / "v1")
    files.write_atomically(link, "new")
    assert link.is_symlink()
    assert store.read_text() == "new"
    (tmp_path / "next").symlink_to(Path("store") / "v2")  # a link to a file that is not there yet
    files.write_atomically(tmp_path / "next", "two")
    assert (tmp_path / "store" / "v2").read_text() == "two"
    other.symlink_to(Path("nowhere") / "v1")
    with pytest.raises(FileNotFoundError, match=r"a link into .*nowhere"):
        files.write_atomically(other, "x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["latest", "lost", "next", "store", "v1", "v2"]
