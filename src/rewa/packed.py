r"""The packed file: a safetensors file that stores each tensor in the smallest of three forms, without loss.

- **dense**: the tensor itself, under its own name, as every reader of safetensors sees it.
- **bitmask**: one bit for each element, and the nonzero values.
- **delta**: the gaps between nonzeros, and the values. A gap g is split at k bits: the low ones are stored as they are, the
  rest as that many 0 bits before a 1 (Rice's code). With gaps of random zeros that is within a few percent of the entropy.

Where it saves two percent the leading bytes of the values, sign and exponent, which vary little, are deflated.

"Nonzero" means that a bit is set: -0.0 is kept, and what is loaded has every bit of what was saved. The metadata hold a table
of the tensors, a report and a SHA-256 of everything. Needs safetensors (``pip install 'rewa[packed]'``).
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rewa.files import replacing

__all__ = ["Entry", "PackedFile", "PackedFileError", "load_packed", "read_packed", "read_tensors", "save_packed"]

FORMAT = "rewa-packed"
VERSION = 1
CHUNK = 1 << 20  # gaps decoded at a time; a multiple of 8, so that every chunk starts at a byte
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
Bytes = NDArray[np.uint8]


class PackedFileError(ValueError):
    """A packed file is damaged, hostile or not one."""


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


@dataclass(frozen=True)
class PackedFile:
    """What a packed file holds, read without its tensors' data."""

    path: Path
    entries: tuple[Entry, ...]
    report: dict[str, Any] = field(repr=False)
    size: int
    dense_size: int


# ------------------------------------------------------------------------------------------------- the gaps


