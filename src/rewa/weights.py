"""Which tensors of a model are weights that can become sparse, and why the others stay dense.

The decision has one owner: training (:func:`rewa.param_groups`), counting (:mod:`rewa.sparsity`), deployment
(:func:`rewa.finalize`, :func:`rewa.freeze_zeros`) and the methods all ask :func:`decisions`. The kind of the layer decides
first. A parameter that a module of an unknown kind holds itself is judged by its shape, then by its name. What the rules of
:func:`rewa.param_groups` decide otherwise is remembered by the layers until its next call.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim import Optimizer

from rewa._moved import names_moved
from rewa.modes import keeping_modes
from rewa.text_table import aligned

__all__ = [
    "PREFIX",
    "Computed",
    "Decided",
    "Decision",
    "check_unshared",
    "classify",
    "computed",
    "decisions",
    "full",
    "is_plain",
    "local",
    "remember",
    "remembered_rules",
    "reshard",
    "sharded_like",
    "table",
]

LAYERS = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
PREFIX = "rewa_"  # of the keys in parameter groups that belong to ReWA: no other optimizer reads them

# Words in the name of a parameter that a module of an unknown kind holds itself. Entries of a scale, a rate or a learned
# vector do not multiply an input, so a zero there saves nothing, and many start at exactly zero.
WORDS = {
    "embedding": "cls emb latent pe pos position positional prompt prototype codebook queries register",
    "scale": "alpha beta gain gamma layerscale magnitude scale scaling sigma std tau temp temperature",
    "rate": "decay dt lambda log",
}

# In the __dict__ of a layer: by the name of its parameter, whether a rule made it sparse, and the reason to show. In the layer
# and not in the model, so that wrappers, copies and parts of the model find it; never in a state_dict.
_ATTRIBUTE = "_rewa_decisions"

Decided = Optimizer | Sequence[Mapping[str, Any]]  # an optimizer or groups, which know the settings of their parameters


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided for one parameter, and why."""

    name: str
    param: Tensor
    is_sparse: bool  # whether it is a weight that can become sparse, trained or not
    reason: str
    settings: Mapping[str, Any] | None = None  # how it is trained; None: it is not, or that is not known

    @property
    def is_reparameterized(self) -> bool:
        """Whether training gives it ReWA's step rather than the base optimizer's."""
        return self.settings is not None and not is_plain(self.settings)


@dataclass(frozen=True)
class Computed:
    """A tensor that a layer uses but does not hold: torch computes it from other parameters before each forward pass."""

    name: str
    by: str
    originals: tuple[str, ...]  # the names of the parameters that it is computed from
    is_sparse: bool  # whether it is a weight that can become sparse
    remedy: str  # the call that leaves a plain parameter in its place
    value: Tensor

    def error(self) -> ValueError:
        """The error for a caller who would write into it."""
        return ValueError(
            f"{self.name!r} is computed from {' and '.join(self.originals)} by {self.by}, so that a write into it would be "
            f"lost: call {self.remedy} first, on a copy if you train on"
        )


class _Place(NamedTuple):
    """Where a parameter is held; one that is shared has several places."""

    path: str
    module: nn.Module
    name: str

    @property
    def remembered(self) -> tuple[bool, str] | None:
        """What a rule decided here, also of a weight that torch prunes since."""
        found: Mapping[str, tuple[bool, str]] = self.module.__dict__.get(_ATTRIBUTE, {})
        return found.get(self.name) or found.get(self.name.removesuffix("_orig"))


