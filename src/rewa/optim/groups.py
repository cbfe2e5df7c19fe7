"""Parameter groups: the settings with which each tensor of a model is trained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rewa.names import close, nearest
from rewa.optim.misuse import PREFIX, watch_optimizers
from rewa.optim.optimizer import REMEDY, check_nonnegative, check_settings, root_mean_square
from rewa.reparam import check_exponents
from rewa.weights import Decision, classify, is_plain, remember, table

__all__ = ["ParamGroups", "param_groups"]

REWA_KEYS = ("K", "M", "eps", "match")
RULE_KEYS = ("sparse", "K", "M", "eps", "weight_decay", "lr", "momentum", "betas")

Rules = Mapping[str, Mapping[str, Any] | None]


class ParamGroups(list[dict[str, Any]]):
    """Groups to hand to an optimizer; ``print`` shows a table of what was decided for each parameter, and why."""

    def __init__(self, groups: Iterable[dict[str, Any]], decisions: Iterable[Decision]) -> None:
        super().__init__(groups)
        self.decisions = tuple(decisions)

    def __str__(self) -> str:
        return table(self.decisions)


def param_groups(
    model: nn.Module,
    *,
    K: float = 9,
    M: float = 2,
    eps: float = 0.0,
    weight_decay: float = 1e-4,
    plain_weight_decay: float = 0.0,
    match: bool = False,
    rules: Rules | None = None,
) -> ParamGroups:
    r"""Parameter groups that make the weights of a model sparse and train the rest with the plain base optimizer.

    Sparse are the weights that :func:`rewa.weights.classify` finds: those of linear, convolution, attention and recurrent
    layers, and other matrices. Plain, that is ``K=1, M=0, eps=0``, are biases, norms, scales, embeddings and adapters, many of
    which start at zero and would stay there. Parameters that are not trained are left out.

    The same groups serve :class:`rewa.ReWASGD`, :class:`rewa.ReWAAdamW` and, with :func:`rewa.attach`, any optimizer of torch.
    What they set belongs here, not to the optimizer: ``K``, ``M``, ``eps`` and ``weight_decay``. Their keys are ``rewa_K`` and
    so on, since ``eps`` means something else to most optimizers.

    What the rules make sparse or dense holds for counting and deployment as well (:func:`rewa.weights.decisions`). The layers
    of the model remember it until the next call replaces it; a call without rules goes back to the default.

    Of a model after :func:`rewa.reparametrize` the parts of the weights are plain and get ``weight_decay``: there the form
    is ReWA, and any optimizer trains it.

    Args:
        model: The model.
        K: Order of the reparameterization of the sparse weights.
        M: Their adaptivity exponent.
        eps: Their stabilizer.
        weight_decay: Decay of their y.
        plain_weight_decay: Decay of all other parameters.
        match: Give each sparse tensor a group of its own whose ``match`` is the root mean square of its present values, so that
            :class:`rewa.ReWASGD` moves its weights as plain SGD would at the same learning rate, whatever K, M and its width.
        rules: Exceptions, ``{regular expression: settings}``. The expression must match the parameter's whole name; of
            several that match, the first counts. The settings are any of ``K, M, eps, weight_decay, lr, momentum, betas``,
            the rest as for the sparse weights; ``None`` makes the parameter plain. A tensor that is plain by default stays
            plain and takes only ``lr, momentum, betas``, unless the settings hold ``"sparse": True``.

    Returns:
        A list of groups with named parameters. ``print`` it to see the decision for every parameter.

    Raises:
        ValueError: For a value out of range, an unknown key, or a rule that matches no parameter.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 10))
        >>> print(param_groups(model, weight_decay=1e-3, rules={r"3\.weight": {"K": 3, "eps": 1e-3}}))
        parameter  shape    count  setting                               why
        ---------  -------  -----  ------------------------------------  -----------------------
        0.weight   8x3x3x3  216    K=9 M=2 eps=0 weight_decay=0.001      weight
        0.bias     8        8      K=1 M=0 eps=0 weight_decay=0          fewer than 2 dimensions
        1.weight   8        8      K=1 M=0 eps=0 weight_decay=0          fewer than 2 dimensions
        1.bias     8        8      K=1 M=0 eps=0 weight_decay=0          fewer than 2 dimensions
        3.weight   10x8     80     K=3 M=2 eps=0.001 weight_decay=0.001  rule '3\\.weight'
        3.bias     10       10     K=1 M=0 eps=0 weight_decay=0          fewer than 2 dimensions
        sparse: 296 of 330 parameters (89.7%)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"param_groups needs the model itself, to know its layers, not {type(model).__name__}")
    check_exponents(K, M, eps)
    check_nonnegative("weight_decay value", weight_decay)
    check_nonnegative("plain_weight_decay value", plain_weight_decay)
    if not isinstance(match, bool):
        raise ValueError(f"Invalid match: {match!r} (allowed: True or False; rewa.ReWASGD(match=...) takes a number)")
    watch_optimizers()
    sparse = {"K": K, "M": M, "eps": eps, "weight_decay": weight_decay}
    plain = {"K": 1, "M": 0, "eps": 0.0, "weight_decay": plain_weight_decay}
    found, ruled = decided_by_rules(model, rules or {}, sparse, plain)
    decided = [_for_training(decision, plain, match=match) for decision in found]
    groups = _grouped(decided)
    remember(model, ruled)
    return ParamGroups(groups, decided)


