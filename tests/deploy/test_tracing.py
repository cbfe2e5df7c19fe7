"""What may be called of a model apart from its forward, and which graphs are trusted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rewa.deploy.entry_points import entry_points
from rewa.deploy.tracing import Span, record, units
from rewa.example import Example


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self._all(x)

    def _all(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(self.body(x))

    def _private(self, x):
        return self.body[0](x)


class Calls(Base):
    def embed(self, x):
        return torch.tanh(self.body(x))


class Indexes(Base):
    def embed(self, x):
        return self.body[:2](x)


class Loops(Base):
    def embed(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class ReadsWeights(Base):
    def embed(self, x):
        return nn.functional.linear(x, self.head.weight)


class ThroughAnother(Base):
    def embed(self, x, twice=False):
        return self._private(self(x))


class WithoutArguments(Base):
    def sample(self):
        return self.head(torch.zeros(1, 3))

    def reset(self):
        nn.init.zeros_(self.head.weight)
        self.body.requires_grad_(False)


class Inner(Base):
    def embed(self, x):
        return self.body.train()(x) if self.body.training else self.head.out_features

    def set_head(self, layer):
        self.head = layer


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Base, {}),
        (Calls, {"embed": {"body"}}),
        (Indexes, {"embed": {"body", "body.0", "body.1", "body.2"}}),
        (Loops, {"embed": {"layers", "layers.0", "layers.1"}}),
        (ReadsWeights, {"embed": {"head"}}),
        (ThroughAnother, {"embed": {"body", "body.0", "body.1", "body.2"}}),
        (WithoutArguments, {"sample": {"head"}}),
        (Inner, {}),
    ],
)
def test_which_modules_a_method_may_show(kind, expected):
    model = kind()
    names = {module: name for name, module in model.named_modules()}
    found = {entry.method: {names[module] for module in entry.modules} for entry in entry_points(model)}
    assert found == expected


def test_a_method_that_goes_through_a_part_and_one_without_source():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Calls()

        def forward(self, x):
            return self.inner(x)

        def deep(self, x):
            return self.inner.head(x)

        def through(self, x):
            return self.inner.embed(x)

    space = {"Base": Base}
    exec("class Typed(Base):\n    def embed(self, x):\n        return self.head(x)", space)  # as at a prompt
    outer, typed = Outer(), space["Typed"]()
    assert entry_points(outer) == [("deep", {outer.inner.head}), ("through", {outer.inner.body})]
    assert entry_points(typed) == [("embed", {typed.head})]


@torch.no_grad()
def traced(model, *examples):
    runs = [Span("forward", Example.of(example)) for example in examples]
    calls, why = record(model, runs, {module: module for module in model.modules()}), {}
    return list(units(model, calls, entry_points(model), why)), why


def test_what_cannot_be_looked_into_is_one_node():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x) if x.isfinite().all() else x

    model = nn.Sequential(nn.Linear(3, 3), Branches(), nn.Linear(3, 3))
    (unit,), why = traced(model, torch.randn(2, 3))
    assert unit.root.part is model
    assert [str(node.target) for node in unit.graph.nodes if node.op == "call_module"] == ["part.0", "part.1", "part.2"]
    assert list(why) == [model[1]]


class Cache:
    def __init__(self):
        self.kept = []


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    def forward(self, x, cache):
        cache.kept.append(x)
        return self.body(x) * len(cache.kept)


class HandsOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.remembers, self.last = nn.Linear(3, 3), Remembers(), nn.Linear(3, 3)

    def forward(self, x, cache=None):
        assert isinstance(cache, Cache)
        return self.last(self.remembers(self.first(x), cache=cache))


def test_an_object_can_be_handed_on_but_not_looked_into():
    model, cache = HandsOn(), Cache()
    (unit, inner), why = traced(model, (torch.randn(2, 3), cache))
    assert unit.root.part is model
    assert inner.root.part is model.remembers.body
    assert why == {model.remembers: "cannot be traced: it looks into an object of type Cache, which is not followed"}
    assert len(cache.kept) == 1  # tracing and checking the graph left it alone


def test_conditions_on_the_dtype_are_those_of_the_example():
    class Clamps(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            x = self.first(x)
            if x.dtype == torch.float16 and x.isinf().any():
                x = x.clamp(-1, 1)
            return self.last(x)

    model = Clamps()
    (unit,), _ = traced(model, torch.randn(2, 3))
    assert [node.target for node in unit.graph.nodes if node.op == "call_module"] == ["part.first", "part.last"]
    none, why = traced(model.half(), torch.randn(2, 3).half())
    assert not none
    assert "control flow" in why[model]
