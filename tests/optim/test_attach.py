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
    beside = 0.0
    if isinstance(optimizer, (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam)):
        beside, by_hand.param_groups[0]["weight_decay"] = 1e-2, 0.0
    for _ in range(20):
        grad = torch.randn(4, 6)
        param.grad = grad
        size = y.detach().abs()
        y.grad = size**M * size ** (K - 1) / (size ** (K - 1) + eps) * grad
        decay = by_hand.param_groups[0]["lr"] * beside * y.detach()
        optimizer.step()
        by_hand.step()
        with torch.no_grad():
            y -= decay
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


def test_groups_of_param_groups():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    nn.init.zeros_(model[0].bias)
    groups = rewa.param_groups(model, K=5, rules={r"1\.weight": {"K": 3, "eps": 0.1}})
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
    with pytest.raises(ValueError, match=r"sets K, which attach does not read.*rewa_K"):
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


class Sharpness(torch.optim.SGD):
    """Saves the weights, climbs, asks the closure there, and steps from where it was, as sharpness-aware methods do."""

    def step(self, closure):
        params = [param for group in self.param_groups for param in group["params"]]
        saved = [param.clone() for param in params]
        with torch.enable_grad():
            closure()
        for param in params:
            param.add_(param.grad, alpha=0.05)
        with torch.enable_grad():
            loss = closure()
        for param, old in zip(params, saved, strict=True):
            param.copy_(old)
        super().step()
        return loss


def test_weights_saved_before_the_closure_come_back():
    param = nn.Parameter(torch.full((2, 2), 0.5))
    optimizer = rewa.attach(Sharpness([param], lr=0.0), K=9)
    seen = []

    def closure():
        seen.append(param.detach().clone())
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert torch.equal(param, torch.full((2, 2), 0.5))
    assert torch.equal(seen[0], torch.full((2, 2), 0.5))
    y = 0.5 ** (1 / 9)
    torch.testing.assert_close(seen[1], torch.full((2, 2), (y + 0.05 * y**2 * 1.0) ** 9))


def test_a_gradient_that_goes_away_between_closures():
    """The optimizer keeps y for the weight through all its closures; at the end it is x again."""

    class Twice(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure):
            for _ in range(2):
                with torch.enable_grad():
                    closure()
                seen.append([param.item() for param in self.param_groups[0]["params"]])

    seen, calls = [], []
    first, second = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.25))
    optimizer = rewa.attach(Twice([first, second]), K=3)

    def closure():
        optimizer.zero_grad()
        (first if calls else first + second).backward()
        calls.append(first.item())

    optimizer.step(closure)
    assert second.grad is None
    assert seen[0] == seen[1] == pytest.approx([0.5 ** (1 / 3), 0.25 ** (1 / 3)])
    assert calls == [0.5, 0.5]
    assert (first.item(), second.item()) == (0.5, 0.25)


def test_arguments_of_the_base_step_by_position():
    class Scaled(torch.optim.SGD):
        def step(self, closure=None, factor=1.0):
            self.param_groups[0]["lr"] = factor
            return super().step(closure)

    param = nn.Parameter(torch.full((2,), 0.5))
    optimizer = rewa.attach(Scaled([param], lr=1.0), K=3)
    param.grad = torch.ones(2)
    optimizer.step(None, 0.0)
    assert torch.equal(param, torch.full((2,), 0.5))
    optimizer.step(None, 0.1)
    assert (param < 0.5).all()


def test_hooks_run_once_where_the_base_calls_its_parents_step():
    torch.optim.SGD([nn.Parameter(torch.ones(1))])  # from now on the parent's step runs hooks, too

    class Child(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    param = nn.Parameter(torch.full((2,), 0.5))
    optimizer = rewa.attach(Child([param], lr=0.1), K=9)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("before", param[0].item())))
    optimizer.register_step_post_hook(lambda *_: seen.append(("after", param[0].item())))
    param.grad = torch.ones(2)
    optimizer.step()
    assert seen == [("before", 0.5), ("after", param[0].item())]


