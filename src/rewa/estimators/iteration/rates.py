r"""Learning rates that need no tuning: of plain steps beside those of pairs, and of steps over batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rewa.estimators.iteration.loss import CURVATURE, Design, quotient
from rewa.estimators.iteration.pair import LARGEST_CHANGE, Parts
from rewa.estimators.iteration.state import Iteration

POWER_STEPS = 10  # of the first estimate; later ones start from the vector before


def plain_rates(state: Iteration, parts: Parts, L: Tensor) -> tuple[Tensor, Tensor]:
    """Rates of the plain steps over that of the pairs: by columns, as fast as the fastest pair, and of the intercepts.

    Args:
        state: The model.
        parts: Its parameters, or those of some columns.
        L: Curvatures of the loss in their coefficients.
    """
    m = parts.u.shape[1]
    plain = L[:, m:]
    if state.lr != "auto":
        return (plain > 0).to(L), torch.ones_like(parts.intercept)
    speed = float((parts.speed() * L[:, :m]).max()) if m else 0.0
    speed = speed if speed > 0 else 1.0
    return quotient(speed, plain), torch.full_like(parts.intercept, speed / CURVATURE[state.loss])


def stable_rate(state: Iteration, design: Design, weights: Tensor, plain_rate: Tensor, size: int) -> tuple[float, float]:
    r"""A learning rate for batches, and the largest speed of a coefficient that it holds for.

    .. math:: \eta = \frac{1/2}{\lambda_{\max}(D^{1/2} H D^{1/2}) + \mathrm{tr}(DH)/B}

    with :math:`D = K (s^{2-p} + t^{2-p})` and H a bound of the curvature of the loss; the eigenvalue by power iteration, whose
    vector is kept in the state. Decay alone takes no more than ``LARGEST_CHANGE`` of a part in a step.

    Args:
        state: The model.
        design: All rows of the pass.
        weights: Their weights.
        plain_rate: Entries of D for the columns without a penalty.
        size: Rows B in a batch.
    """
    parts = state.current()
    speeds = parts.speed()
    D = state.in_columns(torch.cat([speeds, plain_rate.expand(len(speeds), -1)], dim=1))
    root, share = D.sqrt(), weights / weights.sum()
    tiny = torch.finfo(D.dtype).tiny
    if state.direction is None:
        state.direction = _noise(state, D)
    vector = state.direction + 1e-3 * _noise(state, D)
    for _ in range(POWER_STEPS if state.steps == 0 else 2):
        vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=tiny)
        vector = root * design.backward(share[:, None] * design.forward(root * vector))
    largest = vector.norm(dim=1)
    state.direction = vector / largest[:, None].clamp(min=tiny)
    trace = (D * design.squares(share[:, None])).sum(dim=1)
    bound = CURVATURE[state.loss] * float((largest + trace / size).max())
    decays = LARGEST_CHANGE / float(parts.decay.max()) if len(parts.decay) else math.inf
    rate = min(0.5 / bound if bound > 0 else math.inf, decays)
    return rate if rate < math.inf else 1.0, float(speeds.max()) if speeds.numel() else 0.0


def _noise(state: Iteration, like: Tensor) -> Tensor:
    return torch.as_tensor(state.generator.randn(*like.shape), dtype=like.dtype).to(like.device)