def decisions(source: nn.Module | Decided, groups: Decided | None = None) -> dict[str, Decision]:
    r"""Which parameters can become sparse, and why.

    A model answers with the rules of the last call of :func:`rewa.param_groups` for it, or for what contains it. They hold for
    copies of the model, for wrappers and for parts. A model that is built anew, also to load a saved ``state_dict``, has the
    defaults of :func:`classify`; so has any model after ``rewa.param_groups(model)`` without rules.

    Args:
        source: A model; what :func:`rewa.param_groups` returned; or an optimizer with settings of ReWA (or its groups), which
            answers for the parameters it has: those are sparse whose group has another setting than the plain one.
        groups: With a model: groups or an optimizer whose answer counts, for the parameters that they hold.

    Returns:
        The decisions by name; of a model in the order of ``model.named_parameters()``.

    Raises:
        ValueError: If an optimizer has no settings of ReWA: it cannot know.

    Example:
        >>> import rewa
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        >>> optimizer = rewa.ReWASGD(rewa.param_groups(model, rules={r"1\.weight": None}))
        >>> for source in (model, optimizer):
        ...     print([name for name, decision in decisions(source).items() if decision.is_sparse])
        ['0.weight']
        ['0.weight']
    """
    if not isinstance(source, nn.Module):
        return _decided_by(source)
    places = _places(source)
    found = classify(source)
    for name, one in found.items():
        if entry := next(filter(None, (place.remembered for place in places[id(one.param)])), None):
            found[name] = replace(one, is_sparse=entry[0], reason=entry[1])
    if groups is not None:
        given = {id(one.param): one for one in _decided_by(groups).values()}
        found = {name: replace(given.get(id(one.param), one), name=name) for name, one in found.items()}
    return found


def _decided_by(groups: Decided) -> dict[str, Decision]:
    """The decisions that groups or an optimizer bring with them."""
    if hasattr(groups, "decisions"):  # what rewa.param_groups returned
        return {one.name: one for one in groups.decisions}
    if not isinstance(groups, (Optimizer, list, tuple)):
        raise TypeError(
            "which weights are sparse needs a model, what rewa.param_groups returned for one, or an optimizer, not "
            f"{type(groups).__name__}"
        )
    found: dict[str, Decision] = {}
    for group in groups.param_groups if isinstance(groups, Optimizer) else groups:
        settings = {key: group.get(PREFIX + key, group.get(key)) for key in ("K", "M", "eps")}
        if None in settings.values():
            raise ValueError(
                f"{type(groups).__name__} has no setting of ReWA in its groups, by which to tell sparse weights: give the model"
            )
        settings.update({key: group[key] for key in ("annealed_to", "weight_decay") if key in group})
        is_sparse = not is_plain(settings)
        reason = "a group of ReWA" if is_sparse else "a plain group"
        for param, name in zip(group["params"], group.get("param_names", itertools.repeat("")), strict=False):
            label = name or str(len(found))
            found[label] = Decision(name=label, param=param, is_sparse=is_sparse, reason=reason, settings=settings)
    if not any(one.is_sparse for one in found.values()):
        raise ValueError(
            "every group is plain (K=1, M=0, eps=0), which does not tell which weights are sparse: give the model, or what "
            "rewa.param_groups returned for it"
        )
    return found


def is_plain(settings: Mapping[str, Any]) -> bool:
    """Whether x is y and the scale is one, now and at any later step: the step is the base optimizer's.

    Args:
        settings: ``K``, ``M`` and ``eps``, and ``annealed_to`` where they move.
    """
    return bool(settings["K"] == 1 and settings["M"] == 0 and settings["eps"] == 0 and "annealed_to" not in settings)


def remember(model: nn.Module, decided: Iterable[Decision]) -> None:
    """Make the layers of a model remember decisions, in place of all that they remembered before.

    Args:
        model: The model.
        decided: The decisions that a rule made; for all other parameters the default holds.
    """
    for module in model.modules():
        module.__dict__.pop(_ATTRIBUTE, None)
    if not (chosen := {id(one.param): (one.is_sparse, one.reason) for one in decided}):
        return
    entries = {name: chosen[id(param)] for name, param in model.named_parameters(remove_duplicate=False) if id(param) in chosen}
    for one in computed(model):  # it is decided with what it is computed from, and holds when that is gone
        if known := [entries[original] for original in one.originals if original in entries]:
            entries[one.name] = known[0]
    for name, entry in entries.items():
        owner, _, own_name = name.rpartition(".")
        model.get_submodule(owner).__dict__.setdefault(_ATTRIBUTE, {})[own_name] = entry


