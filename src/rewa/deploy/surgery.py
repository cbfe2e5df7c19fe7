r"""Removing for good what exact zeros have made dead: a smaller dense model with the same outputs.

A channel can go when nothing reads it, or when it emits a constant that its readers can take over. So two things are followed
through the graph of the model (``torch.fx``, see :mod:`rewa.deploy.tracing`): which channels of which layers are one and the
same (a residual sum, a norm), and which of them are constant where. A constant goes into the bias of the layer that reads it. A
convolution with zero padding sees another value at the border: there one constant channel stays, the carrier, and the others
are merged into it,

.. math:: W_{\cdot k} \leftarrow W_{\cdot k} + \sum_c W_{\cdot c}\, v_c / v_k.

Why not Torch-Pruning (1.6.1): it couples layers and removes the indices it is given, but does not know what a dead channel
still emits, so constants, folding and carriers would need this walk of the graph anyway; the cutting is the small part.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rewa.deploy.blueprint import remember, replace_modules
from rewa.deploy.dataflow import Walk, is_plain
from rewa.deploy.dead_channels import reasons, remove_dead
from rewa.deploy.entry_points import Exposed, entry_points
from rewa.deploy.freezing import thaw
from rewa.deploy.heads import FewerHeads, Projections, is_linear, live_heads
from rewa.deploy.tracing import Call, Span, Unit, record, units
from rewa.example import Example
from rewa.modes import keeping_modes
from rewa.weights import computed

__all__ = ["ShrinkReport", "removed", "shrink"]

SHOWN = 12  # lines of a report before the rest is counted


@dataclass(frozen=True)
class ShrinkReport:
    """What :func:`shrink` did, and why it left what it left.

    Attributes:
        before: Parameters of the original.
        after: Parameters of the copy.
        traced: The calls whose paths were followed; another path may need what was removed.
        cut: The parameters that changed, with their old and new shapes.
        left: For each layer that still holds whole rows or columns of zeros, the reason.
    """

    before: int
    after: int
    traced: tuple[str, ...]
    cut: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    left: dict[str, str]

    def __str__(self) -> str:
        share = (self.before - self.after) / max(self.before, 1)
        lines = [f"shrink: {self.before:,} -> {self.after:,} parameters ({share:.1%} fewer), {len(self.cut)} tensors cut"]
        lines.append(f"traced: {'; '.join(self.traced)}")
        together: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            together.setdefault(reason, []).append(name)
        if together:
            lines.append("left with rows or columns of zeros:")
        for reason, names in list(together.items())[:SHOWN]:
            others = f" and {len(names) - 2} more" if len(names) > 2 else ""
            lines.append(f"  {', '.join(names[:2])}{others}: {reason}")
        if len(together) > SHOWN:
            hidden = sum(len(names) for names in list(together.values())[SHOWN:])
            lines.append(f"  and {hidden} layers for {len(together) - SHOWN} other reasons: see .left")
        if not self.cut and not together:
            lines.append("no layer holds a whole row or column of zeros; rewa.finalize makes exact zeros")
        return "\n".join(lines)


def shrink(
    model: nn.Module,
    example_input: Any,
    *,
    examples: Sequence[Any] = (),
    methods: Mapping[str, Any] | None = None,
    tolerance: float = 1e-5,
    report: Callable[[ShrinkReport], object] | None = print,
) -> nn.Module:
    r"""A smaller dense copy of a model with exact zeros, with the same outputs in eval mode.

    Removed are channels of convolutions (1-3 dimensions, also depthwise and transposed; whole groups of grouped ones), neurons
    of linear layers (``nn.Linear``, ``Conv1D`` of transformers) with their entries in batch norms, and heads of attention:
    ``nn.MultiheadAttention`` (see :class:`FewerHeads`) and those of transformers (see :class:`Projections`). Constants are
    followed through batch norm, activations, dropout, pooling, flattening, sums, products and concatenation. A layer keeps at
    least one channel, an attention of transformers one head.

    What is not understood is left as it is: channels that reach an output or an unknown operation (a layer norm, a reshape with
    fixed sizes), layers with hooks or parametrizations, weights that are shared or read directly. Where ``torch.fx`` cannot
    trace a part, or its path differs between train mode, calls or examples, its children are taken one by one.

    Only the paths of the examples are known. If another argument takes another path, such as ``return_features=True``, give
    an example of it. The model's public methods that use its modules keep what goes into them and comes out, whether
    ``forward`` calls them or not. Parts of the model must not be called by themselves: their channels may be fewer.

    Args:
        model: The model, left untouched. Zeros must be exact; frozen ones (:func:`rewa.freeze_zeros`) are not in the copy.
        example_input: An input, the tuple of positional arguments, a dictionary of keywords, or (tuple, dictionary).
        examples: Further inputs that take other paths. The copy is tested on all of them.
        methods: The methods that will be called apart from ``forward``, each with an example: ``{"encode": x}``. By default any
            public method may be. With ``{}``, what only other methods need can go.
        tolerance: The largest accepted difference, relative to the largest output or to 1 if that is larger.
        report: Gets the :class:`ShrinkReport`; None for silence.

    Returns:
        A copy of the same class, with the modes and ``requires_grad`` of the original. :func:`rewa.save_packed` stores what
        was cut with it, and :func:`rewa.load_packed` cuts a fresh model of the original's class in the same way.

    Raises:
        RuntimeError: If the copy's outputs on an example differ by more than the tolerance.
        TypeError: If the model is sharded over processes.
        ValueError: If the model has no method of a given name, or weights under ``torch.nn.utils.prune``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> with torch.no_grad():
        ...     model[0].weight[:3] = 0
        >>> shrink(model, torch.ones(5, 2), report=None)
        Sequential(
          (0): Linear(in_features=2, out_features=1, bias=True)
          (1): ReLU()
          (2): Linear(in_features=1, out_features=1, bias=True)
        )
    """
    _refuse_sharded(model)
    _refuse_computed(model)
    runs = _runs(model, [example_input, *examples], methods or {})
    # Forward code may keep state, so whatever only runs the model runs a copy of it.
    after = copy.deepcopy(model)
    thaw(after)  # frozen zeros are gone with what is removed; freeze the copy anew for further training
    why: dict[nn.Module, str] = {}
    with keeping_modes(after) as modes, torch.no_grad():
        after.eval()
        expected = [run(copy.deepcopy(model).eval()) for run in runs]
        exposed = entry_points(after) if methods is None else None
        calls, parts, shared = _trace(after, runs, exposed, why)
        if _cut_projections(after, calls, shared, exposed or [], why, lambda: _check_equal(expected, after, runs, tolerance)):
            calls, parts, shared = _trace(after, runs, exposed, why)  # graphs hold numbers of heads as constants
        after = _with_fewer_heads(after, parts, calls, shared, modes, why)
        for part in parts:
            while remove_dead(walk := Walk(part, shared)):
                pass
            why.update(reasons(walk))
        _check_equal(expected, after, runs, tolerance)
    remember(model, after)
    if report is not None:
        old, new = (sum(param.numel() for param in x.parameters()) for x in (model, after))
        report(ShrinkReport(old, new, tuple(map(str, runs)), removed(model, after), _left(after, calls, why)))
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
        >>> removed(model, shrink(model, torch.ones(5, 2), report=None))
        {'0.weight': ((4, 2), (3, 2)), '0.bias': ((4,), (3,)), '2.weight': ((1, 4), (1, 3))}
    """
    shapes = {name: tuple(param.shape) for name, param in after.named_parameters()}
    return {
        name: (tuple(param.shape), shapes[name])
        for name, param in before.named_parameters()
        if name in shapes and shapes[name] != tuple(param.shape)
    }


