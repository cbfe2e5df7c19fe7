"""Running a sparse model fast: layers swapped for sparse kernels where these are measured to be faster.

Two kernels compete with the dense layer: ours in C++ (``inference.cpp``, float32 on a CPU) and torch's CSR product (MKL), which
needs no compiler. Which one wins depends on the machine, the shapes, the batch and the zeros, so nothing is assumed.
"""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from rewa.deploy import sparse_layers
from rewa.deploy.freezing import keep_zeros
from rewa.deploy.sparse_layers import SparseConv, SparseLayer, SparseLinear, sparse_kind
from rewa.example import Example, difference, named_tensors
from rewa.modes import keeping_modes
from rewa.sparsity import count
from rewa.weights import Computed, computed

__all__ = ["Accelerated", "Skipped", "SparseConv", "SparseLinear", "Timed", "accelerate", "median_ms"]

WORTH = 0.5  # below this share of zeros no sparse kernel is tried
MARGIN = 1.05  # a sparse layer must be faster by this factor: a smaller gain may be noise
CLOSE = 1e-4  # the largest difference of outputs, as a share of the largest output
DRAWS = 2  # shuffled copies of the example on which outputs are compared too
ROWS, NAMES = 30, 4  # layers of a printed plan, and names for a reason


@dataclass(frozen=True)
class Timed:
    """One layer that was timed: what was measured and what runs."""

    name: str
    layer: str
    sparsity: float
    kernel: str  # "dense", "rewa" or "csr"
    dense_ms: float
    ms: float
    reason: str = ""  # why it stayed dense


@dataclass(frozen=True)
class Skipped:
    """One layer that was not timed, and why."""

    name: str
    layer: str
    sparsity: float
    reason: str


class _Swap:
    """A layer that becomes the sparse one in place: whoever holds it, under whatever name, has the sparse one too."""

    def __init__(self, layer: nn.Module, sparse: SparseLayer) -> None:
        self.layer: Any = layer
        self.dense: type[nn.Module] = type(layer)
        self.sparse: type[nn.Module] = type(sparse)
        self.nonzeros = sparse.__dict__["_nonzeros"]

    def apply(self) -> None:
        self.layer.__dict__["_nonzeros"] = self.nonzeros
        self.layer.__class__ = self.sparse

    def undo(self) -> None:
        self.layer.__dict__.pop("_nonzeros", None)
        if type(self.layer) is self.sparse:  # else another class was put on top, which runs dense without the nonzeros
            self.layer.__class__ = self.dense


@dataclass
class Accelerated:
    """What :func:`accelerate` did to a model. ``undo()`` puts the dense layers back, as does leaving a ``with`` block."""

    choices: list[Timed]
    dense_ms: float  # the whole model
    ms: float
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # about the whole model
    _swaps: list[_Swap] = field(default_factory=list, repr=False)

    def apply(self) -> None:
        """Swap the layers, again after ``undo()``."""
        for swap in self._swaps:
            swap.apply()

    def undo(self) -> None:
        """Make the layers dense again, with the weights they have now."""
        for swap in self._swaps:
            swap.undo()

    def __enter__(self) -> Accelerated:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()

    def __str__(self) -> str:
        # A large model's plan shows where the time goes; all of it is in ``choices``.
        least = sorted((choice.dense_ms for choice in self.choices), reverse=True)[:ROWS]
        shown = [choice for choice in self.choices if choice.dense_ms >= least[-1]][:ROWS]
        width = max([len(choice.name) for choice in shown] + [len("whole model")])
        lines = [f"{'':<{width}}  {'layer':<28} {'zeros':>7} {'dense ms':>9} {'ms':>9} {'faster':>7}  kernel"]
        for choice in shown:
            times = f"{choice.dense_ms:>9.3f} {choice.ms:>9.3f} {choice.dense_ms / choice.ms:>6.2f}x"
            kernel = f"{choice.kernel}, {choice.reason}" if choice.reason else choice.kernel
            lines.append(f"{choice.name:<{width}}  {choice.layer:<28} {choice.sparsity:>7.2%} {times}  {kernel}")
        if left := self.choices[len(shown) :]:
            lines.append(f"... and {len(left)} layers that take less time, in plan.choices")
        times = f"{self.dense_ms:>9.3f} {self.ms:>9.3f} {self.dense_ms / self.ms:>6.2f}x"
        lines.append(f"{'whole model':<{width}}  {'':<28} {'':>7} {times}")
        reasons: dict[str, list[str]] = {}
        for layer in self.skipped:
            reasons.setdefault(layer.reason, []).append(f"{layer.name} ({layer.sparsity:.1%} zeros)")
        for reason, names in reasons.items():
            more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
            lines.append(f"not timed, {reason}: {', '.join(names[:NAMES])}{more}")
        return "\n".join([*lines, *self.notes])


