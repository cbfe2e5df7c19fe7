from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from rewa.example import Example, difference, named_tensors, tensors


class Net(nn.Module):
    def forward(self, x, y=None, *, mask=None, **rest):
        return x, y, mask, rest


A, B = torch.arange(3.0), torch.arange(4)


@pytest.mark.parametrize(
    ("written", "args", "kwargs"),
    [
        (A, (A,), {}),
        ([A, B], ([A, B],), {}),
        ((A, B), (A, B), {}),
        ((A, None, 3), (A, None, 3), {}),
        ({"x": A, "mask": B}, (), {"x": A, "mask": B}),
        (UserDict(x=A), (), {"x": A}),
        (((A,), {"mask": B}), (A,), {"mask": B}),
        (({"x": A},), ({"x": A},), {}),
        ((A, {"mask": B}), (A, {"mask": B}), {}),  # the second argument is a dictionary
    ],
)
def test_an_example_is_taken_as_it_is(written, args, kwargs):
    example = Example.of(written)
    assert (example.args, example.kwargs) == (args, kwargs)
    assert Example.of(example) is example


def test_a_batch_encoding_holds_keywords():
    from transformers import BatchEncoding

    example = Example.of(BatchEncoding({"x": A, "mask": B}))
    assert example.args == ()
    assert example.call(Net()) == (A, None, B, {})


def test_a_wrong_example_is_told_how_to_write_one():
    with pytest.raises(TypeError, match=r"Linear.forward.*does not take this example: .*\(dictionary,\)"):
        Example.of({"x": A}).call(nn.Linear(3, 2))
    with pytest.raises(TypeError, match="unsupported operand"):  # the model's own mistake stays what it is
        Example.of(A).call(type("Bad", (nn.Module,), {"forward": lambda self, x: x + None})())


def test_arguments_by_the_models_own_names():
    assert list(Example.of(((A, 3), {"extra": B, "mask": None})).bound(Net())) == ["x", "y", "mask", "extra"]


def test_tensors_are_found_in_everything_a_model_may_return():
    from transformers import DynamicCache
    from transformers.modeling_outputs import BaseModelOutput

    @dataclass
    class Out:
        logits: torch.Tensor
        loss: float = 0.0

    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), 0)
    looped = Out(A)
    looped.owner = looped
    pair = namedtuple("Pair", "left right")
    value = {
        "a": A,
        "b": [B, None, "word", pair(A, B)],
        "c": Out(A),
        "d": BaseModelOutput(last_hidden_state=A),
        "e": cache,
        "f": looped,
        "g": torch.distributions.Normal(A, A + 1),
        "h": nn.Linear(2, 2),
    }
    names = list(named_tensors(value))
    assert names[:5] == ["a", "b.0", "b.3.left", "b.3.right", "c.logits"]
    assert "d.last_hidden_state" in names
    assert {"e.layers.0.keys", "e.layers.0.values", "f.logits", "g.loc", "g.scale"} <= set(names)
    assert not any(name.startswith("h") for name in names)
    assert list(named_tensors(A)) == [""]
    assert len(named_tensors({"a": {"b": A}, "a.b": B})) == 2
    assert len(tensors(value)) == len(names)


def test_a_shuffled_example_keeps_its_range_and_varies():
    mask, ids, flat = torch.tensor([[1, 1, 0]]), torch.arange(100).reshape(2, 50), torch.zeros(2, 3)
    example = Example.of(((ids, [flat, A.double() * 7], None), {"mask": mask, "flag": True}))
    other = example.shuffled(torch.Generator().manual_seed(0))
    assert other.args[0].sort().values.flatten().sort().values.equal(ids.flatten())
    assert not other.args[0].equal(ids)
    assert other.args[1][0].unique().numel() == 6  # a constant gets noise
    assert other.args[1][1].sort().values.equal(A.double() * 7)
    assert other.args[2] is None
    assert other.kwargs["mask"].equal(mask)
    assert other.kwargs["flag"] is True
    assert ids.equal(torch.arange(100).reshape(2, 50))


def test_the_difference_sees_what_is_not_finite():
    inf, nan = torch.inf, torch.nan
    expected = torch.tensor([1.0, inf, -inf, nan, -10.0])
    assert difference(expected.clone(), expected) == 0
    assert difference(torch.tensor([1.5, inf, -inf, nan, -10.0]), expected) == pytest.approx(0.05)
    for wrong in ([1, -inf, -inf, nan, -10], [1, inf, -inf, inf, -10], [nan, inf, -inf, nan, -10], [1, 0, -inf, nan, -10]):
        assert difference(torch.tensor(wrong, dtype=expected.dtype), expected) == inf
    assert difference(expected.float(), expected) == inf
    assert difference(expected[:1], expected) == inf
    assert difference(torch.tensor([nan]), torch.tensor([nan])) == 0
    assert difference(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64)) == 0
    assert difference(torch.tensor([True]), torch.tensor([False])) > 1
    assert difference(torch.tensor([1j]), torch.tensor([2j])) == 0.5
