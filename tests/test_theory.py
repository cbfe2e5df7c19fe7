from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rewa
from rewa import theory
from rewa.reparam import grown

SETTINGS = [(9, 2, 0.0), (9, 4, 0.0), (5, 2.5, 0.0), (3, 0, 1e-2), (4, 1.5, 0.1), (3, 2, 1e-3), (3, 4, 0.0), (2, 1, 0.0)]


@pytest.mark.parametrize(("K", "M", "eps"), SETTINGS)
def test_gradient_of_the_regularizer_by_finite_differences(K, M, eps):
    x = np.array([-2.0, -0.3, 0.01, 0.5, 7.0])
    step = 1e-6 * np.abs(x)
    up, down = (theory.regularizer(x + sign * step, K, M, eps, lam=0.3) for sign in (1, -1))
    np.testing.assert_allclose(theory.regularizer_gradient(x, K, M, eps, lam=0.3), (up - down) / (2 * step), rtol=1e-7)


@pytest.mark.parametrize(("K", "M", "eps"), [(3, 2, 1e-3), (3, 4, 0.0)])
def test_the_degenerate_exponents_are_limits(K, M, eps):
    """Differences of R, which are all that counts, pass through M = 2 and M = K + 1 without a jump."""
    x = np.array([0.1, 3.0])
    at, near = (np.diff(theory.regularizer(x, K, M + shift, eps)) for shift in (0.0, 1e-6))
    np.testing.assert_allclose(at, near, rtol=1e-5)


@given(K=st.floats(1, 12), M=st.floats(0, 8), eps=st.sampled_from([0.0, 1e-3, 0.5]), a=st.floats(1e-3, 10))
@settings(deadline=None)
def test_penalty_is_the_force_of_weight_decay(K, M, eps, a):
    """At rest in y, scale(y) g + lambda y = 0, the gradient in x is -lambda R'(x)."""
    y = a ** (1 / K)
    scale = y**M * (y ** (K - 1) / (y ** (K - 1) + eps) if eps else 1)
    assert theory.regularizer_gradient(a, K, M, eps, lam=0.7) == pytest.approx(0.7 * y / scale, rel=1e-9)


@pytest.mark.parametrize("ratio", [0.99, 1.01])
def test_growth_threshold_decides_a_real_step(ratio):
    start = 0.002
    threshold = theory.growth_threshold(start, 9, 4, lam=0.25)
    param = nn.Parameter(torch.tensor([start]))
    optimizer = rewa.ReWASGD([param], lr=1e-3, K=9, M=4, weight_decay=0.25)
    param.grad = torch.tensor([-ratio * float(threshold)])
    optimizer.step()
    assert (param.item() > start) is (ratio > 1)


@pytest.mark.parametrize(("momentum", "decoupled"), [(0.0, False), (0.875, False), (0.875, True)])
def test_decay_budget_against_a_real_run(momentum, decoupled):
    """A cosine schedule with warm-up; the weight that gets no gradient ends where the budget says."""
    steps, peak = 2000, 0.256
    schedule = [peak * min((t + 1) / 100, (1 + math.cos(math.pi * t / steps)) / 2) for t in range(steps)]
    run = {"K": 9, "momentum": momentum, "decoupled": decoupled}
    decay = theory.weight_decay_for(1e-5, schedule, start=0.05, **run)
    param = nn.Parameter(torch.tensor([0.05]))
    optimizer = rewa.ReWASGD([param], lr=peak, M=2, weight_decay=decay, **run)
    for lr in schedule:
        optimizer.param_groups[0]["lr"] = lr
        param.grad = torch.zeros(1)
        optimizer.step()
    budget = theory.decay_budget(schedule, weight_decay=decay, **run)
    assert budget == pytest.approx(math.log(0.05 / 1e-5))
    assert math.log(0.05 / param.item()) == pytest.approx(budget, rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.effective_p(0.5, 1), "Invalid K value: 0.5"),
        (lambda: theory.regularizer(1.0, 9, -1), "Invalid M value: -1"),
        (lambda: theory.decay_budget([0.1], K=9, weight_decay=-1), "Invalid weight_decay value: -1"),
        (lambda: theory.decay_budget([0.1], K=9, weight_decay=1, momentum=1.0), "Invalid momentum value: 1.0"),
        (lambda: theory.weight_decay_for(2.0, [0.1], K=9), "Invalid shrink_to: 2.0"),
        (lambda: theory.weight_decay_for(0.1, [0.0], K=9), "sum to nothing"),
        (lambda: theory.weight_decay_for(1e-9, [1.0] * 2, K=1, momentum=0.9), "too strong for a weight to follow"),
        (lambda: theory.decay_budget([0.1], K=0.2, weight_decay=1), "Invalid K value: 0.2"),
        (lambda: theory.decay_budget([float("nan")], K=9, weight_decay=1), "sum to nan"),
        (lambda: theory.scad_critical_radius(lam=-1.0), "Invalid lam: -1.0"),
        (lambda: theory.sign_flips(K=9, M=2, eps=0, lr=1, weight_decay=0, gradient_bound=float("nan")), "gradient_bound=nan"),
        (lambda: theory.sparsity_bound(9, 0.0, 1.0), "gamma > 0 and B > 0, got gamma=0.0"),
        (lambda: theory.elimination_threshold(9, -1.0), "Invalid gamma: -1.0"),
        (lambda: theory.stagnation_radii(K=2, M=2, eps=0, lr=1, weight_decay=0, gradient_bound=1), "need K > 2; got K=2"),
        (lambda: theory.sign_flips(K=9, M=2, eps=0, lr=1, weight_decay=2, gradient_bound=1), "weight_decay=2"),
        (lambda: theory.scad(1.0, lam=1.0, a=2.0), "SCAD needs a > 2 and lam > 0, got a=2.0"),
        (lambda: theory.mcp(1.0, lam=0.0), "MCP needs a > 0 and lam > 0, got a=3.0, lam=0.0"),
        (lambda: theory.constant_clipping(1.5, 1.0, 1), "0 < p < 1 and u > 0, got p=1.5"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_penalties_of_other_methods():
    x = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 10.0])
    np.testing.assert_allclose(theory.mcp(-x, lam=1.0, a=3.0), [0, 0.5 - 0.25 / 6, 1 - 1 / 6, 2 - 4 / 6, 1.5, 1.5])
    np.testing.assert_allclose(theory.scad(-x, lam=1.0, a=3.0), [0, 0.5, 1, (12 - 4 - 1) / 4, 2, 2])


