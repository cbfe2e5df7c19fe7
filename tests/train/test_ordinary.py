"""Layers whose call may be made by other means, and all that forbids it."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils.flop_counter import FlopCounterMode

from rewa.train.ordinary import in_memory, ordinary


class Sub(nn.Linear):
    pass


HOOKS = ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]


def test_a_plain_layer_is():
    assert ordinary(nn.Linear(2, 2), nn.Linear)
    assert ordinary(copy.deepcopy(nn.Linear(2, 2)).eval(), nn.Linear)


def test_another_class_is_not():
    assert not ordinary(Sub(2, 2), nn.Linear)
    assert not ordinary(nn.Identity(), nn.Linear)
    assert not ordinary(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear)


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_are_heard(kind):
    layer = nn.Linear(2, 2)
    handle = getattr(layer, f"register_{kind}")(lambda *call: None)
    assert not ordinary(layer, nn.Linear)
    handle.remove()
    assert ordinary(layer, nn.Linear)


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_all_modules_are_heard(kind):
    layer = nn.Linear(2, 2)
    handle = getattr(torch_module, f"register_module_{kind}")(lambda *call: None)
    try:
        assert not ordinary(layer, nn.Linear)
    finally:
        handle.remove()
    assert ordinary(layer, nn.Linear)


def test_a_forward_of_its_own_counts():
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x
    assert not ordinary(layer, nn.Linear)


@pytest.mark.parametrize("mode", [FakeTensorMode, lambda: FlopCounterMode(display=False), forward_ad.dual_level])
def test_modes_count(mode):
    layer = nn.Linear(2, 2)
    with mode():
        assert not ordinary(layer, nn.Linear)
    assert ordinary(layer, nn.Linear)


def seen_inside(transform):
    """What it answers while a function is traced, compiled or transformed."""
    layer, found = nn.Linear(2, 2).requires_grad_(False), []

    def call(x):
        found.append(ordinary(layer, nn.Linear))
        return layer(x).sum()

    transform(call)
    return found


@pytest.mark.parametrize(
    "transform",
    [
        lambda call: torch.func.grad(call)(torch.ones(2)),
        lambda call: torch.func.vmap(call)(torch.ones(3, 2)),
        lambda call: torch.func.jvp(call, (torch.ones(2),), (torch.ones(2),)),
        lambda call: torch.jit.trace(call, torch.ones(2), check_trace=False),
        lambda call: torch.fx.experimental.proxy_tensor.make_fx(call)(torch.ones(2)),
    ],
    ids=["grad", "vmap", "jvp", "trace", "make_fx"],
)
def test_transforms_count(transform):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit's, but still used
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        found = seen_inside(transform)
    assert found
    assert not any(found)


def test_compilation_counts():
    layer, found = nn.Linear(2, 2), []

    def backend(graph, inputs):
        found.append([node.op for node in graph.graph.nodes])
        return graph.forward

    torch.compile(lambda x: layer(x) if not ordinary(layer, nn.Linear) else x, backend=backend, fullgraph=True)(torch.ones(2))
    assert len(found[0]) > 2  # the layer is in the graph


def test_what_is_in_memory():
    x = torch.ones(2)
    assert in_memory(x, nn.Parameter(x))
    assert in_memory()
    assert not in_memory(x, None)
    assert not in_memory(x.to("meta"))
    assert not in_memory(torch.eye(2).to_sparse())
    assert not in_memory(torch.ones(2).as_subclass(type("Mine", (torch.Tensor,), {})))
    with FakeTensorMode() as fake:
        assert not in_memory(fake.from_tensor(x))
