from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

import rewa
from rewa.deploy import packed
from rewa.deploy.packed import DTYPES, PackedFileError, load_packed, read_packed, save_packed


def same_bits(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
    )


def random_bits(shape, dtype, density, seed=0):
    """A tensor of any dtype with random bits (NaN and infinities among them) where it is not zero."""
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8, generator=generator)
    alive = torch.rand(math.prod(shape), generator=generator) < density
    raw = raw.reshape(-1, dtype.itemsize) * alive.to(torch.uint8)[:, None]
    return raw.reshape(-1).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 0.6, 1.0])
def test_every_dtype_comes_back_bit_for_bit(dtype, density, tmp_path):
    tensor = random_bits((37, 11, 5), dtype, density)
    state = {"x": tensor, "scalar": random_bits((), dtype, 1.0), "empty": random_bits((0, 3), dtype, 1.0)}
    file = save_packed(state, tmp_path / "x.safetensors", keep_negative_zeros=True)
    loaded = load_packed(file.path)
    assert list(loaded) == list(state)
    for name, original in state.items():
        assert same_bits(loaded[name], original)
    assert file.size == file.path.stat().st_size


def test_each_form_is_taken_where_it_is_smallest(tmp_path):
    state = {f"{density:g}": random_bits((200, 200), torch.float32, density) for density in (1.0, 0.5, 0.05)}
    entries = save_packed(state, tmp_path / "x.safetensors").entries
    assert [entry.form for entry in entries] == ["dense", "bitmask", "delta"]
    # Whoever reads safetensors sees the dense ones under their own names.
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert same_bits(file.get_tensor("1"), state["1"])


@pytest.mark.parametrize("density", [0.5, 0.1, 0.05, 0.02, 0.01])
@pytest.mark.parametrize("values", ["exact", "bfloat16"])
def test_size_is_near_the_entropy(density, values, tmp_path):
    """Values plus entropy of the mask, within 3 %."""
    tensor = random_bits((1000, 1000), torch.float32, density).nan_to_num(1.0).clamp(-1e6, 1e6)
    file = save_packed({"x": tensor}, tmp_path / "x.safetensors", values=values)
    q = tensor.count_nonzero().item() / tensor.numel()
    entropy = -q * math.log2(q) - (1 - q) * math.log2(1 - q)
    bound = tensor.numel() * (q * (32 if values == "exact" else 16) + entropy) / 8
    assert 0.8 * bound < file.size < 1.03 * bound + 300  # less than the bound where leading bytes can be deflated


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("density", [1.0, 0.7, 0.05])
def test_leading_bytes_are_deflated_where_it_saves(dtype, density, tmp_path):
    """Weights of one scale, as networks have them: smaller than their values and mask, and than gzip, without loss."""
    weight = (torch.randn(100, 100) * 0.05).to(dtype)
    weight[torch.rand(100, 100) >= density] = 0
    file = save_packed({"w": weight}, tmp_path / "x.safetensors")
    assert file.entries[0].coded > 0
    assert same_bits(load_packed(file.path)["w"], weight)
    save_file({"w": weight}, tmp_path / "plain.safetensors")
    assert file.size < len(gzip.compress((tmp_path / "plain.safetensors").read_bytes())) + 200  # the table


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    model = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 50, bias=False))
    model[1].weight = model[0].weight
    file = save_packed(model, tmp_path / "x.safetensors")
    assert file.size < 1.2 * 50 * 20 * 8  # once
    loaded = load_packed(file.path)
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()
    assert same_bits(loaded["1.weight"], model[1].weight.detach())
    # Views of one memory that are not the same tensor are both stored.
    whole = torch.arange(12.0).reshape(3, 4)
    views = {"a": whole, "b": whole.T, "c": whole[:, :2], "d": whole}
    loaded = load_packed(save_packed(views, tmp_path / "y.safetensors").path)
    for name, view in views.items():
        assert torch.equal(loaded[name], view)
    assert loaded["a"] is loaded["d"]


def test_tied_parameters_stay_tied_when_tensors_are_assigned(tmp_path):
    def tied():
        model = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 50, bias=False))
        model[1].weight = model[0].weight
        return model

    model, other = tied(), tied().requires_grad_(False)
    load_packed(save_packed(model, tmp_path / "x.rewa").path, other, assign=True)
    assert other[0].weight is other[1].weight
    assert same_bits(other[0].weight, model[0].weight)
    assert not other[0].weight.requires_grad
    twice = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    load_packed(save_packed(twice, tmp_path / "x.rewa").path, other, assign=True)
    assert other[0].weight is other[1].weight
    twice["1.weight"][0] = 3
    kept = other[0].weight
    with pytest.raises(PackedFileError, match=r"'0\.weight' and '1\.weight' are one parameter of the model, but differ"):
        load_packed(save_packed(twice, tmp_path / "x.rewa").path, other, assign=True)
    assert other[0].weight is other[1].weight is kept


