"""The channels that nothing needs: which they are, how they are cut out, and why others stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rewa.deploy.dataflow import CONVS, Walk
from rewa.deploy.heads import like

__all__ = ["reasons", "remove_dead"]


def _dead(walk: Walk) -> Tensor:
    """Which channels can go."""
    roots = walk.roots()
    stays = torch.zeros(len(roots), dtype=torch.bool)
    for units, _ in walk.pinned:
        stays[roots[units]] = True
    for mix in walk.mixes:
        if mix.source is not None:
            stays[roots[mix.source.units[mix.read & ~mix.source.known]]] = True
    dead = ~stays[roots]
    for mix in walk.mixes:
        if mix.source is not None and mix.border and mix.folded(dead).any() and mix.carrier(dead) is None:
            strongest = int((mix.source.const.abs() * mix.folded(dead)).argmax())
            dead[roots == roots[mix.source.units[strongest]]] = False
    for value in walk.values.values():
        if bool(dead[value.units].all()):
            dead[roots == roots[value.units[0]]] = False
    return dead


def remove_dead(walk: Walk) -> bool:
    """Cut dead channels out of the layers of a graph; whether there were any.

    Args:
        walk: What is known of its channels; it does not hold afterwards.
    """
    dead = _dead(walk)
    if not dead.any():
        return False
    for mix in walk.mixes:
        mix.cut(dead)
    for module, units in walk.vectors:
        alive = ~dead[units]
        for name, param in list(module.named_parameters()):
            setattr(module, name, like(param, param.detach()[alive]))
        for name, buffer in list(module.named_buffers()):
            if buffer.dim():
                setattr(module, name, buffer[alive])
        count = int(alive.sum())
        for name in ("num_features", "num_parameters"):
            if hasattr(module, name):
                setattr(module, name, count)
        if type(module) in CONVS:
            layer: Any = module
            layer.groups = layer.groups * count // len(units)
            layer.in_channels, layer.out_channels = layer.weight.shape[1] * layer.groups, count
    return True


def reasons(walk: Walk) -> dict[nn.Module, str]:
    """Why layers keep outputs with no weights, or inputs that they do not read.

    Args:
        walk: What is known of the channels of a graph.
    """
    roots, found = walk.roots(), dict[nn.Module, str]()
    pinned: dict[int, str] = {}
    for units, what in walk.pinned:
        for root in roots[units].tolist():
            pinned.setdefault(root, what)
    live = {int(roots[unit]) for mix in walk.mixes if mix.source for unit in mix.source.units[mix.read & ~mix.source.known]}

    def reason(units: Tensor) -> str:
        mine = roots[units].tolist()
        if fixed := [pinned[root] for root in mine if root in pinned]:
            return fixed[0]
        return "are those of other layers too" if live & {*mine} else "are the last, or carry the constants of others"

    for mix in walk.mixes:
        rows = (mix.weight == 0).all(2).all(1)
        if bool(rows.any()):
            found[mix.module] = f"its outputs {reason(mix.units[rows])}"
        elif not bool(mix.read.all()) and mix.source is None:
            found[mix.module] = f"its inputs come from {mix.origin}"
        elif not bool(mix.read.all()) and mix.source is not None:
            found[mix.module] = f"its inputs {reason(mix.source.units[~mix.read])}"
    for module, units in walk.vectors:
        found.setdefault(module, f"its channels {reason(units)}")
    for node in walk.results:
        if node.op == "call_module" and (trouble := walk.trouble(node, module := walk.called(node))):
            found[module] = trouble
        elif node.op == "call_module" and type(module) in CONVS and node.all_input_nodes:
            found.setdefault(module, f"its inputs come from {walk.named(node.all_input_nodes[0])}")
    return found
