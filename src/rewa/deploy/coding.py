"""The two codes of a packed file: rising indices as gaps, and values with their leading bytes deflated.

Both are read a chunk at a time, so that a few bytes of a file never make a large array on the way to the tensor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CHUNK", "Bytes", "ValueReader", "decode_gaps", "encode_gaps", "encode_values"]

CHUNK = 1 << 16  # values, gaps or bits of a mask at a time; a multiple of 8, so that every chunk starts at a byte
Bytes = NDArray[np.uint8]


def encode_gaps(indices: NDArray[np.int64]) -> tuple[int, Bytes]:
    """Rising indices as gaps in Rice's code: within a few percent of the entropy for random zeros.

    Args:
        indices: Strictly rising, not negative.

    Returns:
        The number k of low bits, and a stream: the low bits of all gaps, then the rest of each as that many 0 bits before a 1.
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


def decode_gaps(k: int, stream: Bytes, count: int, numel: int) -> Iterator[NDArray[np.int64]]:
    """The indices of :func:`encode_gaps`, at most ``CHUNK`` at a time; each is checked to lie below ``numel``.

    Args:
        k: Number of low bits.
        stream: What :func:`encode_gaps` made.
        count: Number of indices.
        numel: Number of elements that the indices point into; below 2^48.

    Raises:
        ValueError: If the stream does not hold ``count`` such indices.
    """
    size = -(-count * k // 8)
    if not 0 <= k <= 62 or count << k >= 1 << 62 or len(stream) < size:
        raise ValueError(f"{count} gaps of {k} low bits do not fit {len(stream)} bytes")
    low, high = stream[:size], stream[size:]
    done, bits, last = 0, 0, -1  # gaps decoded; bits up to and with the last 1; the last index
    for start in range(0, len(high), CHUNK // 8):
        ends = np.flatnonzero(np.unpackbits(high[start : start + CHUNK // 8])) + 8 * start
        if not len(ends):
            continue
        end = int(ends[-1]) + 1
        stop = done + len(ends)
        # In Python's integers, since a hostile k makes the shift below overflow.
        if stop > count or (end - stop) << k >= max(numel, 1):
            raise ValueError(f"the stream holds more than {count} gaps within {numel} elements")
        gaps = (np.diff(ends, prepend=bits - 1) - 1) << k
        first = done * k
        part = np.unpackbits(low[first // 8 : -(-stop * k // 8)])[first % 8 :][: len(ends) * k].reshape(len(ends), k)
        for bit in range(k):
            gaps += part[:, bit].astype(np.int64) << (k - 1 - bit)
        indices: NDArray[np.int64] = np.cumsum(gaps + 1) + last
        done, bits, last = stop, end, int(indices[-1])
        if last >= numel:
            raise ValueError(f"index {last} is out of range for {numel} elements")
        yield indices
    if done != count or len(high) != -(-bits // 8):
        raise ValueError(f"the stream holds {done} gaps in {bits} bits, not {count} in {len(high)} bytes")


def encode_values(values: Tensor) -> tuple[int, Tensor]:
    """Values with their leading bytes, sign and exponent, which vary little, first and deflated.

    Args:
        values: Values, of any dtype.

    Returns:
        The number of deflated bytes, and a stream: these and the other bytes; 0 and the values if that saves little.
    """
    size = values.element_size()
    planes = values.reshape(-1).view(torch.uint8).reshape(-1, size)
    if size == 1 or len(planes) < 64:
        return 0, values
    leading = zlib.compress(planes[:, -1].contiguous().numpy().data, 6)
    if len(leading) + len(planes) * (size - 1) > 0.98 * len(planes) * size:
        return 0, values
    first = torch.frombuffer(bytearray(leading), dtype=torch.uint8)
    return len(leading), torch.cat([first, planes[:, :-1].reshape(-1)])


class ValueReader:
    """The values of :func:`encode_values` in order, a chunk at a time, each in memory of its own.

    Args:
        stream: Bytes, which need not be aligned.
        coded: Number of deflated bytes at its start.
        count: Number of values.
        dtype: The dtype of the values.
    """

    def __init__(self, stream: Tensor, coded: int, count: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._inflater = _Inflater(stream[:coded].numpy().data) if coded else None
        self._plain = stream[coded:].reshape(count, dtype.itemsize - bool(coded))
        self._at = 0

    def take(self, count: int) -> Tensor:
        """The next ``count`` values.

        Raises:
            ValueError: If there are fewer.
        """
        values = torch.empty(count, dtype=self._dtype)
        planes = values.view(torch.uint8).reshape(count, self._dtype.itemsize)
        planes[:, : self._plain.shape[1]] = self._plain[self._at : self._at + count]
        if self._inflater:
            planes[:, -1] = torch.frombuffer(self._inflater.take(count), dtype=torch.uint8)
        self._at += count
        return values

    def end(self) -> None:
        """Check that nothing is left.

        Raises:
            ValueError: If something is.
        """
        if self._at != len(self._plain):
            raise ValueError(f"{self._at} of {len(self._plain)} values have a place")
        if self._inflater:
            self._inflater.end()


class _Inflater:
    """Deflated bytes, inflated as they are asked for and never further."""

    def __init__(self, source: memoryview) -> None:
        self.source, self.object = source, zlib.decompressobj()

    def _inflate(self, most: int) -> bytes:
        given = self.source[:CHUNK]
        try:
            found = self.object.decompress(given, most)
        except zlib.error as error:
            raise ValueError(f"the leading bytes of the values cannot be inflated: {error}") from error
        self.source = self.source[len(given) - len(self.object.unconsumed_tail) - len(self.object.unused_data) :]
        return found

    def take(self, count: int) -> bytearray:
        found = bytearray()
        while len(found) < count:
            exhausted = self.object.eof or not self.source
            piece = self._inflate(count - len(found))
            if exhausted and not piece:
                raise ValueError("there are fewer leading bytes than values")
            found += piece
        return found

    def end(self) -> None:
        more = b""
        while not (more or self.object.eof) and self.source:
            more = self._inflate(1)
        if more or self.source or not self.object.eof:
            raise ValueError("there are more leading bytes than values")
