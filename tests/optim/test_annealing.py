from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import rewa
from problems import IMPLEMENTATIONS, random_problem
from rewa.optim.annealing import annealed

SETTING = {"lr": 0.01, "K": 3, "M": 1.5, "momentum": 0.9, "weight_decay": 0.05}


def slow_reference(x, grads, exponents, *, lr, K, momentum, weight_decay, **_):
    """Algorithm 1 with a K and an M for each step, as it is written down; K times the decay stays what it is in the end."""
    x, buffer, final = np.array(x), np.zeros_like(x), K
    for grad, (K, M) in zip(grads, exponents, strict=True):
        y = np.sign(x) * np.abs(x) ** (1 / K)
        buffer = momentum * buffer + np.abs(y) ** M * grad + weight_decay * final / K * y
        y = y - lr * buffer
        x = np.sign(y) * np.abs(y) ** K
    return x


@pytest.mark.parametrize("K_start", [1.0, None])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_annealed_steps_equal_the_reference(implementation, K_start):
    x, grads = random_problem(100)
    param = nn.Parameter(torch.tensor(x))
    optimizer = rewa.ReWASGD([param], **SETTING, **IMPLEMENTATIONS[implementation])
    annealing = rewa.Annealing(optimizer, len(grads), K_start=K_start, begin=0.2, end=0.8)
    exponents = []
    for grad in grads:
        exponents.append([optimizer.param_groups[0][key] for key in ("K", "M")])
        param.grad = torch.tensor(grad)
        optimizer.step()
        annealing.step()
    # Twenty steps at the start, a straight line, twenty in the end.
    expected = np.array([np.interp(np.arange(100), [20, 80], ends) for ends in ([K_start or 3, 3], [0.0, 1.5])]).T
    np.testing.assert_allclose(exponents, expected, atol=1e-12)
    np.testing.assert_allclose(param.detach(), slow_reference(x, grads, expected, **SETTING), rtol=1e-8, atol=1e-12)


def test_up_to_the_beginning_it_is_plain_sgd():
    x, grads = random_problem(20)
    ours, torchs = (nn.Parameter(torch.tensor(x)) for _ in range(2))
    optimizer = rewa.ReWASGD([{"params": [ours], "match": 0.3}], **SETTING)
    annealing = rewa.Annealing(optimizer, 100, begin=0.2)
    sgd = torch.optim.SGD([torchs], lr=0.01, momentum=0.9, weight_decay=3 * 0.05)
    for grad in grads:
        ours.grad, torchs.grad = torch.tensor(grad), torch.tensor(grad)
        optimizer.step()
        annealing.step()
        sgd.step()
    torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-14)


def test_what_low_precision_keeps_follows_K():
    """A bfloat16 weight whose moves are smaller than its own resolution still moves, while K changes at every step."""
    x = torch.linspace(0.3, 1, 50)
    coarse, fine = nn.Parameter(x.bfloat16()), nn.Parameter(x.bfloat16().float())
    for param in (coarse, fine):
        optimizer = rewa.ReWASGD([param], lr=1e-3, K=3, M=1)
        annealing = rewa.Annealing(optimizer, 200, begin=0.0, end=1.0, K_start=2.0)
        for _ in range(200):
            param.grad = torch.full_like(param, 0.25)
            optimizer.step()
            annealing.step()
    assert (x - fine).min() > 0.02
    torch.testing.assert_close(coarse.float(), fine, rtol=2**-8, atol=0)


@pytest.mark.parametrize("stop", [3, 25, 70])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_low_precision_from_plain_sgd_resumes_alike(implementation, stop):
    """While K is 1 the weight, its momentum and what is kept beside it are already those of the later steps."""

    def made(x):
        param = nn.Parameter(x.clone())
        setting = {"lr": 1e-4, "K": 2, "M": 1, "momentum": 0.9, "weight_decay": 0.05}
        optimizer = rewa.ReWASGD([param], **setting, **IMPLEMENTATIONS[implementation])
        return param, optimizer, rewa.Annealing(optimizer, 200)

    def advance(param, optimizer, annealing, count):
        for _ in range(count):
            param.grad = torch.full_like(param, 0.25)
            optimizer.step()
            annealing.step()

    x = torch.linspace(0.3, 1, 50, dtype=torch.bfloat16)
    fine, coarse = made(x.float()), made(x)
    advance(*fine, 200)
    advance(*coarse, stop)
    resumed = made(coarse[0].detach())
    resumed[1].load_state_dict(copy.deepcopy(coarse[1].state_dict()))  # torch would share the tensors
    resumed[2].load_state_dict(coarse[2].state_dict())
    for run in (coarse, resumed):
        advance(*run, 200 - stop)
    assert (x - fine[0]).min() > 0.01, "a weight moves by more than bfloat16's resolution"
    torch.testing.assert_close(coarse[0].float(), fine[0], rtol=2**-8, atol=0)
    assert torch.equal(resumed[0], coarse[0])


