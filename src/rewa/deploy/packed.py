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
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewa.deploy.blueprint import Blueprint
from rewa.deploy.filenames import check_filename
from rewa.deploy.masks import apply_masks, masked
from rewa.deploy.packed_tensor import (
    DTYPES,
    SAFETENSORS_DTYPES,
    VALUES,
    Entry,
    dtype_name,
    pack,
    round_values,
    scratch,
    unpack,
    without_negative_zeros,
    words,
)
from rewa.files import replacing

__all__ = [
    "DTYPES",
    "VALUES",
    "Entry",
    "NotPackedError",
    "PackedFile",
    "PackedFileError",
    "load_packed",
    "read_packed",
    "save_packed",
]

FORMAT = "rewa-packed"
VERSION = 1
SHRUNK = 2  # the version of a file that holds a blueprint, which older readers do not know
MAX_HEADER = 100_000_000  # safetensors refuses more
# Bytes of memory for a byte of the file: the header in safetensors and as strings, and JSON once it is Python's objects.
HEADER_COST, JSON_COST = 16, 64


class PackedFileError(ValueError):
    """A packed file is damaged, hostile or not one."""


class NotPackedError(PackedFileError):
    """A safetensors file that is whole, but not packed."""


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
    blueprint: Blueprint = field(default_factory=Blueprint, repr=False)  # what shrink made of the layers

    def __str__(self) -> str:
        """One line: the file, its size, and what a weight takes."""
        stored = {entry.name: entry.shape for entry in self.entries if entry.form != "alias"}
        before, after = self.blueprint.numel(stored)
        shrunk = f", shrunk from {before:,} to {after:,} weights" if self.blueprint.changes else ""
        bits, smaller = 8 * self.size / max(after, 1), self.dense_size / max(self.size, 1)
        return f"{self.path.name}: {self.size:,} bytes, {bits:.3g} bits per weight, {smaller:.3g}x smaller than dense{shrunk}"


# -------------------------------------------------------------------------------------------------- writing