def remembered_rules(model: nn.Module) -> dict[str, dict[str, Any] | None]:
    """The rules for :func:`rewa.param_groups` that decide again what the model remembers.

    Args:
        model: The model.
    """
    default = classify(model)
    return {
        re.escape(name): {"sparse": True} if one.is_sparse else None
        for name, one in decisions(model).items()
        if one != default[name]
    }


def classify(model: nn.Module) -> dict[str, Decision]:
    """Decide for each parameter of a model by default whether it is a weight that can become sparse.

    Weights of linear, bilinear, convolution, attention and recurrent layers are, whatever their shape. Biases, norms,
    embeddings, adapters and quantized tensors are not. A parameter of another module is a weight if at least two of its axes
    are longer than one and its name does not say that it is a scale, a rate, a position, a token or a latent.

    An embedding that is tied to an output layer stays dense: it is read row by row, and a token that is rare gets no gradient
    that could hold its row against the decay.

    Args:
        model: The model. Whether a parameter requires a gradient does not matter.

    Returns:
        The decisions by name, in the order of ``model.named_parameters()``.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 1), nn.LayerNorm((2, 1)))
        >>> {name: decision.reason for name, decision in classify(model).items()}
        {'0.weight': 'weight', '0.bias': 'fewer than 2 dimensions', '1.weight': 'norm', '1.bias': 'norm'}
    """
    places, adapters = _places(model), _adapters(model)
    reasons = {
        name: "adapter" if id(param) in adapters else _reason(param, places[id(param)])
        for name, param in model.named_parameters()
    }
    return {
        name: Decision(name=name, param=param, is_sparse=reasons[name] is None, reason=reasons[name] or "weight")
        for name, param in model.named_parameters()
    }


def computed(model: nn.Module) -> list[Computed]:
    """The tensors that layers compute from their parameters: under a parametrization, a norm of weights or a pruning mask.

    Args:
        model: The model.
    """
    with torch.no_grad():
        return [found for prefix, module in model.named_modules() for found in _computed_by(module, f"{prefix}.".lstrip("."))]


def table(decided: Iterable[Decision]) -> str:
    """The decisions as a table, with the number of parameters that are trained by ReWA.

    Args:
        decided: The decisions.
    """
    decided = list(decided)
    rows = [("parameter", "shape", "count", "setting", "why")]
    for one in decided:
        values = (one.settings or {}).items()
        settings = " ".join(f"{k}={v:g}" if isinstance(v, (int, float)) else f"{k}={v}" for k, v in values) or "-"
        shape = "x".join(map(str, one.param.shape)) or "scalar"
        rows.append((one.name, shape, f"{one.param.numel():,}", settings, one.reason))
    sparse = sum(one.param.numel() for one in decided if one.is_reparameterized)
    total = sum(one.param.numel() for one in decided)
    return f"{aligned(rows, '<<<<<', rule=True)}\nsparse: {sparse:,} of {total:,} parameters ({sparse / total:.1%})"


def check_unshared(model: nn.Module, chosen: Collection[str], remedy: str = "") -> None:
    """Refuse weights that several layers share: a parametrization makes of one weight a tensor for each layer.

    Args:
        model: The model.
        chosen: The names of the parameters that are to be parametrized.
        remedy: What to do instead, for the message.
    """
    first: dict[int, str] = {}
    for prefix, module in model.named_modules():
        for own_name, param in module.named_parameters(recurse=False):
            name = f"{prefix}.{own_name}".lstrip(".")
            other = first.setdefault(id(param), name)
            if other != name and {other, name} & set(chosen):
                text = f"{name!r} and {other!r} are one shared weight, which a parametrization cannot keep shared"
                raise ValueError(f"{text}: {remedy}" if remedy else text)


