"""Layers that run by their nonzeros: linear ones and convolutions, by kernels in C++ or by torch's CSR product."""

from __future__ import annotations

import copy
import copyreg
import ctypes
import functools
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewa import native

__all__ = ["SparseConv", "SparseLayer", "SparseLinear", "library", "sparse_kind"]

SOURCE = Path(__file__).with_name("inference.cpp")
LENGTH = 256  # elements of a plane, at least, where the batch has them

_Pair = ctypes.c_int64 * 2


class _Conv(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "channels")),
        *((name, _Pair) for name in ("size", "pad", "stride", "grid")),
        *(("out", ctypes.c_int64), ("result", _Pair), ("group", ctypes.c_int64)),
    ]


@functools.cache
def library() -> Any:
    """The compiled kernels, or None where there is no compiler."""
    address, number, threads = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    linear = (address, number, number, number, *[address] * 5, threads)
    return native.kernel(SOURCE, {"sparse_linear": linear, "sparse_conv": (ctypes.POINTER(_Conv), *[address] * 6, threads)})


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rows(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Starts, columns and values of the nonzeros of a matrix, row by row."""
    rows, columns = weight.nonzero(as_tuple=True)
    start = torch.zeros(len(weight) + 1, dtype=torch.int32)
    start[1:] = torch.bincount(rows, minlength=len(weight)).cumsum(0)
    return start, columns.to(torch.int32), weight[rows, columns].contiguous()


class _Nonzeros(ABC):
    """The nonzeros of a layer's weight as a kernel wants them, and what they were made from.

    Args:
        layer: The dense layer.
    """

    kernel = "rewa"

    def __init__(self, layer: Any) -> None:
        self.source, self.version = layer.weight, layer.weight._version
        self.memory = layer.weight.detach()  # kept, or the weight's next storage might get the same address
        self.address = self.memory.data_ptr()

    def hold(self, layer: nn.Module, x: Any) -> bool:
        """Whether the kernel computes what the dense layer would: not with gradients, nor after an edit of the weight."""
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        return (
            weight is self.source
            and weight._version == self.version
            and weight.data_ptr() == self.address
            and type(x) in (Tensor, nn.Parameter)  # not a proxy that traces, nor a tensor with a meaning of its own
            and x.dtype == weight.dtype == torch.float32
            and x.is_cpu
            and weight.is_cpu
            and x.layout == torch.strided
            and (bias is None or (bias.dtype == torch.float32 and bias.is_cpu and bias.shape == self.outputs))
            and self.takes(layer, x)
            and not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)))
            and not torch.is_autocast_enabled("cpu")
            and not torch._C._are_functorch_transforms_active()
        )

    outputs: tuple[int, ...]

    @abstractmethod
    def takes(self, layer: Any, x: Tensor) -> bool:
        """Whether the kernel, which trusts its sizes, may have this input; the dense layer says what is wrong with others."""

    @abstractmethod
    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's output by the nonzeros only."""


class _Rows(_Nonzeros):
    """A matrix, row by row, for our kernel or as torch's CSR."""

    def __init__(self, layer: Any, kernel: str, transposed: bool) -> None:
        super().__init__(layer)
        self.kernel = kernel
        weight = self.memory.T.contiguous() if transposed else self.memory
        self.shape, self.outputs = tuple(weight.shape), tuple(weight.shape[:1])
        if kernel == "csr":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls the layout a beta
                self.matrix = weight.to_sparse_csr()
        else:
            self.rows = _rows(weight)

    def takes(self, layer: Any, x: Tensor) -> bool:
        """Any number of rows of the right length."""
        return x.dim() > 0 and x.numel() > 0 and x.shape[-1] == self.shape[1]

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        outputs, inputs = self.shape
        if self.kernel == "csr":
            y: Tensor = (self.matrix @ x.reshape(-1, inputs).T).T
            return (y if bias is None else y + bias).reshape(*x.shape[:-1], outputs)
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], outputs)
        sizes = x.numel() // inputs, inputs, outputs
        library().sparse_linear(_at(x), *sizes, *map(_at, self.rows), _at(bias), _at(y), torch.get_num_threads())
        return y