def _trace(
    model: nn.Module, runs: list[Span], exposed: list[Exposed] | None, why: dict[nn.Module, str]
) -> tuple[dict[nn.Module, list[Call]], list[Unit], set[int]]:
    """The calls of all modules, the parts with their graphs, and the tensors that must not change."""
    scratch = copy.deepcopy(model)
    calls = record(scratch, runs, dict(zip(scratch.modules(), model.modules(), strict=True)))
    parts = list(units(model, calls, exposed, why))
    return calls, parts, _shared(model, parts)


def _refuse_sharded(model: nn.Module) -> None:
    """A model that is spread over processes can neither be copied nor cut."""
    if sharded := [name for name, param in model.named_parameters() if hasattr(param, "full_tensor")]:
        raise TypeError(
            f"{sharded[0]!r} is sharded over processes (DTensor). Gather on all of them with torch.distributed.checkpoint."
            "state_dict.get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), load "
            "what the first one gets into a model that is not sharded, and shrink that"
        )


def _refuse_computed(model: nn.Module) -> None:
    """Weights under a pruning mask cannot be cut, nor can what an older hook left in a graph of autograd be copied."""
    for one in computed(model):
        path, _, name = one.name.rpartition(".")
        held = vars(model.get_submodule(path)).get(name)  # None under a parametrization: such a layer is left as it is
        if one.by == "torch.nn.utils.prune" or (isinstance(held, Tensor) and held.requires_grad):
            raise one.error()