# --------------------------------------------------------------------------------------------- the decision


def _places(model: nn.Module) -> dict[int, list[_Place]]:
    """Where each parameter is held, by its identity."""
    places: dict[int, list[_Place]] = {}
    for prefix, module in model.named_modules():
        for name, param in module._parameters.items():
            if param is not None:
                places.setdefault(id(param), []).append(_Place(f"{prefix}.{name}".lstrip("."), module, name))
    return places


def _reason(param: Tensor, places: list[_Place]) -> str | None:
    """Why a parameter stays dense, from all the places that hold it."""
    modules = [place.module for place in places]
    if param.dim() < 2:
        return "fewer than 2 dimensions"
    if any(isinstance(module, NORMS) for module in modules):
        return "norm"
    if any("bias" in place.name for place in places):
        return "bias"
    if any(isinstance(module, EMBEDDINGS) for module in modules):
        tied = [place.path for place in places if not isinstance(place.module, EMBEDDINGS)]
        return f"embedding, tied to {tied[0]}" if tied else "embedding"
    if found := [place for place in places if ".parametrizations." in f".{place.path}"]:
        return next(filter(None, map(_form, found)), "already parametrized")
    if any(_is_split(place) for place in places):
        return "weight_norm"
    if param.dtype.itemsize < 2 or not (param.is_floating_point() or param.is_complex()):
        return f"quantized ({param.dtype})"
    if any(_is_weight_of_layer(place) for place in places):
        return None
    return _reason_of_loose(param, places[0])


def _is_weight_of_layer(place: _Place) -> bool:
    """Whether the place is the weight of a layer of a known kind, also while torch prunes it."""
    name = place.name.removesuffix("_orig")
    if isinstance(place.module, (nn.RNNBase, nn.RNNCellBase)):
        return name.startswith("weight_")
    if isinstance(place.module, nn.MultiheadAttention):
        return name.endswith("proj_weight")
    # GPT-2's linear layer; by name, since transformers may not be installed.
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(place.module).__mro__}
    return name == "weight" and (isinstance(place.module, LAYERS) or "transformers.pytorch_utils.Conv1D" in kinds)


def _form(place: _Place) -> str | None:
    """The name of the form of rewa that the place holds a part of; by name, for the forms lie above this module."""
    if not isinstance(place.module, parametrize.ParametrizationList):
        return None
    return next((f"{type(one).__name__.lower()} form" for one in place.module if type(one).__module__ == "rewa.forms"), None)


def _is_split(place: _Place) -> bool:
    """Whether the place is the length or the direction of a weight under weight_norm, torch's own or written by hand."""
    stem, _, part = place.name.rpartition("_")
    return part in ("g", "v") and {f"{stem}_g", f"{stem}_v"} <= place.module._parameters.keys()


def _reason_of_loose(param: Tensor, place: _Place) -> str | None:
    """Why a parameter stays dense that a module of an unknown kind holds itself."""
    kind = type(place.module).__name__
    if re.search(r"Norm(\d+d)?$", kind):
        return "norm"
    if re.search(r"Embeddings?$", kind):
        return "embedding"
    name = place.name
    if isinstance(place.module, (nn.ParameterList, nn.ParameterDict)):
        name = "_".join(place.path.split(".")[-2:])  # the container has the telling name, its entries are numbered
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    if any(word.startswith("lora") for word in words):
        return "adapter"
    for meaning, listed in WORDS.items():
        for word in words:
            known = {word, word.removesuffix("s")} & set(listed.split())
            if known or (meaning == "embedding" and word.startswith(("embed", "token"))):
                return f"{meaning}, by {word!r} in its name"
    if sum(size > 1 for size in param.shape) < 2:
        return "at most one axis longer than 1"
    return None