def accelerate(model: nn.Module, example_input: Any, *, rounds: int = 15, verbose: bool = True) -> Accelerated:
    """Swap layers for sparse kernels where they run faster here, at this batch size; in place, and never for the worse.

    Each linear and convolution layer (also transformers' ``Conv1D``) with at least half its weights zero is timed with the
    input it gets, dense against sparse, in turns. The faster one stays. In the end the whole model is timed the same way, and
    its outputs are compared on the example and on shuffled copies of it. If it is not faster or computes something else,
    nothing is swapped. The plan says for each layer why it stayed dense.

    A swapped layer is still an instance of its dense class, with all its attributes. It is for inference in float32 on a CPU:
    with gradients, after an edit of the weights (unless it goes through ``.data``, which leaves no trace), in another dtype or
    on another device it runs its dense self. Copies and pickles of the model are dense. Names in ``state_dict`` do not change.

    Args:
        model: The model.
        example_input: An input of the size that will be used, as the model takes it: a tensor; a tuple of positional
            arguments; a dictionary (or ``BatchEncoding``) of keywords; or ``(tuple, dictionary)``.
        rounds: Timings of each, of which the median counts.
        verbose: Print the plan.

    Returns:
        The plan, with ``undo()``; also a context manager that undoes itself.

    Raises:
        ValueError: If the model's zeros are frozen. After this or any other error the model is as it was.

    Example:
        >>> model = nn.Linear(512, 512).float()
        >>> with torch.no_grad():
        ...     _ = model.weight.masked_fill_(torch.rand(512, 512) < 0.99, 0)
        >>> with accelerate(model, torch.randn(32, 512, dtype=torch.float32), verbose=False) as plan:
        ...     plan.ms <= plan.dense_ms
        True
    """
    if any(keep_zeros in module._forward_pre_hooks.values() for module in model.modules()):
        raise ValueError(
            "the model's zeros are frozen, which costs time in every layer: call rewa.deploy.freezing.thaw(model) first"
        )
    example = Example.of(example_input)
    plan = Accelerated([], 0.0, 0.0)
    # Not in inference mode: a model may keep tensors that it makes in its first call, and train with them later.
    with keeping_modes(model), torch.no_grad():
        model.eval()
        for name, layer, x in _inputs(model, example, plan):
            choice, sparse = _fastest(name, layer, x, rounds)
            plan.choices.append(choice)
            if sparse is not None:
                plan._swaps.append(_Swap(layer, sparse))
        try:
            refusal = _time_whole(model, example, plan, rounds) or _compare_whole(model, example, plan)
        except BaseException:
            plan.undo()
            raise
    if refusal:
        _stay_dense(plan, refusal)
    if verbose:
        print(plan)  # noqa: T201
    return plan


def _stay_dense(plan: Accelerated, reason: str) -> None:
    """Undo the plan as a whole."""
    plan.undo()
    plan._swaps, plan.ms = [], plan.dense_ms
    plan.notes.append(f"nothing was swapped: {reason}")
    plan.choices = [
        replace(choice, kernel="dense", ms=choice.dense_ms, reason=choice.reason or reason) for choice in plan.choices
    ]


def _time_whole(model: nn.Module, example: Example, plan: Accelerated, rounds: int) -> str:
    """Time the model both ways, in turns, and leave it swapped; say why it should not be."""

    def run_after(change: Callable[[], None]) -> Callable[[], Any]:
        def run() -> Any:
            change()
            return example.call(model)

        return run

    plan.dense_ms, plan.ms = median_ms([run_after(plan.undo), run_after(plan.apply)], rounds)
    if not plan._swaps:
        return "no layer is faster"
    if plan.ms >= plan.dense_ms:
        return f"the whole model is not faster: {plan.ms:.3f} ms against {plan.dense_ms:.3f}"
    return ""


