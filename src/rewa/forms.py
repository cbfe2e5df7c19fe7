r"""ReWA as a parametrization of a module: the reparameterized tensors are the parameters, any optimizer trains them.

Three forms of the weight x:

======== =================================== =========================================================================
tied     :math:`\mathrm{sign}(y)|y|^K`       the paper's; the same as :class:`rewa.ReWASGD`
pair     :math:`|u|^K - |v|^K`               a weight can change its sign without crossing zero
factors  :math:`y_1 y_2 \cdots y_K`          the untied product of the paper's Equation [Cp], with its true gradient
======== =================================== =========================================================================

The tied and the pair form give their parameters the gradient :math:`s\,\nabla f(x)` with the adaptive scale s, not the true
derivative; weight decay is left to the optimizer. To edit a weight, assign to it (``layer.weight = ...``): writes into
``layer.weight`` change a computed tensor and are lost.
"""

from __future__ import annotations

import copy
import math
import re
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rewa.optim.misuse import mark_copies, mark_form, retire
from rewa.optim.optimizer import LOW_PRECISION, check_parameter, root_mean_square
from rewa.reparam import adaptive_scale, check_exponents, flush_subnormal, step_size, to_x, to_y
from rewa.weights import check_unshared, decisions

__all__ = ["Factors", "Pair", "Tied", "matched_groups", "remove_reparametrization", "reparametrize"]


AnyForm = TypeVar("AnyForm", bound=nn.Module)


class _Reparameterize(torch.autograd.Function):
    """Forward ``sign(y)|y|^K``; backward the adaptive scale, the R and the A of ReWA."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, K: float, M: float, eps: float) -> Tensor:
        return flush_subnormal(to_x(y, K))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # apart from forward, for torch.func
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.exponents = inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (y,) = ctx.saved_tensors
        return adaptive_scale(y, *ctx.exponents) * grads[0], None, None, None


class _InForwardMode(_Reparameterize):
    """The same for eager code, with the rule for forward mode, which torch.compile refuses."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (y,) = ctx.saved_tensors
        scaled: Tensor = adaptive_scale(y, *ctx.exponents) * tangents[0]
        return scaled


def _copied(form: AnyForm, memo: dict[int, Any]) -> AnyForm:
    """A deep copy of a form. torch copies the tensors before it, and they are parts of a form like the first ones."""
    mark_copies(memo)
    twin = type(form).__new__(type(form))
    memo[id(form)] = twin
    twin.__dict__.update(copy.deepcopy(form.__dict__, memo))
    return twin


class Tied(nn.Module):
    r"""Parametrization :math:`x = \mathrm{sign}(y)|y|^K` with the adaptive scale as its gradient.

    Args:
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.

    Example:
        >>> Tied(K=3)(torch.tensor([-2.0, 0.5]))
        tensor([-8.0000,  0.1250])
    """

    def __init__(self, *, K: float = 9, M: float = 2, eps: float = 0.0) -> None:
        check_exponents(K, M, eps)
        super().__init__()
        self.K, self.M, self.eps = K, M, eps

    def __deepcopy__(self, memo: dict[int, Any]) -> Tied:
        return _copied(self, memo)

    def forward(self, y: Tensor) -> Tensor:
        """The weight x."""
        function = _Reparameterize if torch.compiler.is_compiling() else _InForwardMode
        result: Tensor = function.apply(y, self.K, self.M, self.eps)  # type: ignore[no-untyped-call]  # torch's
        return result

    def right_inverse(self, x: Tensor) -> Tensor:
        """The y that gives x."""
        return to_y(x, self.K)

    def step_size(self, magnitude: float) -> float:
        """How far a new weight of this magnitude moves per step, for each unit of learning rate and gradient.

        Args:
            magnitude: The weight's, above 0.
        """
        return step_size(magnitude, self.K, self.M, self.eps)

    def extra_repr(self) -> str:
        """The setting."""
        return f"K={self.K}, M={self.M}, eps={self.eps}"