@pytest.mark.parametrize(("M", "at_zero"), [(2, math.inf), (1, 0.25), (0, 0.0)])
def test_growth_threshold_at_zero(M, at_zero):
    assert theory.growth_threshold(0.0, 9, M, lam=0.25) == at_zero


@pytest.mark.parametrize(("K", "M"), [(9, 4), (9, 2), (3, 2), (5, 1.5)])
def test_growth_start_inverts_the_growth_threshold(K, M):
    gradients = np.array([0.5, 1.0, 2.0, 5.0])
    starts = theory.growth_start(gradients, K, M, lam=0.25)
    np.testing.assert_allclose(theory.growth_threshold(starts, K, M, lam=0.25), gradients, rtol=1e-12)
    for gradient, start in zip(gradients, starts, strict=True):
        for factor, grows in ((1.01, True), (0.99, False)):
            y = (factor * start) ** (1 / K)
            assert bool(y - 1e-4 * (0.25 * y - gradient * y**M) > y) is grows


def test_growth_start_at_its_ends():
    assert theory.growth_start([0.2, 0.3], 9, 1, lam=0.25).tolist() == [math.inf, 0.0]
    assert theory.growth_start([0.0, 3.0], 9, 0.5, lam=0.25).tolist() == [0.0, 0.0]
    assert theory.growth_start(0.0, 9, 2, lam=0.25) == math.inf


