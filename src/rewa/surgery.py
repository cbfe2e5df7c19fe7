r"""Removing for good what exact zeros have made dead: a smaller dense model with the same outputs.

A channel can go when nothing reads it, or when it emits a constant that its readers can take over. So two things are followed
through the graph of the model (``torch.fx``): which channels of which layers are one and the same (a residual sum, a norm), and
which of them are constant where. A constant goes into the bias of the layer that reads it. A convolution with zero padding sees
another value at the border: there one constant channel stays, the carrier, and the others are merged into it,

.. math:: W_{\cdot k} \leftarrow W_{\cdot k} + \sum_c W_{\cdot c}\, v_c / v_k.

Why not Torch-Pruning (1.6.1): it couples layers and removes the indices it is given, but does not know what a dead channel
still emits, so constants, folding and carriers would need this walk of the graph anyway; the cutting is the small part.
"""

from __future__ import annotations

import copy
import inspect
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from rewa.heads import FewerHeads, add_to_bias, like, live_heads, numbers
from rewa.zeros import thaw

__all__ = ["removed", "shrink"]

CONVS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
TRANSPOSED: dict[type[nn.Module], int] = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm}
FEEDFORWARD = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
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


def shrink(model: nn.Module, example_input: Tensor | tuple[Any, ...], *, tolerance: float = 1e-5) -> nn.Module:
    r"""A smaller dense copy of a model with exact zeros, with the same outputs in eval mode.

    Removed are channels of convolutions (1-3 dimensions, also depthwise and transposed), neurons of linear layers with their
    entries in batch norms, and heads of ``nn.MultiheadAttention`` (see :class:`FewerHeads`). Constants are followed through
    batch norm, activations, dropout, pooling, flattening, sums, products and concatenation. A layer keeps at least one channel.

    What is not understood is left as it is: channels that reach an output or an unknown operation (a layer norm, a reshape with
    fixed sizes), layers with hooks or parametrizations, weights that are shared or read directly. If ``torch.fx`` cannot trace
    the model, or traces another path in train mode, its children are taken one by one.

    Args:
        model: The model, left untouched. Zeros must be exact; frozen ones (:func:`rewa.freeze_zeros`) are not in the copy.
        example_input: An input, or the tuple of positional arguments. The copy is tested on it.
        tolerance: The largest accepted difference, relative to the largest output or to 1 if that is larger.

    Returns:
        A copy of the same class, with the modes and ``requires_grad`` of the original.

    Raises:
        RuntimeError: If the copy's outputs on the example differ by more than the tolerance.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> with torch.no_grad():
        ...     model[0].weight[:3] = 0
        >>> shrink(model, torch.ones(5, 2))
        Sequential(
          (0): Linear(in_features=2, out_features=1, bias=True)
          (1): ReLU()
          (2): Linear(in_features=1, out_features=1, bias=True)
        )
    """
    args = example_input if isinstance(example_input, tuple) else (example_input,)
    # Forward code may keep state, so whatever only runs the model runs a copy of it.
    before, after = copy.deepcopy(model).eval(), copy.deepcopy(model)
    thaw(after)  # frozen zeros are gone with what is removed; freeze the copy anew for further training
    modes = {module: module.training for module in after.modules()}
    after.eval()
    with torch.no_grad():
        expected = before(*_fresh(args))
        twin = dict(zip(before.modules(), after.modules(), strict=True))
        calls = _recorded(before, args, twin)
        units = list(_units(after, calls))
        frozen = _shared(after, units)
        after = _with_fewer_heads(after, units, calls, frozen, modes)
        for unit in units:
            while _Walk(unit, frozen).cut():
                pass
        _check_equal(expected, after, args, tolerance)
    for module, mode in modes.items():
        module.training = mode
    return after