def _adapters(model: nn.Module) -> set[int]:
    """Identities of the parameters that PEFT added to a model; copies that it trains in full are the model's own weights."""
    added: list[nn.Module | Tensor] = []
    for module in model.modules():
        names = {*getattr(module, "adapter_layer_names", ()), *getattr(module, "other_param_names", ())} - {"modules_to_save"}
        if hasattr(module, "peft_config"):
            names.add("prompt_encoder")
        added += [
            part for name, part in {**module._modules, **module._parameters}.items() if name in names and part is not None
        ]
    return {id(param) for part in added for param in (part.parameters() if isinstance(part, nn.Module) else [part])}


# ---------------------------------------------------------------------------------------- computed tensors


def _computed_by(module: nn.Module, prefix: str) -> Iterator[Computed]:
    """What a module computes from its own parameters, by a parametrization or by one of torch's older hooks."""

    def made(name: str, by: str, originals: Iterable[str], remove: str, value: Tensor) -> Computed:
        place = _Place(prefix + name, module, name)
        is_sparse = place.remembered[0] if place.remembered else _reason(value, [place]) is None
        layer = f"model.get_submodule({prefix.rstrip('.')!r})" if prefix else "model"
        remedy = remove if remove.startswith("rewa.") else f"torch.nn.utils.{remove}({layer}, {name!r})"
        return Computed(place.path, by, tuple(prefix + one for one in originals), is_sparse, remedy, value.detach())

    chains: Any = module.parametrizations if parametrize.is_parametrized(module) else {}
    for name, chain in chains.items():
        ours = any(type(form).__module__ == "rewa.forms" for form in chain)
        remove = "rewa.remove_reparametrization(model)" if ours else "parametrize.remove_parametrizations"
        originals = [f"parametrizations.{name}.{original}" for original, _ in chain.named_parameters(recurse=False)]
        yield made(name, type(chain[0]).__name__, originals, remove, _without_side_effects(chain))
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            name = hook._tensor_name
            value = hook.apply_mask(module)  # type: ignore[no-untyped-call]  # torch's
            yield made(name, "torch.nn.utils.prune", [f"{name}_orig"], "prune.remove", value)
        elif isinstance(hook, WeightNorm):
            name = hook.name
            yield made(name, "weight_norm", [f"{name}_g", f"{name}_v"], "remove_weight_norm", hook.compute_weight(module))
        elif isinstance(hook, SpectralNorm):
            value = hook.compute_weight(module, do_power_iteration=False)
            yield made(hook.name, "spectral_norm", [f"{hook.name}_orig"], "remove_spectral_norm", value)


def _without_side_effects(chain: nn.Module) -> Tensor:
    """The result of a parametrization; in eval mode, since spectral_norm updates its vectors in training mode."""
    with keeping_modes(chain):
        value: Tensor = chain.eval()()
    return value


# ---------------------------------------------------------------------------------------- sharded tensors


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded (a DTensor); every process must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor that may be sharded; what is elementwise needs no more."""
    if type(tensor) in (Tensor, nn.Parameter):  # asking these for an attribute they lack is slow
        return tensor
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def reshard(model: nn.Module) -> None:
    """Let a model under FSDP2 hold its shards again: after a forward pass the outer module may still hold a gathered copy.

    A write into the shards would not reach that copy, and the copy is what the next forward pass would use.

    Args:
        model: The model, sharded or not.
    """
    if (fsdp := sys.modules.get("torch.distributed.fsdp")) is None:  # nobody imported it, so nothing is sharded by it
        return
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()


def sharded_like(mask: Tensor, weight: Any) -> Tensor:
    """A mask of the whole weight, sharded as the weight is; each process has the whole mask, so that none sends any."""
    if not hasattr(weight, "device_mesh"):
        return mask
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * weight.device_mesh.ndim
    whole_mask = DTensor.from_local(mask.to(weight.device), weight.device_mesh, everywhere, run_check=False)
    return whole_mask.redistribute(placements=weight.placements)


if not TYPE_CHECKING:  # a type checker that saw it would accept any name
    __getattr__ = names_moved(
        __name__,
        {
            "Weight": "rewa.weights.Decision",
        },
    )
