from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rewa
from rewa import inference
from rewa.inference import SparseConv, SparseLinear

KERNELS = ("rewa", "csr")


def sparse(layer, sparsity=0.8):
    layer = layer.float()
    with torch.no_grad():
        layer.weight.masked_fill_(torch.rand_like(layer.weight) < sparsity, 0)
    return layer.eval()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float32)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("batch", [0, 1, 2, 7, 8, 15, 16, 17, 33, 63, 64, 130, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (16, 16), (37, 50), (130, 33)])
def test_linear(kernel, batch, inputs, outputs):
    layer = sparse(nn.Linear(inputs, outputs, bias=batch % 2 == 0))
    x = draw(batch, inputs)
    with torch.no_grad():
        assert_close(SparseLinear(layer, kernel)(x), layer(x))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_linear_on_any_shape_layout_and_number_of_threads(kernel, threads):
    layer = sparse(nn.Linear(20, 12))
    with torch.no_grad():
        torch.set_num_threads(threads)
        try:
            for x in (draw(20), draw(3, 4, 20), draw(20, 9).T, draw(9, 40)[:, ::2], draw(200, 20)):
                assert_close(SparseLinear(layer, kernel)(x), layer(x))
        finally:
            torch.set_num_threads(1)


@pytest.mark.parametrize("sparsity", [0.0, 1.0])
def test_full_and_empty_weights(sparsity):
    linear, conv = sparse(nn.Linear(9, 5), sparsity), sparse(nn.Conv2d(2, 3, 3, padding=1), sparsity)
    with torch.no_grad():
        for kernel, batch in itertools.product(KERNELS, (1, 4)):
            x = draw(batch, 9)
            assert_close(SparseLinear(linear, kernel)(x), linear(x))
        x = draw(2, 2, 5, 5)
        assert_close(SparseConv(conv)(x), conv(x))


@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.one_of(st.sampled_from(["same", "valid"]), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.sampled_from([1, 2, 4]),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    batch=st.integers(1, 20),
    threads=st.integers(1, 2),
)
@settings(deadline=None, max_examples=300)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_conv_of_every_kind(kernel, stride, padding, dilation, groups, size, batch, threads):
    if padding == "same":
        stride = (1, 1)
    layer = sparse(nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups, bias=batch % 2 == 0), 0.6)
    x = draw(batch, 4, *size)
    with torch.no_grad():
        try:
            expected = layer(x)
        except RuntimeError:  # the filter is larger than the padded image
            return
        torch.set_num_threads(threads)
        try:
            result = SparseConv(layer)(x)
        finally:
            torch.set_num_threads(1)
    assert result.is_contiguous()
    assert_close(result, expected)


@pytest.mark.parametrize(("stride", "padding", "dilation"), list(itertools.product((1, 2), (0, 1, 3), (1, 2))))
def test_conv_in_one_dimension(stride, padding, dilation):
    layer = sparse(nn.Conv1d(4, 6, 3, stride, padding, dilation), 0.6)
    x = draw(5, 4, 11)
    with torch.no_grad():
        assert_close(SparseConv(layer)(x), layer(x))


def test_conv_follows_a_change_of_size_and_layout():
    layer = sparse(nn.Conv2d(3, 5, 3, padding=1))
    fast = SparseConv(layer)
    with torch.no_grad():
        for x in (draw(2, 3, 8, 8), draw(9, 3, 4, 4), draw(2, 3, 8, 8).to(memory_format=torch.channels_last)):
            assert_close(fast(x), layer(x))


@pytest.mark.parametrize(
    "make", [lambda: SparseLinear(sparse(nn.Linear(6, 4))), lambda: SparseConv(sparse(nn.Conv1d(6, 4, 1)))]
)
def test_dense_wherever_the_nonzeros_would_be_wrong(make, monkeypatch):
    layer = make()
    shape = (2, 6) if isinstance(layer, SparseLinear) else (2, 6, 3)
    calls = []
    monkeypatch.setattr(layer, "sparse", lambda x: calls.append(1))
    x = draw(*shape)
    layer(x)  # gradients are on and the weight wants one
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        layer(x)
    with torch.no_grad():
        copy.deepcopy(layer.dense).double()
        layer.weight.mul_(2)  # an edit
        assert_close(layer(x), layer.dense(x))
    assert calls == []
    fresh = make()
    with torch.no_grad():
        monkeypatch.setattr(fresh, "sparse", lambda x: calls.append(1))
        fresh(x)
    assert calls == [1]


def test_gradients_flow_through_a_swapped_layer():
    layer = sparse(nn.Linear(6, 4))
    fast = SparseLinear(layer)
    fast(draw(3, 6)).sum().backward()
    assert layer.weight.grad is fast.weight.grad is not None


def network():
    model = nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 256), nn.Linear(256, 10)
    ).float()
    for index in (0, 4):
        sparse(model[index], 0.97)
    return model


def test_accelerate_gives_the_same_outputs_and_undoes_itself():
    model = network().train()
    names, layers = list(model.state_dict()), list(model)
    x = draw(4, 8, 8, 8)
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(x)
    with rewa.accelerate(model, x, rounds=5, verbose=False) as plan:
        assert model.training
        assert [choice.name for choice in plan.choices] == ["0", "4"]  # the last has few zeros
        assert list(model.state_dict()) == names
        assert plan.ms <= plan.dense_ms
        assert all(choice.ms <= choice.dense_ms for choice in plan.choices)
        model.eval()
        with torch.no_grad():
            assert_close(model(x), expected)
    assert list(model) == layers
    assert str(plan).count("\n") == 3


