"""The graphs of a model that can be trusted: those of what its examples run."""

from __future__ import annotations

import copy
import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from rewa.deploy.entry_points import Exposed, public_methods
from rewa.deploy.heads import FewerHeads, is_linear
from rewa.example import Example

__all__ = ["Call", "Span", "Unit", "fresh", "is_foreign", "record", "results", "units"]

FEEDFORWARD = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
PLAIN = bool | int | float | complex | str | torch.dtype | torch.device | torch.Size


class Span(NamedTuple):
    """A method of the model and what it is called with."""

    method: str
    example: Example

    def __call__(self, model: nn.Module) -> Any:
        """The output of a model.

        Args:
            model: The model.
        """
        example = self.example.map(lambda x: x.detach().clone())  # a model may change its input in place
        if self.method == "forward":
            return example.call(model)
        return operator.attrgetter(self.method)(model)(*example.args, **example.kwargs)

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            return f"tensor{list(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.40}"

        named = [f"{name}={shown(value)}" for name, value in self.example.kwargs.items()]
        return f"{self.method}({', '.join([*map(shown, self.example.args), *named])})"


class Call(NamedTuple):
    """One call of a module while an example runs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inside: frozenset[nn.Module]  # the modules whose forward was running


class Unit(NamedTuple):
    """A part of the model with its graph: its inputs and outputs stay as they are."""

    root: nn.Module  # holds the part under this name
    graph: fx.Graph
    tensors: list[Tensor]
    fixed: dict[fx.Node, str]  # nodes that may be seen from outside, and by whom


class _Slot(int):
    """The place of a tensor among the arguments of a call."""

    def __repr__(self) -> str:
        return f"tensor {int(self)}"


class _Object:
    """Stands for an object such as a cache: code that only hands it on can be traced, code that looks into it cannot."""

    def __init__(self, name: str, kind: type) -> None:
        self._name, self._kind = name, kind

    @property  # type: ignore[misc]  # so that isinstance takes the same path as for the object
    def __class__(self) -> type:
        return self._kind

    def __repr__(self) -> str:
        return f"{self._name}: {self._kind.__name__}"

    def __deepcopy__(self, memo: Any) -> _Object:
        return self

    def _refuse(self, *args: Any) -> Any:
        raise TypeError(f"it looks into an object of type {self._kind.__name__}, which is not followed")

    __getattr__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = __eq__ = __call__ = _refuse
    __hash__ = None  # type: ignore[assignment]  # no key either


class _Entry(nn.Module):
    """A part as an example calls it: its tensors are inputs, all other arguments are constants."""

    def __init__(self, part: nn.Module, call: Call) -> None:
        super().__init__()
        self.part = part
        self.tensors: list[Tensor] = []
        self.arguments = pytree.tree_map(self._constant, (call.args, call.kwargs))

    def _constant(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            self.tensors.append(argument)
            return _Slot(len(self.tensors) - 1)
        if _is_plain(argument):
            return argument
        name = f"object{len(vars(self))}"
        setattr(self, name, argument)
        return _Object(name, type(argument))

    def forward(self, tensors: list[Tensor]) -> Any:
        args, kwargs = pytree.tree_map(lambda x: tensors[x] if type(x) is _Slot else x, self.arguments)
        return self.part.forward(*args, **kwargs)


def _is_plain(argument: Any) -> bool:
    """Whether an argument has no state that a call could change."""
    if isinstance(argument, nn.Module):
        raise TypeError(f"it gets the module {type(argument).__name__} as an argument")
    return argument is None or isinstance(argument, PLAIN)


class _Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class _Tracer(fx.Tracer):
    """Looks into every module but those that fail, and notes what goes into and comes out of modules and methods."""

    def __init__(self, dtypes: set[torch.dtype]) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.opaque: set[type[nn.Module]] = set()
        self.reset()

    def reset(self) -> None:
        self.culprit: nn.Module | None = None
        self.borders: dict[Any, list[fx.Node]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Hooks see what goes into a module and comes out, so one with hooks is a border; its inside is a unit of its own.
        hooked = bool(m._forward_hooks or m._forward_pre_hooks)
        known = hooked or isinstance(m, FewerHeads) or is_linear(type(m)) or type(m) in self.opaque
        return known or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            output = super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.culprit is None and not self.is_leaf_module(m, ""):
                self.culprit = m  # the innermost one
            raise
        self.note(m, args, kwargs, output)
        return output

    def create_arg(self, a: Any) -> Any:
        return self.create_node("get_attr", a._name, (), {}) if type(a) is _Object else super().create_arg(a)

    def to_bool(self, obj: fx.Proxy) -> bool:
        node = obj.node
        if node.target in (operator.eq, operator.ne) and isinstance(node.args[1], torch.dtype):
            left: Any = node.args[0]
            if left.target is getattr and left.args[1] == "dtype" and node.args[1] not in self.dtypes:
                return node.target is operator.ne  # such as: clamp where numbers are float16
        return super().to_bool(obj)

    def note(self, key: Any, *values: Any) -> None:
        proxies = [leaf.node for leaf in pytree.tree_leaves(values) if isinstance(leaf, fx.Proxy)]
        self.borders.setdefault(key, []).extend(proxies)

    def watch(self, module: nn.Module, name: str) -> None:
        """Note what a method gets and returns."""
        method = getattr(module, name)

        @functools.wraps(method)  # forward code may ask for its signature
        def noted(*args: Any, **kwargs: Any) -> Any:
            output = method(*args, **kwargs)
            self.note(name, args, kwargs, output)
            return output

        vars(module)[name] = noted


def is_foreign(module: nn.Module) -> bool:
    """Whether a single node of a graph is a module that could not be looked into, or that has hooks of its own.

    Args:
        module: What the node calls.
    """
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    return (
        not type(module).__module__.startswith("torch.") and not is_linear(type(module)) and not isinstance(module, FewerHeads)
    )


def fresh(values: Any) -> Any:
    """The same values with their tensors copied."""
    return pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, values)


def _snapshot(argument: Any) -> Any:
    """An argument as it is now: a cache will be longer after the call."""
    if isinstance(argument, Tensor | nn.Module) or _is_plain(argument):
        return argument
    try:
        return copy.deepcopy(argument)
    except Exception:  # what cannot be copied is not traced either
        return argument


def record(model: nn.Module, runs: Sequence[Span], twin: dict[nn.Module, nn.Module]) -> dict[nn.Module, list[Call]]:
    """All calls of all modules in these runs.

    Args:
        model: The model to run.
        runs: What to run.
        twin: Another name for each module, under which its calls are given.
    """
    calls: dict[nn.Module, list[Call]] = {}
    running: list[nn.Module] = []

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        args, kwargs = pytree.tree_map(_snapshot, (args, kwargs))
        calls.setdefault(twin[module], []).append(Call(args, kwargs, frozenset(running)))
        running.append(twin[module])

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        running.pop()

    hooks = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in model.modules()]
    hooks += [module.register_forward_hook(leave) for module in model.modules()]
    # The fused kernels of torch's transformer layers would not call the submodules.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for run in runs:
            run(model)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for hook in hooks:
            hook.remove()
    return calls


# ------------------------------------------------------------------------------------------------- graphs


def units(
    model: nn.Module, calls: dict[nn.Module, list[Call]], exposed: list[Exposed] | None, why: dict[nn.Module, str]
) -> Iterator[Unit]:
    """The largest parts of the model that can be traced.

    Args:
        model: The model.
        calls: What :func:`record` saw of it.
        exposed: From :mod:`rewa.deploy.entry_points`; None if nothing but the recorded methods will ever be called.
        why: Gets the reason for each part that is no unit.
    """
    waiting, seen = [model], set[nn.Module]()
    while waiting:
        module: Any = waiting.pop()
        if module in seen or not next(module.children(), None) or isinstance(module, nn.MultiheadAttention | FewerHeads):
            continue
        seen.add(module)
        unit = None
        parts = [part for part in module.modules() if part is not module]
        if module not in calls:
            why[module] = "is not called itself by the examples"
        elif any(module not in call.inside for part in parts for call in calls.get(part, [])):
            why[module] = "has parts that are also called from elsewhere"
        else:
            unit = _unit(module, model, calls[module], exposed, why)
        if unit:
            yield unit
            waiting += [unit.root.get_submodule(str(node.target)) for node in unit.graph.nodes if node.op == "call_module"]
        else:
            waiting += list(module.children())


def _unit(
    module: Any, model: nn.Module, calls: list[Call], exposed: list[Exposed] | None, why: dict[nn.Module, str]
) -> Unit | None:
    part = module
    if type(module) in FEEDFORWARD:
        example = module.linear1.weight.new_zeros(1, 1, module.linear1.in_features)
        part = nn.Sequential(module.linear1, _Apply(module.activation), module.dropout, module.linear2).eval()
        calls = [Call((example,), {}, frozenset())]
    found: dict[str, Unit] = {}
    try:
        for call in calls:
            entry = _Entry(part, call)
            if (key := repr(entry.arguments)) in found:
                continue
            found[key] = unit = _traced(entry, model, exposed)
            first = next(iter(found.values()))
            if _steps(unit.graph, values=True) != _steps(first.graph, values=True):
                raise ValueError("it takes different paths in its calls")
            same = dict(zip(unit.graph.nodes, first.graph.nodes, strict=True))
            first.fixed.update({same[node]: reason for node, reason in unit.fixed.items()})
    except Exception as error:  # forward code may do anything with the tracer's stand-ins: any error means not traceable
        reason = " ".join(str(error).split()).split(". ")[0]
        why[module] = f"cannot be traced: {reason[:160]}"
        return None
    return first


def _steps(graph: fx.Graph, values: bool = False) -> list[Any]:
    return [
        (
            node.op,
            node.target,
            [source.name for source in node.all_input_nodes],
            str((node.args, node.kwargs)) if values else "",
        )
        for node in graph.nodes
    ]


def _traced(entry: _Entry, model: nn.Module, exposed: list[Exposed] | None) -> Unit:
    scratch = copy.deepcopy(entry)  # forward code may keep state
    real = dict(zip(scratch.modules(), entry.modules(), strict=True))
    tracer = _Tracer({x.dtype for x in (*entry.tensors, *entry.parameters(), *entry.buffers())})
    watched = public_methods(type(model)) if entry.part is model and exposed is not None else []
    for name in watched:
        tracer.watch(scratch.part, name)
    graphs = [_graph(tracer, scratch.train(mode)) for mode in (True, False)]
    if _steps(graphs[0]) != _steps(graphs[1]):
        raise ValueError("it takes another path in train mode")
    fixed: dict[fx.Node, str] = {}
    for module in scratch.modules():
        for name, value in vars(module).items():
            if isinstance(value, fx.Proxy) and value.node.graph is graphs[1]:
                fixed[value.node] = f"are kept as the attribute {name!r}"
    borders = {real.get(key, key): nodes for key, nodes in tracer.borders.items()}
    for name, modules in exposed or []:
        # A method that forward calls shows what passes through it, any other one what its modules take and return.
        keys = [name] if name in watched and name in borders else modules
        for key in keys:
            fixed.update(dict.fromkeys(borders.get(key, []), f"are seen by callers of {type(model).__name__}.{name}"))
    unit = Unit(entry, graphs[1], entry.tensors, fixed)
    results(unit)
    return unit


def _graph(tracer: _Tracer, entry: nn.Module) -> fx.Graph:
    """The graph, in which modules that cannot be looked into are single nodes."""
    while True:
        tracer.reset()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return tracer.trace(entry)
        except Exception:
            culprit = tracer.culprit
            if culprit is None or type(culprit) is nn.Sequential:
                raise
            tracer.opaque.add(type(culprit))


def results(unit: Unit) -> dict[fx.Node, Any]:
    """What each node gives: for a tensor one of the same shape without data, else the value itself."""
    found: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            found[n] = result.new_empty(()).expand(result.shape) if isinstance(result, Tensor) else result
            return result

        def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            value = self.fetch_attr(target)
            return value if isinstance(value, Tensor) else copy.deepcopy(value)

        def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            module = self.fetch_attr(target)
            # Code that could not be looked into may keep state.
            return (copy.deepcopy(module) if is_foreign(module) else module)(*args, **kwargs)

    with torch.no_grad():
        Recorder(unit.root, graph=unit.graph).run(fresh(unit.tensors))
    return found