def test_nothing_is_left_in_the_optimizers_state():
    """torch.distributed.checkpoint fills an empty state before it loads, and takes an entry without tensors for a full one."""
    optimizer = rewa.ReWASGD([nn.Parameter(torch.ones(3))], **SETTING)
    rewa.Annealing(optimizer, 10).step()
    assert not optimizer.state


def test_the_fused_kernel_is_not_compiled_again_for_every_exponent():
    from rewa.optim import fused

    param = nn.Parameter(torch.linspace(0.1, 1, 10))
    optimizer = rewa.ReWASGD([param], **SETTING, fused=True)
    param.grad = torch.ones_like(param)
    group = optimizer.param_groups[0]
    group["K"], group["M"] = 1.1, 0.3
    optimizer.step()
    before = fused._kernel.cache_info().currsize
    for group["K"], group["M"] in ((1.2, 0.31), (1.2, 0.7), (2.41, 1.41)):
        optimizer.step()
    assert fused._kernel.cache_info().currsize == before


def test_resumed_annealing_goes_on_alike():
    def make():
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = rewa.ReWASGD(rewa.param_groups(model, K=2, M=1.5, match=True), lr=0.001, momentum=0.9)
        return model, optimizer, rewa.Annealing(optimizer, 40)

    def go(model, optimizer, annealing, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, 8)).square().sum().backward()
            optimizer.step()
            annealing.step()

    whole = make()
    go(*whole, 40)
    first, second = make(), make()
    go(*first, 17)
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(old.state_dict())
    go(*second, 23)
    for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.isfinite().all()
    assert second[1].param_groups[0]["M"] == 1.5


def test_only_sparse_groups_are_annealed():
    model = nn.Linear(8, 4)
    optimizer = rewa.ReWASGD(rewa.param_groups(model, K=3, M=2), lr=0.1)
    annealing = rewa.Annealing(optimizer, 10, K_start=2.0, M_start=0.5, begin=0.0, end=0.5)
    assert [(group["K"], group["M"]) for group in optimizer.param_groups] == [(2, 0.5), (1, 0)]
    for _ in range(5):
        annealing.step()
    assert [(group["K"], group["M"]) for group in optimizer.param_groups] == [(3, 2), (1, 0)]


def test_plain_groups_stay_plain_with_decoupled_decay():
    optimizer = rewa.ReWASGD(rewa.param_groups(nn.Linear(8, 4), K=3, M=2), lr=0.1, decoupled=True)
    rewa.Annealing(optimizer, 10, K_start=2.0, M_start=0.5)
    assert [(group["K"], group["M"]) for group in optimizer.param_groups] == [(2, 0.5), (1, 0)]


def test_what_cannot_be_annealed_is_named():
    param = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"^SGD has no K, M in its groups: give a ReWASGD"):
        rewa.Annealing(torch.optim.SGD([param], lr=0.1), 10)
    with pytest.raises(ValueError, match="no group of the optimizer can be annealed"):
        rewa.Annealing(rewa.ReWASGD([param], lr=0.1, K=1, M=0), 10)