def _digest(metadata: Mapping[str, str], parts: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of all that a file means."""
    texts = [metadata[key] for key in ("entries", "report", "blueprint") if key in metadata]
    digest = hashlib.sha256("".join(f"{text}\n" for text in texts).encode())
    for name, part in parts:
        digest.update(f"{name}\n".encode())
        digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_tensor(name: str, tensor: Any) -> None:
    """A tensor of a known kind with its data here, all of it."""
    if hasattr(tensor, "full_tensor"):  # a DTensor; every process would have to take part in gathering it
        raise TypeError(
            f"{name!r} is sharded over processes (DTensor). Gather on all of them with torch.distributed.checkpoint.state_dict."
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), and save what the "
            "first one gets"
        )
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or dtype_name(tensor.dtype) not in DTYPES:
        raise TypeError(f"{name!r} is no plain tensor of a known dtype and cannot be packed: {type(tensor).__name__}")
    if tensor.is_meta:
        raise TypeError(f"{name!r} is on the meta device and has no values: load the model's weights first")
    if name == "__metadata__":
        raise ValueError("a tensor cannot be called '__metadata__' in a safetensors file: rename it")


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
            shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
            entries.append(Entry(name, "alias", dtype, shape, 0, dtype, of=owners[place]))
            continue
        owners[place] = name
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if not keep_negative_zeros:
            flat, found = without_negative_zeros(flat)
            negative_zeros += found
        if values is not None and tensor.dim() >= 2 and flat.dtype in (torch.float32, torch.float64):
            flat = round_values(name, flat, values)
            flat = flat if keep_negative_zeros else without_negative_zeros(flat)[0]
        entry, tensors = pack(name, tensor, flat)
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
    blueprint: Blueprint | None = None,
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
        blueprint: For a ``state_dict``, that of the file it came from; a model that was shrunk says by itself what was cut.

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
    check_filename(path)
    given = dict(model.state_dict() if isinstance(model, nn.Module) else model)
    for name, tensor in given.items():
        _check_tensor(name, tensor)
    state, pruned = apply_masks(given, model if isinstance(model, nn.Module) else None)
    entries, parts, negative_zeros = _pack_all(state, VALUES[values], keep_negative_zeros)
    blueprint = Blueprint.of(model, state) if isinstance(model, nn.Module) else blueprint or Blueprint()
    metadata = {
        "format": FORMAT,
        "version": str(SHRUNK if blueprint.changes else VERSION),
        "entries": _to_json([astuple(entry) for entry in entries]),
        "report": _to_json(dict(report or {})),
        **({"blueprint": _to_json(blueprint.to_dict())} if blueprint.changes else {}),
    }
    metadata["digest"] = _digest(metadata, sorted(parts.items()))
    with replacing(path) as unfinished:
        save_file(parts, unfinished, metadata)
        _in_order(unfinished)
    return replace(read_packed(path), negative_zeros=negative_zeros, pruned=pruned)


def _to_json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


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


def _json(metadata: Mapping[str, str], key: str, kind: type, memory: _Memory) -> Any:
    """One of the parts of the metadata that are JSON."""
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
    if metadata.get("version") not in (str(VERSION), str(SHRUNK)):
        raise PackedFileError(
            f"{memory.path} has version {metadata.get('version')!r} of the format; this rewa reads up to {SHRUNK}"
        )
    try:
        entries = tuple(map(Entry.from_row, _json(metadata, "entries", list, memory)))
    except ValueError as error:
        raise PackedFileError(str(error)) from error
    _check_parts(file, entries)
    return entries


def _blueprint(metadata: Mapping[str, str], memory: _Memory) -> Blueprint:
    """What a file says of a shrunk model; every field is checked, whether or not a model is to be loaded."""
    if "blueprint" not in metadata:
        return Blueprint()
    try:
        return Blueprint.from_dict(_json(metadata, "blueprint", dict, memory))
    except ValueError as error:
        raise PackedFileError(f"{memory.path}: {error}") from error


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
        report, blueprint = _json(metadata, "report", dict, memory), _blueprint(metadata, memory)
    dense = sum(entry.nbytes for entry in entries)
    return PackedFile(Path(path), entries, report, memory.size, dense, blueprint=blueprint)


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
        for name, (shape, dtype) in entry.layout().items():
            part = file.get_slice(name)
            if (shape is not None and part.get_shape() != shape) or SAFETENSORS_DTYPES.get(part.get_dtype()) != dtype:
                raise PackedFileError(f"{name!r} has shape {part.get_shape()}, {part.get_dtype()}: not as its table says")


def load_packed(
    path: str | Path, model: nn.Module | None = None, *, max_bytes: int | None = None, assign: bool = False
) -> dict[str, Tensor] | nn.Module:
    """Load a packed file, without pickle: into a ``state_dict``, or straight into a model.

    Args:
        path: The file.
        model: Where to load into; its names and shapes must be those of the file. If the file holds a model that was shrunk
            (:func:`rewa.shrink`), that model as it was before, which is shrunk in the same way, or as it was afterwards.
        max_bytes: Most memory that loading may take: the file, its tensors once unpacked, and what reading needs beside them.
            A few bytes can describe an endless tensor of zeros, so the default is a thousand times the file's size, and at
            least one GiB.
        assign: Put the file's tensors into the model, in their dtype, instead of copying their values into the model's. What
            is tied in the model stays tied.

    Returns:
        The ``state_dict``, or the model.

    Raises:
        PackedFileError: If the file is damaged, too large or of another model; nothing large has been allocated and the model
            is as it was.

    Example:
        >>> import tempfile
        >>> from rewa import shrink
        >>> def build():
        ...     return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> model = build()
        >>> with torch.no_grad():
        ...     model[0].weight[:3] = 0
        >>> small = shrink(model, torch.ones(5, 2), report=None)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     packed = save_packed(small, Path(folder) / "small.rewa")
        ...     loaded = load_packed(packed.path, build())
        >>> loaded[0], torch.equal(loaded(torch.ones(5, 2)), small(torch.ones(5, 2)))
        (Linear(in_features=2, out_features=1, bias=True), True)
    """
    memory = _Memory(path, max_bytes)
    with _open(path, memory) as file:
        metadata = file.metadata() or {}
        entries = _entries(file, metadata, memory)
        dense = sum(entry.nbytes for entry in entries)
        blueprint = _blueprint(metadata, memory)
        # The report, which is not parsed, counts twice more: as a string, and encoded for its digest.
        memory.take(memory.size + 2 * len(metadata.get("report", "")), "its contents")
        memory.take(dense + max(map(scratch, entries), default=0), f"its tensors, which unpack to {dense:,} bytes")
        if model is not None:
            blueprint = _check_model(model, entries, blueprint)
            memory.take(blueprint.nbytes(model), "the layers of the shrunk model")
        state = _read(file, metadata, entries, memory)
    if model is None:
        return state
    state = _tied(model, state) if assign else state
    model = blueprint.apply(model)
    model.load_state_dict(state, assign=assign)
    return model


def _read(file: Any, metadata: Mapping[str, str], entries: tuple[Entry, ...], memory: _Memory) -> dict[str, Tensor]:
    """All tensors, after their digest was compared."""
    names = sorted(part for entry in entries for part in entry.parts)
    if _digest(metadata, ((name, file.get_tensor(name)) for name in names)) != metadata.get("digest"):
        raise PackedFileError(f"{memory.path} is damaged: its contents do not match its SHA-256")
    try:
        owned = {entry.name: unpack(file, entry) for entry in entries if entry.form != "alias"}
    except ValueError as error:
        raise PackedFileError(str(error)) from error
    return {entry.name: owned[entry.of or entry.name] for entry in entries}


def _tied(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with one parameter for all names that share one in the model, so that assigning them keeps the tie."""
    places: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        if name in state:  # a model may leave some out
            places.setdefault(param, []).append(name)
    tied: dict[str, Tensor] = dict(state)
    for param, (first, *others) in places.items():
        for name in others:
            both = [words(state[each].reshape(-1)) for each in (first, name)]
            if state[first].dtype != state[name].dtype or not torch.equal(*both):
                raise PackedFileError(
                    f"{first!r} and {name!r} are one parameter of the model, but differ in the file: untie them first"
                )
        if others:
            tied.update(dict.fromkeys([first, *others], nn.Parameter(state[first], requires_grad=param.requires_grad)))
    return tied


def _check_model(model: nn.Module, entries: tuple[Entry, ...], blueprint: Blueprint) -> Blueprint:
    """The changes after which the model has the file's names and shapes; whatever is wrong is said before anything changes."""
    state = model.state_dict()
    if sharded := [name for name, tensor in state.items() if hasattr(tensor, "full_tensor")]:
        raise TypeError(
            f"{sharded[0]!r} is sharded over processes (DTensor): load a state_dict with load_packed(path) and hand it to "
            "torch.distributed.checkpoint.state_dict.set_model_state_dict with StateDictOptions(full_state_dict=True)"
        )
    try:
        missing = blueprint.missing(model)
    except ValueError as error:
        raise PackedFileError(str(error)) from error
    own = {name: tuple(tensor.shape) for name, tensor in state.items()} | missing.shapes()
    theirs = {entry.name: entry.shape for entry in entries}
    advice = "; call torch.nn.utils.prune.remove on the model's weights first" if masked(model, state) else ""
    for name in own.keys() | theirs.keys():
        if own.get(name) != theirs.get(name):
            raise PackedFileError(
                f"{name!r} has shape {theirs.get(name, 'none')} in the file and {own.get(name, 'none')} in the model: "
                f"they are not the same model{advice}"
            )
    return missing