@pytest.mark.parametrize("name", ["Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop"])
def test_decay_bypasses_an_optimizer_that_divides_by_the_size_of_its_gradient(name):
    r"""By hand: the optimizer without decay on y, then :math:`y \leftarrow y - \eta\lambda y_\text{before}`."""
    K, lr, decay = 3, 1e-2, 0.3
    base = getattr(torch.optim, name)
    x = torch.randn(4, 6)
    param, bias, y = nn.Parameter(x.clone()), nn.Parameter(torch.ones(3)), on_y(x, K)
    plain = nn.Parameter(torch.ones(3))
    groups = [{"params": [param]}, {"params": [bias], "rewa_K": 1, "rewa_M": 0}]
    optimizer = rewa.attach(base(groups, lr=lr, weight_decay=decay), K=K, M=1)
    by_hand, coupled = base([y], lr=lr), base([plain], lr=lr, weight_decay=decay)
    for _ in range(20):
        param.grad, bias.grad = torch.randn(4, 6), torch.randn(3)
        plain.grad = bias.grad.clone()
        y.grad = y.detach().abs() * param.grad
        before = y.detach().clone()
        optimizer.step()
        by_hand.step()
        coupled.step()
        with torch.no_grad():
            y -= lr * decay * before
        assert [group["weight_decay"] for group in optimizer.param_groups] == [decay, decay]
    torch.testing.assert_close(param.detach(), y.detach().sign() * y.detach().abs() ** K, rtol=1e-10, atol=1e-14)
    assert torch.equal(bias, plain)


def test_adam_with_decay_is_adamw():
    x = torch.randn(5, 5)
    params = [nn.Parameter(x.clone()) for _ in range(2)]
    kinds = (torch.optim.Adam, torch.optim.AdamW)
    optimizers = [rewa.attach(kind([p], lr=1e-2, weight_decay=0.1)) for kind, p in zip(kinds, params, strict=True)]
    for _ in range(20):
        grad = torch.randn(5, 5)
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = grad.clone()
            optimizer.step()
    torch.testing.assert_close(*params, rtol=1e-9, atol=1e-13)