def encode_gaps(indices: NDArray[np.int64]) -> tuple[int, Bytes]:
    """Rising indices as gaps: the number k of low bits, and the low bits of all followed by their unary rest.

    Args:
        indices: Strictly rising, not negative.
    """
    gaps = np.diff(indices, prepend=-1) - 1
    mean = max(1.0, float(gaps.mean())) if len(gaps) else 1.0
    around = range(max(0, int(math.log2(mean)) - 2), int(math.log2(mean)) + 3)
    k = min(around, key=lambda k: len(gaps) * (k + 1) + int((gaps >> k).sum()))
    ends = np.cumsum((gaps >> k) + 1) - 1  # where each 1 of the unary stream stands
    high = np.zeros((int(ends[-1]) + 8) // 8 if len(ends) else 0, np.uint8)
    np.bitwise_or.at(high, ends >> 3, (128 >> (ends & 7)).astype(np.uint8))
    low = [
        np.packbits((gaps[start : start + CHUNK, None] >> np.arange(k - 1, -1, -1) & 1).astype(np.uint8))
        for start in range(0, len(gaps), CHUNK)
    ]
    return k, np.concatenate([*low, high])


def decode_gaps(k: int, stream: Bytes, count: int, numel: int) -> NDArray[np.int64]:
    """The indices of :func:`encode_gaps`; each is checked to lie below ``numel``.

    Raises:
        PackedFileError: If the stream does not hold ``count`` such indices.
    """
    size = -(-count * k // 8)
    if not 0 <= k <= 62 or count << k >= 1 << 62 or len(stream) < size:
        raise PackedFileError(f"{count} gaps of {k} low bits do not fit {len(stream)} bytes")
    low, high = stream[:size], stream[size:]
    if 8 * len(high) > count + (numel >> k) + 8:
        raise PackedFileError(f"{len(high)} bytes of high bits are more than {count} gaps within {numel} elements have")
    ends = np.flatnonzero(np.unpackbits(high))
    bits = int(ends[-1]) + 1 if len(ends) else 0
    if len(ends) != count or len(high) != -(-bits // 8) or (bits - count) << k >= max(numel, 1):
        raise PackedFileError(f"the stream holds {len(ends)} gaps within {bits << k} elements, not {count} within {numel}")
    gaps = (np.diff(ends, prepend=-1) - 1) << k
    powers = 1 << np.arange(k - 1, -1, -1, dtype=np.int64)
    for start in range(0, count if k else 0, CHUNK):
        stop = min(start + CHUNK, count)
        part = np.unpackbits(low[start * k // 8 : -(-stop * k // 8)], count=(stop - start) * k)
        gaps[start:stop] += part.reshape(-1, k) @ powers
    indices: NDArray[np.int64] = np.cumsum(gaps + 1) - 1
    if count and int(indices[-1]) >= numel:
        raise PackedFileError(f"index {int(indices[-1])} is out of range for {numel} elements")
    return indices


# -------------------------------------------------------------------------------------------------- writing


def _words(flat: Tensor) -> Tensor:
    """The elements' bits as rows of integers: indexing works for these in every dtype, and zero is where no bit is set."""
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64)
    return flat.view(word).reshape(flat.numel(), flat.element_size() // word.itemsize)


def _code(values: Tensor) -> tuple[int, Tensor]:
    """The values with their leading bytes first and deflated, and how many these are; 0 and the values if it saves little."""
    size = values.element_size()
    planes = values.reshape(-1).view(torch.uint8).reshape(-1, size)
    if size == 1 or len(planes) < 64:
        return 0, values
    leading = zlib.compress(planes[:, -1].contiguous().numpy().data, 6)
    if len(leading) + len(planes) * (size - 1) > 0.98 * len(planes) * size:
        return 0, values
    first = torch.frombuffer(bytearray(leading), dtype=torch.uint8)
    return len(leading), torch.cat([first, planes[:, :-1].reshape(-1)])


def _decode(stream: Tensor, coded: int, count: int, dtype: torch.dtype) -> Tensor:
    """The values of :func:`_code`; at most ``count`` bytes are inflated."""
    inflate = zlib.decompressobj()
    try:
        leading = inflate.decompress(stream[:coded].numpy().data, count + 1)
    except zlib.error as error:
        raise PackedFileError(f"the leading bytes of the values cannot be inflated: {error}") from error
    if len(leading) != count or not inflate.eof or inflate.unused_data:
        raise PackedFileError(f"the leading bytes of the values are not those of {count} values")
    planes = torch.empty(count, dtype.itemsize, dtype=torch.uint8)
    planes[:, -1] = torch.frombuffer(bytearray(leading), dtype=torch.uint8)
    planes[:, :-1] = stream[coded:].reshape(count, -1)
    return planes.reshape(-1).view(dtype)


def _pack(name: str, tensor: Tensor, values: torch.dtype | None) -> tuple[Entry, dict[str, Tensor]]:
    """The smallest form of one tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    mask = _words(flat).ne(0).any(1).numpy()
    if values is not None and tensor.dim() >= 2 and flat.dtype in (torch.float32, torch.float64):
        rounded = flat.to(values)
        if not torch.equal(rounded.isfinite(), flat.isfinite()):
            raise ValueError(f"{name!r} holds values that overflow in {values}: save it with values='exact'")
        flat = rounded
    indices = np.flatnonzero(mask)
    kept = _words(flat)[torch.from_numpy(indices)].reshape(-1).view(flat.dtype)
    k, gaps = encode_gaps(indices)
    bitmask, delta = torch.from_numpy(np.packbits(mask)), torch.from_numpy(gaps)
    (coded_flat, all_values), (coded_kept, values_kept) = _code(flat), _code(kept)
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _digest(table: str, report: str, parts: Iterator[tuple[str, Tensor]]) -> str:
    """SHA-256 of all that a file means."""
    digest = hashlib.sha256(f"{table}\n{report}\n".encode())
    for name, part in parts:
        digest.update(f"{name}\n".encode())
        digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_packed(
    model: nn.Module | Mapping[str, Tensor],
    path: str | Path,
    *,
    values: str = "exact",
    report: Mapping[str, Any] | None = None,
) -> PackedFile:
    """Write a model in the smallest form of each tensor; the file is whole or absent.

    Args:
        model: A model or a ``state_dict``.
        path: The file, usually ``.safetensors``.
        values: ``"exact"``, or ``"bfloat16"`` or ``"float16"`` for the weights (two dimensions and more); they come back in
            their own dtype, rounded.
        report: What to keep beside the weights, such as ``finalize(...).to_dict()``; plain values.

    Returns:
        What the file holds, with its size.

    Example:
        >>> import tempfile
        >>> weight = torch.eye(100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     packed = save_packed({"weight": weight}, Path(folder) / "eye.safetensors")
        ...     print(packed.entries[0].form, torch.equal(load_packed(packed.path)["weight"], weight))
        delta True
    """
    from safetensors.torch import save_file

    if values not in VALUES:
        raise ValueError(f"Invalid values: {values!r} (allowed: {', '.join(VALUES)})")
    state = model.state_dict() if isinstance(model, nn.Module) else model
    entries: list[Entry] = []
    parts: dict[str, Tensor] = {}
    owners: dict[Any, str] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or _name(tensor.dtype) not in DTYPES:
            raise TypeError(f"{name!r} is no plain tensor of a known dtype and cannot be packed: {type(tensor).__name__}")
        if name == "__metadata__":
            raise ValueError("a tensor cannot be called '__metadata__' in a safetensors file: rename it")
        tensor = tensor.resolve_conj().resolve_neg()
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in owners:
            shape, dtype = tuple(tensor.shape), _name(tensor.dtype)
            entries.append(Entry(name, "alias", dtype, shape, 0, dtype, of=owners[place]))
            continue
        owners[place] = name
        entry, tensors = _pack(name, tensor, VALUES[values])
        if clash := (parts.keys() & tensors.keys()):
            raise ValueError(f"two tensors would be called {clash.pop()!r} in the file: rename one")
        entries.append(entry)
        parts.update(tensors)
    table = json.dumps([astuple(entry) for entry in entries], separators=(",", ":"))
    text = json.dumps(dict(report or {}), separators=(",", ":"), allow_nan=False)
    metadata = {"format": FORMAT, "version": str(VERSION), "entries": table, "report": text}
    metadata["digest"] = _digest(table, text, iter(sorted(parts.items())))
    with replacing(Path(path)) as scratch:
        save_file(parts, scratch, metadata)
        _in_order(scratch)
    return read_packed(path)


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


def _open(path: str | Path) -> Any:
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
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
        and isinstance(shape, list)
        and len(shape) <= 64
        and all(type(number) is int and 0 <= number < 1 << 48 for number in [*shape, *(values[name] for name in NUMBERS)])
        and math.prod(shape) < 1 << 48
        and values["nonzeros"] <= math.prod(shape)
        and (values["form"] == "alias") == bool(values["of"])
    )
    if not valid:
        raise PackedFileError(f"the table of tensors has an impossible row: {str(row)[:200]}")
    return Entry(**{**values, "shape": tuple(shape)})


def read_packed(path: str | Path) -> PackedFile:
    """What a packed file holds; no tensor is loaded.

    Args:
        path: The file.

    Raises:
        PackedFileError: If it is damaged or not a packed file.
    """
    with _open(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise PackedFileError(f"{path} is a safetensors file, but not a packed one")
        if metadata.get("version") != str(VERSION):
            raise PackedFileError(f"{path} has version {metadata.get('version')!r} of the format; this rewa reads {VERSION}")
        try:
            rows, report = json.loads(metadata["entries"]), json.loads(metadata["report"])
        except (KeyError, ValueError, RecursionError) as error:
            raise PackedFileError(f"{path} has unreadable metadata: {error}") from error
        if not isinstance(rows, list) or not isinstance(report, dict):
            raise PackedFileError(f"{path} has unreadable metadata")
        entries = tuple(map(_entry, rows))
        _check_parts(file, entries)
    dense = sum(entry.numel * DTYPES[entry.dtype].itemsize for entry in entries if entry.form != "alias")
    return PackedFile(Path(path), entries, report, Path(path).stat().st_size, dense)


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
    path: str | Path, model: nn.Module | None = None, *, max_bytes: int | None = None
) -> dict[str, Tensor] | nn.Module:
    """Load a packed file, without pickle: into a ``state_dict``, or straight into a model.

    Args:
        path: The file.
        model: Where to load into; its names and shapes must be those of the file.
        max_bytes: Largest size of all tensors once unpacked. A few bytes can describe an endless tensor of zeros, so the
            default is a thousand times the file's size, and at least one GiB.

    Returns:
        The ``state_dict``, or the model.

    Raises:
        PackedFileError: If the file is damaged or too large; nothing large has been allocated and the model is as it was.
    """
    packed = read_packed(path)
    limit = max(1 << 30, 1000 * packed.size) if max_bytes is None else max_bytes
    if packed.dense_size > limit:
        raise PackedFileError(
            f"{path} unpacks to {packed.dense_size:,} bytes, more than the {limit:,} allowed; if you trust it, raise max_bytes"
        )
    if model is not None:
        _check_model(model, packed)
    with _open(path) as file:
        metadata = file.metadata()
        names = sorted(part for entry in packed.entries for part in entry.parts)
        found = _digest(metadata["entries"], metadata["report"], ((name, file.get_tensor(name)) for name in names))
        if found != metadata.get("digest"):
            raise PackedFileError(f"{path} is damaged: its contents do not match its SHA-256")
        owned = {entry.name: _unpack(file, entry) for entry in packed.entries if entry.form != "alias"}
    state = {entry.name: owned[entry.of or entry.name] for entry in packed.entries}
    if model is None:
        return state
    model.load_state_dict(state)
    return model


def _unpack(file: Any, entry: Entry) -> Tensor:
    """One tensor, from the parts that :func:`_check_parts` found to fit."""

    def part(suffix: str) -> Tensor:
        tensor: Tensor = file.get_tensor(entry.name + suffix)
        return tensor

    stored, dtype = DTYPES[entry.stored], DTYPES[entry.dtype]
    values = part(entry.suffixes[0])
    if entry.coded:
        values = _decode(values, entry.coded, entry.stored_values, stored)
    elif stored in RAW:
        values = values.view(stored)
    values = values.reshape(-1).to(dtype)
    if entry.form == "dense":
        return values.reshape(entry.shape)
    if entry.form == "bitmask":
        indices = np.flatnonzero(np.unpackbits(part("#mask").numpy(), count=entry.numel))
        if len(indices) != entry.nonzeros:
            raise PackedFileError(f"the mask of {entry.name!r} has {len(indices)} bits set, not {entry.nonzeros}")
    else:
        indices = decode_gaps(entry.low_bits, part("#gaps").numpy(), entry.nonzeros, entry.numel)
    flat = torch.zeros(entry.numel, dtype=dtype)
    _words(flat)[torch.from_numpy(indices)] = _words(values)
    return flat.reshape(entry.shape)


def _check_model(model: nn.Module, packed: PackedFile) -> None:
    """The model has the file's names and shapes; said before anything changes."""
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {entry.name: entry.shape for entry in packed.entries}
    for name in own.keys() | theirs.keys():
        if own.get(name) != theirs.get(name):
            raise PackedFileError(
                f"{name!r} has shape {theirs.get(name, 'none')} in the file and {own.get(name, 'none')} in the model: "
                "they are not the same model"
            )


# ------------------------------------------------------------------------------------------- any file of tensors


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a packed file, of another safetensors file or of a torch checkpoint; no code in the file is run.

    Args:
        path: The file. A checkpoint is loaded with ``weights_only=True``; tensors inside dictionaries get dotted names.

    Raises:
        PackedFileError: If it is none of these, or damaged.
    """
    try:
        return load_packed(path)  # type: ignore[return-value]
    except PackedFileError as error:
        try:
            with _open(path) as file:
                if (file.metadata() or {}).get("format") == FORMAT:
                    raise error  # a packed file, and damaged
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except PackedFileError:
            if not zipfile.is_zipfile(path):
                raise
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PackedFileError(f"{path} is no checkpoint that can be loaded without running code: {reason}") from error
    return dict(_flatten("", content))


def _flatten(prefix: str, content: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield prefix or "tensor", content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), value)