def decided_by_rules(
    model: nn.Module, rules: Rules, sparse: dict[str, Any], plain: dict[str, Any]
) -> tuple[list[Decision], list[Decision]]:
    """The decision for each parameter of a model, and those that a rule made; nothing is remembered.

    Args:
        model: The model.
        rules: As for :func:`param_groups`.
        sparse: Settings of sparse weights, which rules change.
        plain: Settings of all other parameters.
    """
    if not isinstance(rules, Mapping):
        raise TypeError(f"rules are a dictionary, {{regular expression: settings or None}}, not {type(rules).__name__}")
    for pattern, settings in rules.items():
        _check_rule(pattern, settings)
    decided, ruled = [], []
    for default in classify(model).values():
        decision, by_rule = _decide(default, rules, sparse, plain)
        ruled += [decision] if by_rule else []
        decided.append(decision)
    _check_all_used(rules, [decision.name for decision in decided])
    return decided, ruled


def _decide(default: Decision, rules: Rules, sparse: dict[str, Any], plain: dict[str, Any]) -> tuple[Decision, bool]:
    """A parameter's settings, and whether a rule says that it is sparse or dense."""
    if default.reason.endswith(" form"):  # the form is ReWA, so that no rule can make it so
        return replace(default, settings={**plain, "weight_decay": sparse["weight_decay"]}), False
    pattern = next((pattern for pattern in rules if re.fullmatch(pattern, default.name)), None)
    if pattern is None:
        return replace(default, settings=sparse if default.is_sparse else plain), False
    rule = rules[pattern]
    chosen = {"sparse": False} if rule is None else dict(rule)
    by_rule = "sparse" in chosen
    if chosen.pop("sparse", default.is_sparse):
        # The exponents of a plain step say dense, too; unless all have them, as in training without ReWA to be cut later.
        settings = {**sparse, **chosen}
        is_sparse = by_rule or not is_plain(settings) or is_plain(sparse)
        reason = f"rule {pattern!r}"
    else:
        settings = {**plain, **{key: value for key, value in chosen.items() if key in ("lr", "momentum", "betas")}}
        is_sparse, reason = False, f"rule {pattern!r}" if default.is_sparse else f"{default.reason}, rule {pattern!r}"
    decision = replace(default, settings=settings, is_sparse=is_sparse, reason=reason)
    return decision, by_rule or is_sparse != default.is_sparse


def _for_training(decision: Decision, plain: dict[str, Any], *, match: bool) -> Decision:
    """The same decision with the settings that its tensor can have now."""
    if not decision.param.requires_grad:
        return replace(decision, settings=None, reason="not trained: make the groups again once it requires a gradient")
    if not match or not decision.is_reparameterized:
        return decision
    if not decision.param.numel():
        return replace(decision, settings=plain, reason="empty")
    assert decision.settings is not None
    return replace(decision, settings=_matched(decision.name, decision.param, decision.settings))


def _grouped(decided: Iterable[Decision]) -> list[dict[str, Any]]:
    """The parameters that are trained, those with equal settings together."""
    groups: dict[str, dict[str, Any]] = {}
    for decision in decided:
        if decision.settings is not None:
            keys = {PREFIX + key if key in REWA_KEYS else key: value for key, value in decision.settings.items()}
            group = groups.setdefault(repr(sorted(keys.items())), {"params": [], **keys})
            group["params"].append((decision.name, decision.param))
    if not groups:
        raise ValueError("the model has no parameter that requires a gradient")
    return list(groups.values())


def _matched(name: str, param: Tensor, settings: Mapping[str, Any]) -> dict[str, Any]:
    if param.device.type == "meta":
        raise ValueError(
            f"parameter {name!r} is on the meta device and has no size to match: fill the model first, by to_empty and its own "
            "initialization, or leave out match"
        )
    if not (size := root_mean_square(param)):
        raise ValueError(f"parameter {name!r} is all zero and has no size to match. {REMEDY}")
    return {**settings, "match": size}


def _check_rule(pattern: str, settings: Mapping[str, Any] | None) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"rule {pattern!r} is not a regular expression: {error}") from None
    if settings is not None and not isinstance(settings, Mapping):
        raise ValueError(f"rule {pattern!r} is {settings!r}; allowed is a dictionary of settings, or None for plain")
    for key in settings or {}:
        if key not in RULE_KEYS:
            raise ValueError(f"rule {pattern!r}: {nearest('setting', key, RULE_KEYS)}")
    values = {"K": 1, "M": 0, "eps": 0, "lr": 0, "weight_decay": 0, **(settings or {})}
    values.pop("sparse", None)
    check_settings(values)


def _check_all_used(rules: Mapping[str, Any], names: list[str]) -> None:
    for pattern in rules:
        if not any(re.fullmatch(pattern, name) for name in names):
            such = close(pattern, names, count=3, cutoff=0.3) or names[:3]
            raise ValueError(f"rule {pattern!r} matches no parameter's whole name (such as {', '.join(such)})")
