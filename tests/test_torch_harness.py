"""The generic checks that torch runs on its own optimizers, run on ReWA's.

``OptimizerInfo`` and its relatives are torch's; the checks are those of its generic optimizer tests that a CPU can run. The
model weights of every check are away from zero, where ReWA's steps vanish by design.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing import assert_close
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
)

from rewa import ReWAAdamW, ReWASGD

# --- what the checks run on -------------------------------------------------------------------------------------------------

SHARED = {
    "default": {},
    "lr": {"lr": 0.01},
    "tensor lr": {"lr": torch.tensor(0.01, dtype=torch.float64)},
    "no weight_decay": {"weight_decay": 0.0},
    "weight_decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1, "K": 2, "M": 1},
    "K=3, M=2, eps": {"K": 3, "M": 2, "eps": 1e-3},
    "K=1, M=0": {"K": 1, "M": 0},
    "K=2.5, M=0.5": {"K": 2.5, "M": 0.5, "weight_decay": 0.1},
    "capturable": {"capturable": True, "weight_decay": 0.1},
    "capturable, tensor lr": {"capturable": True, "lr": torch.tensor(0.01, dtype=torch.float64)},
}
SGD = {
    "momentum": {"momentum": 0.9},
    "momentum, weight_decay": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "K": 2, "M": 1},
    "decoupled": {"decoupled": True, "momentum": 0.9, "weight_decay": 0.1},
    "decoupled, K=1, M=0": {"decoupled": True, "weight_decay": 0.1, "K": 1, "M": 0},
}
ADAMW = {
    "betas, adam_eps": {"betas": (0.8, 0.95), "adam_eps": 1e-6},
    "amsgrad": {"amsgrad": True, "weight_decay": 0.1},
    "amsgrad, maximize": {"amsgrad": True, "maximize": True, "K": 4, "M": 1, "eps": 1e-2},
    "amsgrad, K=1, M=0": {"amsgrad": True, "K": 1, "M": 0},
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
        {"lr": torch.tensor(0.001), "foreach": True},
        ValueError,
        "lr as a Tensor is not supported for capturable=False and foreach",
    ),
]


def parameter_errors(dtype: torch.dtype) -> list[tuple[Any, dict[str, Any], type[Exception], str]]:
    sparse = nn.Parameter(torch.ones(2, 3, dtype=dtype))
    sparse.grad = torch.ones(2, 3, dtype=dtype).to_sparse()
    return [
        ([nn.Parameter(torch.ones(2, 3, dtype=torch.complex64))], {}, ValueError, "real floating-point tensors only"),
        ([nn.Parameter(torch.zeros(2, 3, dtype=dtype))], {}, ValueError, "is all zero"),
        *(([sparse], flags, RuntimeError, "does not support sparse gradients") for flags in FLAGS.values()),
    ]


def make_info(optim_cls: type, special: dict[str, dict[str, Any]], invalid: list[Any], later: tuple[str, ...]) -> OptimizerInfo:
    def inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
        return [OptimizerInput(None, copy.deepcopy(kwargs), desc) for desc, kwargs in (SHARED | special).items()]

    def errors(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
        mine = [(None, *entry, OptimizerErrorEnum.CONSTRUCTION_ERROR) for entry in INVALID + invalid]
        for params, kwargs, error, regex in parameter_errors(dtype):
            late = error is RuntimeError
            mine.append((params, kwargs, error, regex, OptimizerErrorEnum(int(late))))
        return get_error_inputs_for_all_optims(device, dtype) + [
            ErrorOptimizerInput(OptimizerInput(params, kwargs, regex), error_on=on, error_type=error, error_regex=regex)
            for params, kwargs, error, regex, on in mine
        ]

    return OptimizerInfo(
        optim_cls,
        optim_inputs_func=inputs,
        optim_error_inputs_func=errors,
        scheduler_inputs=(
            [lambda opt: StepLR(opt, gamma=0.9, step_size=10)],
            [lambda opt: ExponentialLR(opt, gamma=0.99), lambda opt: ReduceLROnPlateau(opt)],
            # This one also moves momentum or beta1, and wants to find it among the defaults.
            [lambda opt: OneCycleLR(opt, max_lr=0.02, total_steps=30)],
        ),
        supported_impls=("foreach", "fused", "differentiable"),
        supports_fused_on=("cpu",),
        not_og_supported_flags=("foreach", "fused", "differentiable", "maximize", "capturable", *later),
        has_capturable_arg=True,
        supports_complex=False,
    )


FLAGS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
INFOS = [make_info(ReWASGD, SGD, INVALID_SGD, ()), make_info(ReWAAdamW, ADAMW, INVALID_ADAMW, ("amsgrad",))]


def each(*impls: str, tensor_lr: bool = True) -> Any:
    """Parametrize a test over both optimizers, their inputs and these implementations."""
    cases = []
    for info in INFOS:
        for optim_input in info.optim_inputs_func("cpu"):
            kwargs = optim_input.kwargs
            if isinstance(kwargs.get("lr"), Tensor) and not tensor_lr:
                continue
            for impl in impls:
                # As torch's AdamW, which refuses the pair at construction.
                if info.optim_cls is ReWAAdamW and impl == "foreach" and optim_input.desc == "tensor lr":
                    continue
                cases.append(pytest.param(info, kwargs | FLAGS[impl], id=f"{info.name}-{optim_input.desc}-{impl}"))
    return pytest.mark.parametrize(("info", "kwargs"), cases)


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are small, and on a busy machine threads spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


every_info = pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)


def make(info: OptimizerInfo, params: Any, kwargs: dict[str, Any]) -> torch.optim.Optimizer:
    """An optimizer with settings of its own: schedulers write into a learning rate that is a tensor."""
    return info.optim_cls(params, **copy.deepcopy(kwargs))


def rand(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Reproducible numbers of either sign and of size 0.2 to 1.2."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator) * 2 - 1
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


def closure(model: Line, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        return loss

    return evaluate


def train(model: Line, optimizer: torch.optim.Optimizer, steps: int, schedulers: Iterable[Any] = ()) -> None:
    for _ in range(steps):
        loss = optimizer.step(closure(model, optimizer)).detach()
        for scheduler in schedulers:
            scheduler.step(*[loss] * isinstance(scheduler, ReduceLROnPlateau))


def assert_same(actual: Any, expected: Any) -> None:
    """Equal to the last bit, through dictionaries and lists."""
    assert type(actual) is type(expected)
    if isinstance(expected, Tensor):
        assert_close(actual, expected, rtol=0, atol=0)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        assert_same(list(actual.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_same(*pair)
    else:
        assert actual == expected


def assert_right_way(model: Line, before: Tensor, kwargs: dict[str, Any]) -> None:
    after = model().detach()
    assert after > before if kwargs.get("maximize") else after < before


def parameters(model: Line, named: bool) -> Any:
    return list(model.named_parameters() if named else model.parameters())


# --- construction -----------------------------------------------------------------------------------------------------------


@every_info
def test_inputs_leave_the_implementation_to_the_tests(info):
    for optim_input in info.optim_inputs_func("cpu"):
        assert not {"foreach", "fused", "differentiable"} & set(optim_input.kwargs)


@pytest.mark.parametrize(
    ("info", "error"),
    [
        pytest.param(info, error, id=f"{info.name}-{error.optimizer_error_input.desc}")
        for info in INFOS
        for error in info.optim_error_inputs_func("cpu", torch.float32)
    ],
)
def test_errors(info, error):
    given = error.optimizer_error_input
    expected = pytest.warns if issubclass(error.error_type, Warning) else pytest.raises
    if error.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR:
        with expected(error.error_type, match=error.error_regex):
            info.optim_cls(given.params, **given.kwargs)
    else:
        optimizer = info.optim_cls(given.params, **given.kwargs)
        with expected(error.error_type, match=error.error_regex):
            optimizer.step()


@every_info
def test_fused_refuses_meta_parameters_until_they_are_real(info):
    with torch.device("meta"):
        model = nn.Linear(5, 3)
    optimizer = info.optim_cls(model.parameters(), fused=True)
    for param in model.parameters():
        param.grad = torch.rand_like(param)
    with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating point Tensors of supported"):
        optimizer.step()
    model.to_empty(device="cpu")
    for seed, param in enumerate(model.parameters()):
        param.data.copy_(rand(*param.shape, seed=seed))
        param.grad = torch.ones_like(param)
    before = [param.detach().clone() for param in model.parameters()]
    info.optim_cls(model.parameters(), fused=True).step()
    for param, old in zip(model.parameters(), before, strict=True):
        assert not torch.equal(param, old)


@each("loop", "foreach", "fused")
def test_optimizer_can_be_printed(info, kwargs):
    model = Line()
    optimizer = make(info, [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], kwargs)
    text = repr(optimizer)
    assert text.startswith(info.name)
    assert "Parameter Group 1" in text
    assert "lr: 0.5" in text


# --- steps ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [None, 0, 1, 2])
@pytest.mark.parametrize("contiguous", [True, False])
@each("loop")
def test_forloop_goes_right_direction(info, kwargs, contiguous, schedule):
    model = Line(contiguous)
    optimizer = make(info, model.parameters(), kwargs)
    schedulers = [] if schedule is None else [build(optimizer) for build in info.scheduler_inputs[schedule]]
    before = model().detach()
    train(model, optimizer, 20, schedulers)
    assert_right_way(model, before, kwargs)


@pytest.mark.parametrize("schedule", [0, 1, 2])
@each("loop")
def test_param_group_with_lrscheduler_goes_right_direction(info, kwargs, schedule):
    model = Line()
    optimizer = make(info, [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}], kwargs)
    schedulers = [build(optimizer) for build in info.scheduler_inputs[schedule]]
    before = model().detach()
    train(model, optimizer, 20, schedulers)
    assert_right_way(model, before, kwargs)


@pytest.mark.parametrize("dims", [0, 1, 2])
@each("loop", "foreach", "fused", tensor_lr=False)
def test_tensor_lr(info, kwargs, dims):
    if info.optim_cls is ReWAAdamW and kwargs.get("foreach"):
        if kwargs.get("K") == 1:
            pytest.skip("torch's AdamW takes no tensor here: that needs capturable, which needs a GPU")
        kwargs = kwargs | {"capturable": True}
    lr = torch.tensor(0.05, dtype=torch.float64).reshape((1,) * dims)
    models = Line(), Line()
    for model, value in zip(models, (0.05, lr), strict=True):
        optimizer = info.optim_cls(model.parameters(), **kwargs | {"lr": value})
        scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
        train(model, optimizer, 6, [scheduler])
    assert optimizer.param_groups[0]["lr"] is lr  # never replaced behind the user's back, and changed in place
    assert lr.shape == (1,) * dims
    assert_close(lr.reshape(()), torch.tensor(0.05 / 8, dtype=torch.float64))
    for actual, expected in zip(models[1].parameters(), models[0].parameters(), strict=True):
        assert_close(actual, expected, rtol=1e-12, atol=0)


def varied_parameters(dtype: torch.dtype, holes: bool) -> list[nn.Parameter]:
    """Every shape and layout that an implementation may treat in its own way; 91 x 100 is more than one chunk of a kernel."""
    shapes = [(3, 2), (3,), (), (0,), (91, 100), (2, 3, 4, 5), (5, 2), (5, 3, 2), (4,)]
    tensors = [rand(*shape, dtype=dtype, seed=index) for index, shape in enumerate(shapes)]
    tensors[5] = tensors[5].to(memory_format=torch.channels_last)
    tensors[6] = tensors[6].t()
    if holes:
        tensors[7] = tensors[7][..., 0]
    return [nn.Parameter(tensor) for tensor in tensors]


def run_derived(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    for step in range(7):
        for index, param in enumerate(params[:-1]):  # the last one never has a gradient, the second one freezes
            frozen = index == 1 and step > 3
            param.grad = None if frozen else torch.empty_like(param).copy_(rand(*param.shape, seed=10 * step + index))
        optimizer.step()
    return [dict(optimizer.state.get(param, {})) for param in params]


def assert_matches_loop(info: OptimizerInfo, kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    # K=1, M=0 is torch's own optimizer, whose fused CPU kernel steps the wrong elements of a tensor with holes.
    holes = not (kwargs.get("K") == 1 and kwargs.get("fused"))
    start, params, expected_params = (varied_parameters(dtype, holes) for _ in range(3))
    states = run_derived(params, make(info, params, kwargs))
    expected_states = run_derived(expected_params, make(info, expected_params, kwargs | {"foreach": False, "fused": False}))
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {}
    assert_close(params, expected_params, check_stride=True, **tolerance)
    assert torch.equal(params[-1], start[-1])
    assert all(not torch.equal(param, old) for param, old in zip(params[:-1], start, strict=False) if param.numel())
    for state, expected in zip(states, expected_states, strict=True):
        assert list(state) == list(expected)
        for key in expected:
            assert_close(state[key], expected[key], check_dtype=key != "step", **tolerance)


FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@each("foreach")
def test_foreach_matches_forloop(info, kwargs, dtype):
    assert_matches_loop(info, kwargs, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@each("fused")
def test_fused_matches_forloop(info, kwargs, dtype):
    torch.set_num_threads(2)
    assert_matches_loop(info, kwargs, dtype)


@each("loop", "foreach", "fused")
def test_param_groups_weight_decay(info, kwargs):
    model = Line()
    groups = [{"params": [model.weight], "weight_decay": 0.3}, {"params": [model.bias], "weight_decay": 0.0}]
    optimizer = make(info, groups, kwargs)
    before = model().detach()
    train(model, optimizer, 2)
    assert_right_way(model, before, kwargs)
    # Without a gradient the decay is all that moves a weight; a fresh optimizer has no momentum to move it either.
    old = [param.detach().clone() for param in model.parameters()]
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer = make(info, groups, kwargs)
    optimizer.step()
    assert torch.equal(model.bias, old[1])
    assert (model.weight.abs() < old[0].abs()).all() if not kwargs.get("maximize") or info.optim_cls is ReWAAdamW else True


@each("loop", "foreach", "fused")
def test_param_groups_lr(info, kwargs):
    model, slow, still = Line(), Line(), nn.Parameter(rand(3, 2))
    old = still.detach().clone()
    groups = [{"params": [model.weight, still], "lr": 0.01}, {"params": [model.bias]}]
    before = model().detach()
    train(model, make(info, groups, kwargs | {"lr": 1e-3}), 5)
    assert_right_way(model, before, kwargs)
    assert torch.equal(still, old)
    train(slow, make(info, slow.parameters(), kwargs | {"lr": 1e-3}), 5)
    moved, moved_slowly = ((m.weight - Line().weight).abs().sum() for m in (model, slow))
    assert moved > 2 * moved_slowly


@each("loop", "foreach", "fused")
def test_step_is_noop_when_params_have_no_grad(info, kwargs):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs)
    optimizer.step()
    assert_same([param.detach() for param in model.parameters()], [param.detach() for param in Line().parameters()])
    assert not optimizer.state


@each("loop", "foreach", "fused")
def test_step_is_noop_for_zero_grads(info, kwargs):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs | {"weight_decay": 0.0})
    for _ in range(3):
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert_same([param.detach() for param in model.parameters()], [param.detach() for param in Line().parameters()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@each("loop", "foreach", "fused")
def test_grads_are_never_inplaced_into(info, kwargs, dtype):
    params = [nn.Parameter(rand(3, 2, dtype=dtype)), nn.Parameter(rand(5, dtype=dtype, seed=1))]
    optimizer = make(info, params, kwargs)
    for _ in range(2):
        grads = [rand(*param.shape, dtype=dtype, seed=2) for param in params]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        given = [(param.grad, param.grad._version) for param in params]
        optimizer.step()
        for param, grad, (tensor, version) in zip(params, grads, given, strict=True):
            assert param.grad is tensor
            assert tensor._version == version  # a kernel may write past this counter, so look at the numbers as well
            assert torch.equal(tensor, grad)


@pytest.mark.parametrize("result", [lambda loss: loss, float, lambda loss: None], ids=["tensor", "float", "None"])
@each("loop", "foreach", "fused")
def test_step_returns_what_the_closure_does(info, kwargs, result):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs)
    returned = []

    def evaluate() -> Any:
        assert torch.is_grad_enabled()
        returned.append(result(closure(model, optimizer)().detach()))
        return returned[-1]

    for _ in range(2):
        assert optimizer.step(evaluate) is returned[-1]
    assert len(returned) == 2
    assert optimizer.step() is None


# --- state ------------------------------------------------------------------------------------------------------------------


@each("loop", "foreach", "fused")
def test_non_empty_state(info, kwargs):
    model = Line()
    # As torch's SGD: there is nothing to remember without momentum.
    optimizer = make(info, model.parameters(), kwargs | ({"momentum": 0.9} if info.optim_cls is ReWASGD else {}))
    train(model, optimizer, 1)
    assert set(optimizer.state) == set(model.parameters())
    assert all(optimizer.state.values())


def reloaded(info: OptimizerInfo, kwargs: dict[str, Any], model: Line, state_dict: dict[str, Any], named: bool = False):
    """A copy of the model and a new optimizer for it that starts from the state."""
    twin = copy.deepcopy(model)
    optimizer = make(info, parameters(twin, named), kwargs)
    optimizer.load_state_dict(state_dict)
    return twin, optimizer


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("named_twin", [False, True])
@each("loop", "foreach", "fused")
def test_state_dict_deterministic(info, kwargs, named, named_twin):
    model = Line()
    optimizer = make(info, parameters(model, named), kwargs)
    train(model, optimizer, 5)
    saved = copy.deepcopy(optimizer.state_dict())
    twin, optimizer_twin = reloaded(info, kwargs, model, saved, named_twin)
    assert_same(optimizer.state_dict(), saved)  # loading changes nothing in the source
    for _ in range(5):
        train(model, optimizer, 1)
        train(twin, optimizer_twin, 1)
        assert_same([p.detach() for p in twin.parameters()], [p.detach() for p in model.parameters()])
    state, state_twin = optimizer.state_dict(), optimizer_twin.state_dict()
    assert_same(state_twin["state"], state["state"])
    for entry, is_named in ((state, named), (state_twin, named_twin)):
        names = entry["param_groups"][0].pop("param_names", None)
        assert names == (["weight", "bias"] if is_named else None)
    assert_same(state_twin["param_groups"], state["param_groups"])
    # A parameter that is listed twice has the same number twice.
    optimizer_twin.param_groups.extend(optimizer_twin.param_groups)
    again = optimizer_twin.state_dict()["param_groups"]
    assert again[0]["params"] == again[1]["params"] == [0, 1]


@each("loop", "foreach", "fused")
def test_can_load_older_state_dict(info, kwargs):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs)
    train(model, optimizer, 3)
    older = copy.deepcopy(optimizer.state_dict())
    defaults = info.optim_cls([nn.Parameter(rand(1))]).defaults
    for flag in info.not_og_supported_flags:
        del older["param_groups"][0][flag]
    twin, optimizer_twin = reloaded(info, kwargs, model, older)
    for flag in info.not_og_supported_flags:
        assert optimizer_twin.param_groups[0][flag] == defaults[flag]
    train(twin, optimizer_twin, 1)
    if not kwargs.get("maximize") and not kwargs.get("amsgrad"):
        train(model, optimizer, 1)
        assert_close(list(twin.parameters()), list(model.parameters()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("named", [False, True])
@every_info
def test_can_load_from_to_named_state_dict(info, named):
    model = Line()
    optimizer = info.optim_cls(parameters(model, named), lr=0.02)
    train(model, optimizer, 2)
    twin, optimizer_twin = reloaded(info, {}, model, optimizer.state_dict(), not named)
    assert ("param_names" in optimizer_twin.param_groups[0]) is not named
    assert optimizer_twin.param_groups[0]["lr"] == 0.02
    train(model, optimizer, 1)
    train(twin, optimizer_twin, 1)
    assert_same([p.detach() for p in twin.parameters()], [p.detach() for p in model.parameters()])


@each("loop", "foreach", "fused")
def test_save_load_equality_with_weights_only(info, kwargs):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs)
    train(model, optimizer, 2)
    with io.BytesIO() as file:
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
    assert_same(loaded, optimizer.state_dict())
    assert_same(reloaded(info, kwargs, model, loaded)[1].state_dict(), optimizer.state_dict())


@each("loop", "foreach", "fused")
def test_load_nontensor_step(info, kwargs):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs)
    train(model, optimizer, 3)
    state_dict = copy.deepcopy(optimizer.state_dict())
    for state in state_dict["state"].values():
        if "step" in state:
            state["step"] = int(state["step"].item())
    twin, optimizer_twin = reloaded(info, kwargs, model, state_dict)
    assert_same(optimizer_twin.state_dict()["state"], optimizer.state_dict()["state"])
    train(model, optimizer, 2)
    train(twin, optimizer_twin, 2)
    assert_same([p.detach() for p in twin.parameters()], [p.detach() for p in model.parameters()])


@each("loop", "foreach", "fused")
def test_copies_have_all_public_attributes(info, kwargs):
    model = Line()
    optimizer = make(info, model.parameters(), kwargs)
    train(model, optimizer, 2)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        public, public_twin = ({key for key in vars(o) if not key.startswith("_")} for o in (optimizer, twin))
        assert public == public_twin
        for param in (param for group in twin.param_groups for param in group["params"]):
            param.grad = torch.ones_like(param)
        twin.step()


# --- hooks ------------------------------------------------------------------------------------------------------------------


@every_info
def test_state_dict_hooks(info):
    optimizer = info.optim_cls(Line().parameters())
    calls = []
    handles = [
        optimizer.register_state_dict_pre_hook(lambda opt: calls.append(("pre", opt))),
        optimizer.register_state_dict_post_hook(lambda opt, state: {**state, "extra": calls.append(("post", opt)) or 1}),
        optimizer.register_state_dict_post_hook(lambda opt, state: calls.append(("first", opt)), prepend=True),
    ]
    assert optimizer.state_dict()["extra"] == 1
    assert calls == [("pre", optimizer), ("first", optimizer), ("post", optimizer)]
    for handle in handles:
        handle.remove()
    assert "extra" not in optimizer.state_dict()
    assert len(calls) == 3


@every_info
def test_load_state_dict_hooks(info):
    optimizer = info.optim_cls(Line().parameters(), lr=0.5)
    calls = []

    def set_lr(lr: float) -> Callable[[Any, dict[str, Any]], dict[str, Any]]:
        def hook(opt: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
            calls.append((lr, state["param_groups"][0]["lr"]))
            return {**state, "param_groups": [{**group, "lr": lr} for group in state["param_groups"]]}

        return hook

    state_dict = optimizer.state_dict()
    handles = [
        optimizer.register_load_state_dict_pre_hook(set_lr(0.25)),
        optimizer.register_load_state_dict_pre_hook(set_lr(0.125), prepend=True),
        optimizer.register_load_state_dict_post_hook(lambda opt: calls.append(("post", opt.param_groups[0]["lr"]))),
        optimizer.register_load_state_dict_post_hook(lambda opt: calls.append("first"), prepend=True),
    ]
    optimizer.load_state_dict(state_dict)
    assert calls == [(0.125, 0.5), (0.25, 0.125), "first", ("post", 0.25)]
    assert state_dict["param_groups"][0]["lr"] == 0.5
    for handle in handles:
        handle.remove()
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert len(calls) == 4


@every_info
def test_step_hooks(info):
    model = Line()
    optimizer = info.optim_cls(model.parameters())
    calls = []

    def note(name: str) -> Callable[..., None]:
        def hook(opt: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert opt is optimizer
            calls.append((name, torch.equal(model.weight, Line().weight)))

        return hook

    handles = [
        optimizer.register_step_post_hook(note("post")),
        optimizer.register_step_pre_hook(note("pre")),
        register_optimizer_step_post_hook(note("global post")),
        register_optimizer_step_pre_hook(note("global pre")),
    ]
    try:
        train(model, optimizer, 1)
    finally:
        for handle in handles:
            handle.remove()
    assert calls == [("global pre", True), ("pre", True), ("post", False), ("global post", False)]
    train(model, optimizer, 1)
    assert len(calls) == 4


# --- autograd through the step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_gradient", [False, True])
@each("loop")
def test_differentiable(info, kwargs, zero_gradient):
    """Derivatives of the new weight and state with respect to the old ones, the gradient, lr and weight decay."""
    kwargs = {key: value for key, value in kwargs.items() if key not in ("lr", "weight_decay", "foreach")}
    param, grad = rand(6), rand(6, seed=1)
    if zero_gradient:
        grad[::2] = 0
    state = {}
    if info.optim_cls is ReWAAdamW:
        state = {"exp_avg": rand(6, seed=2), "exp_avg_sq": rand(6, seed=3).square()}
        if kwargs.get("amsgrad"):
            state["max_exp_avg_sq"] = state["exp_avg_sq"] * torch.tensor([0.5, 2, 3, 0.5, 2, 3], dtype=torch.float64)
    elif kwargs.get("momentum"):
        state = {"momentum_buffer": rand(6, seed=2)}

    def step(param: Tensor, grad: Tensor, lr: Tensor, weight_decay: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        x = param.clone()
        x.grad = grad
        optimizer = info.optim_cls([x], lr=lr, weight_decay=weight_decay, differentiable=True, **kwargs)
        optimizer.state[x].update({key: value.clone() for key, value in zip(state, values, strict=True)})
        if info.optim_cls is ReWAAdamW:
            optimizer.state[x]["step"] = torch.tensor(10.0)
        optimizer.step()
        return x, *(optimizer.state[x][key] for key in state)

    for decay in (0.0, 0.1):
        settings = [torch.tensor(value, dtype=torch.float64) for value in (0.05, decay)]
        inputs = [tensor.clone().requires_grad_() for tensor in (param, grad, *settings, *state.values())]
        inputs[3].requires_grad_(decay > 0)  # torch checks finite differences on both sides, and no decay is negative
        assert torch.autograd.gradcheck(step, inputs)
