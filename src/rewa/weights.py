"""Which tensors of a model are weights that can become sparse, and why the others stay dense.

The decision has one owner: training (:func:`rewa.param_groups`), counting (:mod:`rewa.sparsity`) and deployment
(:func:`rewa.finalize`, :func:`rewa.freeze_zeros`) all ask here. The kind of the layer decides first. A parameter that a module
of an unknown kind holds itself is judged by its shape, then by its name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

__all__ = ["Computed", "Weight", "classify", "computed", "full", "local", "reshard"]

LAYERS = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)

# Words in the name of a parameter that a module of an unknown kind holds itself. Entries of a scale, a rate or a learned
# vector do not multiply an input, so a zero there saves nothing, and many start at exactly zero.
WORDS = {
    "embedding": "cls emb latent pe pos position positional prompt prototype codebook queries register",
    "scale": "alpha beta gain gamma layerscale magnitude scale scaling sigma std tau temp temperature",
    "rate": "decay dt lambda log",
}


class Weight(NamedTuple):
    """A parameter and what was decided for it."""

    name: str
    param: Tensor
    reason: str | None  # why it stays dense; None: it is a weight and can become sparse


@dataclass(frozen=True)
class Computed:
    """A tensor that a layer uses but does not hold: torch computes it from other parameters before each forward pass."""

    name: str
    by: str
    originals: tuple[str, ...]  # the names of the parameters that it is computed from
    reason: str | None  # why it stays dense; None: it is a weight and can become sparse
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


def classify(model: nn.Module) -> dict[str, Weight]:
    """Decide for each parameter of a model whether it is a weight that can become sparse.

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
        >>> {name: weight.reason for name, weight in classify(model).items()}
        {'0.weight': None, '0.bias': 'fewer than 2 dimensions', '1.weight': 'norm', '1.bias': 'norm'}
    """
    places: dict[int, list[_Place]] = {}
    for prefix, module in model.named_modules():
        for name, param in module._parameters.items():
            if param is not None:
                places.setdefault(id(param), []).append(_Place(f"{prefix}.{name}".lstrip("."), module, name))
    adapters = _adapters(model)
    return {
        name: Weight(name, param, "adapter" if id(param) in adapters else _reason(param, places[id(param)]))
        for name, param in model.named_parameters()
    }


def computed(model: nn.Module) -> list[Computed]:
    """The tensors that layers compute from their parameters: under a parametrization, a norm of weights or a pruning mask.

    Args:
        model: The model.
    """
    with torch.no_grad():
        return [found for prefix, module in model.named_modules() for found in _computed_by(module, f"{prefix}.".lstrip("."))]


# --------------------------------------------------------------------------------------------- the decision


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
        reason = _reason(value, [_Place(prefix + name, module, name)])
        layer = f"model.get_submodule({prefix.rstrip('.')!r})" if prefix else "model"
        remedy = remove if remove.startswith("rewa.") else f"torch.nn.utils.{remove}({layer}, {name!r})"
        return Computed(prefix + name, by, tuple(prefix + original for original in originals), reason, remedy, value.detach())

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
    modes = [(module, module.training) for module in chain.modules()]
    try:
        value: Tensor = chain.eval()()
    finally:
        for module, training in modes:
            module.training = training
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