def test_what_cannot_be_attached_to_is_named():
    param = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"ASGD averages .* torch\.optim\.swa_utils\.AveragedModel"):
        rewa.attach(torch.optim.ASGD([param]))
    with pytest.raises(ValueError, match=r"differentiable=True.*rewa\.ReWASGD"):
        rewa.attach(torch.optim.SGD([param], differentiable=True))
    attached = rewa.attach(torch.optim.SGD([param]))
    for key, message in (("K", "sets K.*rewa_K"), ("rewa_k", "rewa_k.*did you mean 'rewa_K'")):
        with pytest.raises(ValueError, match=message):
            attached.add_param_group({"params": [nn.Parameter(torch.ones(3))], key: 3})
    assert len(attached.param_groups) == 1
    with pytest.raises(ValueError, match=r"K=3 has no effect: every group sets its own K"):
        rewa.attach(torch.optim.SGD(rewa.param_groups(nn.Linear(3, 2))), K=3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_matched_sgd_is_rewasgd(momentum):
    torch.manual_seed(0)
    models = [nn.Linear(6, 5, bias=False)]
    models.append(copy.deepcopy(models[0]))
    groups = [rewa.param_groups(model, K=3, M=2, eps=0.1, weight_decay=1e-2, match=True) for model in models]
    optimizers = [
        rewa.attach(torch.optim.SGD(groups[0], lr=1e-3, momentum=momentum)),
        rewa.ReWASGD(groups[1], lr=1e-3, momentum=momentum),
    ]
    for _ in range(20):
        grad = torch.randn(5, 6)
        for model, optimizer in zip(models, optimizers, strict=True):
            model.weight.grad = grad.clone()
            optimizer.step()
    assert optimizers[0].param_groups[0]["lr"] == 1e-3
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RMSprop", "SGD"])
def test_a_matched_step_is_the_bases_for_a_weight_of_the_usual_size(name):
    """To first order in the rate; and decay shrinks the weight by K lr weight_decay, whatever is matched."""
    for grad, decay in ((1.0, 0.0), (0.0, 0.25)):
        plain, ours = (nn.Linear(3, 2, bias=False) for _ in range(2))
        for model in (plain, ours):
            nn.init.constant_(model.weight, 0.04)
            model.weight.grad = torch.full((2, 3), grad)
        base, lr = getattr(torch.optim, name), 1e-6
        optimizer = rewa.attach(base(rewa.param_groups(ours, K=5, M=2, weight_decay=decay, match=True), lr=lr))
        optimizer.step()
        base(plain.parameters(), lr=lr, weight_decay=0.0).step()
        moved = [float(model.weight.detach().mean()) - 0.04 for model in (ours, plain)]
        expected = moved[1] if grad else -5 * lr * decay * 0.04
        assert moved[0] == pytest.approx(expected, rel=1e-3)


def test_an_edited_setting_is_refused_with_x_in_place():
    params = [nn.Parameter(torch.full((2,), 0.5)) for _ in range(2)]
    optimizer = rewa.attach(torch.optim.SGD([{"params": [param]} for param in params], lr=0.1), K=3)
    for param in params:
        param.grad = torch.ones(2)
    for key, value in (("rewa_K", 0.5), ("rewa_M", float("nan")), ("K", 5), ("rewa_match", True)):
        kept = dict(optimizer.param_groups[0])
        optimizer.param_groups[0][key] = value
        with pytest.raises(ValueError, match=f"Invalid {key[5:]}|sets K"):
            optimizer.step()
        optimizer.param_groups[0].clear()
        optimizer.param_groups[0].update(kept)
        assert all(torch.equal(param, torch.full((2,), 0.5)) and torch.equal(param.grad, torch.ones(2)) for param in params)
    optimizer.step()
    assert (params[0] < 0.5).all()


def test_groups_of_an_annealed_optimizer_start_anew_when_attached_or_detached():
    param = nn.Parameter(torch.ones(3))
    optimizer = rewa.attach(torch.optim.SGD([param], lr=0.1, weight_decay=0.5), K=2, M=1)
    rewa.Annealing(optimizer, 10).at(3)
    again = rewa.attach(torch.optim.SGD(optimizer.param_groups))
    assert [again.param_groups[0][key] for key in ("rewa_K", "rewa_M", "weight_decay")] == [2, 1, 0.5]
    rewa.Annealing(again, 10).at(3)
    group = rewa.detach(again).param_groups[0]
    assert group["weight_decay"] == 0.5
    assert "annealed_to" not in group


def test_decay_that_can_hold_no_weight_is_told_here_too():
    model = nn.Linear(4, 3)
    for base in (torch.optim.Adam, torch.optim.AdamW):
        with pytest.warns(UserWarning, match="lets no weight exceed"):
            rewa.attach(base(rewa.param_groups(model, weight_decay=2.0)))


@pytest.mark.parametrize("name", ["Adafactor", "Rprop"])
def test_steps_with_a_size_of_their_own_are_matched(name):
    plain, ours = (nn.Linear(3, 2, bias=False) for _ in range(2))
    for model in (plain, ours):
        nn.init.constant_(model.weight, 0.04)
        model.weight.grad = torch.ones(2, 3)
    base = getattr(torch.optim, name)
    optimizer = rewa.attach(base(rewa.param_groups(ours, K=5, M=2, weight_decay=0.0, match=True), lr=1e-6))
    first = float(ours.weight.detach().mean())
    optimizer.step()
    base(plain.parameters(), lr=1e-6).step()
    moved = [float(model.weight.detach().mean()) - first for model in (ours, plain)]
    if name == "Rprop":
        assert moved[0] == pytest.approx(moved[1], rel=1e-3)
    else:  # Adafactor also scales by the size of what it trains, which is that of y
        assert abs(moved[0]) < 20 * abs(moved[1])
