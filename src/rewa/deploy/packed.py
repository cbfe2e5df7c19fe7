r"""The packed file: a safetensors file that stores each tensor in the smallest of three forms, without loss.

- **dense**: the tensor itself, under its own name, as every reader of safetensors sees it.
- **bitmask**: one bit for each element, and the nonzero values.
- **delta**: the gaps between nonzeros in Rice's code (:mod:`rewa.deploy.coding`), and the values.

Where it saves two percent the leading bytes of the values, sign and exponent, which vary little, are deflated.

A zero is a zero: -0.0 is stored as 0.0 unless asked otherwise. All else comes back with every bit of what was saved. The
metadata hold a table of the tensors, a report and a SHA-256 of everything. Needs safetensors (``pip install 'rewa[packed]'``).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rewa.deploy.coding import CHUNK, Bytes, ValueReader, decode_gaps, encode_gaps, encode_values
from rewa.files import replacing

__all__ = [
    "Entry",
    "NotPackedError",
    "PackedFile",
    "PackedFileError",
    "apply_masks",
    "load_packed",
    "read_packed",
    "save_packed",
]

FORMAT = "rewa-packed"
VERSION = 1
VALUES = {"exact": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.complex64, torch.complex128),
    )
}
RAW = {torch.complex128}  # not known to safetensors: stored as bytes
SAFETENSORS_DTYPES = {
    **{"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16, "U32": torch.uint32},
    **{"I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"F32": torch.float32, "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
    "C64": torch.complex64,
}
PARTS = {"dense": ("",), "bitmask": ("#values", "#mask"), "delta": ("#values", "#gaps"), "alias": ()}
NUMBERS = ("nonzeros", "low_bits", "coded")
# Under these names from_pretrained of transformers and diffusers takes any safetensors file for its own: names of tensors
# that it does not know are left out, and what is missing is drawn at random. It does not look at the metadata.
SHARD = r"(-\d+-of-\d+)?"
TAKEN = re.compile(rf"(model|pytorch_model|adapter_model|diffusion_pytorch_model){SHARD}(\.[^.]+)?{SHARD}\.(safetensors|bin)")
# Suffixes of other formats, whose readers would fail on a packed file.
FOREIGN = {".bin", ".ckpt", ".gguf", ".h5", ".npy", ".npz", ".onnx", ".pickle", ".pkl", ".pt", ".pt2", ".pth", ".zip"}
MAX_HEADER = 100_000_000  # safetensors refuses more
# Bytes of memory for a byte of the file: the header in safetensors and as strings, and JSON once it is Python's objects.
HEADER_COST, JSON_COST = 16, 64


class PackedFileError(ValueError):
    """A packed file is damaged, hostile or not one."""


class NotPackedError(PackedFileError):
    """A safetensors file that is whole, but not packed."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a packed file."""

    name: str
    form: str
    dtype: str
    shape: tuple[int, ...]
    nonzeros: int
    stored: str  # dtype of the values in the file
    low_bits: int = 0  # k of the delta form
    of: str = ""  # the tensor that an alias shares
    coded: int = 0  # bytes of the deflated leading bytes; 0 where values are stored as they are

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What is stored of it, the values first."""
        return ("#coded", *PARTS[self.form][1:]) if self.coded else PARTS[self.form]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its tensors in the file."""
        return tuple(self.name + suffix for suffix in self.suffixes)

    @property
    def stored_values(self) -> int:
        """Number of values in the file."""
        return self.numel if self.form == "dense" else self.nonzeros

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in memory, none for an alias."""
        return 0 if self.form == "alias" else self.numel * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class PackedFile:
    """What a packed file holds, read without its tensors' data."""

    path: Path
    entries: tuple[Entry, ...]
    report: dict[str, Any] = field(repr=False)
    size: int
    dense_size: int
    negative_zeros: int = 0  # how many -0.0 save_packed stored as 0.0; not in the file
    pruned: tuple[str, ...] = ()  # weights that it stored as torch.nn.utils.prune.remove would leave them; not in the file


# -------------------------------------------------------------------------------------------------- writing