def test_into_a_model(tmp_path):
    model, other = (nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20)) for _ in range(2))
    with torch.no_grad():
        model[0].weight.masked_fill_(torch.rand(20, 30) < 0.9, 0)
    path = save_packed(model, tmp_path / "x.safetensors").path
    assert load_packed(path, other) is other
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert same_bits(a, b)
    wrong = nn.Sequential(nn.Linear(30, 21), nn.BatchNorm1d(21))
    before = {name: value.clone() for name, value in wrong.state_dict().items()}
    with pytest.raises(PackedFileError, match="not the same model"):
        load_packed(path, wrong)
    for name, value in wrong.state_dict().items():
        assert same_bits(value, before[name])


def test_rounded_values(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32))
    file = save_packed(model, tmp_path / "x.safetensors", values="bfloat16")
    loaded = load_packed(file.path)
    assert same_bits(loaded["0.weight"], model[0].weight.detach().to(torch.bfloat16).to(torch.float64))
    assert same_bits(loaded["0.bias"], model[0].bias.detach())  # vectors are kept exactly
    large = {"w": torch.full((2, 2), 1e6)}
    with pytest.raises(ValueError, match="'w' holds values that overflow"):
        save_packed(large, tmp_path / "y.safetensors", values="float16")
    assert not (tmp_path / "y.safetensors").exists()
    infinite = {"w": torch.full((2, 2), math.inf)}
    assert same_bits(load_packed(save_packed(infinite, tmp_path / "z", values="float16").path)["w"], infinite["w"])
    with pytest.raises(ValueError, match="Invalid values: 'int4'"):
        save_packed(large, tmp_path / "y.safetensors", values="int4")


def test_a_file_prints_as_one_line(tmp_path):
    file = save_packed({"w": torch.eye(100, dtype=torch.float32)}, tmp_path / "eye.rewa")
    bits, smaller = 8 * file.size / 10**4, 40_000 / file.size
    assert str(file) == f"eye.rewa: {file.size:,} bytes, {bits:.3g} bits per weight, {smaller:.3g}x smaller than dense"
    assert str(save_packed({}, tmp_path / "none.rewa")).startswith("none.rewa: ")


def test_report_is_kept(tmp_path):
    report = {"threshold": 1e-3, "layers": [{"name": "a", "nonzero": 3}]}
    path = save_packed({"a": torch.ones(3)}, tmp_path / "x.safetensors", report=report).path
    assert read_packed(path).report == report


def test_what_cannot_be_packed_is_named(tmp_path):
    for bad in (3.0, torch.eye(3).to_sparse()):
        with pytest.raises(TypeError, match="'a' is no plain tensor"):
            save_packed({"a": bad}, tmp_path / "x.safetensors")
    clash = {"a": torch.eye(40), "a#values": torch.ones(3)}
    with pytest.raises(ValueError, match="'a#values'"):
        save_packed(clash, tmp_path / "x.safetensors")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_packed(tmp_path / "nowhere")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_packed({"a": torch.ones(3)}, tmp_path / "x.safetensors").path
    before = path.read_bytes()

    def full_disk(*arguments, **keywords):
        path.with_name(f".{path.name}.half").write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_packed({"a": torch.zeros(3)}, path)
    assert path.read_bytes() == before


