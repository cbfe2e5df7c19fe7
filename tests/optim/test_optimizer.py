"""What every ReWA optimizer and every implementation must do, from one table."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import rewa
from problems import IMPLEMENTATIONS


def unless_grouped(params, **settings):
    """What all groups say themselves is not said again."""
    groups = params if isinstance(params, list) and params and isinstance(params[0], dict) else [{}]
    return {key: value for key, value in settings.items() if not all({key, f"rewa_{key}"} & set(group) for group in groups)}


ALGORITHMS = {
    "sgd": lambda params, **kw: rewa.ReWASGD(
        params, **{"lr": 0.05, "momentum": 0.9, **unless_grouped(params, weight_decay=1e-2), **kw}
    ),
    "adamw": lambda params, **kw: rewa.ReWAAdamW(params, **{"lr": 1e-2, **unless_grouped(params, K=3), **kw}),
}
TABLE = {
    f"{name}-{implementation}": (lambda params, make=make, flags=flags, **kw: make(params, **flags, **kw))
    for (name, make), (implementation, flags) in itertools.product(ALGORITHMS.items(), IMPLEMENTATIONS.items())
}
every = pytest.mark.parametrize("make", TABLE.values(), ids=TABLE)
every_algorithm = pytest.mark.parametrize("make", ALGORITHMS.values(), ids=ALGORITHMS)


def small_model(dtype=None):
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).to(
        dtype=dtype
    )


def train(model, optimizer, steps, seed=0):
    """Steps on a fixed stream of batches; the seed is where in the stream."""
    dtype = next(model.parameters()).dtype
    for step in range(seed, seed + steps):
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(8, 1, 4, 4, generator=generator).to(dtype)
        label = torch.randint(3, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data).float(), label).backward()
        optimizer.step()


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


def assert_same(model, other):
    for ours, theirs in zip(weights(model), weights(other), strict=True):
        assert torch.equal(ours, theirs)


def through_disk(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_resume_from_state_dict_is_bit_exact(make, dtype):
    model = small_model(dtype)
    optimizer = make(rewa.param_groups(model))
    train(model, optimizer, 5)
    state = through_disk({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    resumed = small_model(dtype)
    fresh = make(rewa.param_groups(resumed), lr=123.0)
    resumed.load_state_dict(state["model"])
    fresh.load_state_dict(state["optimizer"])
    train(model, optimizer, 5, seed=5)
    train(resumed, fresh, 5, seed=5)
    assert_same(model, resumed)


@every
def test_deepcopy_and_pickle_continue_alike(make):
    model = small_model()
    optimizer = make(rewa.param_groups(model))
    train(model, optimizer, 3)
    for duplicate in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        other_model, other = duplicate((model, optimizer))
        assert type(other) is type(optimizer)
        reference_model, reference_optimizer = copy.deepcopy((model, optimizer))
        train(other_model, other, 3, seed=3)
        train(reference_model, reference_optimizer, 3, seed=3)
        assert_same(other_model, reference_model)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_edits_of_the_weights_are_respected(make, dtype):
    """After an edit the next step is the one a fresh y = root(x) takes, not one from a stale copy."""

    def edit_data(param):
        param.data.mul_(0.5)

    def edit_mask(param):
        param.data[::2] = 0  # .data does not move the version counter

    def edit_load(param):
        nn.ParameterList([param]).load_state_dict({"0": torch.full_like(param, 0.25)})

    def edit_one(param):
        with torch.no_grad():
            param[3] = -param[3]

    for edit in (edit_data, edit_mask, edit_load, edit_one):
        edited = nn.Parameter(torch.linspace(-1, 1, 10).to(dtype))
        optimizer = make([edited], **({"momentum": 0.0} if make in SGD_ROWS else {}))
        for _ in range(3):
            edited.grad = torch.ones_like(edited)
            optimizer.step()
        edit(edited)
        copied = nn.Parameter(edited.detach().clone())
        fresh = make([copied], **({"momentum": 0.0} if make in SGD_ROWS else {}))
        fresh.state[copied] = {key: value.clone() for key, value in optimizer.state[edited].items() if key != "y"}
        changed = edited.detach().clone()
        for param, stepper in ((edited, optimizer), (copied, fresh)):
            param.grad = torch.ones_like(param)
            stepper.step()
        # Where the edit left a low-precision weight as it was, the float32 copy rightly counts: a unit of rounding.
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(edited.detach(), copied.detach(), rtol=rounding, atol=rounding * 1e-3)
        if edit is edit_mask and make in SGD_ROWS:
            assert (edited.detach()[::2] == 0).all()
            assert (changed[1::2] != 0).all()


SGD_ROWS = [make for name, make in TABLE.items() if name.startswith("sgd")]


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_ema_swap_and_model_load_mid_training(make, dtype):
    model = small_model(dtype)
    optimizer = make(rewa.param_groups(model))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in range(4):
        train(model, optimizer, 1, seed=step)
        average.update_parameters(model)
    expected_start = [param.detach().clone() for param in average.module.parameters()]
    model.load_state_dict(average.module.state_dict())  # train on from the average
    for param, start in zip(model.parameters(), expected_start, strict=True):
        assert torch.equal(param, start)
    before = weights(model)
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        entry.pop("y", None)  # the twin knows nothing but the weights and the averages
    other = small_model(dtype)
    other.load_state_dict(model.state_dict())
    other_optimizer = make(rewa.param_groups(other))
    other_optimizer.load_state_dict(state)
    train(model, optimizer, 1, seed=9)
    train(other, other_optimizer, 1, seed=9)
    for ours, theirs in zip(weights(model), weights(other), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2 * torch.finfo(dtype).eps, atol=1e-3 * torch.finfo(dtype).eps)
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


@every
def test_a_masked_weight_stays_zero_but_for_what_momentum_pushes(make):
    """No gradient moves a weight from zero; an average of gradients from before the mask can, as with torch's own."""
    param = nn.Parameter(torch.ones(2))
    optimizer = make([param], **({"momentum": 0.0} if make in SGD_ROWS else {}))
    for _ in range(3):
        param.grad = torch.full((2,), -0.1)
        optimizer.step()
    param.data[0] = 0
    for entry in optimizer.state.values():
        for key in ("momentum_buffer", "exp_avg"):
            if key in entry:
                entry[key][0] = 0  # nothing left from before
    for _ in range(5):
        param.grad = torch.full((2,), -0.1)
        optimizer.step()
    assert param[0] == 0
    assert param[1] > 1


