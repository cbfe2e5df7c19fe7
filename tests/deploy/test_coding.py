from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewa.deploy import coding
from rewa.deploy.coding import ValueReader, encode_gaps, encode_values


def decode_gaps(*arguments):
    return np.concatenate([np.empty(0, np.int64), *coding.decode_gaps(*arguments)])


@given(st.sets(st.integers(0, 3000)), st.integers(0, 2000))
@settings(deadline=None)
def test_gaps_round_trip(indices, extra):
    array = np.array(sorted(indices), dtype=np.int64)
    numel = (max(indices) + 1 if indices else 0) + extra
    k, stream = encode_gaps(array)
    np.testing.assert_array_equal(decode_gaps(k, stream, len(array), numel), array)
    if indices:
        with pytest.raises(ValueError, match=r"more than|out of range"):
            decode_gaps(k, stream, len(array), max(indices))
        with pytest.raises(ValueError, match=r"do not fit|the stream holds"):
            decode_gaps(k, stream, len(array) + 1, numel + 3000)


def test_gaps_beyond_32_bits():
    """Indices far above 2^31 and 2^32, as a tensor of 2^40 elements would have; no such tensor is made."""
    indices = np.array([0, 7, 2**31 - 1, 2**31, 2**32 + 5, 2**33, 2**40 - 1], dtype=np.int64)
    k, stream = encode_gaps(indices)
    np.testing.assert_array_equal(decode_gaps(k, stream, len(indices), 2**40), indices)
    with pytest.raises(ValueError, match="out of range for"):
        decode_gaps(k, stream, len(indices), 2**40 - 1)
    rng = np.random.default_rng(0)
    many = np.unique(rng.integers(0, 2**38, 100_000))
    k, stream = encode_gaps(many)
    assert len(stream) < 100_000 * 3.2  # log2(2^38 / 1e5) + 1.5 bits each
    np.testing.assert_array_equal(decode_gaps(k, stream, len(many), 2**38), many)


def test_chunks_of_gaps_join(monkeypatch):
    indices = np.flatnonzero(np.random.default_rng(0).random(5000) < 0.03)
    whole = encode_gaps(indices)
    monkeypatch.setattr(coding, "CHUNK", 16)
    k, stream = encode_gaps(indices)
    assert (k, stream.tolist()) == (whole[0], whole[1].tolist())
    np.testing.assert_array_equal(decode_gaps(k, stream, len(indices), 5000), indices)


@pytest.mark.parametrize("chunk", [8, 1 << 16])
@given(k=st.integers(0, 62), stream=st.binary(max_size=40), count=st.integers(0, 300), numel=st.integers(0, 2**48 - 1))
@settings(deadline=None)
def test_any_stream_is_refused_or_gives_rising_indices(chunk, k, stream, count, numel):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "CHUNK", chunk)
        try:
            indices = decode_gaps(k, np.frombuffer(stream, np.uint8), count, numel)
        except ValueError:
            return
    assert len(indices) == count
    assert (np.diff(indices) > 0).all()
    assert not count or (indices[0] >= 0 and indices[-1] < numel)


@pytest.mark.parametrize("chunk", [64, 1 << 16])
def test_values_in_chunks(chunk, monkeypatch):
    monkeypatch.setattr(coding, "CHUNK", chunk)
    values = torch.randn(1000, dtype=torch.float32)
    coded, stream = encode_values(values)
    assert 0 < coded < 1000

    def read(stream, coded, count):
        reader = ValueReader(stream, coded, count, torch.float32)
        found = [reader.take(min(77, count - start)) for start in range(0, count, 77)]
        reader.end()
        return torch.cat(found)

    assert torch.equal(read(stream, coded, 1000), values)
    apart = torch.cat([torch.zeros(3, dtype=torch.uint8), stream])[3:]  # at an odd address
    assert torch.equal(read(apart, coded, 1000), values)
    plain = stream[coded:]
    for leading in (bytes(999), bytes(1001), bytes(10**6)):
        deflated = torch.frombuffer(bytearray(zlib.compress(leading)), dtype=torch.uint8)
        with pytest.raises(ValueError, match="leading bytes than values"):
            read(torch.cat([deflated, plain]), len(deflated), 1000)
    for cut in (1, 5, coded // 2):  # the check sum is missing, or more
        with pytest.raises(ValueError, match="leading bytes than values"):
            read(torch.cat([stream[: coded - cut], plain]), coded - cut, 1000)
    with pytest.raises(ValueError, match="cannot be inflated"):
        read(torch.cat([torch.full((coded,), 255, dtype=torch.uint8), plain]), coded, 1000)