def _runs(model: nn.Module, examples: list[Any], methods: Mapping[str, Any]) -> list[Span]:
    for name in methods:
        try:
            known = callable(operator.attrgetter(name)(model))
        except AttributeError:
            known = False
        if not known:
            raise ValueError(
                f"{type(model).__name__} has no method {name!r}: methods= takes names of methods, each with an example"
            )
    given = [("forward", example) for example in examples] + list(methods.items())
    return [Span(name, Example.of(example)) for name, example in given]


def _left(model: nn.Module, calls: dict[nn.Module, list[Call]], why: dict[nn.Module, str]) -> dict[str, str]:
    """The layers with whole rows or columns of zeros, and why they stay."""
    left = {}
    above = {child: parent for parent in model.modules() for child in parent.children()}
    for name, module in model.named_modules():
        zeros = [
            bool((w == 0).flatten(1).all(1).any()) or bool((w == 0).transpose(0, 1).flatten(1).all(1).any())
            for w in module.parameters(recurse=False)
            if w.dim() > 1 and w.numel()
        ]
        if not any(zeros):
            continue
        parent = module
        while parent in above and not (parent in why and parent in calls):
            parent = above[parent]
        if module in why:
            left[name] = why[module]
        elif module not in calls:
            left[name] = "is not called by the examples"
        elif not is_linear(type(module)) and not isinstance(module, nn.modules.conv._ConvNd):
            left[name] = f"{type(module).__name__} is not understood"
        elif parent in why:
            left[name] = f"the code of {type(parent).__name__} around it {why[parent]}"
        else:
            left[name] = f"{type(module).__name__} is not understood here"
    return left


def _tensors(output: Any) -> list[Tensor]:
    """The tensors of an output, also those that are attributes of an object of the model's own."""
    leaves = pytree.tree_leaves(output)
    parts = [[leaf] if isinstance(leaf, Tensor) else list(getattr(leaf, "__dict__", {}).values()) for leaf in leaves]
    return [tensor.cpu() for part in parts for tensor in part if isinstance(tensor, Tensor)]


def _check_equal(expected: list[Any], after: nn.Module, runs: list[Span], tolerance: float) -> None:
    for run, output in zip(runs, expected, strict=True):
        try:
            found = run(copy.deepcopy(after))
        except Exception as error:
            raise RuntimeError(f"the shrunk model does not run {run}: {error}") from error
        _compare(_tensors(output), _tensors(found), tolerance)


def _compare(wanted: list[Tensor], found: list[Tensor], tolerance: float) -> None:
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


def _shared(model: nn.Module, parts: list[Unit]) -> set[int]:
    """The tensors that several modules hold, or that forward code reads directly."""
    times = Counter(id(x) for m in model.modules() for x in (*m._parameters.values(), *m._buffers.values()) if x is not None)
    reads = [(unit.root, node.target) for unit in parts for node in unit.graph.nodes if node.op == "get_attr" and node.users]
    return {key for key, count in times.items() if count > 1} | {id(operator.attrgetter(name)(root)) for root, name in reads}