@every
def test_casting_model_and_state_between_precisions(make):
    """A float32 checkpoint continues in bfloat16, and a bfloat16 weight continues after a cast to float32."""
    single, low = small_model(torch.float32), small_model(torch.bfloat16)
    optimizer, low_optimizer = make(rewa.param_groups(single)), make(rewa.param_groups(low))
    train(single, optimizer, 2)
    low.load_state_dict(single.state_dict())
    low_optimizer.load_state_dict(optimizer.state_dict())
    train(low, low_optimizer, 2)
    assert low_optimizer.state[low[0].weight]["y"].dtype == torch.float32
    param = nn.Parameter(torch.linspace(0.1, 1, 10, dtype=torch.bfloat16))
    cast_optimizer = make([param])
    for dtype in (torch.bfloat16, torch.float32):
        param.grad = None
        param.data = param.data.to(dtype)
        param.grad = torch.ones_like(param)
        cast_optimizer.step()
        assert ("y" in cast_optimizer.state[param]) is (dtype == torch.bfloat16)
    assert (param < torch.linspace(0.1, 1, 10, dtype=torch.float32)).all()


@every_algorithm
def test_a_refused_step_moves_no_group(make):
    first, second = nn.Parameter(torch.ones(3)), nn.Embedding(4, 2, sparse=True)
    optimizer = make([{"params": [first]}, {"params": second.parameters()}])
    first.grad = torch.ones(3)
    second(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients"):
        optimizer.step()
    assert torch.equal(first, torch.ones(3))


@every_algorithm
def test_keys_that_look_like_a_setting_are_refused(make):
    with pytest.raises(ValueError, match=r"rewa_foo.*rewa_K, rewa_M, rewa_eps and rewa_match"):
        make([{"params": [nn.Parameter(torch.ones(3))], "rewa_foo": 3}])
    for key, meant in (("k", "K"), ("m", "M"), ("weight_deacy", "weight_decay"), ("rewa_k", "K")):
        with pytest.raises(ValueError, match=rf"group 0 sets '{key}'.*did you mean '{meant}'"):
            make([{"params": [nn.Parameter(torch.ones(3))], key: 3}])
    group = make([{"params": [nn.Parameter(torch.ones(3))], "lr_scale": 2.0, "name": "head"}]).param_groups[0]
    assert (group["lr_scale"], group["name"]) == (2.0, "head")


@every
def test_a_setting_edited_out_of_range_is_refused_before_anything_moves(make):
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = make([{"params": [first]}, {"params": [second]}])
    first.grad, second.grad = torch.ones(3), torch.ones(3)
    for key, value in (("K", 0.5), ("M", -1), ("weight_decay", -1.0), ("eps", math.nan), ("K", True)):
        good, optimizer.param_groups[1][key] = optimizer.param_groups[1][key], value
        with pytest.raises(ValueError, match=f"Invalid {key}"):
            optimizer.step()
        optimizer.param_groups[1][key] = good
    assert torch.equal(first, torch.ones(3))
    optimizer.step()
    assert not torch.equal(first, torch.ones(3))


def test_match_is_a_number():
    for match in (True, False):
        with pytest.raises(ValueError, match=rf"Invalid match value: {match}.*param_groups\(model, match=True\)"):
            rewa.ReWASGD([nn.Parameter(torch.ones(3))], match=match)


def test_eps_that_was_meant_for_adam():
    params = [nn.Parameter(torch.ones(3))]
    with pytest.warns(UserWarning, match=r"eps=1e-08 is ReWA's stabilizer.*Adam's own epsilon is adam_eps"):
        rewa.ReWAAdamW(params, eps=1e-8)
    rewa.ReWAAdamW(params, eps=1e-8, adam_eps=1e-8)
    rewa.ReWAAdamW(params, eps=1e-3)
    with pytest.warns(UserWarning, match=r"eps=1e-06 is ReWA's stabilizer"):
        rewa.ReWAAdamW([{"params": params, "eps": 1e-6}])


def test_decay_under_which_adam_can_hold_no_weight():
    """AdamW moves y by lr per step, so that decay bounds |x| by weight_decay^-K."""
    params = [("weight", nn.Parameter(torch.full((3, 3), 0.1)))]
    with pytest.warns(UserWarning, match=r"'weight'.*weight_decay=2.*0\.00195.*largest.*0\.1.*at most 1\.2"):
        rewa.ReWAAdamW(params, lr=1e-3, weight_decay=2.0)
    rewa.ReWAAdamW(params, lr=1e-3, weight_decay=1.2)
    # A matched step moves y by more than lr, or by less.
    rewa.ReWAAdamW(params, lr=1e-3, weight_decay=2.0, match=0.02)
    with pytest.warns(UserWarning, match=r"lets no weight exceed"):
        rewa.ReWAAdamW(params, lr=1e-3, weight_decay=1.0, match=0.4)


@every
def test_a_step_with_lr_0_changes_no_bit(make):
    # torch.distributed.checkpoint takes such a step to create the state of a fresh optimizer.
    for dtype, lr in itertools.product((torch.float32, torch.float64, torch.bfloat16), (0.0, None)):
        param = nn.Parameter(torch.randn(1000).to(dtype))
        before = param.detach().clone()
        foreach_adam = make is TABLE["adamw-foreach"]
        optimizer = make([param], **({"lr": torch.tensor(0.0)} if lr is None and not foreach_adam else {"lr": 0.0}))
        param.grad = torch.zeros_like(param)
        optimizer.step()
        assert torch.equal(param, before)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_trains_like_float32(make, dtype):
    """Steps far below the parameter's resolution add up in the float32 copy, and the copy survives a checkpoint."""
    low, single = nn.Parameter(torch.full((4,), 0.5, dtype=dtype)), nn.Parameter(torch.full((4,), 0.5, dtype=torch.float32))
    kwargs = {"lr": 1e-5, "weight_decay": 0.0, **({"momentum": 0.0} if make in SGD_ROWS else {})}
    optimizers = make([low], **kwargs), make([single], **kwargs)
    for step in range(400):
        for param, optimizer in zip((low, single), optimizers, strict=True):
            param.grad = torch.ones_like(param)
            optimizer.step()
        if step == 200:
            state = optimizers[0].state[low]
            assert {value.dtype for key, value in state.items() if key != "step"} == {torch.float32}
            resumed = make([low], **kwargs)
            resumed.load_state_dict(through_disk(optimizers[0].state_dict()))
            for key, value in state.items():
                assert torch.equal(resumed.state[low][key], value)
                assert resumed.state[low][key].dtype == value.dtype
            optimizers = resumed, optimizers[1]
    assert (single < 0.5).all()
    torch.testing.assert_close(low.detach().float(), single.detach(), rtol=torch.finfo(dtype).eps, atol=0)
    kept = optimizers[0].state[low]["y"]
    order = optimizers[0].param_groups[0]["K"]
    torch.testing.assert_close(kept**order, single.detach(), rtol=1e-4, atol=0)


def test_float16_weights_that_underflow_stay_alive_in_y():
    param = nn.Parameter(torch.full((1,), 1e-3, dtype=torch.float16))
    optimizer = rewa.ReWASGD([param], lr=1.0, K=9, M=0, weight_decay=0.0)
    param.grad = torch.full((1,), 0.4, dtype=torch.float16)
    optimizer.step()
    assert param.item() == 0  # 0.06^9 is far below float16
    assert 0 < optimizer.state[param]["y"].item() < 0.1
    param.grad = torch.full((1,), -0.4, dtype=torch.float16)
    optimizer.step()
    assert param.item() == pytest.approx(1e-3, rel=1e-2)


@every
def test_grad_scaler_unscales_and_skips_overflow(make):
    model, plain = small_model(torch.float32), small_model(torch.float32)
    optimizer, plain_optimizer = make(rewa.param_groups(model)), make(rewa.param_groups(plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    data, label = torch.randn(8, 1, 4, 4, dtype=torch.float32), torch.randint(3, (8,))
    for _ in range(3):
        for net, stepper, scale in ((model, optimizer, scaler), (plain, plain_optimizer, None)):
            stepper.zero_grad()
            loss = nn.functional.cross_entropy(net(data), label)
            (scale.scale(loss) if scale else loss).backward()
            _ = scale.step(stepper) if scale else stepper.step()
            if scale:
                scale.update()
    for ours, theirs in zip(weights(model), weights(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    before, state = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.zero_grad()
    scaler.scale(nn.functional.cross_entropy(model(data), label)).backward()
    model[0].weight.grad[0] = math.inf
    scaler.step(optimizer)
    for ours, old in zip(weights(model), before, strict=True):
        assert torch.equal(ours, old)
    for index, entry in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, state[index][key]) for key, value in entry.items() if isinstance(value, torch.Tensor))


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize(
    ("flags", "backend"),
    # The default compiles to machine code; the others show that they can be traced, which costs a tenth.
    [({}, "inductor"), ({"foreach": True}, "aot_eager"), ({"fused": True}, "aot_eager")],
    ids=["loop", "foreach", "fused"],
)
def test_compiled_step_equals_eager(make, flags, backend):
    model, compiled = small_model(), small_model()
    optimizer, compiled_optimizer = make(rewa.param_groups(model), **flags), make(rewa.param_groups(compiled), **flags)
    compiled_optimizer_step = torch.compile(compiled_optimizer.step, backend=backend)
    for step in range(3):
        for net, stepper in ((model, optimizer.step), (compiled, compiled_optimizer_step)):
            net.zero_grad()
            generator = torch.Generator().manual_seed(step)
            net(torch.randn(8, 1, 4, 4, generator=generator)).square().mean().backward()
            stepper()
    for ours, theirs in zip(weights(model), weights(compiled), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


@every
def test_channels_last_and_strided_weights(make):
    def tensors():
        torch.manual_seed(3)
        return {
            "channels_last": torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
            "transposed": torch.randn(6, 5).t(),
            "sliced": torch.randn(8, 6)[:, ::2],
            "scalar": torch.tensor(0.7),
            "empty": torch.empty(0, 3),
        }

    odd = [nn.Parameter(t) for t in tensors().values()]
    assert [param.is_contiguous() for param in odd] == [False, False, False, True, True]
    plain = [nn.Parameter(t.contiguous()) for t in tensors().values()]
    optimizers = make(odd), make(plain)
    for _ in range(3):
        for a, b in zip(odd, plain, strict=True):
            a.grad = torch.randn(a.shape)  # laid out unlike the weight
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(odd, plain, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-13, atol=0)


@every
def test_group_settings_and_mixed_dtypes(make):
    """Each group has its own exponents, and a group may mix dtypes: every tensor steps as if it were alone."""
    tensors = [torch.linspace(-1, 1, 7, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    together = [nn.Parameter(t.clone()) for t in [*tensors, tensors[0]]]
    groups = [{"params": together[:3], "K": 3, "eps": 1e-3}, {"params": together[3:], "K": 5, "M": 1, "lr": 0.01}]
    optimizer = make(groups)
    alone = [nn.Parameter(t.clone()) for t in [*tensors, tensors[0]]]
    singles = [make([p], K=3, eps=1e-3) for p in alone[:3]] + [make(alone[3:], K=5, M=1, lr=0.01)]
    for step in range(3):
        for a, b in zip(together, alone, strict=True):
            a.grad = torch.full_like(a, 0.3 * (step - 1))
            b.grad = a.grad.clone()
        for stepper in (optimizer, *singles):
            stepper.step()
    for a, b in zip(together, alone, strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype


@every
def test_grad_none_and_untouched_grads(make):
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = make([used, unused])
    used.grad = torch.ones(3)
    grad = used.grad
    optimizer.step()
    assert used.grad is grad
    assert torch.equal(grad, torch.ones(3))
    assert torch.equal(unused, torch.ones(3))
    assert unused not in optimizer.state


@every
def test_closure_runs_with_grad_and_its_loss_is_returned(make):
    param = nn.Parameter(torch.ones(3))
    optimizer = make([param])

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert (param < 1).all()


@every
def test_no_subnormal_weight_is_left(make):
    param = nn.Parameter(torch.tensor([1e-36, -1e-36, 0.5], dtype=torch.float32))
    optimizer = make([param], K=9, lr=1e-3, weight_decay=200.0)
    for _ in range(20):
        param.grad = torch.zeros_like(param)
        optimizer.step()
    assert (param.detach()[:2] == 0).all()
    assert param[2] != 0
    small = param.detach().abs()
    assert not ((small > 0) & (small < torch.finfo(torch.float32).tiny)).any()


def test_maximize_ascends():
    for make in TABLE.values():
        up, down = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        optimizers = make([up], maximize=True, weight_decay=0.0), make([down], weight_decay=0.0)
        for param, sign, optimizer in ((up, 1, optimizers[0]), (down, -1, optimizers[1])):
            param.grad = sign * torch.ones(3)
            optimizer.step()
        assert torch.equal(up, down)
        assert (up > 1).all()


# The six traps


@every_algorithm
def test_trap_zero_is_absorbing(make):
    zero = nn.Parameter(torch.zeros(3, 4))
    with pytest.raises(
        ValueError, match=r"parameter 0 of group 0 \(3x4\) is all zero.*no gradient moves a weight from exactly 0.*K=1, M=0"
    ):
        make([zero])
    with pytest.raises(ValueError, match="parameter 'lora_B'"):
        make([("lora_B", zero)])
    optimizer = make([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="parameter 0 of group 1"):
        optimizer.add_param_group({"params": [zero]})
    assert len(optimizer.param_groups) == 1  # nothing half-changed
    make([zero], K=1, M=0)  # the plain base optimizer moves it
    moving = make([zero], M=0)  # and so does a scale of one
    zero.grad = torch.ones(3, 4)
    moving.step()
    assert (zero != 0).all()
    # A single zero beside others is no error, and stays.
    some = nn.Parameter(torch.tensor([0.0, 1.0]))
    optimizer = make([some])
    for _ in range(3):
        some.grad = torch.ones(2)
        optimizer.step()
    assert some[0] == 0


@pytest.mark.parametrize(
    ("algorithm", "bad", "message"),
    [
        ("sgd", {"K": 0.5}, "Invalid K value: 0.5"),
        ("sgd", {"momentum": -1.0}, "Invalid momentum value: -1"),
        ("sgd", {"momentum": 0.0, "nesterov": True}, "Nesterov momentum requires a momentum"),
        ("adamw", {"betas": (0.9, 1.0)}, "Invalid beta parameter at index 1: 1.0"),
        ("adamw", {"lr": -1.0}, "Invalid learning rate: -1"),
        ("adamw", {"adam_eps": float("nan")}, "Invalid adam_eps value: nan"),
    ],
)
def test_bad_values_of_a_group_are_named_too(algorithm, bad, message):
    optimizer = ALGORITHMS[algorithm]([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], **bad})
    assert len(optimizer.param_groups) == 1


def test_trap_the_default_groups_train_what_starts_at_zero():
    model = small_model()
    nn.init.zeros_(model[4].bias)
    optimizer = rewa.ReWASGD(rewa.param_groups(model), lr=0.1)
    train(model, optimizer, 1)
    assert (model[4].bias != 0).all()
    assert (model[1].bias != 0).any()


@pytest.mark.slow
def test_trap_zero_is_hard_to_cross_and_the_pair_is_not():
    """The true weight is +1 and the start has the wrong sign: tied is lost with M = 2, the pair form arrives."""
    start = torch.tensor([[-0.01]])
    finals = {}
    for form in ("tied", "pair"):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.data.copy_(start)
        rewa.reparametrize(layer, form=form, K=9, M=2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=0.02)
        for _ in range(1500):
            optimizer.zero_grad()
            (0.5 * (layer.weight - 1) ** 2).sum().backward()
            optimizer.step()
        finals[form] = layer.weight.item()
    assert abs(finals["tied"]) < 1e-6
    assert finals["pair"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("ratio", "grows"), [(1.05, True), (0.95, False)])
def test_trap_growth_condition(ratio, grows):
    """A coordinate at u grows if and only if |g| u^(M-1) > lambda."""
    lam, M, K, g = 0.05, 4, 9, 1.0
    u = (ratio * lam / g) ** (1 / (M - 1))
    param = nn.Parameter(torch.tensor([u**K]))
    optimizer = rewa.ReWASGD([param], lr=1e-3, K=K, M=M, weight_decay=lam)
    before = param.item()
    param.grad = torch.tensor([-g])
    optimizer.step()
    assert (param.item() > before) is grows


@every_algorithm
def test_complex_and_sparse_gradients_are_refused(make):
    with pytest.raises(ValueError, match=r"complex64.*real floating-point"):
        make([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = make(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step()


@every_algorithm
def test_empty_parameters_and_foreign_state_are_refused(make):
    with pytest.raises(ValueError, match="empty parameter list"):
        make([])
    param = nn.Parameter(torch.ones(2))
    optimizer = make([param])
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"no K, M, eps, .* in parameter group 0: it was not saved by ReWA"):
        optimizer.load_state_dict(torch.optim.SGD([param]).state_dict())
    assert optimizer.state_dict() == before
    other = ALGORITHMS["adamw" if make is ALGORITHMS["sgd"] else "sgd"]
    bad = copy.deepcopy(before)
    bad["param_groups"][0]["K"] = 0.5
    for state, message in ((other([param]).state_dict(), "it was not saved by"), (bad, "Invalid K value: 0.5")):
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(state)
        assert optimizer.state_dict() == before
    for flags, message in (
        ({"fused": True, "foreach": True}, "together"),
        ({"fused": True, "differentiable": True}, "differentiable"),
    ):
        with pytest.raises(RuntimeError, match=message):
            make([param], **flags)