def removed(before: nn.Module, after: nn.Module) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The parameters that :func:`shrink` cut, with their old and new shapes.

    Args:
        before: The original.
        after: What :func:`shrink` made of it.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> with torch.no_grad():
        ...     model[2].weight[:, 0] = 0
        >>> removed(model, shrink(model, torch.ones(5, 2)))
        {'0.weight': ((4, 2), (3, 2)), '0.bias': ((4,), (3,)), '2.weight': ((1, 4), (1, 3))}
    """
    shapes = {name: tuple(param.shape) for name, param in after.named_parameters()}
    return {
        name: (tuple(param.shape), shapes[name])
        for name, param in before.named_parameters()
        if name in shapes and shapes[name] != tuple(param.shape)
    }


# ------------------------------------------------------------------------------------- running and tracing


class _Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inside: frozenset[nn.Module]  # the modules whose forward was running


class _Unit(NamedTuple):
    """A part of the model with its graph: its inputs and outputs stay as they are."""

    root: nn.Module
    graph: fx.Graph
    args: tuple[Any, ...]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, FewerHeads) or super().is_leaf_module(m, module_qualified_name)


def _fresh(args: Any) -> Any:
    """The arguments with their tensors copied, since a model may change its input in place."""
    return pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, args)


def _recorded(model: nn.Module, args: tuple[Any, ...], twin: dict[nn.Module, nn.Module]) -> dict[nn.Module, list[_Call]]:
    """All calls of all modules while the model runs, under the names of their twins."""
    calls: dict[nn.Module, list[_Call]] = {}
    running: list[nn.Module] = []

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(twin[module], []).append(_Call(args, kwargs, frozenset(running)))
        running.append(twin[module])

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        running.pop()

    hooks = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in model.modules()]
    hooks += [module.register_forward_hook(leave) for module in model.modules()]
    # The fused kernels of torch's transformer layers would not call the submodules.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model(*_fresh(args))
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for hook in hooks:
            hook.remove()
    return calls


def _units(model: nn.Module, calls: dict[nn.Module, list[_Call]]) -> Iterator[_Unit]:
    """The largest parts of the model that can be traced."""
    waiting, seen = [model], set[nn.Module]()
    while waiting:
        module: Any = waiting.pop()
        if module in seen or not next(module.children(), None) or isinstance(module, nn.MultiheadAttention | FewerHeads):
            continue
        seen.add(module)
        unit = None
        # A part of it that is also called from elsewhere must not change.
        if module in calls and all(
            module in c.inside for part in module.modules() if part is not module for c in calls.get(part, [])
        ):
            if type(module) in FEEDFORWARD:
                example = module.linear1.weight.new_zeros(1, 1, module.linear1.in_features)
                pair = nn.Sequential(module.linear1, _Apply(module.activation), module.dropout, module.linear2)
                unit = _traced(pair.eval(), (example,), {})
            else:
                unit = _traced(module, *calls[module][0][:2])
        if unit:
            yield unit
            waiting += [unit.root.get_submodule(str(node.target)) for node in unit.graph.nodes if node.op == "call_module"]
        else:
            waiting += list(module.children())


class _Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _traced(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Unit | None:
    """The module with its graph, or None if it has none that can be trusted."""

    def steps(graph: fx.Graph) -> list[Any]:
        return [(node.op, node.target, [source.name for source in node.all_input_nodes]) for node in graph.nodes]

    try:
        signature = inspect.signature(module.forward)
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
            return None
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        fixed = {k: v for k, v in bound.arguments.items() if v is None or isinstance(v, bool | int | float | str)}
        scratch = copy.deepcopy(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train, graph = (_Tracer().trace(scratch.train(mode), concrete_args=fixed) for mode in (True, False))
        unit = _Unit(module, graph, tuple(bound.arguments.values()))
        _results(unit)
    except Exception:  # forward code may do anything with the tracer's stand-ins, so any error means the same: not traceable
        return None
    return unit if steps(train) == steps(graph) else None


def _results(unit: _Unit) -> dict[fx.Node, Any]:
    """What each node gives: for a tensor one of the same shape without data, else the value itself."""
    results: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            results[n] = result.new_empty(()).expand(result.shape) if isinstance(result, Tensor) else result
            return result

    with torch.no_grad():
        Recorder(unit.root, graph=unit.graph).run(*_fresh(unit.args))
    return results


def _tensors(output: Any) -> list[Tensor]:
    """The tensors of an output, also those that are attributes of an object of the model's own."""
    leaves = pytree.tree_leaves(output)
    parts = [[leaf] if isinstance(leaf, Tensor) else list(getattr(leaf, "__dict__", {}).values()) for leaf in leaves]
    return [tensor.cpu() for part in parts for tensor in part if isinstance(tensor, Tensor)]