def _cut_projections(
    model: nn.Module,
    calls: dict[nn.Module, list[Call]],
    shared: set[int],
    exposed: list[Exposed],
    why: dict[nn.Module, str],
    check: Callable[[], None],
) -> bool:
    """Remove dead heads of attention made of linear layers, as far as the model's outputs stay; whether there were any."""
    seen = {module for entry in exposed for module in entry.modules}
    found: list[tuple[Projections, list[int]]] = []
    for module in model.modules():
        heads = Projections.of(module)
        if heads is None:
            continue
        layers = [*heads.inputs, heads.output]
        why.update(dict.fromkeys(layers, "loses whole heads only"))
        if len(live := heads.live() or [0]) == heads.heads:
            continue
        if any(layer not in calls for layer in layers):
            trouble = "is not called by the examples"
        elif not all(map(is_plain, [heads.attention, *layers])):
            trouble = "has hooks or a forward of its own"
        elif any(id(param) in shared for layer in layers for param in layer.parameters()):
            trouble = "has weights that other code reads or shares"
        elif any(module not in call.inside for layer in layers for call in calls[layer]) or seen & {*layers}:
            trouble = "has layers that are also called from elsewhere"
        else:
            found.append((heads, live))
            continue
        why.update(dict.fromkeys(layers, f"its attention {trouble}"))
    if found and _refused(found, check):
        for choice in found:  # find out which
            if reason := _refused([choice], check):
                why.update(dict.fromkeys([*choice[0].inputs, choice[0].output], f"without its dead heads {reason}"))
    return bool(found)


def _refused(choices: list[tuple[Projections, list[int]]], check: Callable[[], None]) -> str:
    """Cut heads; if the check fails, put them back and return the reason."""
    parts: list[Any] = [part for heads, _ in choices for part in (heads.attention, heads.output, *heads.inputs)]
    saved = [(part, type(part), {**vars(part), "_parameters": dict(part._parameters)}) for part in parts]
    try:
        for heads, live in choices:
            heads.cut(live)
        check()
    except RuntimeError as error:
        for part, kind, state in saved:
            part.__class__ = kind
            vars(part).clear()
            vars(part).update(state)
        return " ".join(str(error).split())[:160]
    return ""


def _with_fewer_heads(
    model: nn.Module,
    parts: list[Unit],
    calls: dict[nn.Module, list[Call]],
    shared: set[int],
    modes: dict[nn.Module, bool],
    why: dict[nn.Module, str],
) -> nn.Module:
    """The model with dead heads of torch's attention removed where nobody reads the attention weights."""
    nodes = [
        (unit.root.get_submodule(node.target), node) for unit in parts for node in unit.graph.nodes if node.op == "call_module"
    ]
    followed = {module for module, _ in nodes} - {
        module
        for module, node in nodes
        for user in node.users
        if user.target is not operator.getitem or (user.args[1] != 0 and user.users)
    }
    smaller: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if type(module) is not nn.MultiheadAttention:
            continue
        attention, reason = module, _keeps_heads(module, calls.get(module, []), shared, module in followed)
        heads = live_heads(module)
        if not reason and len(heads) < module.num_heads:
            smaller[module] = new = FewerHeads(module, heads)
            modes.update(dict.fromkeys(new.modules(), modes[module]))
            attention = new  # type: ignore[assignment]  # has the same parts
        why[attention] = why[attention.out_proj] = reason or "loses whole heads only"
    return replace_modules(model, smaller)


def _keeps_heads(attention: nn.MultiheadAttention, calls: list[Call], shared: set[int], followed: bool) -> str:
    """Why no head of it can go, if so."""
    if not calls:
        return "is not called by the examples"
    if not is_plain(attention) or not is_plain(attention.out_proj):
        return "has hooks or a forward of its own"
    if any(id(param) in shared for param in attention.parameters()):
        return "has weights that other code reads or shares"
    if attention.bias_k is not None or attention.add_zero_attn:
        return "adds keys of its own"
    signature = inspect.signature(nn.MultiheadAttention.forward)
    asked = [signature.bind(attention, *call.args, **call.kwargs).arguments.get("need_weights", True) for call in calls]
    return "returns its attention weights, which need all heads" if any(asked) and not followed else ""
