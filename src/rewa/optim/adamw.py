r"""Algorithm 2 of the paper: AdamW on the reparameterized weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import _use_grad_for_differentiable

from rewa.optim import foreach as lists
from rewa.optim.fused import Pending, adam_rate, launch
from rewa.optim.optimizer import (
    Columns,
    ReWAOptimizer,
    is_identity,
    learning_rate,
    move_x,
    read_y,
    update,
    warn_of_decay,
)
from rewa.reparam import adam_step_size, adaptive_scale

__all__ = ["ReWAAdamW"]

MISTAKEN_EPS = 1e-6  # up to here eps looks like Adam's; the paper's own are larger


def _warn_of_eps(eps: float, stacklevel: int) -> None:
    warnings.warn(
        f"eps={eps:g} is ReWA's stabilizer, beside |y|^(K-1); Adam's own epsilon is adam_eps. Give both to say that you "
        "mean it.",
        stacklevel=stacklevel,
    )


class ReWAAdamW(ReWAOptimizer):
    r"""ReWA on AdamW (Algorithm 2): AdamW trains :math:`y`, where :math:`x = \mathrm{sign}(y)|y|^K`.

    AdamW gets :math:`d = s\,g` as the gradient of y, with g the gradient of the model's weights x and

    .. math:: s = |y|^M \, \frac{|y|^{K-1}}{|y|^{K-1} + \varepsilon}, \qquad
        y \leftarrow (1 - \eta\lambda)\,y - \eta\,\frac{\hat m}{\sqrt{\hat v} + \varepsilon_\text{Adam}},

    where :math:`\hat m, \hat v` are the bias-corrected averages of :math:`d` and :math:`d^2`.
    ``K=1, M=0`` is exactly :class:`torch.optim.AdamW`.

    Adam divides by the size of its own gradient, so a scale that stays constant cancels: **M and eps act only through
    their change over time** (and through ``adam_eps``). Choose K for the sparsity and expect little of M; the penalty of
    Theorem 1 is that of :class:`rewa.ReWASGD`.

    Args:
        params: Parameters, named parameters or groups, as for any torch optimizer.
        lr: Learning rate :math:`\eta`, of y.
        betas: Decay rates of the two averages.
        adam_eps: Adam's own epsilon, 1e-8 unless given; ``eps`` is the paper's.
        weight_decay: Decoupled decay :math:`\lambda` of y, 1e-2 unless given. AdamW moves y by about :math:`\eta` per step,
            whatever its gradient, so that :math:`|x| \le \lambda^{-K}` in the long run: keep it well below 1.
        K: Order of the reparameterization, any real number from 1; 9 unless given.
        M: Adaptivity exponent, any real number from 0; 2 unless given. See above.
        eps: Stabilizer :math:`\varepsilon`, compared with :math:`|y|^{K-1}`; 0 unless given. **Not Adam's.**
        match: A magnitude at which a weight moves as plain AdamW would move it: the rate, but not the decay, is divided by
            :func:`rewa.reparam.adam_step_size` there. ``rewa.param_groups(model, match=True)`` sets it to each tensor's root
            mean square, and a learning rate for AdamW suits. 0, the default, is the paper's step.
        amsgrad: Use the maximum of the second average.
        maximize: Ascend instead.
        foreach: Use torch's list kernels (the default on CUDA). ``False`` alone asks for the loop.
        fused: Use one kernel for the whole step of all groups, on CPUs (the default there); see :class:`rewa.ReWASGD`.
        differentiable: Let autograd through the step. The weights must not be zero.
        capturable: Keep the step count on the device and read nothing back, for CUDA graphs.

    Note:
        The paper's Algorithm 2 also puts the learning rate into the gradient it hands over; Adam cancels that factor.
        How exact the decay is in float32 says :class:`rewa.ReWASGD`. A denominator of zero (``adam_eps=0`` and no gradient so
        far) moves nothing.

    Example:
        >>> model = torch.nn.Linear(20, 1)
        >>> optimizer = ReWAAdamW(model.parameters(), lr=1e-3, K=3)
        >>> loss = model(torch.ones(4, 20)).square().mean()
        >>> loss.backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        adam_eps: float | None = None,
        weight_decay: float | None = None,
        K: float | None = None,
        M: float | None = None,
        eps: float | None = None,
        match: float | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and foreach and not capturable:
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        if eps and eps <= MISTAKEN_EPS and adam_eps is None:
            _warn_of_eps(eps, stacklevel=3)
        given = {"K": K, "M": M, "eps": eps, "weight_decay": weight_decay, "match": match, "adam_eps": adam_eps}
        defaults = {
            "lr": lr,
            "betas": betas,
            "adam_eps": 1e-8,
            "weight_decay": 1e-2,
            "K": 9,
            "M": 2,
            "eps": 0.0,
            "match": 0.0,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, given, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as for every ReWA optimizer; warn of an ``eps`` meant for Adam and of a decay that holds no weight."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if 0 < param_group.get("eps", 0) <= MISTAKEN_EPS and "adam_eps" not in param_group:
            _warn_of_eps(param_group["eps"], stacklevel=5)
        if not is_identity(group):
            step = adam_step_size(group["match"], group["K"]) if group["match"] else 1.0
            warn_of_decay(group, len(self.param_groups) - 1, group["K"], step)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("amsgrad", False)
            for param in group["params"]:
                param_state = self.state.get(param, {})
                if "step" in param_state and not isinstance(param_state["step"], Tensor):
                    param_state["step"] = self._step_tensor(group, param, float(param_state["step"]))

    @staticmethod
    def _step_tensor(group: dict[str, Any], param: Tensor, value: float = 0.0) -> Tensor:
        device = param.device if group["capturable"] or group["fused"] else "cpu"
        # As torch counts: exact for any number of steps, and in float32 for its fused kernels.
        wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
        return torch.tensor(value, dtype=torch.float64 if wide else torch.float32, device=device)

    # Dynamo knows the name _init_group and runs it outside the graph.
    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Any],
        grads: list[Any],
        kept: list[Any],
        exp_avgs: list[Any],
        exp_avg_sqs: list[Any],
        max_exp_avg_sqs: list[Any],
        steps: list[Any],
    ) -> bool:
        columns = {"exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs}
        if group["amsgrad"]:
            columns["max_exp_avg_sq"] = max_exp_avg_sqs
        for param in (param for param in group["params"] if param.grad is not None):
            state = self._new_state(param, group, *columns)
            if "step" not in state:
                state["step"] = self._step_tensor(group, param)
            params.append(param)
            grads.append(param.grad)
            kept.append(state.get("y"))
            steps.append(state["step"])
            for name, column in columns.items():
                column.append(state[name])
        return False

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step.

        Args:
            closure: Reevaluates the model and returns the loss.
        """
        if torch.compiler.is_compiling() and self.uncompiled_step is not None:
            return self.uncompiled_step(self, closure)
        loss, grad_factor, overflow = self._begin(closure)
        pending: Pending = {}
        for group in [] if overflow else self.param_groups:
            params: list[Any] = []
            grads: list[Any] = []
            kept: list[Any] = []
            exp_avgs: list[Any] = []
            exp_avg_sqs: list[Any] = []
            max_exp_avg_sqs: list[Any] = []
            steps: list[Any] = []
            self._init_group(group, params, grads, kept, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps)
            columns = {
                "x": params,
                "grad": grads,
                "y": kept,
                "exp_avg": exp_avgs,
                "exp_avg_sq": exp_avg_sqs,
                "max_exp_avg_sq": max_exp_avg_sqs,
                "step": steps,
            }
            base = _torch_adamw if is_identity(group) else None
            update(
                group,
                columns,
                grad_factor,
                base=base,
                single_tensor=_single_tensor,
                multi_tensor=_multi_tensor,
                pending=pending,
            )
        launch(pending)
        return loss


def _torch_adamw(group: dict[str, Any], columns: Columns) -> None:
    beta1, beta2 = group["betas"]
    adamw(
        columns["x"],
        columns["grad"],
        columns["exp_avg"],
        columns["exp_avg_sq"],
        columns.get("max_exp_avg_sq", []),
        columns["step"],
        foreach=group["foreach"],
        # Dynamo compiles torch's own AdamW this way, too: the other branch needs numbers that a graph does not have.
        capturable=group["capturable"] or torch.compiler.is_compiling(),
        differentiable=group["differentiable"],
        fused=group["fused"],
        amsgrad=group["amsgrad"],
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["adam_eps"],
        maximize=group["maximize"],
    )


def _count(group: dict[str, Any], step: Tensor, dtype: torch.dtype) -> float | Tensor:
    """The step's number, read back from the device unless that would break a graph."""
    return step.to(dtype) if group["capturable"] or torch.compiler.is_compiling() else step.item()


def _single_tensor(group: dict[str, Any], columns: Columns, grad_factor: float) -> None:
    K, M, eps, weight_decay, adam_eps = (group[key] for key in ("K", "M", "eps", "weight_decay", "adam_eps"))
    beta1, beta2 = group["betas"]
    lr = learning_rate(group)
    rate = adam_rate(group, lr)
    for index, (x, grad, kept) in enumerate(zip(columns["x"], columns["grad"], columns["y"], strict=True)):
        exp_avg, exp_avg_sq = columns["exp_avg"][index], columns["exp_avg_sq"][index]
        y = read_y(x, kept, K)
        t = _count(group, columns["step"][index], y.dtype)
        d = adaptive_scale(y, K, M, eps) * (grad.to(y.dtype) * grad_factor)
        exp_avg.lerp_(d, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(d, d, value=1 - beta2)
        if torch.is_grad_enabled():  # the next step writes over them
            exp_avg, exp_avg_sq = exp_avg.clone(), exp_avg_sq.clone()
        second = exp_avg_sq
        if group["amsgrad"]:
            largest = columns["max_exp_avg_sq"][index]
            second = torch.maximum(largest.clone() if torch.is_grad_enabled() else largest, exp_avg_sq)
            largest.copy_(second)
        denominator = (second.sqrt() / (1 - beta2**t) ** 0.5 + adam_eps).clamp(min=torch.finfo(y.dtype).tiny)
        move = -(lr * weight_decay) * y - (rate / (1 - beta1**t)) * (exp_avg / denominator)
        move_x(x, kept, y, move, K)


def _multi_tensor(group: dict[str, Any], columns: Columns, grad_factor: float) -> None:
    K, M, eps, weight_decay, adam_eps = (group[key] for key in ("K", "M", "eps", "weight_decay", "adam_eps"))
    beta1, beta2 = group["betas"]
    for part in lists.split(columns):
        x, kept, exp_avg, exp_avg_sq = part["x"], part["y"], part["exp_avg"], part["exp_avg_sq"]
        y = lists.read_y(x, kept, K)
        lr = lists.scalar(learning_rate(group), y)
        rate = adam_rate(group, lr)
        counts = [_count(group, step, y[0].dtype) for step in part["step"]]
        d = lists.adaptive_scale(y, K, M, eps)
        torch._foreach_mul_(d, lists.widen(part["grad"], kept))
        torch._foreach_mul_(d, grad_factor)
        torch._foreach_lerp_(exp_avg, d, 1 - beta1)
        torch._foreach_mul_(exp_avg_sq, beta2)
        torch._foreach_addcmul_(exp_avg_sq, d, d, value=1 - beta2)
        second = exp_avg_sq
        if group["amsgrad"]:
            second = part["max_exp_avg_sq"]
            torch._foreach_maximum_(second, exp_avg_sq)
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, [(1 - beta2**t) ** 0.5 for t in counts])
        torch._foreach_add_(denominator, adam_eps)
        torch._foreach_clamp_min_(denominator, torch.finfo(y[0].dtype).tiny)
        move = list(torch._foreach_div(exp_avg, denominator))
        torch._foreach_mul_(move, [-rate / (1 - beta1**t) for t in counts])
        torch._foreach_sub_(move, torch._foreach_mul(y, lr * weight_decay))
        lists.move_x(x, kept, y, move, K)
