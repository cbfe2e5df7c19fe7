"""Packed files that lie, with a digest that fits: what the table says is changed, not a random byte of the file.

A script as well, since such a file may kill the process that reads it: it reads many, and prints what came of them as JSON.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import resource
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from rewa.deploy.packed import DTYPES, PackedFileError, load_packed, save_packed
from rewa.deploy.surgery import shrink

LIMIT = 1 << 25  # bytes that a reader may take
NAME, FORM, DTYPE, SHAPE, NONZEROS, STORED, LOW, OF, CODED = range(9)
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4}
SIZES |= {"F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8, "F4": 1, "F8_E8M0": 1}
CODES = {"bool": "BOOL", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64"}
CODES |= {name: name[0].upper() + name.lstrip("uintfloa") for name in DTYPES if name not in CODES and name != "complex128"}


@dataclass
class File:
    """A safetensors file, part by part: dtype, shape and bytes of each."""

    table: list = field(default_factory=list)
    parts: dict[str, list] = field(default_factory=dict)
    report: str = "{}"
    blueprint: str = ""
    padding: int = 0  # spaces after the header, which move what follows to any address

    @classmethod
    def read(cls, path):
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__")
        parts = {
            name: [part["dtype"], part["shape"], content[8 + length :][slice(*part["data_offsets"])]]
            for name, part in header.items()
        }
        return cls(json.loads(metadata["entries"]), parts, metadata["report"], metadata.get("blueprint", ""))

    def write(self, path):
        table = json.dumps(self.table)
        digest = hashlib.sha256("".join(f"{text}\n" for text in (table, self.report, self.blueprint) if text).encode())
        for name in sorted(self.parts):
            digest.update(f"{name}\n".encode() + self.parts[name][2])
        metadata = {"format": "rewa-packed", "version": "1", "entries": table, "report": self.report}
        metadata |= {"version": "2", "blueprint": self.blueprint} if self.blueprint else {}
        header, start = {"__metadata__": metadata | {"digest": digest.hexdigest()}}, 0
        for name, (dtype, shape, content) in self.parts.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + len(content)]}
            start += len(content)
        text = json.dumps(header).encode() + b" " * self.padding
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(part[2] for part in self.parts.values()))


def honest(path):
    """One file with every form, dtype and code."""
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name in ("float32", "bfloat16", "complex64", "complex128", "uint8", "bool", "float64"):
        for density in (0.02, 0.5, 1.0):
            values = torch.randn(24, 30, generator=generator) * 0.05
            values[torch.rand(24, 30, generator=generator) >= density] = 0
            state[f"{name}{density}"] = (values * 1000 if name == "uint8" else values).to(DTYPES[name])
    state["tied"], state["scalar"], state["empty"] = state["float320.02"], torch.ones(()), torch.ones(0, 3)
    save_packed(state, path, values="bfloat16" if path.name == "rounded" else "exact", report={"threshold": 0.1})
    return File.read(path)


def fresh_model():
    """A norm, a convolution without a bias, an attention."""
    return nn.ModuleDict({"a": nn.Conv2d(2, 6, 3), "n": nn.BatchNorm2d(6), "b": nn.Conv2d(6, 3, 3, bias=False), "h": Attends()})


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = fresh_model()

    def forward(self, image, x):
        return self.parts["b"](self.parts["n"](self.parts["a"](image)).relu()), self.parts["h"](x)


def shrunk(path):
    """A file of a shrunk model."""
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.parts["a"].weight[:2] = 0
        model.parts["h"].attention.out_proj.weight[:, :2] = 0
    save_packed(shrink(model, (torch.randn(1, 2, 6, 6), torch.randn(3, 1, 8)), report=None), path)
    return File.read(path)


def change_blueprint(file, rng):
    """A number, name or branch of the blueprint."""
    content = json.loads(file.blueprint)
    numbers = [0, 1, 2, 4, 6, 10**4, 2**31, 2**40, 2**63, -1, 1.5, True, None, "x", [], {}]
    names = ["weight", "bias", "running_mean", "groups", "num_heads", "heads", "of", "__class__", "forward", "parts", ""]
    holder = content
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(holder[key], dict | list) and rng.random() < 0.9:
            holder = holder[key]
            continue
        how = rng.randrange(4)
        if how == 0 and isinstance(holder, dict):
            holder[rng.choice([*names, "parts.h", "parts.a", "parts.h.attention.out_proj"])] = holder.pop(key)
        elif how == 1:
            del holder[key]
        else:
            holder[key] = rng.choice([*numbers, holder[key]])
        break
    file.blueprint = json.dumps(content)


def into_model(path):
    """Load into a fresh model: it becomes what the file says, or stays as it was."""
    model = Net().eval()
    before, text = {name: tensor.clone() for name, tensor in model.state_dict().items()}, str(model)
    try:
        load_packed(path, model, max_bytes=LIMIT)
    except PackedFileError as error:
        assert str(model) == text
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        return "refused", str(error)[:40]
    assert sum(tensor.numel() for tensor in model.state_dict().values()) <= sum(tensor.numel() for tensor in before.values())
    return "loaded", ""


def change_field(file, rng):
    row = rng.choice(file.table)
    column = rng.randrange(9)
    number = [0, 1, 7, 8, 63, 64, 720, 10**4, 2**31, 2**40, 2**48 - 1, 2**63, -1, 1.5, True, None, "x"]
    row[column] = {
        FORM: lambda: rng.choice(["dense", "bitmask", "delta", "alias", "pickle"]),
        DTYPE: lambda: rng.choice([*DTYPES, "object"]),
        STORED: lambda: rng.choice([*DTYPES, 3]),
        SHAPE: lambda: [rng.choice(number[:11]) for _ in range(rng.randrange(4))],
        NAME: lambda: rng.choice(file.table)[NAME],
        OF: lambda: rng.choice([*file.table, [""]])[0],
    }.get(column, lambda: rng.choice([*number, (row[column] or 0) + 1, (row[column] or 0) - 1]))()


def change_kind(file, rng):
    """Another dtype for a tensor, told to the table and to the file alike, over the same bytes."""
    row = rng.choice(file.table)
    name = rng.choice(list(DTYPES))
    row[STORED] = name
    if rng.random() < 0.6:
        row[DTYPE] = name
    for suffix in ("", "#values"):
        part = file.parts.get(row[NAME] + suffix)
        if part:
            part[0] = CODES.get(name, "U8")
            count = len(part[2]) // SIZES[part[0]]
            part[1], part[2] = [count], part[2][: count * SIZES[part[0]]]
            values = len(part[2]) // DTYPES[name].itemsize
            row[SHAPE], row[NONZEROS] = ([values], row[NONZEROS]) if suffix == "" else (row[SHAPE], values)


def change_bytes(file, rng):
    part = file.parts[rng.choice(list(file.parts))]
    size = len(part[2])
    content = bytearray(part[2])
    how = rng.randrange(6)
    if how == 0 and size:
        content[rng.randrange(size)] ^= 1 << rng.randrange(8)
    elif how == 1:
        content[:] = bytes([rng.choice([0, 1, 127, 128, 255])]) * size
    elif how == 2:
        content[:] = rng.randbytes(size)
    elif how == 3:
        content[:] = content[: -SIZES[part[0]]]
    elif how == 4:
        content += content[: SIZES[part[0]]] or bytes(SIZES[part[0]])
    else:
        bomb = zlib.compress(bytes(10**6))
        content[: len(bomb)] = bomb
    part[2] = bytes(content)
    if len(content) != size:
        part[1] = [len(content) // SIZES[part[0]]]
        part[2] = part[2][: part[1][0] * SIZES[part[0]]]


def change_parts(file, rng):
    name, other = rng.choice(list(file.parts)), rng.choice(list(file.parts))
    base = rng.choice(file.table)[NAME]
    how = rng.randrange(5)
    if how == 0:
        file.parts[base + rng.choice(["", "#values", "#mask", "#gaps", "#coded"])] = file.parts.pop(name)
    elif how == 1:
        file.parts[name], file.parts[other] = file.parts[other], file.parts[name]
    elif how == 2:
        del file.parts[name]
    elif how == 3:
        file.parts[name][0] = rng.choice([kind for kind in SIZES if SIZES[kind] == SIZES[file.parts[name][0]]])
    else:
        file.parts[name][1] = file.parts[name][1][::-1]


def change_table(file, rng):
    row = rng.choice(file.table)
    how = rng.randrange(4)
    if how == 0:
        file.table.remove(row)
    elif how == 1:
        file.table.append(list(row))
    elif how == 2:
        file.table.append([f"alias of {row[NAME]}", "alias", row[DTYPE], row[SHAPE], 0, row[STORED], 0, row[NAME], 0])
    else:
        file.report = rng.choice(["", "[]", "{", "{}", '{"a": 1e999}', "[" * 5000, '"\\ud800"'])


def change_place(file, rng):
    file.padding = rng.randrange(1, 16)


def change_size(file, rng):
    """One more tensor without nonzeros, which a few bytes describe whatever its size."""
    shape = rng.choice([[2 ** rng.randrange(30), 2 ** rng.randrange(20)], [0, 2**48 - 1, 2**48 - 1], [2**47, 0], [0]])
    name, kind = f"zeros{len(file.table)}", rng.choice(list(DTYPES))
    nothing = zlib.compress(b"")
    coded = rng.choice([0, 0, len(nothing)])
    file.table.append([name, "delta", kind, shape, 0, kind, rng.choice([0, 3, 62]), "", coded])
    values = ["U8", [coded], nothing] if coded else [CODES.get(kind, "U8"), [0], b""]
    file.parts |= {name + ("#coded" if coded else "#values"): values, f"{name}#gaps": ["U8", [0], b""]}


CHANGES = (change_field, change_field, change_field, change_kind, change_bytes, change_bytes, change_parts, change_table)
CHANGES += (change_place, change_size)


def use(state, table):
    """The tensors are what the table says, and can be computed with."""
    assert list(state) == [row[NAME] for row in table]
    for row in table:
        tensor = state[row[NAME]]
        assert (tensor.dtype, list(tensor.shape)) == (DTYPES[row[DTYPE]], row[SHAPE])
        assert not tensor.numel() or tensor.data_ptr() % tensor.element_size() == 0
        if tensor.dtype.is_complex or tensor.dtype in (torch.float32, torch.float64):
            tensor.flatten()[:4096].mul(2).add(tensor.flatten()[:4096]).sum()


def outcome(path, table):
    try:
        state = load_packed(path, max_bytes=LIMIT)
    except PackedFileError as error:
        return "refused", str(error).removeprefix(str(path))[:40]
    use(state, table)
    return "loaded", ""


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def greedy():
    """Files of a few megabytes that made a reader take gigabytes, or ended its process; what each may take."""
    ones = bytes([255]) * 2**24
    mask = {"a#values": ["U8", [1], b"1"], "a#mask": ["U8", [2**24], ones]}
    yield "mask", File([["a", "bitmask", "uint8", [2**27], 1, "uint8", 0, "", 0]], mask), 2**28
    gaps = {"a#values": ["U8", [1], b"1"], "a#gaps": ["U8", [2**24], ones]}
    yield "gaps", File([["a", "delta", "uint8", [2**27], 1, "uint8", 0, "", 0]], gaps), 2**28
    one = {"a": ["U8", [1], b"1"]}
    row = ["a", "dense", "uint8", [1], 1, "uint8", 0, "", 0]
    yield "report", File([row], one, "[" + "[]," * 3 * 10**6 + "[]]"), 2**27
    yield "table", File([row, *([] for _ in range(2 * 10**6))], one), 2**27
    half = {"a#values": ["U8", [2**23], ones[: 2**23]], "a#mask": ["U8", [2**21], b"\xaa" * 2**21]}
    yield "half", File([["a", "bitmask", "uint8", [2**24], 2**23, "uint8", 0, "", 0]], half), 4 * 10**7  # it needs 37 MB
    for padding in range(16):
        complex128 = {"a": ["U8", [16 * 33], bytes(16 * 33)]}
        lie = File([["a", "dense", "complex64", [33], 0, "complex128", 0, "", 0]], complex128, padding=padding)
        yield "complex64", lie, 2**28
        truth = File([["a", "dense", "complex128", [33], 0, "complex128", 0, "", 0]], complex128, padding=padding)
        yield "complex128", truth, 2**28


def read_greedy(folder):
    path = Path(folder) / "file"
    honest(path)
    load_packed(path)
    for name, file, limit in greedy():
        file.write(path)
        file = None  # what this process holds itself is not the reader's
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = peak()
        try:
            use(load_packed(path, max_bytes=limit), File.read(path).table)
            kind = "loaded"
        except PackedFileError:
            kind = "refused"
        sys.stdout.write(json.dumps({"name": name, "outcome": kind, "grown": peak() - before, "limit": limit}) + "\n")
        sys.stdout.flush()


def read_changed(folder, seed, count):
    path = Path(folder) / "file"
    files = [honest(Path(folder) / name) for name in ("exact", "rounded")]
    files.append(shrunk(Path(folder) / "shrunk"))
    for file in files:
        file.write(path)
        assert outcome(path, file.table)[0] == "loaded"
    assert into_model(path) == ("loaded", "")
    before = peak()
    rng = random.Random(seed)
    outcomes, reasons = Counter(), Counter()
    for index in range(count):
        file = copy.deepcopy(rng.choice(files))
        kinds = (change_blueprint,) if file.blueprint else CHANGES
        changes = [rng.choice(kinds) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        for change in changes:
            change(file, rng)
        file.write(path)
        try:
            kind, reason = outcome(path, file.table)
            if file.blueprint:
                kind, reason = into_model(path)
        except Exception:
            sys.stderr.write(f"seed {seed}, file {index}: {[change.__name__ for change in changes]}\n")
            raise
        outcomes[kind] += 1
        reasons[reason.partition("'")[0][:20]] += 1
    grown = peak() - before
    sys.stdout.write(json.dumps({**outcomes, "reasons": len(reasons), "grown": grown}))


if __name__ == "__main__":
    folder, *seed_and_count = sys.argv[1:]
    read_changed(folder, *map(int, seed_and_count)) if seed_and_count else read_greedy(folder)