def test_a_state_saved_without_annealing_is_annealed_from_then_on():
    optimizer = rewa.ReWASGD([nn.Parameter(torch.ones(3))], **SETTING)
    saved = copy.deepcopy(optimizer.state_dict())
    annealing = rewa.Annealing(optimizer, 10)
    optimizer.load_state_dict(saved)
    annealing.step()
    assert optimizer.param_groups[0]["K"] == 1
    annealing.at(10)
    assert {key: optimizer.param_groups[0][key] for key in ("K", "M")} == {key: SETTING[key] for key in ("K", "M")}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "Invalid steps: 0"),
        ({"begin": 0.8}, "Invalid begin and end: 0.8, 0.5"),
        ({"end": 1.5}, "Invalid begin and end: 0.1, 1.5"),
        ({"M_start": -1.0}, "Invalid M value: -1.0"),
        ({"K_start": 0.5}, "Invalid K value: 0.5"),
    ],
)
def test_bad_values_are_named(settings, message):
    optimizer = rewa.ReWASGD(nn.Linear(3, 2).parameters(), lr=0.1, K=2, M=0)
    with pytest.raises(ValueError, match=message):
        rewa.Annealing(optimizer, **{"steps": 10, **settings})
    assert optimizer.param_groups[0]["M"] == 0


def test_a_window_of_no_length_is_a_jump():
    assert [annealed(0, 2, share, begin=0.5, end=0.5) for share in (0.4, 0.5, 0.6)] == [0, 0, 2]


def test_groups_added_later_are_annealed_too():
    optimizer = rewa.ReWASGD([{"params": [nn.Parameter(torch.ones(3))], "K": 2, "M": 1}], lr=0.1)
    annealing = rewa.Annealing(optimizer, 10, begin=0.0, end=1.0)
    for _ in range(5):
        annealing.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "K": 3, "M": 2})
    annealing.step()
    assert [(group["K"], group["M"]) for group in optimizer.param_groups] == [
        (pytest.approx(1.6), pytest.approx(0.6)),
        (pytest.approx(2.2), pytest.approx(1.2)),
    ]
    annealing.at(10)
    assert [(group["K"], group["M"]) for group in optimizer.param_groups] == [(2, 1), (3, 2)]


def test_groups_of_an_annealed_optimizer_start_anew_in_another():
    optimizer = rewa.ReWASGD([nn.Parameter(torch.ones(3))], lr=0.1, K=2, M=1, weight_decay=0.5)
    rewa.Annealing(optimizer, 10)
    assert optimizer.param_groups[0]["K"] == 1
    for make in (rewa.ReWASGD, lambda groups: rewa.ReWASGD([{**groups[0]}])):
        again = make(optimizer.param_groups)
        assert [again.param_groups[0][key] for key in ("K", "M", "weight_decay")] == [2, 1, 0.5]
        assert "annealed_to" not in again.param_groups[0]


