"""The generic checks that torch runs on its own optimizers, written anew for ReWA's: those that a CPU can run.

``OptimizerInfo`` and its relatives are torch's. All weights are away from zero, where ReWA's steps vanish by design.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing import assert_close
from torch.testing._internal import common_optimizers as harness
from torch.testing._internal.common_optimizers import ErrorOptimizerInput, OptimizerErrorEnum, OptimizerInfo, OptimizerInput

from rewa import ReWAAdamW, ReWASGD

Kwargs = dict[str, Any]
TENSOR_LR = torch.tensor(0.01, dtype=torch.float64)
SHARED = {
    "default": {},
    "lr": {"lr": 0.01},
    "tensor lr": {"lr": TENSOR_LR},
    "no weight_decay": {"weight_decay": 0.0},
    "weight_decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1, "K": 2, "M": 1},
    "K=3, M=2, eps": {"K": 3, "M": 2, "eps": 1e-3},
    "K=1, M=0": {"K": 1, "M": 0, "lr": 0.1},
    "K=2.5, M=0.5": {"K": 2.5, "M": 0.5, "weight_decay": 0.1},
    "capturable": {"capturable": True, "weight_decay": 0.1},
    "capturable, tensor lr": {"capturable": True, "lr": TENSOR_LR},
}
SGD = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "K": 2, "M": 1},
    "decoupled": {"decoupled": True, "momentum": 0.9, "weight_decay": 0.1},
    "decoupled, tensor lr": {"decoupled": True, "weight_decay": 0.1, "lr": TENSOR_LR},
    "decoupled, K=1, M=0": {"decoupled": True, "weight_decay": 0.1, "K": 1, "M": 0, "lr": 0.1},
    "momentum, K=1, M=0": {"momentum": 0.9, "K": 1, "M": 0, "lr": 0.1},
}
ADAMW = {
    "betas, adam_eps": {"betas": (0.8, 0.95), "adam_eps": 1e-6},
    "amsgrad": {"amsgrad": True, "weight_decay": 0.1},
    "amsgrad, maximize": {"amsgrad": True, "maximize": True, "K": 4, "M": 1, "eps": 1e-2},
}
INVALID = [
    ({"lr": -0.1}, ValueError, "Invalid learning rate: -0.1"),
    ({"weight_decay": -1.0}, ValueError, "Invalid weight_decay value: -1.0"),
    ({"K": 0.5}, ValueError, "Invalid K value: 0.5"),
    ({"M": -1}, ValueError, "Invalid M value: -1"),
    ({"eps": float("nan")}, ValueError, "Invalid eps value: nan"),
    ({"fused": True, "foreach": True}, RuntimeError, "`fused` and `foreach` cannot be `True` together"),
    ({"fused": True, "differentiable": True}, RuntimeError, "`fused` does not support `differentiable`"),
]
INVALID_SGD = [
    ({"momentum": -0.5}, ValueError, "Invalid momentum value: -0.5"),
    ({"nesterov": True}, ValueError, "Nesterov momentum requires a momentum"),
]
INVALID_ADAMW = [
    ({"betas": (1.0, 0.0)}, ValueError, "Invalid beta parameter at index 0: 1.0"),
    ({"betas": (0.9, -0.1)}, ValueError, "Invalid beta parameter at index 1: -0.1"),
    ({"adam_eps": -1e-8}, ValueError, "Invalid adam_eps value: -1e-08"),
    (
        {"lr": torch.tensor(0.1), "foreach": True},
        ValueError,
        "lr as a Tensor is not supported for capturable=False and foreach",
    ),
]
FLAGS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def make_info(optim_cls: type[Optimizer], special: dict[str, Kwargs], invalid: list[Any], *later: str) -> OptimizerInfo:
    def inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
        return [OptimizerInput(None, copy.deepcopy(kwargs), desc) for desc, kwargs in (SHARED | special).items()]

    def errors(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
        at_once, late = OptimizerErrorEnum.CONSTRUCTION_ERROR, OptimizerErrorEnum.STEP_ERROR
        imaginary, zero = torch.ones(2, dtype=torch.complex64), torch.zeros(2, dtype=dtype)
        sparse = nn.Parameter(torch.ones(2, dtype=dtype))
        sparse.grad = torch.ones(2, dtype=dtype).to_sparse()
        rows = [(None, *row, at_once) for row in INVALID + invalid]
        rows.append(([nn.Parameter(imaginary)], {}, ValueError, "real floating-point tensors only", at_once))
        rows.append(([nn.Parameter(zero)], {}, ValueError, "is all zero", at_once))
        rows += [([sparse], flags, RuntimeError, "does not support sparse gradients", late) for flags in FLAGS.values()]
        return harness.get_error_inputs_for_all_optims(device, dtype) + [
            ErrorOptimizerInput(OptimizerInput(params, kwargs, regex), error_on=on, error_type=error, error_regex=regex)
            for params, kwargs, error, regex, on in rows
        ]

    return OptimizerInfo(
        optim_cls,
        optim_inputs_func=inputs,
        optim_error_inputs_func=errors,
        scheduler_inputs=(
            [],
            [lambda opt: StepLR(opt, gamma=0.9, step_size=10)],
            [lambda opt: ExponentialLR(opt, gamma=0.99), lambda opt: ReduceLROnPlateau(opt)],
            # This one also moves momentum or beta1, and wants to find it among the defaults.
            [lambda opt: OneCycleLR(opt, max_lr=0.005, total_steps=30)],
        ),
        supported_impls=("foreach", "fused", "differentiable"),
        supports_fused_on=("cpu",),
        not_og_supported_flags=("foreach", "fused", "differentiable", "maximize", "capturable", *later),
        has_capturable_arg=True,
        supports_complex=False,
    )


INFOS = [make_info(ReWASGD, SGD, INVALID_SGD), make_info(ReWAAdamW, ADAMW, INVALID_ADAMW, "amsgrad")]
every_info = pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)


def each(*impls: str, tensor_lr: bool = True) -> pytest.MarkDecorator:
    """Parametrize a test over both optimizers, their inputs and these implementations."""
    cases = []
    for info, impl in itertools.product(INFOS, impls):
        for given in info.optim_inputs_func("cpu"):
            # As torch's AdamW, ReWA's refuses a tensor lr with foreach unless capturable.
            refused = info.optim_cls is ReWAAdamW and impl == "foreach" and given.desc == "tensor lr"
            if not refused and (tensor_lr or "tensor lr" not in given.desc):
                cases.append(pytest.param(info, given.kwargs | FLAGS[impl], id=f"{info.name}-{given.desc}-{impl}"))
    return pytest.mark.parametrize(("info", "kwargs"), cases)


@pytest.fixture(autouse=True)
def _as_torch_runs_them() -> Iterator[None]:
    """In torch's default dtype, and with one thread: two on small tensors only wait for each other."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


