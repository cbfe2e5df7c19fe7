"""What any file of tensors holds: a packed file, another safetensors file or a torch checkpoint."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewa.deploy.blueprint import Blueprint
from rewa.deploy.masks import apply_masks
from rewa.deploy.packed import MAX_HEADER, NotPackedError, PackedFileError, load_packed, read_packed
from rewa.sparsity import Count, count
from rewa.text_table import aligned

__all__ = ["Contents", "Row", "inspect", "is_weight", "read_contents", "shrunk_to_text", "to_text", "total"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Contents:
    """The tensors of a file, by name."""

    tensors: dict[str, Tensor]
    forms: dict[str, str]  # how each is stored
    dropped: tuple[str, ...] = ()  # names of what is no tensor
    blueprint: Blueprint = field(default_factory=Blueprint)  # what shrink made of the layers


def read_contents(path: str | Path) -> Contents:
    """Read every tensor of a file; no code in it is run.

    Args:
        path: A packed file, another safetensors file, or a torch checkpoint, which is loaded with ``weights_only=True``.
            Tensors inside dictionaries get dotted names.

    Raises:
        PackedFileError: If it is none of these, or damaged, or if two of its tensors have the same dotted name.
    """
    if _is_checkpoint(Path(path)):
        return _checkpoint(path)
    try:
        tensors: dict[str, Tensor] = load_packed(path)  # type: ignore[assignment]
        packed = read_packed(path)
        return Contents(tensors, {entry.name: entry.form for entry in packed.entries}, blueprint=packed.blueprint)
    except NotPackedError:
        from safetensors.torch import load_file

        tensors = load_file(path)
        return Contents(tensors, dict.fromkeys(tensors, "dense"))


def _is_checkpoint(path: Path) -> bool:
    """A zip file, and not one by chance: read as the length of safetensors' header its first bytes are too large a number."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little") > MAX_HEADER and zipfile.is_zipfile(path)


def _checkpoint(path: str | Path) -> Contents:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise PackedFileError(f"{path} is no checkpoint that can be loaded without running code: {_reason(error)}") from error
    tensors: dict[str, Tensor] = {}
    dropped: list[str] = []
    for name, value in _flatten("", content):
        if not isinstance(value, Tensor):
            dropped.append(name)
        elif name in tensors:
            raise PackedFileError(f"{path} holds two tensors called {name!r} once names are joined by dots: rename one")
        else:
            tensors[name] = value
    return Contents(tensors, dict.fromkeys(tensors, "dense"), tuple(dropped))


def _reason(error: Exception) -> str:
    """Torch's reason without its advice, which is to run the code after all."""
    if found := re.search(r"GLOBAL (\S+) was not an allowed global", str(error)):
        return f"it holds an object of {found[1]}; save model.state_dict() instead"
    return re.split(r"\n|\. ", str(error))[0] or type(error).__name__


def _flatten(prefix: str, content: Any) -> Iterator[tuple[str, Any]]:
    """All that is in dictionaries, by dotted name."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), value)
    else:
        yield prefix or "tensor", content


def is_weight(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a file, which does not say what its layers are, is a weight that can become sparse.

    Args:
        name: Its name, which tells statistics of batch norms.
        tensor: Real or complex, with at least two axes longer than 1: no bias, no scale and no mask of attention.
    """
    axes = sum(size > 1 for size in tensor.shape)
    return name.rpartition(".")[2] not in STATISTICS and tensor.dtype.is_floating_point | tensor.is_complex() and axes >= 2


@dataclass(frozen=True)
class Row:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: Count
    weight: bool
    form: str
    nbytes: int  # in memory; none for a tensor that shares that of an earlier one


def inspect(contents: Contents, threshold: float = 0.0) -> list[Row]:
    """Count the nonzeros of every tensor; of a weight under ``torch.nn.utils.prune``, those that its mask leaves.

    Args:
        contents: The contents of a file.
        threshold: The largest magnitude that counts as zero in a weight; elsewhere only 0 does.
    """
    seen: set[Any] = set()
    rows = []
    tensors, pruned = apply_masks(contents.tensors)
    forms = {**contents.forms, **{name: f"{contents.forms[f'{name}_orig']}, masked" for name in pruned}}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        shared = tensor.numel() > 0 and place in seen
        seen.add(place)
        weight = is_weight(name, tensor)
        numbers = tensor if tensor.is_complex() else tensor.to(torch.float64)
        rows.append(
            Row(
                name=name,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                count=count([numbers], threshold if weight else 0.0),
                weight=weight,
                form="alias" if shared else forms[name],
                nbytes=0 if shared else tensor.nbytes,
            )
        )
    return rows


def total(rows: list[Row]) -> Count:
    """The sum of the rows, each tensor once.

    Args:
        rows: As :func:`inspect` made them.
    """
    return sum((row.count for row in rows if row.form != "alias"), Count(0, 0))


def to_text(rows: list[Row]) -> str:
    """A table with the sum of the weights and of everything.

    Args:
        rows: As :func:`inspect` made them.
    """
    sums = {"weights": total([row for row in rows if row.weight]), "total": total(rows)}
    cells: list[tuple[str, ...]] = [("name", "shape", "dtype", "elements", "nonzero", "zero", "form")]
    for row in rows:
        cells.append((row.name, "x".join(map(str, row.shape)) or "scalar", row.dtype, *_numbers(row.count), row.form))
    cells += [(name, "", "", *_numbers(each), "") for name, each in sums.items()]
    return aligned(cells, "<<<>>><")


def shrunk_to_text(blueprint: Blueprint, rows: list[Row]) -> str:
    """What shrink made of the model, a line for each layer.

    Args:
        blueprint: The changes; at least one.
        rows: As :func:`inspect` made them.
    """
    before, after = blueprint.numel({row.name: row.shape for row in rows if row.form != "alias"})
    width = max(map(len, blueprint.changes))
    lines = [f"shrunk: {before:,} -> {after:,} elements"]
    return "\n".join(lines + [f"  {path:<{width}}  {change}" for path, change in blueprint.changes.items()])


def _numbers(found: Count) -> tuple[str, ...]:
    return f"{found.total:,}", f"{found.nonzero:,}", f"{found.sparsity:.2%}"