def _check_equal(expected: Any, after: nn.Module, args: tuple[Any, ...], tolerance: float) -> None:
    try:
        found = _tensors(copy.deepcopy(after)(*_fresh(args)))
    except Exception as error:
        raise RuntimeError(f"the shrunk model does not run: {error}") from error
    wanted = _tensors(expected)
    if [a.shape for a in wanted] != [b.shape for b in found]:
        raise RuntimeError("the shrunk model returns other tensors than the original")
    for a, b in zip(wanted, found, strict=True):
        if a.numel() == 0:
            continue
        wide = torch.promote_types(a.dtype, torch.float64)
        same = (a == b) | (a.isnan() & b.isnan())
        difference = float(torch.where(same, 0.0, (a.to(wide) - b.to(wide)).abs()).max())
        coarse = 4 * torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0  # no copy is closer than its own rounding
        if not difference <= max(tolerance, coarse) * max(1.0, float(a.to(wide).abs().nan_to_num(posinf=0.0).max())):
            raise RuntimeError(f"the shrunk model's output differs by {difference:.3g} from the original's")


# ------------------------------------------------------------------------------------------------ the walk


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
        if module.bias is not None:
            module.bias = like(module.bias, module.bias.detach()[alive_out])
        shaped = weight.transpose(0, 1) if type(module) in TRANSPOSED else weight
        module.weight = like(module.weight, shaped.reshape(*shaped.shape[:2], *module.weight.shape[2:]))
        names = ("out_features", "in_features") if type(module) is nn.Linear else ("out_channels", "in_channels")
        for name, size in zip(names, weight.shape, strict=False):
            setattr(module, name, size)