class Pair(Tied):
    r"""Parametrization :math:`x = |u|^K - |v|^K` by two parameters, each with the adaptive scale as its gradient.

    In float32 a weight far below ``start`` is rounded to the grid of ``start`` when the form is made.

    Both parts see the gradient with opposite signs, so whichever the loss wants grows, and decay takes the other: no sign is
    lost at zero. Started from :math:`x`, the parts are :math:`(\max(x,0)+a)^{1/K}` and :math:`(\max(-x,0)+a)^{1/K}`.

    **It anneals itself.** With ``K = 2, M = 1`` a step moves x by :math:`2(u^2 + v^2) = 2\sqrt{x^2 + 4(uv)^2}` for each unit of
    learning rate and gradient. The gradient leaves the product uv alone, to first order in the step, and decay shrinks it. So a
    weight that is small beside a moves as under plain gradient descent and changes its sign freely, and as uv shrinks the step
    becomes :math:`2|x|`, that of the tied form, whose penalty is :math:`\ell_1`.

    Args:
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        eps: Stabilizer.
        start: The value a that both parts share. A part at u grows only while :math:`|g|\,u^{M-1} > \lambda`, so a start
            below :math:`(\lambda/|g|)^{K/(M-1)}` can no longer change sign.

    Example:
        >>> Pair(K=2)(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 3.0]))
        tensor([ 3., -8.])
    """

    def __init__(self, *, K: float = 9, M: float = 2, eps: float = 0.0, start: float = 0.005) -> None:
        super().__init__(K=K, M=M, eps=eps)
        if not 0 < start < math.inf:
            raise ValueError(f"Invalid start value: {start} (allowed: a finite number > 0, the initial value of both parts)")
        self.start = start

    def forward(self, u: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        """The weight x."""
        return super().forward(u).abs() - super().forward(v).abs()

    def right_inverse(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The two parts that give x."""
        return to_y(x.clamp(min=0) + self.start, self.K), to_y((-x).clamp(min=0) + self.start, self.K)

    def step_size(self, magnitude: float) -> float:
        """How far a new weight of this magnitude moves per step: the sum of what both parts do.

        Args:
            magnitude: The weight's, above 0.

        Example:
            >>> pair = Pair(K=2, M=1, start=0.25)
            >>> round(pair.step_size(0.5), 12)  # 2 (u^2 + v^2)
            2.0
        """
        return super().step_size(magnitude + self.start) + super().step_size(self.start)

    def extra_repr(self) -> str:
        """The setting."""
        return f"{super().extra_repr()}, start={self.start:.4g}"


class Factors(nn.Module):
    r"""Parametrization :math:`x = y_1 y_2 \cdots y_K` by K untied factors, the paper's Equation [Cp], with its true gradient.

    The factors start with equal magnitudes. While they are equal and trained by SGD, they follow the tied form with
    ``M = K-1``, ``eps = 0``.

    Args:
        K: Number of factors, an integer from 2.

    Example:
        >>> Factors(K=3).right_inverse(torch.tensor([-8.0]))
        (tensor([-2.]), tensor([2.]), tensor([2.]))
    """

    def __init__(self, *, K: int = 3) -> None:
        if int(K) != K or K < 2:
            raise ValueError(f"Invalid K value: {K} (allowed: an integer >= 2, the number of factors)")
        super().__init__()
        self.K = int(K)

    def __deepcopy__(self, memo: dict[int, Any]) -> Factors:
        return _copied(self, memo)

    def forward(self, *factors: Tensor) -> Tensor:
        """The weight x."""
        x = factors[0]
        for factor in factors[1:]:
            x = x * factor
        return x

    def right_inverse(self, x: Tensor) -> tuple[Tensor, ...]:
        """K factors of equal magnitude that give x."""
        root = to_y(x.abs(), self.K)
        return (torch.copysign(root, x), *(root.clone() for _ in range(self.K - 1)))

    def extra_repr(self) -> str:
        """The setting."""
        return f"K={self.K}"


def reparametrize(
    model: nn.Module,
    *,
    form: Literal["tied", "pair", "factors"] = "tied",
    K: float = 9,
    M: float | None = None,
    eps: float | None = None,
    start: float | None = None,
    relative_start: float | None = None,
    include: str | None = None,
) -> nn.Module:
    r"""Replace weights of a model by one of the forms, in place; train it with any optimizer and weight decay.

    Args:
        model: The model.
        form: ``"tied"``, ``"pair"`` or ``"factors"``.
        K: Order of the reparameterization; the number of factors.
        M: Adaptivity exponent (2 unless given); the factors have none.
        eps: Stabilizer (0 unless given); the factors have none.
        start: The pair form's start value (0.005 unless given).
        relative_start: Instead of ``start``: a multiple of the root mean square of each weight's values.
        include: Regular expression for the whole names of the parameters to replace. By default the weights that can become
            sparse (:func:`rewa.weights.decisions`) and require a gradient.

    Returns:
        The same model. :func:`remove_reparametrization` leaves plain weights.

    Raises:
        ValueError: For a setting the form does not have, a name pattern that matches nothing, a weight in low precision, or an
            all-zero weight that could not move. The model is not changed then.

    Example:
        >>> model = reparametrize(nn.Linear(4, 2), form="pair", K=3)
        >>> [name for name, _ in model.named_parameters()]
        ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
        >>> _ = remove_reparametrization(model)
        >>> [name for name, _ in model.named_parameters()]
        ['bias', 'weight']
    """
    if start is not None and relative_start is not None:
        raise ValueError(f"start={start} and relative_start={relative_start} are two values for one thing: give one of them")
    options = {"M": M, "eps": eps, "start": start if relative_start is None else relative_start}
    given = {name: value for name, value in options.items() if value is not None}
    forms: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
        "tied": (Tied, ("M", "eps")),
        "pair": (Pair, ("M", "eps", "start")),
        "factors": (Factors, ()),
    }
    if form not in forms:
        raise ValueError(f"Invalid form: {form!r} (allowed: {', '.join(map(repr, forms))})")
    kind, allowed = forms[form]
    if extra := [name for name in given if name not in allowed]:
        raise ValueError(f"form={form!r} has no {' and no '.join(extra)} (it takes K{', '.join(['', *allowed])})")
    kind(K=K, **given)  # refuses bad values before anything changes
    exponents = {"M": given.get("M", 2), "eps": given.get("eps", 0.0)} if form != "factors" else {"M": K - 1, "eps": 0.0}
    settings = {"K": K, **exponents}
    made: list[tuple[nn.Module, str, nn.Module]] = []
    for full_name, module, name in _places(model, include):
        param, label = getattr(module, name), f"parameter {full_name!r}"
        if param.dtype in LOW_PRECISION:
            raise ValueError(f"{label} is {param.dtype}, too coarse for the {form} form: convert the model with model.float()")
        if form != "pair":
            check_parameter(param, label, settings, "Leave it out with include=..., or use form='pair'.")
        if relative_start is not None:
            if not (size := root_mean_square(param)):
                raise ValueError(f"{label} is all zero, so that relative_start has no size to refer to: give start instead")
            given["start"] = relative_start * size
        made.append((module, name, kind(K=K, **given)))
    for module, name, one in made:
        parametrize.register_parametrization(module, name, one)
        for part in module.parametrizations[name].parameters(recurse=False):  # type: ignore[union-attr,index]
            mark_form(part, form)
    return model


def _places(model: nn.Module, include: str | None) -> list[tuple[str, nn.Module, str]]:
    """The parameters to replace: the name of each in the model, the module that holds it, and its name there."""
    if include is None:
        chosen = {name for name, one in decisions(model).items() if one.is_sparse and one.param.requires_grad}
    else:
        chosen = {name for name, _ in model.named_parameters() if re.fullmatch(include, name)}
    if nested := [name for name in chosen if ".parametrizations." in f".{name}"]:
        raise ValueError(f"{nested[0]!r} is parametrized already: call rewa.remove_reparametrization(model) first")
    if not chosen:
        raise ValueError(f"no parameter to reparametrize ({f'include={include!r} matches none' if include else 'no weights'})")
    check_unshared(model, chosen)
    return [
        (full_name, module, name)
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
        if (full_name := f"{prefix}.{name}".lstrip(".")) in chosen
    ]


def matched_groups(model: nn.Module, *, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    r"""Parameter groups for a model in tied or pair form that plain SGD moves, at first, as it would without the form.

    A weight of magnitude s moves ``step_size(s)`` times as fast as under SGD, in each layer another number. The group of a
    weight has the learning rate divided by that, for s the root mean square of its values. The decay goes with the rate, so
    that the penalty, :math:`\lambda\|x\|_1` for the pair with ``K = 2, M = 1``, is the same for all layers.

    Args:
        model: A model after :func:`reparametrize`, before it is trained.
        lr: Learning rate as for the plain model. Schedulers that multiply the groups' rates suit.
        weight_decay: Decay :math:`\lambda` of the tensors in the weights' place; everything else has none.

    Example:
        >>> model = reparametrize(nn.Linear(4, 2), form="pair", K=2, M=1, relative_start=1.0)
        >>> groups = matched_groups(model, lr=0.1, weight_decay=1e-3)
        >>> optimizer = torch.optim.SGD(groups, momentum=0.9)
        >>> [len(group["params"]) for group in groups]
        [1, 2]
    """
    matched, seen = [], set[int]()
    for module in model.modules():
        for name, chain in getattr(module, "parametrizations", {}).items():
            if isinstance(form := chain[0], Tied):
                tensors = list(chain.parameters(recurse=False))
                seen |= {id(tensor) for tensor in tensors}
                size = root_mean_square(getattr(module, name))
                if not size and not isinstance(form, Pair):
                    raise ValueError(
                        f"{name!r} is all zero, where the tied form has no step to match: use form='pair', or leave it out of "
                        "rewa.reparametrize"
                    )
                rate = lr / form.step_size(size)
                matched.append({"params": tensors, "lr": rate, "weight_decay": weight_decay})
    if not matched:
        raise ValueError("the model has no weight in tied or pair form: call rewa.reparametrize(model, form='pair', ...) first")
    rest = [param for param in model.parameters() if param.requires_grad and id(param) not in seen]
    return [{"params": rest, "lr": lr, "weight_decay": 0.0}, *matched] if rest else matched


def remove_reparametrization(model: nn.Module) -> nn.Module:
    """Turn every reparametrized weight of a model back into a plain parameter with the same value, in place.

    The weights are new parameters. To train on, make a new optimizer: the old one holds the tensors of the form, and its next
    step is an error.

    Example:
        >>> model = reparametrize(nn.Linear(4, 2))
        >>> type(remove_reparametrization(model).weight)
        <class 'torch.nn.parameter.Parameter'>
    """
    for module in model.modules():
        for name, chain in list(getattr(module, "parametrizations", {}).items()):
            forms = [type(form).__name__.lower() for form in chain if isinstance(form, (Tied, Factors))]
            if not forms:
                continue
            parts = list(chain.parameters(recurse=False))
            # torch takes the weight's property from the class, which copies of the module share: give this one its own.
            own = {key: value for key, value in vars(type(module)).items() if key not in ("__dict__", "__weakref__")}
            module.__class__ = type(type(module).__name__, type(module).__bases__, own)
            parametrize.remove_parametrizations(module, name)
            weight = getattr(module, name)
            if any(weight is part for part in parts):  # torch keeps a single part as the weight, with its optimizer's momentum
                setattr(module, name, nn.Parameter(weight.detach().clone(), weight.requires_grad))
            for part in parts:
                retire(part, forms[0], name)
    return model