def tamper(path, change):
    """A file with its metadata changed by ``change``, which gets the table and the tensors, and a digest that fits."""
    with safe_open(path, "pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    table = json.loads(metadata["entries"])
    change(table, tensors)
    metadata["entries"] = json.dumps(table)
    metadata["digest"] = packed._digest(metadata, sorted(tensors.items()))
    save_file(tensors, path, metadata)


def set_field(row, column, value):
    def change(table, tensors):
        table[row][column] = value

    return change


def drop_byte(table, tensors):
    tensors["sparse#gaps"] = tensors["sparse#gaps"][:-1].clone()


def flip_mask(table, tensors):
    tensors["half#mask"][0] ^= 128


def swap_coded(table, tensors):
    tensors["weights#coded"][:8] = 0


def bomb(table, tensors):
    """Leading bytes that inflate to a hundred million."""
    leading = torch.frombuffer(bytearray(zlib.compress(bytes(10**8))), dtype=torch.uint8)
    tensors["weights#coded"] = torch.cat([leading, tensors["weights#coded"][table[3][CODED] :]])
    table[3][CODED] = len(leading)


def empty_shape(table, tensors):
    table.append(["empty", "dense", "float32", [2**48 - 1, 2**48 - 1, 0], 0, "float32", 0, "", 0])
    tensors["empty"] = torch.zeros(0, dtype=torch.float32)


def coded_nothing(table, tensors):
    leading = torch.frombuffer(bytearray(zlib.compress(b"")), dtype=torch.uint8)
    table.append(["zero", "delta", "float32", [8, 8], 0, "float32", 0, "", len(leading)])
    tensors |= {"zero#coded": leading, "zero#gaps": torch.zeros(0, dtype=torch.uint8)}


NAME, FORM, DTYPE, SHAPE, NONZEROS, STORED, LOW, OF, CODED = range(9)


@pytest.mark.parametrize(
    "change",
    [
        set_field(0, SHAPE, [2**24, 2**24]),  # one more bit than 48
        set_field(0, SHAPE, [2**23, 2**24]),  # more than a thousand times the file
        set_field(0, SHAPE, [-1, 10]),
        set_field(0, SHAPE, [1.5]),
        set_field(0, SHAPE, [True] * 3),
        set_field(0, SHAPE, "many"),
        set_field(0, SHAPE, [90, 100]),  # indices out of range
        set_field(0, NONZEROS, 10**9),
        set_field(0, NONZEROS, 3),
        set_field(0, LOW, 63),
        set_field(0, LOW, 0),
        set_field(0, DTYPE, "object"),
        set_field(0, STORED, "float16"),
        set_field(0, FORM, "pickle"),
        set_field(0, FORM, "bitmask"),
        set_field(0, FORM, "alias"),
        set_field(0, NAME, "half"),
        set_field(0, NAME, None),
        set_field(1, SHAPE, [3]),
        set_field(0, CODED, 7),
        set_field(0, CODED, -1),
        set_field(3, CODED, 0),
        set_field(3, CODED, 20),
        set_field(3, NONZEROS, 10**5),
        swap_coded,
        bomb,
        empty_shape,
        coded_nothing,
        set_field(2, OF, "nobody"),
        set_field(2, OF, "tied"),
        set_field(2, SHAPE, [3]),
        drop_byte,
        flip_mask,
        lambda table, tensors: table.pop(0),
        lambda table, tensors: table.append(table[0]),
        lambda table, tensors: table.append("row"),
        lambda table, tensors: table[0].append(1),
        lambda table, tensors: tensors.update(more=torch.ones(3)),
        lambda table, tensors: tensors.update({"sparse#gaps": torch.full((10,), 255, dtype=torch.uint8)}),
        lambda table, tensors: tensors.update({"sparse#values": tensors["sparse#values"].to(torch.int32)}),
    ],
)
def test_hostile_files_with_a_digest_that_fits(change, tmp_path):
    sparse, half = random_bits((100, 100), torch.float32, 0.03), random_bits((50, 10), torch.float32, 0.5)
    state = {"sparse": sparse, "half": half, "tied": sparse, "weights": torch.randn(300, 10, dtype=torch.float32)}
    path = save_packed(state, tmp_path / "x.safetensors").path
    tamper(path, lambda table, tensors: None)
    assert same_bits(load_packed(path)["tied"], sparse)
    tamper(path, change)
    with pytest.raises(PackedFileError):
        load_packed(path)


def test_a_small_file_cannot_ask_for_a_large_tensor(tmp_path):
    """Two GiB of zeros in 300 bytes: refused before anything is allocated, unless asked for."""
    path = save_packed({"a": torch.zeros(8, dtype=torch.uint8)}, tmp_path / "x.safetensors").path
    tamper(path, set_field(0, SHAPE, [2**31]))
    assert read_packed(path).dense_size == 2**31
    with pytest.raises(PackedFileError, match=r"unpack to 2,147,483,648 bytes, more than .* raise max_bytes"):
        load_packed(path)
    tamper(path, set_field(0, SHAPE, [2**20]))
    assert load_packed(path)["a"].shape == (2**20,)
    with pytest.raises(PackedFileError, match="raise max_bytes"):
        load_packed(path, max_bytes=2**19)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3)}, path)
    with pytest.raises(PackedFileError, match="not a packed one"):
        load_packed(path)
    save_file({"a": torch.ones(3)}, path, {"format": packed.FORMAT, "version": "3"})
    with pytest.raises(PackedFileError, match="version '3'"):
        load_packed(path)
    save_file({"a": torch.ones(3)}, path, {"format": packed.FORMAT, "version": "1", "entries": "[" * 100_000, "report": "{}"})
    with pytest.raises(PackedFileError, match="unreadable metadata"):
        load_packed(path)
    torch.save({"a": torch.ones(3)}, path)
    with pytest.raises(PackedFileError, match="not a safetensors file"):
        load_packed(path)
    path.write_bytes(b"")
    with pytest.raises(PackedFileError, match="not a safetensors file"):
        load_packed(path)