def _words(flat: Tensor) -> Tensor:
    """The elements' bits as rows of integers: indexing works for these in every dtype, and zero is where no bit is set."""
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64)
    return flat.view(word).reshape(flat.numel(), flat.element_size() // word.itemsize)


def _without_negative_zeros(flat: Tensor) -> tuple[Tensor, int]:
    """The elements with 0.0 for each that equals zero, and how many were not that already."""
    if not (flat.is_floating_point() or flat.is_complex()):
        return flat, 0
    components = 2 if flat.is_complex() else 1
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size() // components]
    bits = flat.view(word).reshape(-1, components)
    negative = ((bits == 0) | (bits == torch.iinfo(word).min)).all(1) & (bits != 0).any(1)
    found = int(negative.sum())
    return (bits.masked_fill(negative[:, None], 0).reshape(-1).view(flat.dtype), found) if found else (flat, 0)


def _pack(name: str, tensor: Tensor, flat: Tensor) -> tuple[Entry, dict[str, Tensor]]:
    """The smallest form of one tensor, of which ``flat`` holds the values to be stored."""
    mask = _words(flat).ne(0).any(1).numpy()
    indices = np.flatnonzero(mask)
    kept = _words(flat)[torch.from_numpy(indices)].reshape(-1).view(flat.dtype)
    k, gaps = encode_gaps(indices)
    bitmask, delta = torch.from_numpy(np.packbits(mask)), torch.from_numpy(gaps)
    (coded_flat, all_values), (coded_kept, values_kept) = encode_values(flat), encode_values(kept)
    forms = {"dense": [all_values], "bitmask": [values_kept, bitmask], "delta": [values_kept, delta]}
    form = min(forms, key=lambda form: sum(part.nbytes for part in forms[form]))
    coded = coded_flat if form == "dense" else coded_kept
    low_bits = k if form == "delta" else 0
    entry = Entry(name, form, _name(tensor.dtype), tuple(tensor.shape), len(indices), _name(flat.dtype), low_bits, "", coded)
    parts = forms[form]
    if flat.dtype in RAW and not coded:
        parts[0] = parts[0].view(torch.uint8)
    elif form == "dense" and not coded:
        parts[0] = parts[0].reshape(tensor.shape)
    return entry, dict(zip(entry.parts, parts, strict=True))


def _rounded(name: str, flat: Tensor, values: torch.dtype) -> Tensor:
    rounded = flat.to(values)
    if not torch.equal(rounded.isfinite(), flat.isfinite()):
        raise ValueError(f"{name!r} holds values that overflow in {values}: save it with values='exact'")
    return rounded


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _digest(table: str, report: str, parts: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of all that a file means."""
    digest = hashlib.sha256(f"{table}\n{report}\n".encode())
    for name, part in parts:
        digest.update(f"{name}\n".encode())
        digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_path(path: Path) -> None:
    """The name is not one that another program takes for its own format."""
    if TAKEN.fullmatch(path.name):
        raise ValueError(
            f"{path.name!r} is a name that Hugging Face's from_pretrained takes for plain weights; from a packed file it would "
            "return random ones. Use another name such as 'model.rewa', and rewa.integrations.huggingface.from_pretrained"
        )
    if path.suffix.lower() in FOREIGN:
        raise ValueError(
            f"a packed file is a safetensors file, and {path.name!r} looks like another format: "
            f"call it {path.with_suffix('.rewa').name!r}"
        )


def _check_tensor(name: str, tensor: Any) -> None:
    """A tensor of a known kind with its data here, all of it."""
    if hasattr(tensor, "full_tensor"):  # a DTensor; every process would have to take part in gathering it
        raise TypeError(
            f"{name!r} is sharded over processes (DTensor). Gather on all of them with torch.distributed.checkpoint.state_dict."
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), and save what the "
            "first one gets"
        )
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or _name(tensor.dtype) not in DTYPES:
        raise TypeError(f"{name!r} is no plain tensor of a known dtype and cannot be packed: {type(tensor).__name__}")
    if tensor.is_meta:
        raise TypeError(f"{name!r} is on the meta device and has no values: load the model's weights first")
    if name == "__metadata__":
        raise ValueError("a tensor cannot be called '__metadata__' in a safetensors file: rename it")


def _pruned(model: nn.Module | None, state: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights that are stored as an original and a mask by torch.nn.utils.prune."""
    if model is not None:
        from torch.nn.utils.prune import BasePruningMethod

        hooks = (
            (f"{prefix}." if prefix else "", hook)
            for prefix, module in model.named_modules(remove_duplicate=False)
            for hook in module._forward_pre_hooks.values()
        )
        return [prefix + hook._tensor_name for prefix, hook in hooks if isinstance(hook, BasePruningMethod)]
    bases = [name.removesuffix("_orig") for name in state if name.endswith("_orig")]
    return [
        base
        for base in bases
        if (mask := state.get(f"{base}_mask")) is not None
        and base not in state
        and mask.shape == state[f"{base}_orig"].shape
        and bool(((mask == 0) | (mask == 1)).all())
    ]


def apply_masks(state: Mapping[str, Tensor], model: nn.Module | None = None) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors as ``torch.nn.utils.prune.remove`` would leave them, and the names of those that it would make.

    Args:
        state: A ``state_dict``; it stays as it is.
        model: Its model, whose hooks say what is pruned; without it, names and masks of zeros and ones do.
    """
    pruned = tuple(name for name in _pruned(model, state) if f"{name}_orig" in state and f"{name}_mask" in state)
    masks = {f"{name}_mask": state[f"{name}_mask"] for name in pruned}
    final: dict[str, Tensor] = {}
    for name, tensor in state.items():
        base = name.removesuffix("_orig")
        if name not in masks:
            mask = masks.get(f"{base}_mask") if base != name else None
            final[name if mask is None else base] = tensor if mask is None else mask.to(tensor.dtype) * tensor.detach()
    return final, pruned


def _pack_all(
    state: Mapping[str, Tensor], values: torch.dtype | None, keep_negative_zeros: bool
) -> tuple[list[Entry], dict[str, Tensor], int]:
    """The table, the tensors of the file, and how many -0.0 became 0.0."""
    entries: list[Entry] = []
    parts: dict[str, Tensor] = {}
    owners: dict[Any, str] = {}
    negative_zeros = 0
    for name, tensor in state.items():
        tensor = tensor.resolve_conj().resolve_neg()
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in owners:
            shape, dtype = tuple(tensor.shape), _name(tensor.dtype)
            entries.append(Entry(name, "alias", dtype, shape, 0, dtype, of=owners[place]))
            continue
        owners[place] = name
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if not keep_negative_zeros:
            flat, found = _without_negative_zeros(flat)
            negative_zeros += found
        if values is not None and tensor.dim() >= 2 and flat.dtype in (torch.float32, torch.float64):
            flat = _rounded(name, flat, values)
            flat = flat if keep_negative_zeros else _without_negative_zeros(flat)[0]
        entry, tensors = _pack(name, tensor, flat)
        if clash := (parts.keys() & tensors.keys()):
            raise ValueError(f"two tensors would be called {clash.pop()!r} in the file: rename one")
        entries.append(entry)
        parts.update(tensors)
    return entries, parts, negative_zeros


def save_packed(
    model: nn.Module | Mapping[str, Tensor],
    path: str | Path,
    *,
    values: str = "exact",
    keep_negative_zeros: bool = False,
    report: Mapping[str, Any] | None = None,
) -> PackedFile:
    """Write a model in the smallest form of each tensor; the file is whole or absent.

    Args:
        model: A model or a ``state_dict``. Weights pruned with ``torch.nn.utils.prune`` are stored as ``prune.remove`` would
            leave them, under their final names; the model stays as it is.
        path: The file, usually ``.rewa``. Not a name that transformers takes for its own, such as ``model.safetensors``.
        values: ``"exact"``, or ``"bfloat16"`` or ``"float16"`` for the weights (two dimensions and more); they come back in
            their own dtype, rounded.
        keep_negative_zeros: Store each -0.0, which multiplying by a mask leaves behind, like a value, instead of as 0.0.
        report: What to keep beside the weights, such as ``finalize(...).to_dict()``; plain values.

    Returns:
        What the file holds, with its size, how many -0.0 became 0.0 and which pruned weights were made final.

    Raises:
        TypeError: If something is no tensor that is here as a whole; nothing has been written.

    Example:
        >>> import tempfile
        >>> weight = torch.eye(100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     packed = save_packed({"weight": weight}, Path(folder) / "eye.rewa")
        ...     print(packed.entries[0].form, torch.equal(load_packed(packed.path)["weight"], weight))
        delta True
    """
    save_file = _safetensors("torch").save_file
    path = Path(path)
    if values not in VALUES:
        raise ValueError(f"Invalid values: {values!r} (allowed: {', '.join(VALUES)})")
    _check_path(path)
    given = dict(model.state_dict() if isinstance(model, nn.Module) else model)
    for name, tensor in given.items():
        _check_tensor(name, tensor)
    state, pruned = apply_masks(given, model if isinstance(model, nn.Module) else None)
    entries, parts, negative_zeros = _pack_all(state, VALUES[values], keep_negative_zeros)
    table = json.dumps([astuple(entry) for entry in entries], separators=(",", ":"))
    text = json.dumps(dict(report or {}), separators=(",", ":"), allow_nan=False)
    metadata = {"format": FORMAT, "version": str(VERSION), "entries": table, "report": text}
    metadata["digest"] = _digest(table, text, sorted(parts.items()))
    with replacing(path) as scratch:
        save_file(parts, scratch, metadata)
        _in_order(scratch)
    return replace(read_packed(path), negative_zeros=negative_zeros, pruned=pruned)


def _in_order(path: Path) -> None:
    """Sort the metadata, which safetensors writes in any order: the same model gives the same file, byte for byte."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > length:
            raise AssertionError(f"the sorted header has {len(text)} bytes, more than {length}")
        file.seek(8)
        file.write(text.ljust(length))


# -------------------------------------------------------------------------------------------------- reading


def _safetensors(submodule: str = "") -> Any:
    try:
        return importlib.import_module(f"safetensors.{submodule}" if submodule else "safetensors")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("packed files need safetensors: pip install 'rewa[packed]'") from error


class _Memory:
    """What loading a file may take: everything is asked for here before it is allocated."""

    def __init__(self, path: str | Path, max_bytes: int | None) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no such file: {path}")
        self.path, self.size, self.used = path, Path(path).stat().st_size, 0
        self.limit = max(1 << 30, 1000 * self.size) if max_bytes is None else max_bytes

    def take(self, amount: int, what: str) -> None:
        self.used += amount
        if self.used > self.limit:
            raise PackedFileError(
                f"{self.path} takes {self.used:,} bytes of memory with {what}, more than the {self.limit:,} allowed; "
                "if you trust it, raise max_bytes"
            )


def _open(path: str | Path, memory: _Memory) -> Any:
    safetensors = _safetensors()
    with Path(path).open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header <= min(memory.size, MAX_HEADER):  # else safetensors says what is wrong
        memory.take(HEADER_COST * header, f"a header of {header:,} bytes")
    try:
        return safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError, ValueError, OverflowError) as error:
        raise PackedFileError(f"{path} is not a safetensors file, or damaged: {error}") from error


def _entry(row: Any) -> Entry:
    """A row of the table, every field checked."""
    names = [each.name for each in fields(Entry)]
    if not isinstance(row, list) or len(row) != len(names):
        raise PackedFileError(f"the table of tensors has an impossible row: {str(row)[:200]}")
    values = dict(zip(names, row, strict=True))
    shape = values["shape"]
    valid = (
        all(isinstance(values[name], str) for name in ("name", "form", "dtype", "stored", "of"))
        and values["form"] in PARTS
        and {values["dtype"], values["stored"]} <= set(DTYPES)
        and (values["stored"] == values["dtype"] or (values["stored"] in VALUES and values["dtype"] in ("float32", "float64")))
        and isinstance(shape, list)
        and len(shape) <= 64
        and all(type(number) is int and 0 <= number < 1 << 48 for number in [*shape, *(values[name] for name in NUMBERS)])
        and math.prod(size or 1 for size in shape) < 1 << 48  # strides have to fit, of an empty tensor too
        and values["nonzeros"] <= math.prod(shape)
        and (values["form"] == "alias") == bool(values["of"])
    )
    if valid:
        entry = Entry(**{**values, "shape": tuple(shape)})
        if not entry.coded or (entry.form != "alias" and entry.stored_values and DTYPES[entry.stored].itemsize > 1):
            return entry
    raise PackedFileError(f"the table of tensors has an impossible row: {str(row)[:200]}")


def _json(metadata: Mapping[str, str], key: str, kind: type, memory: _Memory) -> Any:
    """One of the two parts of the metadata that are JSON."""
    text = metadata.get(key, "")
    memory.take(JSON_COST * len(text), f"{key} of {len(text):,} characters")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PackedFileError(f"{memory.path} has unreadable metadata: {error}") from error
    if not isinstance(content, kind):
        raise PackedFileError(f"{memory.path} has unreadable metadata: {key} are no {kind.__name__}")
    return content


def _entries(file: Any, metadata: Mapping[str, str], memory: _Memory) -> tuple[Entry, ...]:
    """The table of a packed file, checked against the tensors that are there."""
    if metadata.get("format") != FORMAT:
        raise NotPackedError(f"{memory.path} is a safetensors file, but not a packed one")
    if metadata.get("version") != str(VERSION):
        raise PackedFileError(f"{memory.path} has version {metadata.get('version')!r} of the format; this rewa reads {VERSION}")
    entries = tuple(map(_entry, _json(metadata, "entries", list, memory)))
    _check_parts(file, entries)
    return entries


def read_packed(path: str | Path, *, max_bytes: int | None = None) -> PackedFile:
    """What a packed file holds; no tensor is loaded.

    Args:
        path: The file.
        max_bytes: Most memory that the table and the report may take; the default is that of :func:`load_packed`.

    Raises:
        PackedFileError: If it is damaged or not a packed file.
    """
    memory = _Memory(path, max_bytes)
    with _open(path, memory) as file:
        metadata = file.metadata() or {}
        entries = _entries(file, metadata, memory)
        report = _json(metadata, "report", dict, memory)
    return PackedFile(Path(path), entries, report, memory.size, sum(entry.nbytes for entry in entries))


def _check_parts(file: Any, entries: tuple[Entry, ...]) -> None:
    """The tensors in the file are those of the table, with the sizes that the table implies."""
    names = [part for entry in entries for part in entry.parts]
    if len({entry.name for entry in entries}) != len(entries) or sorted(names) != sorted(file.keys()):
        raise PackedFileError("the tensors in the file are not those of its table")
    owners = {entry.name: entry for entry in entries if entry.form != "alias"}
    for entry in entries:
        if entry.form == "alias":
            owner = owners.get(entry.of)
            if owner is None or (owner.dtype, owner.shape) != (entry.dtype, entry.shape):
                raise PackedFileError(f"{entry.name!r} stands for {entry.of!r}, which is not there or of another shape")
            continue
        raw = DTYPES[entry.stored] in RAW
        factor, kind = (DTYPES[entry.stored].itemsize, torch.uint8) if raw else (1, DTYPES[entry.stored])
        dense_shape = [entry.numel * factor] if raw else list(entry.shape)
        expected: dict[str, tuple[list[int] | None, torch.dtype]] = {
            "": (dense_shape, kind),
            "#values": ([entry.nonzeros * factor], kind),
            "#mask": ([-(-entry.numel // 8)], torch.uint8),
            "#gaps": (None, torch.uint8),
            "#coded": ([entry.coded + entry.stored_values * (DTYPES[entry.stored].itemsize - 1)], torch.uint8),
        }
        for suffix in entry.suffixes:
            part = file.get_slice(entry.name + suffix)
            shape, dtype = expected[suffix]
            if (shape is not None and part.get_shape() != shape) or SAFETENSORS_DTYPES.get(part.get_dtype()) != dtype:
                raise PackedFileError(
                    f"{entry.name + suffix!r} has shape {part.get_shape()}, {part.get_dtype()}: not as its table says"
                )


def load_packed(
    path: str | Path, model: nn.Module | None = None, *, max_bytes: int | None = None, assign: bool = False
) -> dict[str, Tensor] | nn.Module:
    """Load a packed file, without pickle: into a ``state_dict``, or straight into a model.

    Args:
        path: The file.
        model: Where to load into; its names and shapes must be those of the file.
        max_bytes: Most memory that loading may take: the file, its tensors once unpacked, and what reading needs beside them.
            A few bytes can describe an endless tensor of zeros, so the default is a thousand times the file's size, and at
            least one GiB.
        assign: Put the file's tensors into the model, in their dtype, instead of copying their values into the model's. What
            is tied in the model stays tied.

    Returns:
        The ``state_dict``, or the model.

    Raises:
        PackedFileError: If the file is damaged or too large; nothing large has been allocated and the model is as it was.
    """
    memory = _Memory(path, max_bytes)
    with _open(path, memory) as file:
        metadata = file.metadata() or {}
        entries = _entries(file, metadata, memory)
        dense = sum(entry.nbytes for entry in entries)
        # The report, which is not parsed, counts twice more: as a string, and encoded for its digest.
        memory.take(memory.size + 2 * len(metadata.get("report", "")), "its contents")
        memory.take(dense + max(map(_scratch, entries), default=0), f"its tensors, which unpack to {dense:,} bytes")
        if model is not None:
            _check_model(model, entries)
        names = sorted(part for entry in entries for part in entry.parts)
        parts = ((name, file.get_tensor(name)) for name in names)
        if _digest(metadata["entries"], metadata.get("report", ""), parts) != metadata.get("digest"):
            raise PackedFileError(f"{path} is damaged: its contents do not match its SHA-256")
        owned = {entry.name: _unpack(file, entry) for entry in entries if entry.form != "alias"}
    state = {entry.name: owned[entry.of or entry.name] for entry in entries}
    if model is None:
        return state
    model.load_state_dict(_tied(model, state) if assign else state, assign=assign)
    return model


def _tied(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with one parameter for all names that share one in the model, so that assigning them keeps the tie."""
    places: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        if name in state:  # a model may leave some out
            places.setdefault(param, []).append(name)
    tied: dict[str, Tensor] = dict(state)
    for param, (first, *others) in places.items():
        for name in others:
            words = [_words(state[each].reshape(-1)) for each in (first, name)]
            if state[first].dtype != state[name].dtype or not torch.equal(*words):
                raise PackedFileError(
                    f"{first!r} and {name!r} are one parameter of the model, but differ in the file: untie them first"
                )
        if others:
            tied.update(dict.fromkeys([first, *others], nn.Parameter(state[first], requires_grad=param.requires_grad)))
    return tied


def _scratch(entry: Entry) -> int:
    """Memory that :func:`_unpack` takes beside the tensor: that of one chunk."""
    return min(CHUNK, entry.numel) * (128 + entry.low_bits + 8 * DTYPES[entry.stored].itemsize)


def _unpack(file: Any, entry: Entry) -> Tensor:
    """One tensor in memory of its own, from the parts that :func:`_check_parts` found to fit, a chunk at a time."""
    # Bytes only: what a file holds need not lie where its dtype has to.
    parts = [file.get_tensor(name).reshape(-1).view(torch.uint8) for name in entry.parts]
    dtype = DTYPES[entry.dtype]
    flat = torch.zeros(entry.numel, dtype=dtype)
    words = _words(flat)
    try:
        values = ValueReader(parts[0], entry.coded, entry.stored_values, DTYPES[entry.stored])
        if entry.form == "dense":
            for start in range(0, entry.numel, CHUNK):
                taken = values.take(min(CHUNK, entry.numel - start)).to(dtype)
                words[start : start + len(taken)] = _words(taken)
        else:
            for indices in _indices(parts[1].numpy(), entry):
                words[torch.from_numpy(indices)] = _words(values.take(len(indices)).to(dtype))
        values.end()
    except ValueError as error:
        raise PackedFileError(f"{entry.name!r} is damaged: {error}") from error
    return flat.reshape(entry.shape)


def _indices(stream: Bytes, entry: Entry) -> Iterator[NDArray[np.int64]]:
    """Where the nonzeros are, as many as the table says."""
    if entry.form == "delta":
        yield from decode_gaps(entry.low_bits, stream, entry.nonzeros, entry.numel)
        return
    done = 0
    for start in range(0, entry.numel, CHUNK):
        bits = np.unpackbits(stream[start // 8 : (start + CHUNK) // 8], count=min(CHUNK, entry.numel - start))
        indices = np.flatnonzero(bits) + start
        done += len(indices)
        if done > entry.nonzeros:
            break
        if len(indices):
            yield indices
    if done != entry.nonzeros:
        raise ValueError(f"its mask does not have {entry.nonzeros} bits set")


def _check_model(model: nn.Module, entries: tuple[Entry, ...]) -> None:
    """The model has the file's names and shapes; said before anything changes."""
    state = model.state_dict()
    if sharded := [name for name, tensor in state.items() if hasattr(tensor, "full_tensor")]:
        raise TypeError(
            f"{sharded[0]!r} is sharded over processes (DTensor): load a state_dict with load_packed(path) and hand it to "
            "torch.distributed.checkpoint.state_dict.set_model_state_dict with StateDictOptions(full_state_dict=True)"
        )
    own, theirs = {name: tuple(tensor.shape) for name, tensor in state.items()}, {entry.name: entry.shape for entry in entries}
    advice = "; call torch.nn.utils.prune.remove on the model's weights first" if _pruned(model, state) else ""
    for name in own.keys() | theirs.keys():
        if own.get(name) != theirs.get(name):
            raise PackedFileError(
                f"{name!r} has shape {theirs.get(name, 'none')} in the file and {own.get(name, 'none')} in the model: "
                f"they are not the same model{advice}"
            )