class _Taps(_Nonzeros):
    """The filters of a convolution in one or two dimensions; any stride, padding with zeros, dilation and groups."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        weight, self.settings = self.memory, _settings(layer)
        self.flat = weight.dim() == 3  # one dimension: planes of one row

        def pair(values: tuple[int, ...], single: int) -> tuple[int, int]:
            return (single if self.flat else values[0], values[-1])

        self.channels, self.size = layer.in_channels, pair(tuple(weight.shape[2:]), 1)
        self.stride, self.dilation = pair(layer.stride, 1), pair(layer.dilation, 1)
        reach = [dilation * (size - 1) for dilation, size in zip(self.dilation, self.size, strict=True)]
        if isinstance(layer.padding, str):
            self.padding = tuple((total // 2, total - total // 2) if layer.padding == "same" else (0, 0) for total in reach)
        else:
            self.padding = tuple((size, size) for size in pair(layer.padding, 0))
        self.outputs, taps = tuple(weight.shape[:1]), self.size[0] * self.size[1]
        self.start, columns, self.values = _rows(weight.reshape(len(weight), -1))
        group = torch.repeat_interleave(torch.arange(len(weight)), self.start.diff()) // (len(weight) // layer.groups)
        self.channel, self.tap = columns // taps + group * weight.shape[1], columns % taps
        self.places: dict[tuple[int, ...], Tensor] = {}

    def takes(self, layer: Any, x: Tensor) -> bool:
        """A batch of images with the right channels, large enough for the filter and small enough for 32-bit offsets."""
        if x.numel() == 0 or x.dim() != (3 if self.flat else 4) or x.shape[1] != self.channels:
            return False
        if _settings(layer) != self.settings:
            return False
        padded = [size + sum(padding) for size, padding in zip((1, *x.shape[2:])[-2:], self.padding, strict=True)]
        reach = [dilation * (tap - 1) for dilation, tap in zip(self.dilation, self.size, strict=True)]
        planes = x.shape[0] * x.shape[1] * (padded[0] + self.stride[0]) * (padded[1] + self.stride[1])
        return all(size > least for size, least in zip(padded, reach, strict=True)) and planes < 2**31

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        images: Tensor = (x[:, :, None] if self.flat else x).contiguous()
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
        conv.out, conv.result, conv.group = self.outputs[0], _Pair(*result), -(-batch // groups)
        y = images.new_empty(batch, self.outputs[0], *result)
        nonzeros = (self.start, self._places(conv.group, grid), self.values, bias)
        library().sparse_conv(ctypes.byref(conv), _at(images), *map(_at, nonzeros), _at(y), threads)
        return y[:, :, 0] if self.flat else y

    def _places(self, group: int, grid: list[int]) -> Tensor:
        """How far from an output, counted in its own plane, the input of each nonzero lies; kept for the last shape."""
        key = (group, *grid)
        places = self.places.get(key)  # read once: another thread may be at another shape
        if places is None:
            row, column = self.tap // self.size[1] * self.dilation[0], self.tap % self.size[1] * self.dilation[1]
            plane = (self.channel * self.stride[0] + row % self.stride[0]) * self.stride[1] + column % self.stride[1]
            shift = row // self.stride[0] * grid[1] + column // self.stride[1]
            places = (plane.long() * group * grid[0] * grid[1] + shift).to(torch.int32)
            self.places = {key: places}
        return places


def _settings(conv: Any) -> tuple[Any, ...]:
    return conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode, conv.in_channels


# ---------------------------------------------------------------------------------------------- layers


class SparseLayer(nn.Module, ABC):
    """A layer of its dense class in every respect, except that it runs by its nonzeros wherever these are right.

    An instance belongs to a class made from this one and the dense layer's own. It has the dense layer's attributes and
    parameters; only the nonzeros are its own, under a private name. Copies and pickles are of the dense class.
    """

    def __new__(cls, dense: nn.Module | None = None, kernel: str = "rewa") -> Any:  # noqa: D102
        kinds: tuple[Any, Any] = (cls, type(dense))
        return super().__new__(cls if dense is None else _class_around(*kinds))

    def __init__(self, dense: nn.Module, kernel: str = "rewa") -> None:
        # Not nn.Module's: the attributes are the dense layer's, in containers of this layer's own.
        for name, value in vars(dense).items():
            self.__dict__[name] = copy.copy(value) if isinstance(value, (dict, set)) else value
        self.__dict__["_nonzeros"] = self._read(dense, kernel)

    @abstractmethod
    def _read(self, dense: nn.Module, kernel: str) -> _Nonzeros:
        """The weight's nonzeros for a kernel."""

    def forward(self, input: Tensor) -> Tensor:
        """As the dense layer.

        Args:
            input: The input.
        """
        return self._run(input)

    def _run(self, x: Tensor) -> Tensor:
        nonzeros: _Nonzeros | None = self.__dict__.get("_nonzeros")
        if (
            torch.compiler.is_compiling()
            or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
            or nonzeros is None
            or not nonzeros.hold(self, x)
        ):
            result: Tensor = super().forward(x)  # of the dense class
            return result
        return nonzeros.product(x, self._parameters["bias"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        if "_dense" not in vars(type(self)):  # a class that parametrize made from this one
            return super().__reduce_ex__(protocol)
        state = {name: value for name, value in vars(self).items() if name != "_nonzeros"}
        return copyreg._reconstructor, (type(self)._dense, object, None), state  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        """As the dense layer's, with the kernel."""
        nonzeros = self.__dict__.get("_nonzeros")
        return f"{super().extra_repr()}, kernel={nonzeros.kernel if nonzeros else 'dense'!r}"


class SparseLinear(SparseLayer):
    """``nn.Linear`` by its nonzeros.

    Args:
        dense: The layer.
        kernel: ``"rewa"`` or ``"csr"``.
    """

    def _read(self, dense: nn.Module, kernel: str) -> _Nonzeros:
        return _Rows(dense, kernel, transposed=False)


class _SparseTransposed(SparseLayer):
    """Transformers' ``Conv1D``, a linear layer whose weight is inputs by outputs, by its nonzeros."""

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x)

    def _read(self, dense: nn.Module, kernel: str) -> _Nonzeros:
        return _Rows(dense, kernel, transposed=True)


class SparseConv(SparseLayer):
    """``nn.Conv1d`` or ``nn.Conv2d`` by its nonzeros; any stride, padding with zeros, dilation and groups.

    Args:
        dense: The layer.
    """

    def _read(self, dense: nn.Module, kernel: str) -> _Nonzeros:
        return _Taps(dense)


@functools.cache
def _class_around(kind: Any, dense: Any) -> Any:
    return type(f"Sparse{dense.__name__}", (kind, dense), {"_dense": dense, "__module__": __name__})


def sparse_kind(layer: nn.Module) -> type[SparseLayer] | None:
    """Which sparse layer computes what this one does, judged by the method that computes it.

    Args:
        layer: Any layer.
    """
    dense: Any = type(layer)
    if type(type(layer)) is not type:  # a metaclass may have ideas of its own about a class made from two
        return None
    if dense.forward is nn.Linear.forward:
        return SparseLinear
    for conv in (nn.Conv1d, nn.Conv2d):
        if dense.forward is conv.forward and dense._conv_forward is conv._conv_forward:
            return SparseConv
    # Known by its name, so that transformers need not be imported.
    conv1d: Any = next((base for base in dense.__mro__ if base.__name__ == "Conv1D"), None)
    weight = layer._parameters.get("weight")
    if conv1d is not None and dense.forward is conv1d.forward and weight is not None and weight.dim() == 2:
        return _SparseTransposed if getattr(layer, "nf", None) == weight.shape[1] else None
    return None
