from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import rewa

BASES = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, weight_decay=1e-2),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2, weight_decay=1e-2),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=1e-3, weight_decay=1e-2),
    "Muon": lambda params: torch.optim.Muon(params, lr=1e-3, weight_decay=1e-2),
    "Rprop": lambda params: torch.optim.Rprop(params, lr=1e-3),
    "fused AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3, fused=True),
}
every = pytest.mark.parametrize("base", BASES.values(), ids=BASES)


def on_y(x, K):
    return nn.Parameter(x.sign() * x.abs() ** (1 / K))


@every
def test_any_optimizer_trains_y(base):
    """Twenty steps equal to the same optimizer run by hand on y with the scaled gradient."""
    K, M, eps = 5, 2, 1e-3
    x = torch.randn(4, 6)
    param, y = nn.Parameter(x.clone()), on_y(x, K)
    optimizer, by_hand = rewa.attach(base([param]), K=K, M=M, eps=eps), base([y])
    for _ in range(20):
        grad = torch.randn(4, 6)
        param.grad = grad
        size = y.detach().abs()
        y.grad = size**M * size ** (K - 1) / (size ** (K - 1) + eps) * grad
        optimizer.step()
        by_hand.step()
        assert param.grad is grad
    torch.testing.assert_close(param.detach(), y.detach().sign() * y.detach().abs() ** K, rtol=1e-10, atol=1e-14)


def test_lbfgs_may_call_the_closure_many_times():
    param = nn.Parameter(torch.tensor([0.5, 0.2]))
    optimizer = rewa.attach(torch.optim.LBFGS([param], max_iter=30, line_search_fn="strong_wolfe"), K=3, M=2)
    target, calls = torch.tensor([1.0, 0.7]), []

    def closure():
        optimizer.zero_grad()
        loss = (param - target).square().sum()  # the closure sees x, never y
        loss.backward()
        calls.append(loss.item())
        return loss

    first = optimizer.step(closure)
    assert first.item() == pytest.approx(calls[0])
    assert len(calls) > 3
    torch.testing.assert_close(param.detach(), target, rtol=1e-4, atol=0)


@every
def test_copies_and_pickles_stay_attached(base):
    param = nn.Parameter(torch.randn(3, 4))
    optimizer = rewa.attach(base([param]), K=3)
    param.grad = torch.randn(3, 4)
    optimizer.step()
    for duplicate in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        pairs = [duplicate((param, optimizer)), copy.deepcopy((param, optimizer))]
        grad = torch.randn(3, 4)
        for other, stepper in pairs:
            assert isinstance(stepper, type(optimizer))
            other.grad = grad.clone()
            stepper.step()
        assert torch.equal(pairs[0][0], pairs[1][0])


def test_state_dict_and_detach():
    param, other = (nn.Parameter(torch.full((2, 2), 0.3)) for _ in range(2))
    optimizer = rewa.attach(BASES["SGD"]([param]), K=3)
    fresh = rewa.attach(BASES["SGD"]([other]), K=7)
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.param_groups[0]["rewa_K"] == 3
    assert type(rewa.detach(optimizer)) is torch.optim.SGD
    assert "rewa_K" not in optimizer.param_groups[0]
    plain = nn.Parameter(param.detach().clone())
    for weight, stepper in ((param, optimizer), (plain, BASES["SGD"]([plain]))):
        weight.grad = torch.ones(2, 2)
        stepper.step()
    assert torch.equal(param, plain)
    with pytest.raises(ValueError, match="not attached to this SGD"):
        rewa.detach(optimizer)
    with pytest.raises(ValueError, match=r"no rewa_K, rewa_M, rewa_eps in parameter group 0.*then attach"):
        fresh.load_state_dict(optimizer.state_dict())
    assert fresh.param_groups[0]["rewa_K"] == 3
    torch.optim.lr_scheduler.StepLR(fresh, 1)
    with pytest.raises(ValueError, match="wrapped, by a scheduler"):
        rewa.detach(fresh)
    fresh.step()