@pytest.mark.slow
def test_thousands_of_damaged_files(tmp_path):
    """Random bytes changed, cut, added, moved or doubled: the file loads as it was saved, or it is a PackedFileError."""
    rng = np.random.default_rng(0)
    state = {"a": random_bits((40, 30), torch.float32, 0.05), "b": random_bits((20,), torch.float16, 0.5), "c": torch.ones(3)}
    state["d"], state["e"] = state["a"], torch.randn(100, dtype=torch.float32)
    path = tmp_path / "x.safetensors"
    original = save_packed(state, path, report={"threshold": 1e-3}).path.read_bytes()
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(3_000):
        content = bytearray(original)
        for _ in range(int(rng.integers(1, 4))):
            start, length = int(rng.integers(len(content) or 1)), int(rng.integers(1, 20))
            kind = rng.integers(6)
            if kind == 0 and content:
                content[start] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                content[start : start + length] = rng.bytes(length)
            elif kind == 2:
                del content[start : start + length]
            elif kind == 3:
                content[start:start] = rng.bytes(length)
            elif kind == 4:
                content[start:start] = content[start : start + length]
            else:
                del content[max(1, start) :]
        path.write_bytes(content)
        try:
            loaded = load_packed(path)
        except PackedFileError:
            outcomes["refused"] += 1
            continue
        outcomes["loaded"] += 1
        assert loaded.keys() == state.keys()
        assert all(same_bits(loaded[name], tensor) for name, tensor in state.items())
    assert outcomes["refused"] > 2_700


def test_public_names():
    assert rewa.PackedFileError is PackedFileError
    assert (rewa.save_packed, rewa.load_packed) == (save_packed, load_packed)