class _Walk:
    """One pass over a graph: which channels are one, what they emit, and which can go."""

    def __init__(self, unit: _Unit, frozen: set[int]) -> None:
        self.root, self.frozen, self.results = unit.root, frozen, _results(unit)
        self.parent: list[int] = []  # a forest over the channels: those in one tree come and go together
        self.pinned: list[Tensor] = []
        self.values: dict[fx.Node, _Value] = {}
        self.mixes: list[_Mix] = []
        self.vectors: list[tuple[nn.Module, Tensor]] = []  # modules with parameters for each channel alone
        nodes = list(unit.graph.nodes)
        self.times = Counter(node.target for node in nodes if node.op == "call_module")
        overwritten = {source for node in nodes for source in self.overwrites(node)}
        for node in nodes:
            value = self.visit(node)
            if value is not None and node in overwritten:
                self.pinned.append(value.units)
                value = value._replace(known=torch.zeros_like(value.known), const=torch.zeros_like(value.const))
            if value is not None:
                self.values[node] = value

    def find(self, unit: int) -> int:
        while self.parent[unit] != unit:
            self.parent[unit] = unit = self.parent[self.parent[unit]]
        return unit

    def called(self, node: fx.Node) -> Any:
        """The module that a node calls."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def kind(self, node: fx.Node) -> Any:
        """What tells what a node computes: the class, the function or the method's name; None if that cannot be relied on."""
        if (module := self.called(node)) is None:
            return node.target if node.op in ("call_function", "call_method") else None
        tensors = [*module.parameters(), *module.buffers()]
        if tensors and (self.times[node.target] > 1 or any(id(x) in self.frozen or x.is_complex() for x in tensors)):
            return None
        return type(module) if _plain(module) else None

    def in_place(self, node: fx.Node) -> bool:
        if getattr(self.called(node), "inplace", False) or node.kwargs.get("inplace"):
            return True
        if node.op not in ("call_function", "call_method"):
            return False
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        unnamed = getattr(node.target, "__module__", "") == "torch.nn.functional" and any(arg is True for arg in node.args)
        return name.endswith("_") or name in IN_PLACE or unnamed

    def overwrites(self, node: fx.Node) -> Iterator[fx.Node]:
        """The tensors with other readers that a node changes in place, directly or as a view."""
        source = node.args[0] if node.args and self.in_place(node) else None
        while isinstance(source, fx.Node):
            if len(source.users) > 1:
                yield source
            kind = self.kind(source)
            fresh = kind in {nn.Linear, *CONVS, *TRANSPOSED, *NORMS, *POOLS} or kind in ELEMENTWISE - MAY_RETURN_INPUT
            source = source.args[0] if source.args and (self.in_place(source) or not fresh) else None

    def run(self, node: fx.Node, tensors: dict[fx.Node, Tensor]) -> Any:
        """The node's operation on these tensors."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: tensors.get(source, self.results[source]))
        target: Any = self.called(node) or node.target
        return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)

    def visit(self, node: fx.Node) -> _Value | None:
        sources = [source for source in node.all_input_nodes if isinstance(self.results[source], Tensor)]
        carried = [source for source in sources if source in self.values]
        kind, module = self.kind(node), self.called(node)
        value: _Value | None = None
        if (kind is nn.Linear or kind in CONVS or kind in TRANSPOSED) and getattr(module, "groups", 1) == 1:
            value = self.mix(node, module, sources[0]) if len(sources) == 1 else None
        elif carried and self.only_looks(node, kind):
            return None
        elif carried == sources and isinstance(self.results[node], Tensor):
            value = self.carry(node, kind, module, sources)
        if value is None:
            self.pinned += [self.values[source].units for source in carried]
        return value

    def only_looks(self, node: fx.Node, kind: Any) -> bool:
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

    def carry(self, node: fx.Node, kind: Any, module: Any, sources: list[fx.Node]) -> _Value | None:
        """The value of a node that keeps its channels apart."""
        if not sources:
            return None
        if kind in MOVES:
            return self.move(node, sources)
        axis, dims = self.values[sources[0]].axis, self.results[sources[0]].dim()
        if kind in CONVS:
            fits = axis == 1 and dims == CONVS[kind] + 2 and module.groups == module.in_channels == module.out_channels
        elif kind in POOLS:
            fits = axis == 1 and dims == (POOLS[kind] or max(1, dims - 2)) + 2
        elif kind in NORMS or kind is nn.PReLU:
            fits = axis == 1
        else:
            fits = kind in ELEMENTWISE or (kind in DROPOUTS and not _argument(node, "training"))
        return self.channelwise(node, kind, module, sources) if fits else None

    def channelwise(self, node: fx.Node, kind: Any, module: Any, sources: list[fx.Node]) -> _Value | None:
        values = [self.values[source] for source in sources]
        first, result = values[0], self.results[node]
        dims, count = result.dim(), len(first.units)
        layouts = {(self.results[source].dim(), self.values[source].axis, len(self.values[source].units)) for source in sources}
        if layouts != {(dims, first.axis, count)} or result.shape[first.axis] != count or result.numel() == 0:
            return None
        for other in values[1:]:
            for a, b in zip(first.units.tolist(), other.units.tolist(), strict=True):
                self.parent[self.find(a)] = self.find(b)
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
        probe = self.run(node, {s: v.spread(self.results[s]) for s, v in zip(sources, values, strict=True)})
        low, high = probe.cpu().movedim(first.axis, 0).flatten(1).aminmax(dim=1)
        # An average of equal numbers is that number up to rounding.
        known = known & (high - low <= 32 * torch.finfo(probe.dtype).eps * high.abs()) & high.isfinite()
        return _Value(first.axis, first.units, known, torch.where(known, high, 0.0))

    def move(self, node: fx.Node, sources: list[fx.Node]) -> _Value | None:
        values, result = [self.values[source] for source in sources], self.results[node]

        def moved(sizes: list[int]) -> Tensor:
            labels, start = {}, 0
            for source, value, size in zip(sources, values, sizes, strict=True):
                shape = list(self.results[source].shape)
                shape[value.axis] = size
                labels[source] = _along(value.axis, torch.arange(start, start + size, dtype=torch.float64), shape)
                start += size
            output: Tensor = self.run(node, labels)
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

    def mix(self, node: fx.Node, module: Any, source: fx.Node) -> _Value | None:
        kind = type(module)
        dims = self.results[source].dim()
        axis = dims - 1 if kind is nn.Linear else 1
        if kind is not nn.Linear and dims != (CONVS.get(kind) or TRANSPOSED[kind]) + 2:
            return None
        value = self.values.get(source)
        if value is not None and value.axis != axis:
            self.pinned.append(value.units)
            value = None
        weight = numbers(module.weight)
        weight = (weight.transpose(0, 1) if kind in TRANSPOSED else weight)[..., None].flatten(2)
        border = kind in TRANSPOSED or (
            kind in CONVS and module.padding_mode == "zeros" and any(module._reversed_padding_repeated_twice)
        )
        count = weight.shape[0]
        units = torch.arange(len(self.parent), len(self.parent) + count)
        self.parent += units.tolist()
        bias = weight.new_zeros(count) if module.bias is None else numbers(module.bias)
        varies = (weight != 0).any(2)
        if value is not None:
            varies = varies & ~(value.known & ((value.const == 0) | (not border)))
            bias = bias + weight.sum(2) @ value.const.double()
        known = ~varies.any(1)
        self.mixes.append(_Mix(module, value, units, weight, border))
        return _Value(axis, units, known, torch.where(known, bias, 0.0).to(self.results[node].dtype))

    def dead(self) -> Tensor:
        """Which channels can go."""
        roots = torch.tensor([self.find(unit) for unit in range(len(self.parent))], dtype=torch.long)
        stays = torch.zeros(len(roots), dtype=torch.bool)
        for units in self.pinned:
            stays[roots[units]] = True
        for mix in self.mixes:
            if mix.source is not None:
                stays[roots[mix.source.units[mix.read & ~mix.source.known]]] = True
        dead = ~stays[roots]
        for mix in self.mixes:
            if mix.source is not None and mix.border and mix.folded(dead).any() and mix.carrier(dead) is None:
                strongest = int((mix.source.const.abs() * mix.folded(dead)).argmax())
                dead[roots == roots[mix.source.units[strongest]]] = False
        for value in self.values.values():
            if bool(dead[value.units].all()):
                dead[roots == roots[value.units[0]]] = False
        return dead

    def cut(self) -> bool:
        """Remove what is dead; returns whether anything was."""
        dead = self.dead()
        if not dead.any():
            return False
        for mix in self.mixes:
            mix.cut(dead)
        for module, units in self.vectors:
            alive = ~dead[units]
            for name, param in list(module.named_parameters()):
                setattr(module, name, like(param, param.detach()[alive]))
            for name, buffer in list(module.named_buffers()):
                if buffer.dim():
                    setattr(module, name, buffer[alive])
            for name in ("in_channels", "out_channels", "groups", "num_features", "num_parameters"):
                if hasattr(module, name):
                    setattr(module, name, int(alive.sum()))
        return True


# ------------------------------------------------------------------------------------------ small surgery


def _along(axis: int, vector: Tensor, sizes: list[int]) -> Tensor:
    """A tensor of these sizes that holds the vector along one axis."""
    return vector.view([-1 if i == axis else 1 for i in range(len(sizes))]).expand(sizes).clone()


def _plain(module: nn.Module) -> bool:
    """Whether calling the module runs the forward of its class and nothing else."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _argument(node: fx.Node, name: str) -> Any:
    bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]  # a function here
    bound.apply_defaults()
    return bound.arguments[name]


