r"""Algorithm 1 of the paper: SGD on the reparameterized weights, with weight decay and adaptive learning rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _use_grad_for_differentiable
from torch.optim.sgd import sgd

from rewa.optim import foreach as lists
from rewa.optim.fused import Pending, launch
from rewa.optim.optimizer import (
    LOW_PRECISION,
    Columns,
    ReWAOptimizer,
    is_identity,
    keeps_y,
    learning_rate,
    move_x,
    read_y,
    update,
)
from rewa.reparam import adaptive_scale

__all__ = ["ReWASGD"]


class ReWASGD(ReWAOptimizer):
    r"""ReWA on SGD (Algorithm 1): sparse weights by training :math:`y`, where :math:`x = \mathrm{sign}(y)|y|^K`.

    One step with the gradient :math:`g = \nabla f(x)` of the model's weights, :math:`\eta` = ``lr`` and
    :math:`\lambda` = ``weight_decay``:

    .. math::
        s &= |y|^M \, \frac{|y|^{K-1}}{|y|^{K-1} + \varepsilon} \\
        d &= s\,g + \lambda y \quad\text{(coupled)} \qquad d = s\,g \quad\text{(decoupled)} \\
        b &\leftarrow \mu b + d, \qquad d \leftarrow b \quad\text{or, with Nesterov,}\quad d + \mu b \\
        y &\leftarrow y - \eta d \quad\text{(coupled)} \qquad y \leftarrow (1 - \eta\lambda) y - \eta d \ \text{(decoupled)} \\
        x &= \mathrm{sign}(y)\,|y|^K

    Without momentum the two kinds of decay are the same. The weights tend to a stationary point of :math:`f + \lambda R` with
    an :math:`\ell_p` penalty R, :math:`p = 1 + (1 - M)/K` for ``eps = 0``: smaller p, sparser weights. They end near zero,
    not at it: count and cut them with a threshold.

    ``K=1, M=0`` is exactly :class:`torch.optim.SGD`, the right setting for biases and norms:
    :func:`rewa.param_groups` makes the groups.

    Args:
        params: Parameters, named parameters or groups, as for any torch optimizer. Groups may set ``lr``,
            ``weight_decay``, ``momentum``, ``K``, ``M`` and ``eps`` of their own; those of :func:`rewa.param_groups` set all
            but ``lr`` and ``momentum``, and an argument that no group would take is an error.
        lr: Learning rate :math:`\eta`, of y.
        K: Order of the reparameterization, any real number from 1; 9 unless given.
        M: Adaptivity exponent, any real number from 0; 2 unless given. A weight of the wrong sign must cross zero, where its
            steps vanish like :math:`|y|^M`: with ``M >= 2`` and a small learning rate it is lost.
            ``rewa.reparametrize(form="pair")`` has no such trap.
        eps: Stabilizer :math:`\varepsilon`, compared with :math:`|y|^{K-1}`; 0 unless given.
        weight_decay: Decay :math:`\lambda` of y; 1e-4 unless given. A weight without gradient shrinks by
            :math:`(1 - \eta\lambda)^K` per step.
        momentum: Momentum :math:`\mu`.
        nesterov: Nesterov's momentum.
        match: A magnitude at which a weight moves as plain SGD would move it: the gradient is divided by
            :func:`rewa.reparam.step_size` there. ``rewa.param_groups(model, match=True)`` sets it to each tensor's root mean
            square, and one learning rate serves all K, M and widths. 0, the default, is the paper's step.
        decoupled: Whether decay bypasses the momentum. ``False``, as in :class:`torch.optim.SGD` and in the paper's CIFAR-10
            runs, decays :math:`1/(1 - \mu)` times harder than ``True`` at the same ``weight_decay``.
        maximize: Ascend instead.
        foreach: Use torch's list kernels (the default on CUDA). ``False`` alone asks for the loop.
        fused: Use one kernel for the whole step of all groups, on CPUs: as fast as torch's fused SGD, and the default there.
            It is compiled at the first step (under a second, kept on disk); without a C++ compiler it warns once and the
            loop is used. ``False`` forces the loop.
        differentiable: Let autograd through the step. The weights must not be zero.
        capturable: Safe to capture in a CUDA graph.

    Note:
        A step changes x with one rounding, in every implementation. In float32 the decay of a single weight is right to
        :math:`6\cdot10^{-8} / (K \eta\lambda)` of itself: 7 % for the defaults, where all weights together decay right to
        1 %, and 0.07 % at :math:`\eta\lambda = 10^{-5}`. With :math:`K \eta\lambda` below :math:`3\cdot10^{-8}` nothing moves.
        :class:`torch.optim.SGD` has the same limits with ``K = 1``, and so have float16 and bfloat16 here, whose y is kept
        in float32.

    Example:
        >>> model = torch.nn.Linear(20, 1)
        >>> optimizer = ReWASGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        >>> loss = model(torch.ones(4, 20)).square().mean()
        >>> loss.backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        K: float | None = None,
        M: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        match: float | None = None,
        decoupled: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        given = {"K": K, "M": M, "eps": eps, "weight_decay": weight_decay, "match": match}
        defaults = {
            "lr": lr,
            "K": 9,
            "M": 2,
            "eps": 0.0,
            "weight_decay": 1e-4,
            "momentum": momentum,
            "nesterov": nesterov,
            "match": 0.0,
            "decoupled": decoupled,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, given, defaults)

    # Dynamo knows the name _init_group and runs it outside the graph.
    def _init_group(
        self, group: dict[str, Any], params: list[Any], grads: list[Any], kept: list[Any], buffers: list[Any]
    ) -> bool:
        names = ["momentum_buffer"] if group["momentum"] != 0 else []
        if group is self.param_groups[0]:  # once per step
            self._some_keep_y = any(keeps_y(param, other) for other in self.param_groups for param in other["params"])
        # Without momentum there is no state, unless some weight keeps its y: distributed checkpoints want all entries then.
        stateful = bool(names) or self._some_keep_y
        for param in (param for param in group["params"] if param.grad is not None):
            state = self._new_state(param, group, *names) if stateful else {}
            params.append(param)
            grads.append(param.grad)
            kept.append(state.get("y"))
            if names:
                buffers.append(state["momentum_buffer"])
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
            buffers: list[Any] = []
            self._init_group(group, params, grads, kept, buffers)
            update(
                group,
                {"x": params, "grad": grads, "y": kept, "buffer": buffers},
                grad_factor,
                base=_torch_sgd if is_identity(group) else None,
                single_tensor=_single_tensor,
                multi_tensor=_multi_tensor,
                pending=pending,
            )
        launch(pending)
        return loss


