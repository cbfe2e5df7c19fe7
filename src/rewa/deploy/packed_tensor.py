"""One tensor of a packed file: its row in the table, its smallest form, and the way back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewa.deploy.coding import CHUNK, Bytes, ValueReader, decode_gaps, encode_gaps, encode_values

__all__ = [
    "DTYPES",
    "VALUES",
    "Entry",
    "dtype_name",
    "pack",
    "round_values",
    "scratch",
    "unpack",
    "without_negative_zeros",
    "words",
]

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

    @classmethod
    def from_row(cls, row: Any) -> Entry:
        """Read it from a row of the table, every field checked.

        Args:
            row: What a file says.

        Raises:
            ValueError: If no tensor is stored in this way.
        """
        names = [each.name for each in fields(cls)]
        values = dict(zip(names, row, strict=True)) if isinstance(row, list) and len(row) == len(names) else {}
        if values and _is_possible(values):
            entry = cls(**{**values, "shape": tuple(values["shape"])})
            if not entry.coded or (entry.form != "alias" and entry.stored_values and DTYPES[entry.stored].itemsize > 1):
                return entry
        raise ValueError(f"the table of tensors has an impossible row: {str(row)[:200]}")

    def layout(self) -> dict[str, tuple[list[int] | None, torch.dtype]]:
        """The shape and dtype of each of its parts in the file; None for a length that only reading can tell."""
        stored = DTYPES[self.stored]
        factor, kind = (stored.itemsize, torch.uint8) if stored in RAW else (1, stored)
        expected: dict[str, tuple[list[int] | None, torch.dtype]] = {
            "": ([self.numel * factor] if stored in RAW else list(self.shape), kind),
            "#values": ([self.nonzeros * factor], kind),
            "#mask": ([-(-self.numel // 8)], torch.uint8),
            "#gaps": (None, torch.uint8),
            "#coded": ([self.coded + self.stored_values * (stored.itemsize - 1)], torch.uint8),
        }
        return {self.name + suffix: expected[suffix] for suffix in self.suffixes}


def _is_possible(values: dict[str, Any]) -> bool:
    """Whether the fields of a row, which may hold anything, agree with each other."""
    shape = values["shape"]
    return (
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


# -------------------------------------------------------------------------------------------------- writing


def words(flat: Tensor) -> Tensor:
    """The elements' bits as rows of integers: indexing works for these in every dtype, and zero is where no bit is set.

    Args:
        flat: A tensor with one axis.
    """
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64)
    return flat.view(word).reshape(flat.numel(), flat.element_size() // word.itemsize)


def without_negative_zeros(flat: Tensor) -> tuple[Tensor, int]:
    """The elements with 0.0 for each that equals zero, and how many were not that already.

    Args:
        flat: A tensor with one axis.
    """
    if not (flat.is_floating_point() or flat.is_complex()):
        return flat, 0
    components = 2 if flat.is_complex() else 1
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size() // components]
    bits = flat.view(word).reshape(-1, components)
    negative = ((bits == 0) | (bits == torch.iinfo(word).min)).all(1) & (bits != 0).any(1)
    found = int(negative.sum())
    return (bits.masked_fill(negative[:, None], 0).reshape(-1).view(flat.dtype), found) if found else (flat, 0)


def pack(name: str, tensor: Tensor, flat: Tensor) -> tuple[Entry, dict[str, Tensor]]:
    """The smallest form of one tensor.

    Args:
        name: Its name in the file.
        tensor: The tensor.
        flat: The values to be stored, perhaps in another dtype.

    Returns:
        Its row in the table, and what the file holds of it.
    """
    mask = words(flat).ne(0).any(1).numpy()
    indices = np.flatnonzero(mask)
    kept = words(flat)[torch.from_numpy(indices)].reshape(-1).view(flat.dtype)
    k, gaps = encode_gaps(indices)
    bitmask, delta = torch.from_numpy(np.packbits(mask)), torch.from_numpy(gaps)
    (coded_flat, all_values), (coded_kept, values_kept) = encode_values(flat), encode_values(kept)
    forms = {"dense": [all_values], "bitmask": [values_kept, bitmask], "delta": [values_kept, delta]}
    form = min(forms, key=lambda form: sum(part.nbytes for part in forms[form]))
    coded = coded_flat if form == "dense" else coded_kept
    low_bits = k if form == "delta" else 0
    dtype, stored = dtype_name(tensor.dtype), dtype_name(flat.dtype)
    entry = Entry(name, form, dtype, tuple(tensor.shape), len(indices), stored, low_bits, "", coded)
    parts = forms[form]
    if flat.dtype in RAW and not coded:
        parts[0] = parts[0].view(torch.uint8)
    elif form == "dense" and not coded:
        parts[0] = parts[0].reshape(tensor.shape)
    return entry, dict(zip(entry.parts, parts, strict=True))


def round_values(name: str, flat: Tensor, values: torch.dtype) -> Tensor:
    """Weights in a smaller dtype.

    Args:
        name: Names them in an error.
        flat: The weights.
        values: The dtype.

    Raises:
        ValueError: If one of them overflows.
    """
    rounded = flat.to(values)
    if not torch.equal(rounded.isfinite(), flat.isfinite()):
        raise ValueError(f"{name!r} holds values that overflow in {values}: save it with values='exact'")
    return rounded


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as the table names it: ``float32``.

    Args:
        dtype: The dtype.
    """
    return str(dtype).removeprefix("torch.")


# -------------------------------------------------------------------------------------------------- reading


def scratch(entry: Entry) -> int:
    """Memory that :func:`unpack` takes beside the tensor: that of one chunk.

    Args:
        entry: The tensor.
    """
    return min(CHUNK, entry.numel) * (128 + entry.low_bits + 8 * DTYPES[entry.stored].itemsize)


def unpack(file: Any, entry: Entry) -> Tensor:
    """Read one tensor into memory of its own, a chunk at a time.

    Args:
        file: The safetensors file; its parts have the shapes and dtypes that :meth:`Entry.layout` gives.
        entry: The tensor.

    Raises:
        ValueError: If the parts do not hold what the entry says.
    """
    # Bytes only: what a file holds need not lie where its dtype has to.
    parts = [file.get_tensor(name).reshape(-1).view(torch.uint8) for name in entry.parts]
    dtype = DTYPES[entry.dtype]
    flat = torch.zeros(entry.numel, dtype=dtype)
    target = words(flat)
    try:
        values = ValueReader(parts[0], entry.coded, entry.stored_values, DTYPES[entry.stored])
        if entry.form == "dense":
            for start in range(0, entry.numel, CHUNK):
                taken = values.take(min(CHUNK, entry.numel - start)).to(dtype)
                target[start : start + len(taken)] = words(taken)
        else:
            for indices in _indices(parts[1].numpy(), entry):
                target[torch.from_numpy(indices)] = words(values.take(len(indices)).to(dtype))
        values.end()
    except ValueError as error:
        raise ValueError(f"{entry.name!r} is damaged: {error}") from error
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