def rand(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Reproducible numbers of either sign and of size 0.2 to 1.2."""
    uniform = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return (uniform + 0.2 * uniform.sign()).to(dtype)


class Line(nn.Module):
    """The sum of squares of ``weight @ input + bias``."""

    def __init__(self, contiguous: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(rand(10, 5) if contiguous else rand(10, 5, 2)[..., 0])
        self.bias = nn.Parameter(rand(10, seed=1) if contiguous else rand(10, 2, seed=1)[..., 0])
        self.input = rand(5, seed=2)

    def forward(self) -> Tensor:
        return (self.weight.mv(self.input) + self.bias).square().sum()


def weights(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def make(info: OptimizerInfo, params: Any, kwargs: Kwargs) -> Optimizer:
    """An optimizer with settings of its own: schedulers write into a learning rate that is a tensor."""
    return info.optim_cls(params, **copy.deepcopy(kwargs))


def train(model: Line, optimizer: Optimizer, steps: int, schedulers: Iterable[Any] = ()) -> bool:
    """Whether the loss went the way it should."""
    before = model().detach()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        return loss.detach()

    for _ in range(steps):
        loss = optimizer.step(closure)
        for scheduler in schedulers:
            scheduler.step(*[loss] * isinstance(scheduler, ReduceLROnPlateau))
    return bool(model() > before if optimizer.defaults["maximize"] else model() < before)


def trained(info: OptimizerInfo, kwargs: Kwargs, named: bool = False) -> tuple[Line, Optimizer]:
    model = Line()
    optimizer = make(info, model.named_parameters() if named else model.parameters(), kwargs)
    train(model, optimizer, 3)
    return model, optimizer


def resumed(info: OptimizerInfo, kwargs: Kwargs, model: Line, state: Kwargs, named: bool = False) -> tuple[Line, Optimizer]:
    """A copy of the model and a new optimizer for it that starts from the state."""
    twin = copy.deepcopy(model)
    optimizer = make(info, twin.named_parameters() if named else twin.parameters(), kwargs)
    optimizer.load_state_dict(copy.deepcopy(state))
    return twin, optimizer


exact = functools.partial(assert_close, rtol=0, atol=0)  # of dictionaries and lists, too, and with the dtypes


@every_info
def test_inputs_do_not_specify_the_implementation(info):
    for given in info.optim_inputs_func("cpu"):
        assert not {"foreach", "fused", "differentiable"} & set(given.kwargs)


ERRORS = [(info, case) for info in INFOS for case in info.optim_error_inputs_func("cpu", torch.float32)]


@pytest.mark.parametrize(("info", "case"), ERRORS, ids=lambda v: getattr(v, "name", None) or v.optimizer_error_input.desc)
def test_errors(info, case):
    given, late = case.optimizer_error_input, case.error_on is OptimizerErrorEnum.STEP_ERROR
    expected = pytest.warns if issubclass(case.error_type, Warning) else pytest.raises
    optimizer = info.optim_cls(given.params, **given.kwargs) if late else None
    with expected(case.error_type, match=case.error_regex):
        optimizer.step() if late else info.optim_cls(given.params, **given.kwargs)


@every_info
def test_fused_error_on_params_on_meta(info):
    model = nn.Linear(5, 3, device="meta")
    optimizer = info.optim_cls(model.parameters(), fused=True)
    for param in model.parameters():
        param.grad = torch.rand_like(param)
    with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating point Tensors of supported"):
        optimizer.step()
    model.to_empty(device="cpu")
    for param in model.parameters():
        param.data, param.grad = torch.ones_like(param), torch.ones_like(param)
    info.optim_cls(model.parameters(), fused=True).step()
    assert all((param < 1).all() for param in model.parameters())


@each("loop", "foreach", "fused")
def test_optimizer_can_be_printed(info, kwargs):
    model = Line()
    text = repr(make(info, [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], kwargs))
    assert text.startswith(info.name)
    assert "lr: 0.5" in text.partition("Parameter Group 1")[2]


@pytest.mark.parametrize("schedule", range(4))
@pytest.mark.parametrize("kind", ["contiguous", "strided", "groups"])
@each("loop")
def test_goes_right_direction(info, kwargs, kind, schedule):
    model = Line(kind != "strided")
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}]
    optimizer = make(info, groups if kind == "groups" else model.parameters(), kwargs)
    assert train(model, optimizer, 10, [build(optimizer) for build in info.scheduler_inputs[schedule]])


@pytest.mark.parametrize("dims", [0, 1, 2])
@each("loop", "foreach", "fused", tensor_lr=False)
def test_tensor_lr(info, kwargs, dims):
    if info.optim_cls is ReWAAdamW and kwargs.get("foreach"):
        if kwargs.get("K") == 1:
            pytest.skip("here it is torch's AdamW, where foreach with a tensor needs capturable and that needs a GPU")
        kwargs = kwargs | {"capturable": True}
    lr = torch.full((1,) * dims, 0.05, dtype=torch.float64)
    models = Line(), Line()
    for model, value in zip(models, (0.05, lr), strict=True):
        optimizer = info.optim_cls(model.parameters(), **kwargs | {"lr": value})
        train(model, optimizer, 6, [StepLR(optimizer, step_size=2, gamma=0.5)])
    assert optimizer.param_groups[0]["lr"] is lr  # the scheduler changed it in place, and no step replaced it
    assert lr.shape == (1,) * dims
    assert lr.item() == pytest.approx(0.05 / 8)
    assert_close(weights(models[1]), weights(models[0]), rtol=1e-12, atol=0)


def run_derived(info: OptimizerInfo, kwargs: Kwargs, dtype: torch.dtype) -> tuple[list[Tensor], list[Kwargs]]:
    """Steps over every shape and layout that an implementation may treat in its own way."""
    large = (91, 100) if kwargs.keys() - {"foreach", "fused"} else (263, 250)  # more than the kernel or the loop takes at once
    shapes = [(3, 2), (3,), (), (0,), large, (2, 3, 4, 5), (5, 2), (5, 3, 2), (4,)]
    tensors = [rand(*shape, dtype=dtype, seed=index) for index, shape in enumerate(shapes)]
    tensors[5], tensors[6] = tensors[5].to(memory_format=torch.channels_last), tensors[6].t()
    tensors[7] = tensors[7][..., 0]
    params = [nn.Parameter(tensor) for tensor in tensors]
    # A group of its own for the strided ones, or they might send the others down the same path.
    optimizer = make(info, [{"params": params[:6]}, {"params": params[6:]}], kwargs)
    for step, size in enumerate([1, 0.01, 1, 0.01, 1]):  # amsgrad's maximum shows when the gradients shrink
        for index, param in enumerate(params[:-1]):  # the last one never has a gradient, and the second one freezes
            grad = size * rand(*param.shape, seed=10 * step + index)
            param.grad = None if index == 1 and step > 2 else torch.empty_like(param).copy_(grad)
        optimizer.step()
    return [param.detach() for param in params], [optimizer.state.get(param, {}) for param in params]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each("foreach", "fused")
def test_matches_forloop(info, kwargs, dtype):
    torch.set_num_threads(2 if kwargs == {"fused": True} else 1)
    params, states = run_derived(info, kwargs, dtype)
    torch.set_num_threads(1)
    expected_params, expected_states = run_derived(info, kwargs | {"foreach": False, "fused": False}, dtype)
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {}
    if kwargs.get("K") == 1 and dtype.itemsize == 2:
        tolerance = {"rtol": 0.05, "atol": 0.05}  # torch's own code: its loop rounds to the low precision many times
    assert_close(params, expected_params, check_stride=True, **tolerance)
    assert_close(states, expected_states, **tolerance)
    exact(params[-1], rand(4, dtype=dtype, seed=8))


@each("loop", "foreach", "fused")
def test_param_groups_weight_decay(info, kwargs):
    model = Line()
    groups = [{"params": [model.weight], "weight_decay": 0.3}, {"params": [model.bias], "weight_decay": 0.0}]
    assert train(model, make(info, groups, kwargs), 2)
    # Decay is all that moves a weight without a gradient; a new optimizer has no momentum to move it either.
    old_weight, old_bias = weights(model)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    make(info, groups, kwargs).step()
    exact(model.bias.detach(), old_bias)
    assert (model.weight.abs() < old_weight.abs()).all()


@each("loop", "foreach", "fused")
def test_param_groups_lr(info, kwargs):
    model, slow, still = Line(), Line(), nn.Parameter(rand(3, 2))
    groups = [{"params": [model.weight, still], "lr": 0.01}, {"params": [model.bias]}]
    assert train(model, make(info, groups, kwargs | {"lr": 1e-3}), 5)
    assert train(slow, make(info, slow.parameters(), kwargs | {"lr": 1e-3}), 5)
    exact(still.detach(), rand(3, 2))
    assert (model.weight - Line().weight).abs().sum() > 2 * (slow.weight - Line().weight).abs().sum()


@each("loop", "foreach", "fused")
def test_step_is_noop_without_grads_and_for_zero_grads(info, kwargs):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs)
    optimizer.step()
    exact(weights(model), weights(Line()))
    assert not optimizer.state
    optimizer = make(info, model.parameters(), kwargs | {"weight_decay": 0.0})
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    for _ in range(3):
        optimizer.step()
    exact(weights(model), weights(Line()))


@each("loop", "foreach", "fused")
def test_grads_are_never_inplaced_into(info, kwargs):
    for dtype in DTYPES:
        param = nn.Parameter(rand(3, 2, dtype=dtype))
        optimizer = make(info, [param], kwargs)
        param.grad = grad = rand(3, 2, dtype=dtype, seed=1)
        version = grad._version
        for _ in range(2):
            optimizer.step()
        assert param.grad is grad
        assert grad._version == version
        exact(grad, rand(3, 2, dtype=dtype, seed=1))  # a kernel of our own can write past that counter


@each("loop", "foreach", "fused")
def test_step_returns_what_the_closure_does(info, kwargs):
    _, optimizer = trained(info, kwargs)
    for value in (torch.tensor(1.5), 1.5, None):
        assert optimizer.step(lambda value=value: value) is value
    assert optimizer.step(torch.is_grad_enabled) is True
    assert optimizer.step() is None


@each("loop", "foreach", "fused")
def test_non_empty_state(info, kwargs):
    model, optimizer = trained(info, kwargs)
    # As torch's SGD, ReWA's has nothing to remember without momentum.
    stateless = info.optim_cls is ReWASGD and not kwargs.get("momentum")
    assert set(optimizer.state) == (set() if stateless else set(model.parameters()))
    assert all(optimizer.state.values())


@each("loop", "foreach", "fused")
def test_state_dict_deterministic(info, kwargs):
    for named, named_twin in itertools.product([False, True], repeat=2):
        model, optimizer = trained(info, kwargs, named)
        twin, optimizer_twin = resumed(info, kwargs, model, optimizer.state_dict(), named_twin)
        for _ in range(3):
            train(model, optimizer, 1)
            train(twin, optimizer_twin, 1)
            exact(weights(twin), weights(model))
        state, state_twin = optimizer.state_dict(), optimizer_twin.state_dict()
        names, names_twin = (s["param_groups"][0].pop("param_names", None) for s in (state, state_twin))
        assert names == (["weight", "bias"] if named else None)
        assert names_twin == (["weight", "bias"] if named or named_twin else None)
        exact(state_twin, state)
        # A parameter that is listed twice has the same number twice.
        optimizer_twin.param_groups.extend(optimizer_twin.param_groups)
        assert [group["params"] for group in optimizer_twin.state_dict()["param_groups"]] == [[0, 1], [0, 1]]


@each("loop", "foreach", "fused")
def test_can_load_older_state_dict(info, kwargs):
    model, optimizer = trained(info, kwargs)
    older = copy.deepcopy(optimizer.state_dict())
    for flag in info.not_og_supported_flags:
        del older["param_groups"][0][flag]
    twin, optimizer_twin = resumed(info, kwargs, model, older)
    for flag in info.not_og_supported_flags:
        assert optimizer_twin.param_groups[0][flag] == info.optim_cls([nn.Parameter(rand(1))]).defaults[flag]
    train(twin, optimizer_twin, 1)
    train(model, optimizer, 1)
    if not kwargs.get("maximize") and not kwargs.get("amsgrad"):
        assert_close(weights(twin), weights(model), rtol=1e-10, atol=1e-12)


@every_info
def test_can_load_from_to_named_state_dict(info):
    for saved_names, names in itertools.product(["ab", None], ["ab", "cd", None]):
        optimizers = []
        for chosen, lr in ((saved_names, 0.02), (names, 0.03)):
            params = [nn.Parameter(rand(3, seed=seed)) for seed in range(2)]
            optimizers.append(info.optim_cls(zip(chosen, params, strict=True) if chosen else params, lr=lr))
        optimizers[1].load_state_dict(optimizers[0].state_dict())
        group = optimizers[1].param_groups[0]
        assert group["lr"] == 0.02
        assert "".join(group.get("param_names", "")) == (saved_names or names or "")


@each("loop", "foreach", "fused")
def test_save_load_equality_with_weights_only_and_nontensor_step(info, kwargs):
    model, optimizer = trained(info, kwargs)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    exact(loaded, optimizer.state_dict())
    exact(resumed(info, kwargs, model, loaded)[1].state_dict(), optimizer.state_dict())
    for state in loaded["state"].values():
        state.update({"step": int(state["step"])} if "step" in state else {})
    twin, optimizer_twin = resumed(info, kwargs, model, loaded)
    exact(optimizer_twin.state_dict(), optimizer.state_dict())
    train(model, optimizer, 2)
    train(twin, optimizer_twin, 2)
    exact(weights(twin), weights(model))


@each("loop", "foreach", "fused")
def test_deepcopy_copies_all_public_attrs(info, kwargs):
    _, optimizer = trained(info, kwargs)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert {key for key in vars(optimizer) if key[0] != "_"} == {key for key in vars(twin) if key[0] != "_"}
        exact(twin.state_dict(), optimizer.state_dict())
        twin.step()


@every_info
def test_state_dict_and_load_state_dict_hooks(info):
    optimizer = info.optim_cls(Line().parameters(), lr=0.5)
    calls = []

    def note(name, lr=None):
        def hook(opt, state=None):
            assert opt is optimizer
            calls.append((name, state and state["param_groups"][0]["lr"]))
            return lr and {**state, "param_groups": [{**group, "lr": lr} for group in state["param_groups"]]}

        return hook

    handles = [
        optimizer.register_state_dict_post_hook(note("saved", 0.4)),
        optimizer.register_state_dict_post_hook(note("saved first"), prepend=True),
        optimizer.register_state_dict_pre_hook(note("saving")),
        optimizer.register_load_state_dict_post_hook(note("loaded")),
        optimizer.register_load_state_dict_post_hook(note("loaded first"), prepend=True),
        optimizer.register_load_state_dict_pre_hook(note("loading", 0.2)),
        optimizer.register_load_state_dict_pre_hook(note("loading first", 0.3), prepend=True),
    ]
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls[:3] == [("saving", None), ("saved first", 0.5), ("saved", 0.5)]
    assert calls[3:] == [("loading first", 0.4), ("loading", 0.3), ("loaded first", None), ("loaded", None)]
    assert optimizer.param_groups[0]["lr"] == 0.2
    for handle in handles:
        handle.remove()
    optimizer.load_state_dict(optimizer.state_dict())
    assert len(calls) == 7
    assert not optimizer._optimizer_load_state_dict_pre_hooks  # none of our own are left behind
    assert not optimizer._optimizer_load_state_dict_post_hooks


@every_info
def test_step_hooks(info):
    model = Line()
    optimizer = info.optim_cls(model.parameters())
    calls = []

    def note(name):
        return lambda opt, args, kwargs: calls.append((name, opt is optimizer, torch.equal(model.weight, Line().weight)))

    handles = [
        optimizer.register_step_post_hook(note("post")),
        optimizer.register_step_pre_hook(note("pre")),
        register_optimizer_step_post_hook(note("global post")),
        register_optimizer_step_pre_hook(note("global pre")),
    ]
    train(model, optimizer, 1)
    for handle in handles:
        handle.remove()
    train(model, optimizer, 1)
    assert calls == [("global pre", True, True), ("pre", True, True), ("post", True, False), ("global post", True, False)]


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zero gradients"])
@each("loop", tensor_lr=False)
def test_differentiable(info, kwargs, zeros):
    """Derivatives of the weights and state after two steps by those before, the gradients, lr and weight decay."""
    values = {key: rand(6, seed=seed) for seed, key in enumerate(["param", "grad1", "grad2"])}
    if info.optim_cls is ReWAAdamW:
        values |= {"exp_avg": rand(6, seed=3), "exp_avg_sq": rand(6, seed=4).square()}
        if kwargs.get("amsgrad"):
            values["max_exp_avg_sq"] = values["exp_avg_sq"] * (1.5 + rand(6, seed=5))
    elif kwargs.get("momentum"):
        values["momentum_buffer"] = rand(6, seed=3)
    states = list(values)[3:]
    values |= {key: torch.tensor(0.05, dtype=torch.float64) for key in ("lr", "weight_decay")}
    if zeros:  # the weight may stay where it is, and still it depends on the gradient
        values["grad1"][::2] = values["grad2"][::2] = values["weight_decay"][...] = 0

    def after(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = {key: tensor.clone() for key, tensor in zip(values, tensors, strict=True)}
        param = given["param"]
        settings = {key: given[key] for key in ("lr", "weight_decay")}
        optimizer = info.optim_cls([param], **kwargs | settings, differentiable=True)
        state = optimizer.state[param]
        state.update({key: given[key] for key in states})
        if info.optim_cls is ReWAAdamW:
            state["step"] = torch.tensor(10.0)
        # The second step shows what an update in place overwrote; K=1, M=0 is torch's own code, made for one step.
        for grad in ("grad1", "grad2")[: 1 if kwargs.get("K") == 1 else 2]:
            param.grad = given[grad]
            optimizer.step()
        return param, *(state[key] for key in states)

    # A weight decay of zero is left out: finite differences would make it negative.
    assert torch.autograd.gradcheck(after, [value.clone().requires_grad_(bool(value.any())) for value in values.values()])
