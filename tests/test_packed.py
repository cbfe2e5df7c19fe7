from __future__ import annotations

import gzip
import json
import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import rewa
from rewa import packed
from rewa.packed import DTYPES, PackedFileError, decode_gaps, encode_gaps, load_packed, read_packed, save_packed


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
    file = save_packed(state, tmp_path / "x.safetensors")
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


@given(st.sets(st.integers(0, 3000)), st.integers(0, 2000))
@settings(deadline=None)
def test_gaps_round_trip(indices, extra):
    array = np.array(sorted(indices), dtype=np.int64)
    numel = (max(indices) + 1 if indices else 0) + extra
    k, stream = encode_gaps(array)
    np.testing.assert_array_equal(decode_gaps(k, stream, len(array), numel), array)
    if indices:
        with pytest.raises(PackedFileError):
            decode_gaps(k, stream, len(array), max(indices))
        with pytest.raises(PackedFileError):
            decode_gaps(k, stream, len(array) + 1, numel + 3000)


def test_gaps_beyond_32_bits():
    """Indices far above 2^31 and 2^32, as a tensor of 2^40 elements would have; no such tensor is made."""
    indices = np.array([0, 7, 2**31 - 1, 2**31, 2**32 + 5, 2**33, 2**40 - 1], dtype=np.int64)
    k, stream = encode_gaps(indices)
    np.testing.assert_array_equal(decode_gaps(k, stream, len(indices), 2**40), indices)
    with pytest.raises(PackedFileError, match="out of range for"):
        decode_gaps(k, stream, len(indices), 2**40 - 1)
    rng = np.random.default_rng(0)
    many = np.unique(rng.integers(0, 2**38, 100_000))
    k, stream = encode_gaps(many)
    assert len(stream) < 100_000 * 3.2  # log2(2^38 / 1e5) + 1.5 bits each
    np.testing.assert_array_equal(decode_gaps(k, stream, len(many), 2**38), many)


def test_chunks_of_gaps_join(monkeypatch):
    indices = np.flatnonzero(np.random.default_rng(0).random(5000) < 0.03)
    whole = encode_gaps(indices)
    monkeypatch.setattr(packed, "CHUNK", 16)
    k, stream = encode_gaps(indices)
    assert (k, stream.tolist()) == (whole[0], whole[1].tolist())
    np.testing.assert_array_equal(decode_gaps(k, stream, len(indices), 5000), indices)


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
    metadata["digest"] = packed._digest(metadata["entries"], metadata["report"], iter(sorted(tensors.items())))
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
    with pytest.raises(PackedFileError, match=r"unpacks to 2,147,483,648 bytes, more than .* raise max_bytes"):
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
    save_file({"a": torch.ones(3)}, path, {"format": packed.FORMAT, "version": "2"})
    with pytest.raises(PackedFileError, match="version '2'"):
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


def test_ten_thousand_damaged_files(tmp_path):
    """Random bytes changed, cut, added, moved or doubled: the file loads as it was saved, or it is a PackedFileError."""
    rng = np.random.default_rng(0)
    state = {"a": random_bits((40, 30), torch.float32, 0.05), "b": random_bits((20,), torch.float16, 0.5), "c": torch.ones(3)}
    state["d"], state["e"] = state["a"], torch.randn(100, dtype=torch.float32)
    path = tmp_path / "x.safetensors"
    original = save_packed(state, path, report={"threshold": 1e-3}).path.read_bytes()
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(10_000):
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
    assert outcomes["refused"] > 9_000


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