def test_the_plan_is_printed(capsys):
    rewa.accelerate(network(), draw(2, 8, 8, 8), rounds=2)
    assert "whole model" in capsys.readouterr().out


def test_slower_kernels_are_not_used(monkeypatch):
    """Kernels that do the work and then wait: every layer stays dense, and so does the model."""
    import time

    original = inference._Sparse.forward

    def slow(self, x):
        time.sleep(0.02)
        return original(self, x)

    monkeypatch.setattr(inference._Sparse, "forward", slow)
    model = network()
    layers = list(model)
    plan = rewa.accelerate(model, draw(4, 8, 8, 8), rounds=3, verbose=False)
    assert {choice.kernel for choice in plan.choices} == {"dense"}
    assert plan.ms == plan.dense_ms
    assert list(model) == layers


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch):
    monkeypatch.setattr(SparseLinear, "sparse", lambda self, x: torch.zeros(len(x), self.dense.out_features, dtype=x.dtype))
    model = sparse(nn.Sequential(nn.Linear(256, 256))[0], 0.99)
    plan = rewa.accelerate(nn.Sequential(model), draw(8, 256), rounds=2, verbose=False)
    assert [choice.kernel for choice in plan.choices] == ["dense"]


def test_without_a_compiler_torchs_kernel_competes(monkeypatch):
    monkeypatch.setattr(inference, "_library", lambda: None)
    model = nn.Sequential(sparse(nn.Linear(512, 512), 0.99), sparse(nn.Conv2d(2, 2, 1)))
    best, dense_ms, ms = inference._fastest(model[0], draw(64, 512), 5)
    assert getattr(best, "kernel", "dense") in ("csr", "dense")
    assert ms <= dense_ms
    with torch.no_grad():
        best, _, _ = inference._fastest(model[1], draw(2, 2, 5, 5), 2)
    assert best is model[1]


def test_what_cannot_be_swapped_is_left():
    hooked = sparse(nn.Linear(64, 64), 0.99)
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(
        hooked,
        sparse(nn.Linear(64, 64), 0.3),
        sparse(nn.Linear(64, 64), 0.99).double(),
        nn.Linear(64, 64),
    )
    assert not any(inference._fits(layer) for layer in model)
    assert not inference._fits(sparse(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), 0.9))
    frozen = nn.Sequential(sparse(nn.Linear(64, 64), 0.99))
    assert inference._fits(frozen[0])
    rewa.freeze_zeros(frozen)
    with pytest.raises(ValueError, match=r"rewa.zeros.thaw\(model\) first"):
        rewa.accelerate(frozen, draw(2, 64), verbose=False)


def test_a_layer_used_in_two_places_is_swapped_in_both():
    layer = sparse(nn.Linear(400, 400), 0.995)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    x = draw(32, 400)
    with torch.no_grad():
        expected = model(x)
        plan = rewa.accelerate(model, x, rounds=5, verbose=False)
        assert_close(model(x), expected)
    assert model[0] is model[2]
    plan.undo()
    assert model[0] is model[2] is layer


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (SparseLinear(sparse(nn.Linear(6, 4))), [(2, 5), (2, 7), (), (0,)]),
        (SparseConv(sparse(nn.Conv2d(3, 4, 3))), [(2, 2, 5, 5), (2, 4, 5, 5), (2, 3, 2, 5), (2, 3, 5), (3, 5), (5,)]),
        (SparseConv(sparse(nn.Conv1d(3, 4, 3))), [(2, 2, 5), (2, 3, 2), (5,)]),
    ],
)
def test_wrong_inputs_get_the_dense_layers_error(layer, shapes):
    """The kernel trusts its sizes, so it must never see these."""
    for shape in shapes:
        with torch.no_grad(), pytest.raises(RuntimeError):
            layer(torch.zeros(shape, dtype=torch.float32))


def test_empty_batches_and_single_images():
    layer = sparse(nn.Conv2d(3, 4, 3))
    fast = SparseConv(layer)
    with torch.no_grad():
        assert fast(draw(0, 3, 5, 5)).shape == (0, 4, 3, 3)
        x = draw(3, 5, 5)
        assert_close(fast(x), layer(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_replaced_parameter_a_copy_and_another_dtype_are_noticed():
    with torch.no_grad():
        x = draw(3, 6)
        for change in (
            lambda layer: setattr(layer, "weight", nn.Parameter(torch.zeros(4, 6, dtype=torch.float32))),
            lambda layer: layer.load_state_dict({k: torch.ones_like(v) for k, v in layer.state_dict().items()}, assign=True),
            lambda layer: layer.weight.zero_(),
        ):
            layer = SparseLinear(sparse(nn.Linear(6, 4)))
            change(layer)
            assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
        twin = copy.deepcopy(SparseLinear(sparse(nn.Linear(6, 4))))
        for _ in range(3):
            twin.weight.mul_(0.5)
            assert_close(twin(x), nn.functional.linear(x, twin.weight, twin.bias))
        low = SparseLinear(sparse(nn.Linear(6, 4))).bfloat16()
        with pytest.raises(RuntimeError, match="dtype"):
            low(x)
        traced = torch.jit.trace(SparseLinear(sparse(nn.Linear(6, 4))), x)
        assert traced(x).isfinite().all()
    layer = SparseLinear(sparse(nn.Linear(6, 4)))
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()  # the bias still learns
    assert layer.bias.grad is not None
