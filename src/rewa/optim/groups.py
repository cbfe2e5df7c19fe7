"""Which tensors of a model become sparse, and with what setting."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rewa.optim.misuse import PREFIX, watch_optimizers
from rewa.optim.optimizer import REMEDY, check_nonnegative, check_settings, is_identity, root_mean_square
from rewa.reparam import check_exponents
from rewa.weights import classify

__all__ = ["Decision", "ParamGroups", "param_groups"]

REWA_KEYS = ("K", "M", "eps", "match")
RULE_KEYS = ("sparse", "K", "M", "eps", "weight_decay", "lr", "momentum", "betas")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What :func:`param_groups` decided for one parameter, and why."""

    name: str
    param: Tensor
    settings: Mapping[str, Any] | None  # None: the parameter is not trained
    reason: str

    @property
    def is_sparse(self) -> bool:
        """Whether the parameter gets ReWA's step rather than the base optimizer's."""
        return self.settings is not None and not is_identity(self.settings)


class ParamGroups(list[dict[str, Any]]):
    """Groups to hand to an optimizer; ``print`` shows a table of what was decided for each parameter, and why."""

    def __init__(self, groups: Iterable[dict[str, Any]], decisions: Iterable[Decision]) -> None:
        super().__init__(groups)
        self.decisions = tuple(decisions)

    def __str__(self) -> str:
        rows = [("parameter", "shape", "count", "setting", "why")]
        for decision in self.decisions:
            settings = (
                "-"
                if decision.settings is None
                else " ".join(f"{k}={v:g}" if isinstance(v, (int, float)) else f"{k}={v}" for k, v in decision.settings.items())
            )
            shape = "x".join(map(str, decision.param.shape)) or "scalar"
            rows.append((decision.name, shape, f"{decision.param.numel():,}", settings, decision.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        counts = [(decision.param.numel(), decision.is_sparse) for decision in self.decisions]
        sparse, total = sum(count for count, is_sparse in counts if is_sparse), sum(count for count, _ in counts)
        return "\n".join([*lines, f"sparse: {sparse:,} of {total:,} parameters ({sparse / total:.1%})"])


def param_groups(
    model: nn.Module,
    *,
    K: float = 9,
    M: float = 2,
    eps: float = 0.0,
    weight_decay: float = 1e-4,
    plain_weight_decay: float = 0.0,
    match: bool = False,
    rules: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> ParamGroups:
    r"""Parameter groups that make the weights of a model sparse and train the rest with the plain base optimizer.

    Sparse are the weights that :func:`rewa.weights.classify` finds: those of linear, convolution, attention and recurrent
    layers, and other matrices. Plain, that is ``K=1, M=0, eps=0``, are biases, norms, scales, embeddings and adapters, many of
    which start at zero and would stay there. Frozen parameters are left out.

    The same groups serve :class:`rewa.ReWASGD`, :class:`rewa.ReWAAdamW` and, with :func:`rewa.attach`, any optimizer of torch.
    What they set belongs here, not to the optimizer: ``K``, ``M``, ``eps`` and ``weight_decay``. Their keys are ``rewa_K`` and
    so on, since ``eps`` means something else to most optimizers.

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
    rules = dict(rules or {})
    for pattern, settings in rules.items():
        _check_rule(pattern, settings)
    sparse = {"K": K, "M": M, "eps": eps, "weight_decay": weight_decay}
    plain = {"K": 1, "M": 0, "eps": 0.0, "weight_decay": plain_weight_decay}
    dense = {name: weight.reason for name, weight in classify(model).items()}

    def decide(name: str, param: Tensor) -> tuple[dict[str, Any] | None, str]:
        if not param.requires_grad:
            return None, "frozen: make the groups again after unfreezing"
        reason = dense[name]
        if reason is not None and reason.endswith(" form"):
            return {**plain, "weight_decay": weight_decay}, reason
        pattern = next((pattern for pattern in rules if re.fullmatch(pattern, name)), None)
        if pattern is None:
            return (plain, reason) if reason else (sparse, "weight")
        rule = rules[pattern]
        chosen = {"sparse": False} if rule is None else dict(rule)
        if chosen.pop("sparse", reason is None):
            return {**sparse, **chosen}, f"rule {pattern!r}"
        also = {key: value for key, value in chosen.items() if key in ("lr", "momentum", "betas")}
        return {**plain, **also}, f"{reason}, rule {pattern!r}" if reason else f"rule {pattern!r}"

    decisions = []
    for name, param in model.named_parameters():
        settings, reason = decide(name, param)
        if match and settings is not None and not is_identity(settings):
            settings, reason = (_matched(name, param, settings), reason) if param.numel() else (plain, "empty")
        decisions.append(Decision(name=name, param=param, settings=settings, reason=reason))
    _check_all_used(rules, [decision.name for decision in decisions])

    groups: dict[str, dict[str, Any]] = {}
    for decision in decisions:
        if decision.settings is not None:
            keys = {PREFIX + key if key in REWA_KEYS else key: value for key, value in decision.settings.items()}
            group = groups.setdefault(repr(sorted(keys.items())), {"params": [], **keys})
            group["params"].append((decision.name, decision.param))
    if not groups:
        raise ValueError("the model has no parameter that requires a gradient")
    return ParamGroups(groups.values(), decisions)


def _matched(name: str, param: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
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
            lowered = {known.lower(): known for known in RULE_KEYS}
            nearest = difflib.get_close_matches(key.lower(), lowered, 1)
            hint = f", did you mean {lowered[nearest[0]]!r}?" if nearest else ""
            raise ValueError(f"rule {pattern!r} sets {key!r}; allowed are {', '.join(RULE_KEYS)}{hint}")
    values = {"K": 1, "M": 0, "eps": 0, "lr": 0, "weight_decay": 0, **(settings or {})}
    values.pop("sparse", None)
    check_settings(values)


def _check_all_used(rules: Mapping[str, Any], names: list[str]) -> None:
    for pattern in rules:
        if not any(re.fullmatch(pattern, name) for name in names):
            nearest = difflib.get_close_matches(pattern, names, 3, 0.3)
            raise ValueError(f"rule {pattern!r} matches no parameter's whole name (such as {', '.join(nearest or names[:3])})")
