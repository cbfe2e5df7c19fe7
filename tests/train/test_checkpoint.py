from __future__ import annotations

import errno
import json
import resource
import signal

import pytest
import torch

from rewa.train import checkpoint


def state(number):
    model = {"weight": torch.full((4, 3), float(number)), "count": torch.tensor(number)}
    return model, {"step": number, "optimizer": {"state": {0: {"buffer": torch.arange(3.0) * number}}}, "rows": [{"loss": 0.5}]}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path):
    model, rest = state(7)
    checkpoint.save(tmp_path, 7, model, rest)
    found = checkpoint.load_latest(tmp_path)
    assert found.step == 7
    assert all(torch.equal(found.model[name], model[name]) for name in model)
    assert torch.equal(found.state["optimizer"]["state"][0]["buffer"], torch.arange(3.0) * 7)
    assert found.state["rows"] == [{"loss": 0.5}]


def test_the_two_newest_are_kept(tmp_path):
    for number in (1, 2, 3, 10):
        checkpoint.save(tmp_path, number, *state(number))
    assert names(tmp_path) == ["step-00000003", "step-00000010"]
    assert checkpoint.load_latest(tmp_path).step == 10


def test_there_may_be_none(tmp_path):
    assert checkpoint.load_latest(tmp_path / "missing") is None
    assert checkpoint.load_latest(tmp_path) is None


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "sums.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_checkpoint_is_put_aside_for_the_one_before(tmp_path, name, damage):
    for number in (1, 2):
        checkpoint.save(tmp_path, number, *state(number))
    file = tmp_path / "step-00000002" / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="step-00000002 is damaged"):
        found = checkpoint.load_latest(tmp_path)
    assert found.step == 1
    assert "damaged-step-00000002" in names(tmp_path)
    checkpoint.save(tmp_path, 2, *state(2))
    assert checkpoint.load_latest(tmp_path).step == 2


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    checkpoint.save(tmp_path, 1, *state(1))
    checkpoint.save(tmp_path, 2, *state(2))
    folder = tmp_path / "step-00000002"
    torch.save({"attack": pytest.fail}, folder / "state.pt")
    sums = {name: checkpoint._sum(folder / name) for name in checkpoint.FILES}
    (folder / "sums.json").write_text(json.dumps(sums))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert checkpoint.load_latest(tmp_path).step == 1


def test_what_a_killed_process_left_is_no_checkpoint(tmp_path):
    checkpoint.save(tmp_path, 1, *state(1))
    (tmp_path / ".step-00000002.4711").mkdir()
    (tmp_path / ".step-00000002.4711" / "model.safetensors").write_bytes(b"half of it")
    assert checkpoint.load_latest(tmp_path).step == 1
    assert names(tmp_path) == ["step-00000001"]


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    checkpoint.save(tmp_path, 1, *state(1))
    big = {"weight": torch.ones(100_000)}
    previous, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, previous[1]))
        with pytest.raises(Exception, match=r"(?i)file too large|errno 27|failed") as caught:
            checkpoint.save(tmp_path, 2, big, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)
        signal.signal(signal.SIGXFSZ, handler)
    assert getattr(caught.value, "errno", errno.EFBIG) == errno.EFBIG
    assert names(tmp_path) == ["step-00000001"]
    assert checkpoint.load_latest(tmp_path).step == 1


def test_if_none_is_whole_nothing_begins_again_unasked(tmp_path):
    checkpoint.save(tmp_path, 1, *state(1))
    (tmp_path / "step-00000001" / "state.pt").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="damaged"), pytest.raises(ValueError, match=r"no checkpoint in .* is whole"):
        checkpoint.load_latest(tmp_path)
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole"):
        checkpoint.load_latest(tmp_path)


@pytest.mark.parametrize("error", [MemoryError, PermissionError, RuntimeError])
def test_what_is_no_damage_is_not_taken_for_it(tmp_path, monkeypatch, error):
    checkpoint.save(tmp_path, 1, *state(1))

    def fail(*_, **__):
        raise error("not the file's fault")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", fail)
        with pytest.raises(error):
            checkpoint.load_latest(tmp_path)
    assert checkpoint.load_latest(tmp_path).step == 1


def test_the_same_step_is_written_once(tmp_path):
    path = checkpoint.save(tmp_path, 1, *state(1))
    before = (path / "state.pt").stat().st_ino
    assert checkpoint.save(tmp_path, 1, *state(1)) == path
    assert (path / "state.pt").stat().st_ino == before
    assert checkpoint.load(tmp_path, 1).step == 1
