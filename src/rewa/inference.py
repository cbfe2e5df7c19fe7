"""Running a sparse model fast: layers swapped for sparse kernels where these are measured to be faster.

Two kernels compete with the dense layer: ours in C++ (``inference.cpp``, float32 on a CPU) and torch's CSR product (MKL), which
needs no compiler. Which one wins depends on the machine, the shapes, the batch and the zeros, so nothing is assumed.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from rewa.native import load
from rewa.sparsity import count, keeping_modes
from rewa.zeros import keep_zeros

__all__ = ["Accelerated", "Choice", "SparseConv", "SparseLinear", "accelerate", "median_ms"]

SOURCE = Path(__file__).with_name("inference.cpp")
WORTH = 0.5  # below this share of zeros no sparse kernel is tried
LENGTH = 256  # elements of a plane, at least, where the batch has them


_Pair = ctypes.c_int64 * 2


class _Conv(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "channels")),
        *((name, _Pair) for name in ("size", "pad", "stride", "grid")),
        *(("out", ctypes.c_int64), ("result", _Pair), ("group", ctypes.c_int64)),
    ]


@functools.cache
def _library() -> Any:
    """The compiled kernels, or None where there is no compiler."""
    try:
        library = load(SOURCE, symbols=("sparse_linear", "sparse_conv"))
    except OSError:
        return None
    address, number = ctypes.c_void_p, ctypes.c_int64
    library.sparse_linear.argtypes = [address, number, number, number, *[address] * 5, ctypes.c_int]
    library.sparse_conv.argtypes = [ctypes.POINTER(_Conv), *[address] * 6, ctypes.c_int]
    library.sparse_linear.restype = library.sparse_conv.restype = None
    return library


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rows(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Starts, columns and values of the nonzeros of a matrix, row by row."""
    rows, columns = weight.nonzero(as_tuple=True)
    start = torch.zeros(len(weight) + 1, dtype=torch.int32)
    start[1:] = torch.bincount(rows, minlength=len(weight)).cumsum(0)
    return start, columns.to(torch.int32), weight[rows, columns].contiguous()


class _Sparse(nn.Module, ABC):
    """The nonzeros of a dense layer, under the layer's own parameters; dense wherever the nonzeros would be wrong.

    That is with gradients, after the weight was edited, and for anything but float32 on a CPU.
    """

    def __init__(self, dense: Any, kernel: str) -> None:
        super().__init__()
        self.__dict__["dense"] = dense  # not as a child: names in state_dict stay
        self.register_parameter("weight", dense.weight)
        self.register_parameter("bias", dense.bias)
        self.kernel = kernel
        self.__dict__["made_from"] = (dense.weight, dense.weight._version)
        self.train(dense.training)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__dict__["made_from"] = (None, 0)  # a copy counts its edits anew, so it cannot be told whether there were any

    def forward(self, x: Tensor) -> Tensor:
        # Looked up as attributes they take longer than small layers do.
        weight, bias, (source, version) = self._parameters["weight"], self._parameters["bias"], self.__dict__["made_from"]
        if (
            torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
            or torch.compiler.is_compiling()
            or weight is not source
            or weight._version != version
            or not x.dtype == weight.dtype == torch.float32
            or not (x.is_cpu and weight.is_cpu)
            or not (bias is None or (bias.dtype == torch.float32 and bias.is_cpu and bias.shape == weight.shape[:1]))
            or not self.takes(x)
            or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)))
            or torch.is_autocast_enabled("cpu")
        ):
            dense: nn.Module = self.__dict__["dense"]
            dense._parameters.update(weight=weight, bias=bias)  # they may have been replaced by others
            result: Tensor = dense(x)
            return result
        return self.sparse(x)

    @abstractmethod
    def takes(self, x: Tensor) -> bool:
        """Whether the kernel, which trusts its sizes, may have this input; the dense layer says what is wrong with others."""

    @abstractmethod
    def sparse(self, x: Tensor) -> Tensor:
        """The layer by its nonzeros only."""

    def extra_repr(self) -> str:
        return f"{self.dense}, kernel={self.kernel!r}"