@pytest.mark.parametrize("steps", [float("nan"), float("inf"), 0, -1, 2.5, True, "10"])
def test_steps_is_a_whole_number(steps):
    optimizer = rewa.ReWASGD([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=r"Invalid steps: .*whole number >= 1"):
        rewa.Annealing(optimizer, steps)
    assert optimizer.param_groups[0]["K"] == 9


def test_a_compiled_step_is_compiled_once():
    """Exponents that move at every step are no constants of a graph."""
    model = nn.Linear(4, 3)
    twin = copy.deepcopy(model)
    losses = {}
    for net, compiled in ((model, True), (twin, False)):
        optimizer = rewa.ReWASGD(rewa.param_groups(net, K=2, M=1, match=True), lr=0.1, momentum=0.9)
        annealing = rewa.Annealing(optimizer, 20, begin=0.0, end=1.0)
        torch._dynamo.reset()
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        with torch._dynamo.config.patch(recompile_limit=3, fail_on_recompile_limit_hit=True):
            for _ in range(20):
                optimizer.zero_grad()
                net(torch.ones(2, 4)).square().sum().backward()
                step()
                annealing.step()
        losses[compiled] = [param.detach().clone() for param in net.parameters()]
    for one, other in zip(losses[True], losses[False], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_it_is_a_scheduler_of_torch():
    """Lightning and others take only instances of torch's class, and read the last rates."""
    optimizer = rewa.ReWASGD([nn.Parameter(torch.ones(3))], lr=0.25)
    annealing = rewa.Annealing(optimizer, 10)
    assert isinstance(annealing, torch.optim.lr_scheduler.LRScheduler)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    annealing.step()
    rates.step()
    assert annealing.get_last_lr() == [0.125]
    assert annealing.last_epoch == 1
    chained = torch.optim.lr_scheduler.ChainedScheduler([rates, annealing])
    optimizer.step()
    chained.step()
    assert (annealing.last_epoch, optimizer.param_groups[0]["lr"]) == (2, 0.0625)


@pytest.mark.parametrize("base", ["sgd", "adamw", "attached"])
def test_the_share_of_zeros_is_met_on_time_and_kept(base):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if base == "attached":
        optimizer = rewa.attach(torch.optim.RMSprop(rewa.param_groups(model, K=2, M=1), lr=1e-3))
    else:
        kind = {"sgd": rewa.ReWASGD, "adamw": rewa.ReWAAdamW}[base]
        optimizer = kind(rewa.param_groups(model, K=2, M=1), lr=1e-2)
    annealing = rewa.Annealing(optimizer, 40, sparsity=0.9, cut=(0.25, 0.75))
    weights = [model[0].weight, model[2].weight]
    zeros, total = [], 8 * 16 + 16 * 4
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        annealing.step()
        zeros.append(sum(int((weight == 0).sum()) for weight in weights))
    assert zeros[8] == 0
    assert zeros[29:] == [round(0.9 * total)] * 21
    assert all(before <= after for before, after in itertools.pairwise(zeros))
    # The cubic law of gradual pruning, at its middle.
    assert zeros[19] == round(0.9 * (1 - 0.5**3) * total)
    assert annealing.sparsity == zeros[-1] / total


def test_cuts_resume_alike():
    def start():
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        optimizer = rewa.ReWASGD(rewa.param_groups(model, K=2, M=1, match=True), lr=0.003, momentum=0.9)
        return model, optimizer, rewa.Annealing(optimizer, 20, sparsity=0.8)

    def train(model, optimizer, annealing, first, last):
        for seed in range(first, last):
            optimizer.zero_grad()
            model(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
            optimizer.step()
            annealing.step()

    whole = start()
    train(*whole, 0, 20)
    first = start()
    train(*first, 0, 11)
    second = start()
    for one, other in zip(second, first, strict=True):
        one.load_state_dict(copy.deepcopy(other.state_dict()))
    train(*second, 11, 20)
    assert torch.equal(second[0].weight, whole[0].weight)
    assert int((whole[0].weight == 0).sum()) == 24


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.0}, "Invalid sparsity: 1.0"),
        ({"sparsity": -0.1}, "Invalid sparsity"),
        ({"sparsity": True}, "Invalid sparsity"),
        ({"sparsity": 0.5, "cut": (0.5, 0.2)}, "Invalid cut"),
        ({"sparsity": 0.5, "cut": 0.5}, "Invalid cut"),
    ],
)
def test_bad_cuts_are_named(settings, message):
    optimizer = rewa.ReWASGD([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=message):
        rewa.Annealing(optimizer, 10, **settings)
    assert optimizer.param_groups[0]["K"] == 9


@pytest.mark.parametrize("kind", ["sgd", "adamw", "attached sgd", "attached adam"])
def test_steps_that_have_a_size_of_their_own_are_matched_anew_at_the_beginning(kind):
    model = nn.Linear(6, 5)
    groups = rewa.param_groups(model, K=2, M=1, match=True)
    optimizer = {
        "sgd": lambda: rewa.ReWASGD(groups, lr=0.1),
        "adamw": lambda: rewa.ReWAAdamW(groups, lr=0.1),
        "attached sgd": lambda: rewa.attach(torch.optim.SGD(groups, lr=0.1)),
        "attached adam": lambda: rewa.attach(torch.optim.Adam(groups, lr=0.1)),
    }[kind]()
    key = "rewa_match" if "attached" in kind else "match"
    first = optimizer.param_groups[0][key]
    annealing = rewa.Annealing(optimizer, 10, begin=0.3)
    for step in range(10):
        with torch.no_grad():
            model.weight.mul_(1.5)
        annealing.step()
        if step == 4:
            state = copy.deepcopy(annealing.state_dict())
            annealing = rewa.Annealing(optimizer, 10, begin=0.3)
            annealing.load_state_dict(state)
    expected = first if "sgd" in kind else first * 1.5**3
    assert optimizer.param_groups[0][key] == pytest.approx(expected, rel=1e-6)