def _compare_whole(model: nn.Module, example: Example, plan: Accelerated) -> str:
    """Compare the swapped model's outputs with the dense one's, on other inputs too; say why it should not stay."""
    generator = torch.Generator().manual_seed(0)
    found: list[dict[str, Tensor]] = []
    for turn, inputs in enumerate([example, *(example.shuffled(generator) for _ in range(DRAWS))]):
        plan.undo()
        try:
            expected = _outputs(model, inputs)
        except Exception:
            if turn == 0:
                raise
            continue  # the model does not take this order of numbers, which says nothing about the layers
        plan.apply()
        actual = _outputs(model, inputs)
        if not expected:
            return "the model returned no tensor to compare"
        worst = torch.inf if actual.keys() != expected.keys() else max(difference(actual[k], expected[k]) for k in expected)
        if worst > CLOSE:
            plan.undo()
            again = _outputs(model, inputs)
            if again.keys() != expected.keys() or any(difference(again[k], expected[k]) > CLOSE for k in expected):
                return "the dense model's outputs differ between two equal calls, so they cannot be compared"
            return f"the model's outputs differ by {worst:.3g} of the largest"
        found.append(expected)
    if len(found) == 1:
        plan.notes.append("the outputs were compared on the example only: the model does not take its numbers in another order")
        return ""
    constant = [
        name or "the output"
        for name, tensor in found[0].items()
        if all(name in other and difference(other[name], tensor) <= 1e-6 for other in found[1:])
    ]
    if constant:
        listed = ", ".join(constant[:NAMES]) + (f" and {len(constant) - NAMES} more" if len(constant) > NAMES else "")
        plan.notes.append(f"outputs that do not change with the input: {listed}; that they agree shows little")
    return ""


def _outputs(model: nn.Module, example: Example) -> dict[str, Tensor]:
    """Copies of the model's outputs; random numbers are the same in every call, and the example's tensors stay as they are."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model has said so before, or complains about numbers in another order
        torch.manual_seed(0)
        found = named_tensors(example.map(lambda x: x.detach().clone()).call(model))
        return {name: tensor.detach().clone() for name, tensor in found.items()}


def median_ms(functions: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Median milliseconds of each function, called in turns, after two rounds to warm up.

    Args:
        functions: What to time.
        rounds: Timings of each.
    """
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(rounds + 2):
        for kept, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            if turn >= 2:
                kept.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(kept) for kept in times]


def _inputs(model: nn.Module, example: Example, plan: Accelerated) -> list[tuple[str, nn.Module, Tensor]]:
    """The layers that a sparse kernel could run, each with the last input it got; the others go to the plan's skipped."""
    inputs: dict[nn.Module, Any] = {}

    def keep(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = next(iter((*args, *kwargs.values())), None)
        inputs[layer] = x.detach().clone() if isinstance(x, Tensor) else x

    layers = {name or "(the model)": layer for name, layer in model.named_modules() if _has_matrix(layer)}
    found = sorted(computed(model), key=lambda one: one.is_sparse)  # a layer's weight goes before its bias
    by_layer = {one.name.rpartition(".")[0] or "(the model)": one for one in found}
    reasons = {name: _why_not(layer, by_layer.get(name)) for name, layer in layers.items()}
    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for name, layer in layers.items() if not reasons[name]]
    try:
        example.call(model)
    finally:
        for hook in hooks:
            hook.remove()
    able: list[tuple[str, nn.Module, Tensor]] = []
    for name, layer in layers.items():
        x: Any = inputs.get(layer)
        if reason := reasons[name] or _why_not_with(x):
            known = by_layer.get(name)
            sparsity = _sparsity(layer) if known is None else count([known.value]).sparsity
            plan.skipped.append(Skipped(name, _shape(layer), sparsity, reason))
        else:
            able.append((name, layer, x))
    return able


def _has_matrix(layer: nn.Module) -> bool:
    """Whether the layer has weights of its own, beyond biases and norms."""
    if isinstance(layer, parametrize.ParametrizationList):
        return False
    own = [param for param in layer._parameters.values() if param is not None and not is_lazy(param)]
    return parametrize.is_parametrized(layer) or any(param.dim() > 1 for param in own)