class SparseLinear(_Sparse):
    """``nn.Linear`` by its nonzeros.

    Args:
        dense: The layer.
        kernel: ``"rewa"`` or ``"csr"``.
    """

    def __init__(self, dense: nn.Linear, kernel: str = "rewa") -> None:
        super().__init__(dense, kernel)
        weight = dense.weight.detach()
        self.shape = tuple(weight.shape)
        if kernel == "csr":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls the layout a beta
                self.matrix = weight.to_sparse_csr()
        else:
            self.rows = _rows(weight)

    def takes(self, x: Tensor) -> bool:
        """Any number of rows of the right length."""
        return x.dim() > 0 and x.numel() > 0 and x.shape[-1] == self.shape[1]

    def sparse(self, x: Tensor) -> Tensor:
        """The layer by its nonzeros only."""
        bias, (outputs, inputs) = self._parameters["bias"], self.shape
        if self.kernel == "csr":
            y = (self.matrix @ x.reshape(-1, inputs).T).T
            return (y if bias is None else y + bias).reshape(*x.shape[:-1], outputs)
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], outputs)
        sizes = x.numel() // inputs, inputs, outputs
        _library().sparse_linear(_at(x), *sizes, *map(_at, self.rows), _at(bias), _at(y), torch.get_num_threads())
        return y