@pytest.mark.parametrize(("K", "decay"), [(9, 2.0), (3, 0.5), (9, 0.8), (1, 1.0)])
def test_adamw_cannot_hold_a_weight_above_its_bound(K, decay):
    """AdamW on y under the largest gradient there is, from below and from above: both end at the bound."""
    ends = []
    for start in (0.1, 4.0):
        y = torch.tensor([start], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.AdamW([y], lr=0.05, weight_decay=decay)
        for _ in range(1500):
            y.grad = torch.full_like(y, -1e6)
            optimizer.step()
        ends.append(y.item() ** K)
    assert ends == pytest.approx([theory.adamw_bound(K, decay)] * 2, rel=1e-6)


def test_the_bound_of_adamw_at_its_ends():
    assert theory.adamw_bound(9, 0.0) == math.inf
    assert theory.adamw_bound(9, 1e-300) == math.inf
    with pytest.raises(ValueError, match="weight_decay"):
        theory.adamw_bound(9, -1.0)


@pytest.mark.parametrize("K", [1, 2, 4, 9])
@pytest.mark.parametrize("steps", [20, 600, 30_000])
def test_the_advice_for_adamw_lets_a_weight_grow_and_one_without_gradient_shrink(K, steps):
    """AdamW on y with the advice: one weight gets a steady gradient, the other none."""
    lr, decay = theory.adamw_advice(K, full_steps=steps)
    y = torch.full((2,), 0.05 ** (1 / K), dtype=torch.float64)
    y.requires_grad_()
    optimizer = torch.optim.AdamW([y], lr=lr, weight_decay=decay)
    for _ in range(min(steps, 2000)):
        y.grad = torch.tensor([-1.0, 0.0], dtype=torch.float64)
        optimizer.step()
    held, free = (y.detach() ** K).tolist()
    assert held > 1.5 * 0.05
    assert free < 0.05
    assert theory.adamw_bound(K, decay) >= 4 * 0.05 * (1 - 1e-9)
    assert lr * steps >= 0.05 ** (1 / K) * (1 - 1e-9)


# Steps that large weights make longer.


def test_grown_penalty_without_a_floor_is_theorem_1():
    x = np.linspace(-2, 2, 41)
    for size, growth in ((0.1, 1.0), (0.5, 0.3)):
        got = theory.grown_penalty(x, size=size, growth=growth, floor=0.0, lam=0.2)
        np.testing.assert_allclose(got, theory.regularizer(x, K=1, M=1, lam=0.2 * size / growth), rtol=1e-14)
        near = theory.grown_penalty(x, size=size, growth=growth, floor=1e-9, lam=0.2)
        np.testing.assert_allclose(near, got, atol=1e-7)


def test_grown_penalty_is_where_weights_rest():
    """Decay beside lengthened steps of gradient descent: weights rest where the derivative of the penalty balances the loss."""
    target, size, lam, lr = torch.tensor([-2.0, -0.05, 0.3, 1.5]), 0.2, 0.3, 0.02
    x = torch.full((4,), 0.1)
    for _ in range(5000):
        x = grown(x, -lr * (x - target), size=size, growth=0.7) - lr * lam * x
    slope = (
        theory.grown_penalty(x + 1e-6, size=size, growth=0.7, lam=lam)
        - theory.grown_penalty(x - 1e-6, size=size, growth=0.7, lam=lam)
    ) / 2e-6
    np.testing.assert_allclose((target - x).numpy(), slope, atol=1e-8)
    assert abs(x[0]) < abs(target[0]) - lam * size / 0.7 / 2  # and that is not where they would rest without decay


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_sparsifier_rests_where_the_theory_says(kind):
    """On SGD at the penalty's balance, with twice the decay; on AdamW where its direction, lengthened, balances the decay."""
    target, lam = torch.tensor([[-2.0, -0.05, 0.3, 1.5]]), 0.2
    model = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.1)
    optimizer = {
        "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5, weight_decay=lam),
        "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=lam, betas=(0.0, 0.0), eps=1.0),
    }[kind](model.parameters())
    rewa.Sparsifier(model, optimizer, sparsity=0.0, steps=10**6)
    for step in range(8000):
        # A higher rate at first, so that on SGD the bound of the other is 50; on AdamW it makes the growth 0.5.
        optimizer.param_groups[0]["lr"] = (0.1 if kind == "sgd" else 0.02) if step == 0 else 2e-3
        model.weight.grad = model.weight.detach() - target
        optimizer.step()
    x = model.weight.detach().numpy()
    gradient = x - target.numpy()
    if kind == "sgd":
        ends = (theory.grown_penalty(x + h, size=0.1, lam=2 * lam) for h in (1e-6, -1e-6))
        np.testing.assert_allclose(-gradient, (next(ends) - next(ends)) / 2e-6, atol=1e-8)
    else:
        direction = gradient / (np.abs(gradient) + 1)
        np.testing.assert_allclose((1 + 0.5 * np.abs(x) / 0.1) * direction, -lam * x, atol=1e-8)


def test_grown_steps_go_to_the_minimizer_of_the_potential():
    """Fewer equations than weights: the solution differs from the start by the rows, in the potential's derivative."""
    rows, b, start, size = torch.randn(3, 12), torch.randn(3), 0.01 * torch.randn(12), 0.05

    def mirror(z: torch.Tensor) -> torch.Tensor:
        return size * torch.sign(z) * torch.log1p(z.abs() / size)

    errors = []
    for lr in (4e-3, 1e-3):
        x = start.clone()
        for _ in range(round(12 / lr)):
            x = grown(x, -lr * rows.T @ (rows @ x - b), size=size)
        torch.testing.assert_close(rows @ x, b, atol=1e-6, rtol=0)
        moved = mirror(x) - mirror(start)
        combination = torch.linalg.lstsq(rows.T, moved[:, None]).solution[:, 0]
        errors.append(float((rows.T @ combination - moved).abs().max()))
    assert errors[1] < 1.1e-3
    assert errors[1] < 0.3 * errors[0]  # a step of finite length is off by as much as it is long
    h = 1e-7
    slope = (theory.grown_potential(x + h, size=size) - theory.grown_potential(x - h, size=size)) / (2 * h)
    np.testing.assert_allclose(slope, mirror(x).numpy(), atol=1e-6)
    plain = start + torch.linalg.lstsq(rows, b - rows @ start).solution  # gradient descent's: the nearest one
    assert x.abs().sum() < plain.abs().sum()


def test_grown_functions_refuse_what_is_no_size():
    for function in (theory.grown_penalty, theory.grown_potential):
        with pytest.raises(ValueError, match=r"Invalid size and growth: 0\.0, 1\.0"):
            function(1.0, size=0.0)
