"""The channels of a graph: which are one and the same, what the dead ones emit, and how to cut them out.

Two things are followed: which channels of which layers are one (a residual sum, a norm), and which are constant. A constant
goes into the bias of the layer that reads it. Where zero padding shows another value at the border, one constant channel stays
as a carrier and the others are merged into it.
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from rewa.deploy.heads import add_to_bias, is_linear, like, matrix, numbers, resize
from rewa.deploy.tracing import Unit, is_foreign, results

__all__ = ["Walk", "is_plain"]

CONVS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
TRANSPOSED: dict[type[nn.Module], int] = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm}
PRODUCTS = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}

MAY_RETURN_INPUT: set[Any] = {
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *("contiguous", "detach"),
}
# What is computed for each element alone: a constant stays one. Methods are given by name.
ELEMENTWISE: set[Any] = {
    *MAY_RETURN_INPUT,
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Hardshrink, nn.Softplus, nn.Softsign, nn.Softshrink, nn.LogSigmoid),
    *(nn.Tanhshrink, nn.Threshold),
    *(F.relu, F.relu_, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.sigmoid, F.tanh, F.hardswish),
    *(F.hardsigmoid, F.hardtanh, F.hardshrink, F.softplus, F.softsign, F.softshrink, F.logsigmoid, F.tanhshrink),
    *(torch.relu, torch.relu_, torch.sigmoid, torch.tanh, torch.exp, torch.abs, torch.neg, torch.square, torch.sqrt),
    *(torch.clamp, torch.pow, torch.add, torch.sub, torch.mul, torch.div, torch.true_divide),
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
    *("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "exp", "abs", "neg", "square", "sqrt", "clamp", "clamp_", "pow"),
    *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "clone"),
}
DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
POOLS: dict[Any, int] = {
    **{getattr(F, f"{name}_pool{d}d"): d for d in (1, 2, 3) for name in ("max", "avg", "adaptive_max", "adaptive_avg")},
    **{getattr(nn, f"{name}Pool{d}d"): d for d in (1, 2, 3) for name in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg")},
    **{nn.Upsample: 0, F.interpolate: 0},  # any number of dimensions
}
# What only moves channels around: where they go is found by running it on their numbers.
MOVES: set[Any] = {
    *(nn.Flatten, torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.movedim, torch.unsqueeze, torch.squeeze),
    *(torch.mean, torch.amax, torch.cat, torch.concat, operator.getitem),
    *("flatten", "view", "reshape", "permute", "transpose", "movedim", "unsqueeze", "squeeze", "mean", "amax"),
}
IN_PLACE = {"iadd", "isub", "imul", "itruediv", "setitem"}


class _Value(NamedTuple):
    """The channels of a tensor along its channel axis, and the constants among them."""

    axis: int
    units: Tensor  # number of the channel at each position; several after a flatten
    known: Tensor  # whether it is the same number everywhere
    const: Tensor  # that number, else 0

    def spread(self, like: Tensor) -> Tensor:
        """A tensor of this kind, but one example, that holds the constants."""
        sizes = [1 if self.axis > 0 and i == 0 else size for i, size in enumerate(like.shape)]
        return _along(self.axis, self.const.to(like.device), sizes)


class _Mix(NamedTuple):
    """A layer that makes each of its channels from all that come in."""

    module: Any
    source: _Value | None
    units: Tensor
    weight: Tensor  # outputs, inputs, kernel elements; in float64
    border: bool  # whether a constant input gives another output at the border
    origin: str  # what its inputs come from, in words

    @property
    def read(self) -> Tensor:
        return (self.weight != 0).any(2).any(0)

    def folded(self, dead: Tensor) -> Tensor:
        """Which of the incoming channels go and leave a constant behind."""
        assert self.source is not None
        return dead[self.source.units] & (self.source.const != 0) & self.read

    def carrier(self, dead: Tensor) -> int | None:
        """The strongest of the constant channels that stay."""
        assert self.source is not None
        strength = self.source.const.abs() * ~dead[self.source.units]
        return int(strength.argmax()) if strength.any() else None

    def cut(self, dead: Tensor) -> None:
        module, weight = self.module, self.weight
        if not dead[self.units].any() and (self.source is None or not dead[self.source.units].any()):
            return
        alive_out, alive_in = ~dead[self.units], torch.ones(weight.shape[1], dtype=torch.bool)
        if self.source is not None:
            alive_in, folded, const = ~dead[self.source.units], self.folded(dead), self.source.const.double()
            change = (weight * const[:, None])[:, folded].sum(1)
            if not self.border:
                add_to_bias(module, change.sum(1))
            elif folded.any():
                carrier = self.carrier(dead)
                assert carrier is not None
                weight[:, carrier] += change / const[carrier]
        weight = weight[alive_out][:, alive_in]
        if is_linear(type(module)):
            resize(module, weight[:, :, 0], alive_out)
            return
        if module.bias is not None:
            module.bias = like(module.bias, module.bias.detach()[alive_out])
        shaped = weight.transpose(0, 1) if type(module) in TRANSPOSED else weight
        module.weight = like(module.weight, shaped.reshape(*shaped.shape[:2], *module.weight.shape[2:]))
        module.out_channels, module.in_channels = weight.shape[:2]


class Walk:
    """One pass over a graph: which channels are one, what they emit, and which can go."""

    def __init__(self, unit: Unit, shared: set[int]) -> None:
        self.root, self.shared, self.results = unit.root, shared, results(unit)
        self.parent: list[int] = []  # a forest over the channels: those in one tree come and go together
        self.pinned: list[tuple[Tensor, str]] = []  # channels that stay, and what is done with them
        self.values: dict[fx.Node, _Value] = {}
        self.mixes: list[_Mix] = []
        self.vectors: list[tuple[nn.Module, Tensor]] = []  # modules with parameters for each channel alone
        nodes = list(unit.graph.nodes)
        self.times = Counter(node.target for node in nodes if node.op == "call_module")
        overwritten = {source for node in nodes for source in self._overwrites(node)}
        for node in nodes:
            value = self._visit(node)
            if value is not None and node in overwritten:
                self.pinned.append((value.units, "are overwritten in place"))
                value = value._replace(known=torch.zeros_like(value.known), const=torch.zeros_like(value.const))
            if value is not None and node in unit.fixed:
                self.pinned.append((value.units, unit.fixed[node]))
            if value is not None:
                self.values[node] = value

    def _find(self, unit: int) -> int:
        while self.parent[unit] != unit:
            self.parent[unit] = unit = self.parent[self.parent[unit]]
        return unit

    def called(self, node: fx.Node) -> Any:
        """The module that a node calls."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _kind(self, node: fx.Node) -> Any:
        """What tells what a node computes: the class, the function or the method's name; None if that cannot be relied on."""
        if (module := self.called(node)) is None:
            return node.target if node.op in ("call_function", "call_method") else None
        return None if self.trouble(node, module) else type(module)

    def trouble(self, node: fx.Node, module: nn.Module) -> str:
        """Why a module cannot be relied on, if so."""
        tensors = [*module.parameters(), *module.buffers()]
        if tensors and self.times[node.target] > 1:
            return "is called several times"
        if any(id(x) in self.shared for x in tensors):
            return "has weights that other code reads or shares"
        if any(x.is_complex() for x in tensors):
            return "has complex weights"
        return "" if is_plain(module) else "has hooks or a forward of its own"

    def named(self, node: Any) -> str:
        """What a node is, in words."""
        if (module := self.called(node)) is not None:
            hooked = module._forward_hooks or module._forward_pre_hooks
            return f"{type(module).__name__}, which has hooks" if hooked else type(module).__name__
        above = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(above, fx.Node) and not isinstance(self.results[above], Tensor):
            return self.named(above)
        if node.op == "get_attr":
            return "a parameter"
        if node.op in ("placeholder", "output"):
            return f"the {'input' if node.op == 'placeholder' else 'output'} of {type(self.root.part).__name__}"
        return f"{node.target}()" if isinstance(node.target, str) else f"{getattr(node.target, '__name__', node.target)}()"

    def _overwrites(self, node: fx.Node) -> Iterator[fx.Node]:
        """The tensors with other readers that a node may change in place, directly or as a view."""
        foreign = node.op == "call_module" and is_foreign(self.called(node))
        waiting = node.all_input_nodes if foreign else node.all_input_nodes[:1] if _is_in_place(node, self.called(node)) else []
        while waiting:
            source, *waiting = waiting
            if len(source.users) > 1:
                yield source
            kind = self._kind(source)
            fresh = is_linear(kind) or kind in {*CONVS, *TRANSPOSED, *NORMS, *POOLS} or kind in ELEMENTWISE - MAY_RETURN_INPUT
            if source.op == "call_module" and is_foreign(self.called(source)):
                waiting += source.all_input_nodes
            elif _is_in_place(source, self.called(source)) or not fresh:
                waiting += source.all_input_nodes[:1]

    def _run(self, node: fx.Node, tensors: dict[fx.Node, Tensor]) -> Any:
        """The node's operation on these tensors."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: tensors.get(source, self.results[source]))
        target: Any = self.called(node) or node.target
        return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)

    def _visit(self, node: fx.Node) -> _Value | None:
        sources = [source for source in node.all_input_nodes if isinstance(self.results[source], Tensor)]
        carried = [source for source in sources if source in self.values]
        kind, module = self._kind(node), self.called(node)
        value: _Value | None = None
        if (is_linear(kind) or kind in CONVS or kind in TRANSPOSED) and getattr(module, "groups", 1) == 1:
            value = self._mix(node, module, sources[0]) if len(sources) == 1 else None
        elif carried and self._only_looks(node, kind):
            return None
        elif carried == sources and isinstance(self.results[node], Tensor):
            value = self._carry(node, kind, module, sources)
        if value is None:
            others = [self.named(source) for source in sources if source not in self.values]
            what = f"reach {self.named(node)}" + (f" together with {others[0]}" if others else "")
            self.pinned += [(self.values[source].units, what) for source in carried]
        return value

    def _only_looks(self, node: fx.Node, kind: Any) -> bool:
        """Whether a node reads nothing but sizes of other axes, or the type."""
        name = node.args[1] if kind is getattr else kind
        if name in ("dim", "ndim", "ndimension", "dtype", "device"):
            return True
        if name not in ("size", "shape"):
            return False
        source = node.args[0]
        assert isinstance(source, fx.Node)
        dims, axis = range(self.results[source].dim()), self.values[source].axis
        if kind == "size" and (len(node.args) > 1 or node.kwargs):
            indices = [node.args[1] if len(node.args) > 1 else node.kwargs["dim"]]
        else:
            readers = [user for user in node.users if user.target is not operator.getitem or user.users]
            indices = [user.args[1] if user.target is operator.getitem else None for user in readers]
        return all(axis not in dims[i] if isinstance(i, slice) else isinstance(i, int) and dims[i] != axis for i in indices)

    def _carry(self, node: fx.Node, kind: Any, module: Any, sources: list[fx.Node]) -> _Value | None:
        """The value of a node that keeps its channels apart."""
        if not sources:
            return None
        if kind in MOVES:
            return self._move(node, sources)
        axis, dims = self.values[sources[0]].axis, self.results[sources[0]].dim()
        if kind in CONVS:
            fits = axis == 1 and dims == CONVS[kind] + 2
            if fits and not module.groups == module.in_channels == module.out_channels:
                return self._grouped(node, module, sources[0])
        elif kind in POOLS:
            fits = axis == 1 and dims == (POOLS[kind] or max(1, dims - 2)) + 2
        elif kind in NORMS or kind is nn.PReLU:
            fits = axis == 1
        else:
            fits = kind in ELEMENTWISE or (kind in DROPOUTS and not _argument(node, "training"))
        return self._channelwise(node, kind, module, sources) if fits else None

    def _channelwise(self, node: fx.Node, kind: Any, module: Any, sources: list[fx.Node]) -> _Value | None:
        values = [self.values[source] for source in sources]
        first, result = values[0], self.results[node]
        dims, count = result.dim(), len(first.units)
        layouts = {(self.results[source].dim(), self.values[source].axis, len(self.values[source].units)) for source in sources}
        if layouts != {(dims, first.axis, count)} or result.shape[first.axis] != count or result.numel() == 0:
            return None
        for other in values[1:]:
            for a, b in zip(first.units.tolist(), other.units.tolist(), strict=True):
                self.parent[self._find(a)] = self._find(b)
        known = torch.stack([value.known for value in values]).all(0)
        if kind in PRODUCTS:
            known |= torch.stack([value.known & (value.const == 0) for value in values]).any(0)
        if kind in NORMS or kind in CONVS:
            self.vectors.append((module, first.units))
            if kind in NORMS and module.running_mean is None:
                known = torch.zeros_like(known)  # statistics of the batch: no constant is exact
            if module.weight is not None:
                known = known | (module.weight.reshape(count, -1) == 0).all(1).cpu()
        elif kind is nn.PReLU and module.num_parameters > 1:
            self.vectors.append((module, first.units))
        probe = self._run(node, {s: v.spread(self.results[s]) for s, v in zip(sources, values, strict=True)})
        low, high = probe.cpu().movedim(first.axis, 0).flatten(1).aminmax(dim=1)
        # An average of equal numbers is that number up to rounding.
        known = known & (high - low <= 32 * torch.finfo(probe.dtype).eps * high.abs()) & high.isfinite()
        return _Value(first.axis, first.units, known, torch.where(known, high, 0.0))

    def _move(self, node: fx.Node, sources: list[fx.Node]) -> _Value | None:
        values, result = [self.values[source] for source in sources], self.results[node]

        def moved(sizes: list[int]) -> Tensor:
            labels, start = {}, 0
            for source, value, size in zip(sources, values, sizes, strict=True):
                shape = list(self.results[source].shape)
                shape[value.axis] = size
                labels[source] = _along(value.axis, torch.arange(start, start + size, dtype=torch.float64), shape)
                start += size
            output: Tensor = self._run(node, labels)
            return output

        # With other numbers of channels than now, so that what depends on the number is found out.
        sizes = [len(value.units) + 1 for value in values]
        try:
            if moved([1] * len(sizes)).dim() != result.dim():
                return None
            labels = moved(sizes)
        except Exception:  # such as a view with fixed sizes
            return None
        total = sum(sizes)
        for axis in range(labels.dim()):
            repeats, rest = divmod(labels.shape[axis], total)
            if rest or not repeats:
                continue
            pattern = _along(axis, torch.arange(total).repeat_interleave(repeats), list(labels.shape))
            if bool(((labels - pattern).abs() < 1e-6 * total).all()):
                columns = [torch.cat(parts).repeat_interleave(repeats) for parts in zip(*(v[1:] for v in values), strict=True)]
                return _Value(axis, *columns) if len(columns[0]) == result.shape[axis] else None
        return None

    def _mix(self, node: fx.Node, module: Any, source: fx.Node) -> _Value | None:
        kind = type(module)
        dims = self.results[source].dim()
        axis = dims - 1 if is_linear(kind) else 1
        if not is_linear(kind) and dims != (CONVS.get(kind) or TRANSPOSED[kind]) + 2:
            return None
        value = self.values.get(source)
        if value is not None and value.axis != axis:
            self.pinned.append((value.units, f"reach {kind.__name__} along another axis"))
            value = None
        weight = matrix(module) if is_linear(kind) else numbers(module.weight)
        weight = (weight.transpose(0, 1) if kind in TRANSPOSED else weight)[..., None].flatten(2)
        border = kind in TRANSPOSED or _padded(module)
        count = weight.shape[0]
        units = self._new_units(count)
        bias = weight.new_zeros(count) if module.bias is None else numbers(module.bias)
        varies = (weight != 0).any(2)
        if value is not None:
            varies = varies & ~(value.known & ((value.const == 0) | (not border)))
            bias = bias + weight.sum(2) @ value.const.double()
        known = ~varies.any(1)
        self.mixes.append(_Mix(module, value, units, weight, border, self.named(source)))
        return _Value(axis, units, known, torch.where(known, bias, 0.0).to(self.results[node].dtype))

    def _grouped(self, node: fx.Node, module: Any, source: fx.Node) -> _Value:
        """A grouped convolution: the inputs and outputs of a group come and go together."""
        value, weight = self.values[source], numbers(module.weight).flatten(2)
        units, groups = self._new_units(weight.shape[0]), module.groups
        for group in torch.cat([value.units.view(groups, -1), units.view(groups, -1)], dim=1).tolist():
            for unit in group:
                self.parent[self._find(unit)] = self._find(group[0])
        size = weight.shape[0] // groups
        known, const = (x.view(groups, -1).repeat_interleave(size, 0) for x in (value.known, value.const.double()))
        varies = (weight != 0).any(2) & ~(known & ((const == 0) | (not _padded(module))))
        bias = weight.new_zeros(len(units)) if module.bias is None else numbers(module.bias)
        self.vectors.append((module, units))
        fixed = ~varies.any(1)
        emitted = bias + (weight.sum(2) * const).sum(1)
        return _Value(1, units, fixed, torch.where(fixed, emitted, 0.0).to(self.results[node].dtype))

    def _new_units(self, count: int) -> Tensor:
        units = torch.arange(len(self.parent), len(self.parent) + count)
        self.parent += units.tolist()
        return units

    def roots(self) -> Tensor:
        """For each channel the one that stands for all that come and go with it."""
        return torch.tensor([self._find(unit) for unit in range(len(self.parent))], dtype=torch.long)


# ------------------------------------------------------------------------------------------ small surgery


def _along(axis: int, vector: Tensor, sizes: list[int]) -> Tensor:
    """A tensor of these sizes that holds the vector along one axis."""
    return vector.view([-1 if i == axis else 1 for i in range(len(sizes))]).expand(sizes).clone()


def _is_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a node may write to its input, by the module that it calls, its name or its arguments."""
    if getattr(module, "inplace", False) or node.kwargs.get("inplace"):
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    unnamed = getattr(node.target, "__module__", "") == "torch.nn.functional" and any(arg is True for arg in node.args)
    return name.endswith("_") or name in IN_PLACE or unnamed


def _padded(module: Any) -> bool:
    """Whether a layer sees zeros beyond the border."""
    return type(module) in CONVS and module.padding_mode == "zeros" and any(module._reversed_padding_repeated_twice)


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module runs the forward of its class and nothing else."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _argument(node: fx.Node, name: str) -> Any:
    bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]  # a function here
    bound.apply_defaults()
    return bound.arguments[name]