def test_views_with_another_sign_are_not_aliases(tmp_path):
    z = torch.randn(20, dtype=torch.complex64)
    loaded = load_packed(save_packed({"a": z, "b": z.conj(), "c": torch._neg_view(z)}, tmp_path / "x.safetensors").path)
    assert torch.equal(loaded["b"], z.conj())
    assert torch.equal(loaded["c"], -z)
    with pytest.raises(ValueError, match="__metadata__"):
        save_packed({"__metadata__": torch.ones(2)}, tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()


def test_the_same_model_gives_the_same_file(tmp_path):
    """Not by luck: safetensors writes metadata in an order that changes from call to call."""
    model = {"a": torch.eye(30), "gröss": torch.ones(3, 2)}
    files = [save_packed(model, tmp_path / f"{i}.safetensors", report={"quote": 'a "b"'}).path.read_bytes() for i in range(8)]
    assert len(set(files)) == 1


# ------------------------------------------------------------------------------------------- zeros of other programs


def masked(zeros):
    """An MLP whose weights were multiplied by a mask, as nearly everyone prunes: half of its zeros are -0.0."""
    model = nn.Sequential(nn.Linear(100, 80), nn.ReLU(), nn.Linear(80, 10)).float()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(torch.rand_like(layer.weight) >= zeros)
    return model


@pytest.mark.parametrize("zeros", [0.95, 0.99])
@pytest.mark.parametrize("values", ["exact", "bfloat16"])
def test_a_negative_zero_is_a_zero(zeros, values, tmp_path):
    model = masked(zeros)
    clean = {name: torch.where(tensor == 0, 0.0, tensor) for name, tensor in model.state_dict().items()}
    found = sum(int((torch.signbit(t) & (t == 0)).sum()) for t in model.state_dict().values())
    assert found > 3000
    file = save_packed(model, tmp_path / "masked", values=values)
    assert file.path.read_bytes() == save_packed(clean, tmp_path / "clean", values=values).path.read_bytes()
    assert file.negative_zeros == found
    if values == "exact":
        assert all(same_bits(tensor, clean[name]) for name, tensor in load_packed(file.path).items())
    kept = save_packed(model, tmp_path / "kept", keep_negative_zeros=True)
    assert kept.negative_zeros == 0
    assert kept.size > 3 * save_packed(clean, tmp_path / "clean").size
    assert all(same_bits(tensor, model.state_dict()[name]) for name, tensor in load_packed(kept.path).items())


def test_only_what_equals_zero_is_normalized(tmp_path):
    """In every dtype; the -0.0 in one half of a complex number that is not zero decides on its branch."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = torch.tensor([-0.0, 0.0, -1.0, math.nan, 2.0]).to(dtype)
        file = save_packed({"a": tensor}, tmp_path / "x")
        assert file.negative_zeros == 1
        assert same_bits(load_packed(file.path)["a"], torch.tensor([0.0, 0.0, -1.0, math.nan, 2.0]).to(dtype))
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.tensor(
            [complex(-0.0, 0.0), complex(0.0, -0.0), complex(-0.0, -0.0), complex(-1.0, -0.0), 0], dtype=dtype
        )
        file = save_packed({"a": tensor}, tmp_path / "x")
        assert file.negative_zeros == 3
        loaded = load_packed(file.path)["a"]
        assert same_bits(loaded[3:], tensor[3:])
        assert same_bits(loaded[:3], torch.zeros(3, dtype=dtype))


def test_what_rounds_to_zero_is_stored_as_zero(tmp_path):
    tensor = torch.full((50, 50), -1e-60)
    tensor[0, 0] = 1
    file = save_packed({"a": tensor}, tmp_path / "x", values="bfloat16")
    assert (file.entries[0].nonzeros, file.negative_zeros) == (1, 0)
    assert same_bits(load_packed(file.path)["a"], (tensor == 1).double())


def test_a_pruned_model_packs_as_its_final_one(tmp_path):
    def fresh():
        return nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 10)).float()

    model = fresh()
    prune.l1_unstructured(model[0], "weight", 0.95)
    prune.random_unstructured(model[0], "bias", 0.5)
    prune.random_unstructured(model[2], "weight", 0.9)
    prune.l1_unstructured(model[2], "weight", 0.5)  # a second time: a container of masks
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = torch.randn(5, 60, dtype=torch.float32)
    outputs = model(inputs)
    files = []
    for source in (model, before):
        file = save_packed(source, tmp_path / "pruned")
        assert sorted(file.pruned) == ["0.bias", "0.weight", "2.weight"]
        assert torch.equal(load_packed(file.path, fresh())(inputs), outputs)
        files.append(file)
    assert model.state_dict().keys() == before.keys()
    assert all(same_bits(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(PackedFileError, match=r"not the same model; call torch\.nn\.utils\.prune\.remove"):
        load_packed(tmp_path / "pruned", model)
    for layer, name in ((model[0], "weight"), (model[0], "bias"), (model[2], "weight")):
        prune.remove(layer, name)
    expected = save_packed(model, tmp_path / "final").size
    assert [file.size for file in files] == [expected, expected]


def test_other_tensors_called_orig_and_mask_are_left_alone(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a_orig, self.a_mask = nn.Parameter(torch.randn(3)), nn.Parameter(torch.ones(3))

    state = {"a_orig": torch.randn(3), "a_mask": torch.tensor([1.0, 0.5, 0.0])}  # no mask of zeros and ones
    state |= {"b_orig": torch.randn(3), "b_mask": torch.ones(4), "c_orig": torch.ones(2), "d_orig": torch.ones(2)}
    state |= {"d_mask": torch.ones(2), "d": torch.ones(2)}
    for source in (Net(), state):
        file = save_packed(source, tmp_path / "x")
        assert file.pruned == ()
        assert load_packed(file.path).keys() == (source.state_dict() if source is not state else state).keys()


# ---------------------------------------------------------------------------------------------------- hostile files


def hostile(*arguments):
    """What tests/deploy/hostile.py prints, in a process of its own; it must end well."""
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("hostile.py")), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_table_that_lies_is_refused_or_loads_as_it_says(tmp_path):
    (result,) = hostile(tmp_path, 0, 750)
    assert result["loaded"] > 50
    assert result["refused"] > 250
    assert result["reasons"] >= 10  # the changes get past the digest, and to many checks
    assert result["grown"] < 1 << 25


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resets the peak of its memory by /proc")
def test_no_file_kills_the_process_or_takes_more_than_it_may(tmp_path):
    results = hostile(tmp_path)
    for result in results:
        assert result["grown"] < result["limit"], result
    outcomes = {result["name"]: result["outcome"] for result in results}
    assert outcomes == {
        **{"mask": "refused", "gaps": "refused", "report": "refused", "table": "refused", "half": "loaded"},
        **{"complex64": "refused", "complex128": "loaded"},
    }


def test_tensors_have_memory_of_their_own(tmp_path):
    """Aligned for their dtype, and not the file's: cutting it off later does not take them away."""
    state = {"z": torch.randn(40, dtype=torch.complex128), "b": torch.ones(3, dtype=torch.bool), "x": torch.rand(5)}
    for length in range(16):
        path = save_packed(state, tmp_path / "x", report={"a": "b" * length}).path
        loaded = load_packed(path)
        path.write_bytes(b"")
        assert torch.equal(loaded["z"] * 2 + loaded["z"], state["z"] * 2 + state["z"])
        assert all(same_bits(loaded[name], tensor) for name, tensor in state.items())
        assert all(tensor.data_ptr() % 16 == 0 for tensor in loaded.values())


def test_a_limit_counts_everything(tmp_path):
    path = save_packed({"a": torch.ones(1000, dtype=torch.uint8)}, tmp_path / "x", report={"a": "b" * 10**5}).path
    for limit, reason in ((10**4, "a header of"), (2 * 10**6, "report of")):
        with pytest.raises(PackedFileError, match=f"with {reason} .* raise max_bytes"):
            read_packed(path, max_bytes=limit)
    assert load_packed(path, max_bytes=3 * 10**6)["a"].shape == (1000,)  # the report is not parsed
    with pytest.raises(PackedFileError, match="raise max_bytes"):
        load_packed(path, max_bytes=10**6)


# ------------------------------------------------------------------------------------- names, extras and processes


@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "model.fp16.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"),
        *("model-00001-of-00002.fp16.safetensors", "model.fp16-00001-of-00002.safetensors", "adapter_model.safetensors"),
        *("pytorch_model-00001-of-00002.bin", "diffusion_pytorch_model.safetensors"),
    ],
)
def test_names_of_transformers_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"from_pretrained takes for plain weights.*model\.rewa"):
        save_packed({"a": torch.eye(3)}, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.pt", "a.PTH", "a.bin", "a.onnx", "a.ckpt"])
def test_names_of_other_formats_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"looks like another format: call it 'a\.rewa'$"):
        save_packed({"a": torch.eye(3)}, tmp_path / name)
    for good in ("my_model.safetensors", "model.rewa", "model-final.safetensors", "models.safetensors"):
        assert save_packed({"a": torch.eye(3)}, tmp_path / good).path.exists()