def _why_not(layer: nn.Module, found: Computed | None = None) -> str:
    """Why no sparse kernel can run this layer whatever its input; empty if one can."""
    if isinstance(layer, SparseLayer):
        return "already swapped: undo() the earlier plan to measure it again"
    if found is not None:
        return f"its {found.name.rpartition('.')[2]} is computed by {found.by}: call {found.remedy} first"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "it has forward hooks"
    if sparse_kind(layer) is None:
        return f"no sparse kernel for {type(layer).__name__}"
    if "forward" in vars(layer):
        return "its forward was replaced"
    weight = layer._parameters.get("weight")
    if type(weight) is not nn.Parameter or weight.layout != torch.strided:
        return "its weight is not a plain parameter"
    if weight.dtype != torch.float32 or not weight.is_cpu:
        return f"its weight is {_dtype(weight)}, not float32 on a CPU"
    if weight.is_inference():
        return "its weight was made in inference mode, where edits leave no trace"
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        return f"padding_mode is {layer.padding_mode!r}, not 'zeros'"
    if weight.numel() >= 2**31:
        return "its weight has more elements than the kernel can count"
    return "" if _sparsity(layer) >= WORTH else f"fewer than {WORTH:.0%} zeros"


def _why_not_with(x: Any) -> str:
    if x is None:
        return "not called with this input"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if type(x) not in (Tensor, nn.Parameter) or x.layout != torch.strided:
        return f"its input is a {type(x).__name__}, not a plain tensor"
    if x.dtype != torch.float32 or not x.is_cpu:
        return f"its input is {_dtype(x)}, not float32 on a CPU"
    return ""


def _dtype(tensor: Tensor) -> str:
    return f"{tensor.dtype}".removeprefix("torch.") + ("" if tensor.is_cpu else f" on {tensor.device}")


def _sparsity(layer: nn.Module) -> float:
    return count([param for param in layer.parameters() if param.dim() > 1 and param.is_floating_point()]).sparsity


def _shape(layer: nn.Module) -> str:
    weight = getattr(layer, "weight", None)
    return f"{type(layer).__name__} {'x'.join(map(str, weight.shape)) if isinstance(weight, Tensor) else ''}".rstrip()


def _rivals(layer: nn.Module) -> list[SparseLayer]:
    """The sparse layers that could stand for this one."""
    kind = sparse_kind(layer)
    assert kind is not None
    kernels = [*(["rewa"] if sparse_layers.library() is not None else []), *([] if kind is SparseConv else ["csr"])]
    return [kind(layer, kernel) for kernel in kernels]


def _fastest(name: str, layer: nn.Module, x: Tensor, rounds: int) -> tuple[Timed, SparseLayer | None]:
    """Time the dense layer and those sparse ones that compute the same; the choice, and the sparse layer if it is one."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)  # x may be zero: all agree there
    rivals, reason = _rivals(layer), ""
    if not rivals:
        reason = "no C++ compiler for the kernel"
    elif not all(rival.__dict__["_nonzeros"].hold(rival, x) for rival in rivals):
        rivals, reason = [], f"the kernel does not take its input of shape {tuple(x.shape)}"
    else:
        worst = [max(difference(rival(y), layer(y)) for y in (x, noise)) for rival in rivals]
        rivals = [rival for rival, error in zip(rivals, worst, strict=True) if error <= CLOSE]
        reason = "" if rivals else f"the kernel's output differs by {min(worst):.3g} of the largest"
    dense_ms, *others = median_ms([functools.partial(run, x) for run in (layer, *rivals)], rounds)
    choice = Timed(name, _shape(layer), _sparsity(layer), "dense", dense_ms, dense_ms, reason)
    if not rivals:
        return choice, None
    ms, best = min(zip(others, rivals, strict=True), key=lambda pair: pair[0])
    if MARGIN * ms < dense_ms:
        return replace(choice, kernel=best.__dict__["_nonzeros"].kernel, ms=ms), best
    slower = "slower" if ms >= dense_ms else f"less than {MARGIN - 1:.0%} faster"
    return replace(choice, reason=f"{slower}: {ms:.3f} ms against {dense_ms:.3f}"), None
