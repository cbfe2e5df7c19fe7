from __future__ import annotations

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