def test_without_safetensors_the_remedy_is_said(tmp_path, monkeypatch):
    path = save_packed({"a": torch.eye(3)}, tmp_path / "x").path
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: save_packed({"a": torch.eye(3)}, path), lambda: load_packed(path), lambda: read_packed(path)):
        with pytest.raises(ModuleNotFoundError, match=r"packed files need safetensors: pip install 'rewa\[packed\]'"):
            call()


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
def test_a_sharded_model_is_refused_with_the_remedy(tmp_path, group):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 3))
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    for refused in (lambda: save_packed(model, tmp_path / "x"), lambda: rewa.shrink(model, torch.randn(2, 20))):
        with pytest.raises(TypeError, match=r"'0\.weight' is sharded .*\.get_model_state_dict\(model, .*full_state_dict=True"):
            refused()
    assert list(tmp_path.iterdir()) == []
    # The remedy that the error names.
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    path = save_packed(state, tmp_path / "x").path
    assert all(same_bits(tensor, expected[name]) for name, tensor in load_packed(path).items())
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    with pytest.raises(TypeError, match=r"sharded .*set_model_state_dict"):
        load_packed(path, model)
    set_model_state_dict(model, load_packed(path), options=StateDictOptions(full_state_dict=True))
    assert all(same_bits(tensor.full_tensor(), expected[name]) for name, tensor in model.state_dict().items())


def test_a_tensor_without_values_is_refused(tmp_path):
    with pytest.raises(TypeError, match="'weight' is on the meta device"):
        save_packed(nn.Linear(3, 2, device="meta"), tmp_path / "x")