def _shared(model: nn.Module, units: list[_Unit]) -> set[int]:
    """The tensors that several modules hold, or that forward code reads directly."""
    times = Counter(id(x) for m in model.modules() for x in (*m._parameters.values(), *m._buffers.values()) if x is not None)
    reads = [(unit.root, node.target) for unit in units for node in unit.graph.nodes if node.op == "get_attr"]
    return {key for key, count in times.items() if count > 1} | {id(operator.attrgetter(name)(root)) for root, name in reads}


def _with_fewer_heads(
    model: nn.Module,
    units: list[_Unit],
    calls: dict[nn.Module, list[_Call]],
    frozen: set[int],
    modes: dict[nn.Module, bool],
) -> nn.Module:
    """The model with dead heads removed where nobody reads the attention weights."""
    nodes = [
        (unit.root.get_submodule(node.target), node) for unit in units for node in unit.graph.nodes if node.op == "call_module"
    ]
    seen = {module for module, _ in nodes}
    read = {
        module
        for module, node in nodes
        for user in node.users
        if user.target is not operator.getitem or (user.args[1] != 0 and user.users)
    }
    smaller: dict[nn.Module, nn.Module] = {}
    signature = inspect.signature(nn.MultiheadAttention.forward)
    for module in model.modules():
        if (
            type(module) is not nn.MultiheadAttention
            or not _plain(module)
            or not _plain(module.out_proj)
            or module not in calls
        ):
            continue
        asked = any(
            signature.bind(module, *call.args, **call.kwargs).arguments.get("need_weights", True) for call in calls[module]
        )
        tied = any(id(param) in frozen for param in module.parameters())
        if tied or module.bias_k is not None or module.add_zero_attn or (asked and (module not in seen or module in read)):
            continue
        heads = live_heads(module)
        if len(heads) < module.num_heads:
            smaller[module] = new = FewerHeads(module, heads)
            modes.update(dict.fromkeys(new.modules(), modes[module]))
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in smaller:
                setattr(parent, name, smaller[child])
    return smaller.get(model, model)