class SparseConv(_Sparse):
    """``nn.Conv1d`` or ``nn.Conv2d`` by its nonzeros; any stride, padding with zeros, dilation and groups.

    Args:
        dense: The layer.
    """

    def __init__(self, dense: nn.Conv1d | nn.Conv2d) -> None:
        super().__init__(dense, "rewa")
        weight = dense.weight.detach()
        self.flat = weight.dim() == 3  # one dimension: planes of one row

        def pair(values: tuple[int, ...], single: int) -> tuple[int, int]:
            return (single if self.flat else values[0], values[-1])

        self.channels, self.size = dense.in_channels, pair(dense.kernel_size, 1)
        self.stride, self.dilation = pair(dense.stride, 1), pair(dense.dilation, 1)
        reach = [dilation * (size - 1) for dilation, size in zip(self.dilation, self.size, strict=True)]
        if isinstance(dense.padding, str):
            self.padding = tuple((total // 2, total - total // 2) if dense.padding == "same" else (0, 0) for total in reach)
        else:
            self.padding = tuple((size, size) for size in pair(dense.padding, 0))
        out, taps = len(weight), self.size[0] * self.size[1]
        self.start, columns, self.values = _rows(weight.reshape(out, -1))
        group = torch.repeat_interleave(torch.arange(out), self.start.diff()) // (out // dense.groups)
        self.channel, self.tap = columns // taps + group * weight.shape[1], columns % taps
        self.places: dict[tuple[int, ...], Tensor] = {}

    def takes(self, x: Tensor) -> bool:
        """A batch of images with the right channels, large enough for the filter and small enough for 32-bit offsets."""
        if x.numel() == 0 or x.dim() != (3 if self.flat else 4) or x.shape[1] != self.channels:
            return False
        padded = [size + sum(padding) for size, padding in zip((1, *x.shape[2:])[-2:], self.padding, strict=True)]
        reach = [dilation * (tap - 1) for dilation, tap in zip(self.dilation, self.size, strict=True)]
        planes = x.shape[0] * x.shape[1] * (padded[0] + self.stride[0]) * (padded[1] + self.stride[1])
        return all(size > least for size, least in zip(padded, reach, strict=True)) and planes < 2**31

    def sparse(self, x: Tensor) -> Tensor:
        """The layer by its nonzeros only."""
        dense: Any = self.dense
        images = (x[:, :, None] if self.flat else x).contiguous()
        batch, channels, *sizes = images.shape
        padded = [size + sum(padding) for size, padding in zip(sizes, self.padding, strict=True)]
        result = [
            (size - dilation * (tap - 1) - 1) // stride + 1
            for size, dilation, tap, stride in zip(padded, self.dilation, self.size, self.stride, strict=True)
        ]
        grid = [-(-size // stride) for size, stride in zip(padded, self.stride, strict=True)]
        threads = torch.get_num_threads()
        # Small planes go several at a time, so that the registers are full; not more, so that they stay in the cache.
        groups = -(-max(1, batch * grid[0] * grid[1] // LENGTH) // threads) * threads
        conv = _Conv(batch, channels, *(_Pair(*pair) for pair in (sizes, [low for low, _ in self.padding], self.stride, grid)))
        conv.out, conv.result, conv.group = dense.out_channels, _Pair(*result), -(-batch // groups)
        y = images.new_empty(batch, dense.out_channels, *result)
        nonzeros = (self.start, self._places(conv.group, grid), self.values, self._parameters["bias"])
        _library().sparse_conv(ctypes.byref(conv), _at(images), *map(_at, nonzeros), _at(y), threads)
        return y[:, :, 0] if self.flat else y

    def _places(self, group: int, grid: list[int]) -> Tensor:
        """How far from an output, counted in its own plane, the input of each nonzero lies; kept for the last shape."""
        key = (group, *grid)
        if key not in self.places:
            row, column = self.tap // self.size[1] * self.dilation[0], self.tap % self.size[1] * self.dilation[1]
            plane = (self.channel * self.stride[0] + row % self.stride[0]) * self.stride[1] + column % self.stride[1]
            shift = row // self.stride[0] * grid[1] + column // self.stride[1]
            places = (plane.long() * group * grid[0] * grid[1] + shift).to(torch.int32)
            self.places = {key: places}
            return places
        return self.places[key]


# ---------------------------------------------------------------------------------------------- accelerate


@dataclass(frozen=True)
class Choice:
    """One layer: what was measured and what runs."""

    name: str
    layer: str
    sparsity: float
    kernel: str  # "dense", "rewa" or "csr"
    dense_ms: float
    ms: float


@dataclass
class Accelerated:
    """What :func:`accelerate` did to a model. ``undo()`` puts the dense layers back, as does leaving a ``with`` block."""

    choices: list[Choice]
    dense_ms: float  # the whole model
    ms: float
    _swaps: list[tuple[nn.Module, str, nn.Module, nn.Module]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Put the dense layers back."""
        for parent, name, dense, _ in self._swaps:
            setattr(parent, name, dense)

    def __enter__(self) -> Accelerated:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()

    def __str__(self) -> str:
        width = max([len(choice.name) for choice in self.choices] + [len("whole model")])
        lines = [f"{'':<{width}}  {'layer':<28} {'zeros':>7} {'dense ms':>9} {'ms':>9} {'faster':>7}  kernel"]
        for choice in self.choices:
            times = f"{choice.dense_ms:>9.3f} {choice.ms:>9.3f} {choice.dense_ms / choice.ms:>6.2f}x"
            lines.append(f"{choice.name:<{width}}  {choice.layer:<28} {choice.sparsity:>7.2%} {times}  {choice.kernel}")
        times = f"{self.dense_ms:>9.3f} {self.ms:>9.3f} {self.dense_ms / self.ms:>6.2f}x"
        return "\n".join([*lines, f"{'whole model':<{width}}  {'':<28} {'':>7} {times}"])


def accelerate(model: nn.Module, example_input: Any, *, rounds: int = 15, verbose: bool = True) -> Accelerated:
    """Swap layers for sparse kernels where they run faster here, at this batch size; in place, and never for the worse.

    Each linear and convolution layer with at least half its weights zero is timed with the input it gets, dense against
    sparse, in turns. The faster one stays. In the end the whole model is timed the same way; if it is not faster than
    before, nothing is swapped. For inference in float32 on a CPU: with gradients, after an edit of the weights (unless it goes
    through ``.data``, which leaves no trace), in another dtype, on another device or in a copy of the model a swapped layer
    runs its dense self. Names in ``state_dict`` do not change. Undo it before ``torch.func`` transforms.

    Args:
        model: The model.
        example_input: An input of the size that will be used; a tuple for several arguments.
        rounds: Timings of each, of which the median counts.
        verbose: Print the plan.

    Returns:
        The plan, with ``undo()``; also a context manager that undoes itself.

    Example:
        >>> model = nn.Linear(512, 512).float()
        >>> with torch.no_grad():
        ...     _ = model.weight.masked_fill_(torch.rand(512, 512) < 0.99, 0)
        >>> with accelerate(nn.Sequential(model), torch.randn(32, 512, dtype=torch.float32), verbose=False) as plan:
        ...     plan.ms <= plan.dense_ms
        True
    """
    if any(keep_zeros in module._forward_pre_hooks.values() for module in model.modules()):
        raise ValueError("the model's zeros are frozen, which costs time in every layer: call rewa.zeros.thaw(model) first")
    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    with keeping_modes(model):
        model.eval()
        with torch.inference_mode():
            inputs = _inputs(model, arguments)
            found = [(name, layer, x, _fastest(layer, x, rounds)) for name, (layer, x) in inputs.items()]
            swaps = [
                (parent, name, layer, best)
                for parent in model.modules()
                for name, child in parent._modules.items()
                for _, layer, _, (best, _, _) in found
                if child is layer and best is not layer
            ]
            choices = [
                Choice(name, _shape(layer), _sparsity(layer), getattr(best, "kernel", "dense"), dense_ms, ms)
                for name, layer, _, (best, dense_ms, ms) in found
            ]
            plan = Accelerated(choices, 0.0, 0.0, swaps)
            _time_whole(model, arguments, plan, rounds)
    if verbose:
        print(plan)  # noqa: T201
    return plan


def _time_whole(model: nn.Module, arguments: tuple[Any, ...], plan: Accelerated, rounds: int) -> None:
    """Time the model both ways, in turns; leave it swapped only if that is faster."""

    def swap() -> None:
        for parent, name, _, sparse in plan._swaps:
            setattr(parent, name, sparse)

    def run_after(change: Callable[[], None]) -> Callable[[], Any]:
        def run() -> Any:
            change()
            return model(*arguments)

        return run

    plan.dense_ms, plan.ms = median_ms([run_after(plan.undo), run_after(swap)], rounds)
    if plan._swaps and plan.ms < plan.dense_ms:
        swap()
        return
    plan.undo()
    plan._swaps, plan.ms = [], plan.dense_ms
    plan.choices = [
        Choice(choice.name, choice.layer, choice.sparsity, "dense", choice.dense_ms, choice.dense_ms) for choice in plan.choices
    ]


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


def _inputs(model: nn.Module, arguments: tuple[Any, ...]) -> dict[str, tuple[nn.Module, Tensor]]:
    """The layers that a sparse kernel could carry, each with the last input it got."""
    candidates = {name: layer for name, layer in model.named_modules() if _fits(layer)}
    inputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, args: tuple[Any, ...]) -> None:
        inputs[layer] = args[0].detach().clone()

    hooks = [layer.register_forward_pre_hook(keep) for layer in candidates.values()]
    try:
        model(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: (layer, inputs[layer]) for name, layer in candidates.items() if layer in inputs}


def _fits(layer: nn.Module) -> bool:
    if type(layer) not in (nn.Linear, nn.Conv1d, nn.Conv2d) or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight: Tensor = layer.weight  # type: ignore[assignment]
    plain = weight.dtype == torch.float32 and weight.is_cpu and type(weight) is nn.Parameter and not weight.is_inference()
    padded = getattr(layer, "padding_mode", "zeros") == "zeros"
    return plain and padded and _sparsity(layer) >= WORTH and weight.numel() < 2**31


def _sparsity(layer: nn.Module) -> float:
    return count([layer.weight]).sparsity  # type: ignore[list-item]


def _shape(layer: nn.Module) -> str:
    kind = type(layer).__name__
    return f"{kind} {'x'.join(map(str, layer.weight.shape))}"  # type: ignore[arg-type]


def _fastest(layer: Any, x: Tensor, rounds: int) -> tuple[nn.Module, float, float]:
    """The dense layer or a sparse one that computes the same, whichever is faster by 5 %; its and the dense time."""
    rivals: list[_Sparse] = []
    if _library() is not None:
        rivals.append(SparseLinear(layer) if isinstance(layer, nn.Linear) else SparseConv(layer))
    if isinstance(layer, nn.Linear):
        rivals.append(SparseLinear(layer, "csr"))
    expected = layer(x)
    close = 1e-4 * expected.abs().max().clamp(min=1e-30)
    rivals = [rival for rival in rivals if x.dtype == torch.float32 and (rival(x) - expected).abs().max() <= close]
    dense_ms, *others = median_ms([functools.partial(run, x) for run in (layer, *rivals)], rounds)
    ms, best = min(zip(others, rivals, strict=True), key=lambda pair: pair[0], default=(dense_ms, layer))
    return (best, dense_ms, ms) if 1.05 * ms < dense_ms else (layer, dense_ms, dense_ms)