def test_other_arguments_of_the_base_step_pass_through():
    class Scaled(torch.optim.SGD):
        def step(self, closure=None, *, factor=1.0):
            self.param_groups[0]["lr"] = factor
            return super().step(closure)

    param = nn.Parameter(torch.full((2,), 0.5))
    optimizer = rewa.attach(Scaled([param], lr=1.0), K=3)
    param.grad = torch.ones(2)
    optimizer.step(factor=0.0)
    assert torch.equal(param, torch.full((2,), 0.5))
    optimizer.step(factor=0.1)
    assert (param < 0.5).all()


def test_schedulers_and_hooks_see_the_weights():
    param = nn.Parameter(torch.full((2, 2), 0.5))
    optimizer = rewa.attach(BASES["SGD"]([param]), K=9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(param.detach().clone()))
    optimizer.register_step_post_hook(lambda *_: seen.append(param.detach().clone()))
    param.grad = torch.ones(2, 2)
    optimizer.step()
    scheduler.step()
    assert len(seen) == 2
    assert torch.equal(seen[0], torch.full((2, 2), 0.5))
    assert torch.equal(seen[1], param)
    assert scheduler.get_last_lr() == [0.025]


def test_a_failing_step_leaves_weights_and_gradients_in_place():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            raise RuntimeError("disk full")

    param = nn.Parameter(torch.full((2, 2), 0.5))
    optimizer = rewa.attach(Failing([param], lr=0.0), K=9)
    grad = param.grad = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="disk full"):
        optimizer.step()
    assert torch.equal(param, torch.full((2, 2), 0.5))
    assert param.grad is grad


def test_groups_with_a_prefix():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    nn.init.zeros_(model[0].bias)
    groups = rewa.param_groups(model, K=5, prefix="rewa_", rules={r"1\.weight": {"K": 3, "eps": 0.1}})
    optimizer = rewa.attach(torch.optim.AdamW(groups))
    assert [(group["rewa_K"], group["rewa_eps"], group["eps"]) for group in optimizer.param_groups] == [
        (5, 0.0, 1e-8),
        (1, 0.0, 1e-8),
        (3, 0.1, 1e-8),
    ]
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert (model[0].bias != 0).all()


def test_misuse_is_explained_and_changes_nothing():
    param = nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.SGD([param], lr=0.1)
    before = optimizer.state_dict()
    for bad, message in (({"K": 0.5}, "Invalid K value: 0.5"), ({"M": -1}, "Invalid M"), ({"eps": -1}, "Invalid eps")):
        with pytest.raises(ValueError, match=message):
            rewa.attach(optimizer, **bad)
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.state_dict() == before
    with pytest.raises(ValueError, match=r"parameter 0 of group 0 \(3\) is all zero.*rewa_K=1, rewa_M=0"):
        rewa.attach(torch.optim.SGD([nn.Parameter(torch.zeros(3))]))
    with pytest.raises(ValueError, match=r"bfloat16.*ReWASGD"):
        rewa.attach(torch.optim.SGD([nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]))
    with pytest.raises(ValueError, match=r"sets K or M.*prefix='rewa_'"):
        rewa.attach(torch.optim.SGD([{"params": [param], "K": 3}]))
    with pytest.raises(ValueError, match="is a ReWA optimizer already"):
        rewa.attach(rewa.ReWASGD([param]))
    with pytest.raises(ValueError, match="already attached to this AttachedSGD"):
        rewa.attach(rewa.attach(optimizer))
    scheduled = torch.optim.SGD([param])
    torch.optim.lr_scheduler.ConstantLR(scheduled)
    with pytest.raises(ValueError, match="attach first"):
        rewa.attach(scheduled)
    attached = rewa.attach(torch.optim.SGD([param]))
    with pytest.raises(ValueError, match="parameter 0 of group 1"):
        attached.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    assert len(attached.param_groups) == 1