def _torch_sgd(group: dict[str, Any], columns: Columns) -> None:
    # In low precision torch's fused CPU kernel leaves most elements where they were (pytorch issue 191763).
    low = any(x.dtype in LOW_PRECISION and x.device.type == "cpu" for x in columns["x"])
    sgd(
        columns["x"],
        columns["grad"],
        columns.get("buffer", [None] * len(columns["x"])),
        foreach=group["foreach"],
        fused=group["fused"] and not low,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=0.0,
        nesterov=group["nesterov"],
        maximize=group["maximize"],
    )


def _single_tensor(group: dict[str, Any], columns: Columns, grad_factor: float) -> None:
    K, M, eps, weight_decay, momentum = (group[key] for key in ("K", "M", "eps", "weight_decay", "momentum"))
    lr = learning_rate(group)
    for index, (x, grad, kept) in enumerate(zip(columns["x"], columns["grad"], columns["y"], strict=True)):
        y = read_y(x, kept, K)
        d = adaptive_scale(y, K, M, eps) * (grad.to(y.dtype) * grad_factor)
        if not group["decoupled"]:
            d = d + weight_decay * y
        if momentum != 0:
            buffer = columns["buffer"][index]
            buffer.mul_(momentum).add_(d)
            buffer = buffer.clone() if torch.is_grad_enabled() else buffer  # the next step writes over it
            d = d + momentum * buffer if group["nesterov"] else buffer
        move = -lr * d - (lr * weight_decay) * y if group["decoupled"] else -lr * d
        move_x(x, kept, y, move, K)


def _multi_tensor(group: dict[str, Any], columns: Columns, grad_factor: float) -> None:
    K, M, eps, weight_decay, momentum = (group[key] for key in ("K", "M", "eps", "weight_decay", "momentum"))
    for part in lists.split(columns):
        x, kept = part["x"], part["y"]
        y = lists.read_y(x, kept, K)
        lr = lists.scalar(learning_rate(group), y)
        d = lists.adaptive_scale(y, K, M, eps)
        torch._foreach_mul_(d, lists.widen(part["grad"], kept))
        torch._foreach_mul_(d, grad_factor)
        if not group["decoupled"]:
            torch._foreach_add_(d, y, alpha=weight_decay)
        if momentum != 0:
            buffer = part["buffer"]
            torch._foreach_mul_(buffer, momentum)
            torch._foreach_add_(buffer, d)
            d = list(torch._foreach_add(d, buffer, alpha=momentum)) if group["nesterov"] else buffer
        move = list(torch._foreach_mul(d, -lr))
        if group["decoupled"]:
            torch._foreach_sub_(move, torch._foreach_mul(y, lr * weight_decay))
        lists.move_x(x, kept, y, move, K)
