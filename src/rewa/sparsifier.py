r"""Say how sparse: a target on the optimizer you already have.

A :class:`Sparsifier` hooks into ``optimizer.step``. It lengthens the steps of large weights, as ReWA does
(:mod:`rewa.optim.growth`), and between two points of the run it makes the weights zero that are worth least
(:mod:`rewa.optim.worth`), more and more of them, until the share that was asked for is met exactly.

The zeros are the mask: a weight that was cut stays at zero because it is zero. A checkpoint of the model and of its optimizer
is all that it takes to resume.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rewa.names import nearest
from rewa.optim import worth as worths
from rewa.optim.allowed import Allowed
from rewa.optim.cuts import Cuts
from rewa.optim.groups import Rules
from rewa.optim.growth import MASTER, NORMED, Grown, Growth, bounds, start_size, usual_growth
from rewa.optim.misuse import core
from rewa.optim.optimizer import LOW_PRECISION
from rewa.optim.target import Course, Evaluate, decided_for, pools_of, shares_of, trained_weights, unwrapped
from rewa.sparsity import Count, Summary, count, summary
from rewa.text_table import aligned
from rewa.weights import full, remember

__all__ = ["Sparsified", "Sparsifier"]

KEY = "sparsifier"  # in the optimizer's first parameter group: how far it is, and the sizes that the weights started with
WORDS = {"gradient": "magnitude times gradient", "magnitude": "magnitude"}
PATTERNS = ("unstructured",)
STEPS_OF_TORCH = Optimizer.profile_hook_step.__code__.co_filename  # where torch runs the hooks of a step

_live: weakref.WeakKeyDictionary[Optimizer, weakref.ref[Sparsifier]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Sparsified:
    """What :meth:`Sparsifier.finish` found and did."""

    summary: Summary  # of the whole model
    count: Count  # of the weights that were to become sparse
    target: float  # share of zeros that was asked for; with max_drop, what the value allowed
    before: float  # share of zeros before the last cut, which a run that came to its end does not need
    done: int
    steps: int
    value: float | None = None  # with max_drop: of the model as it is now, and the best one of the run
    best: float | None = None
    emptied: tuple[str, ...] = ()  # layers without any weight

    @property
    def sparsity(self) -> float:
        """Share of the weights that is exactly zero."""
        return self.count.sparsity

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as :func:`rewa.save_packed` keeps them."""
        return asdict(self)

    def __str__(self) -> str:
        zeros = self.count.total - self.count.nonzero
        text = f"{zeros:,} of {self.count.total:,} weights are zero ({self.sparsity:.2%}) after {self.done:,} steps"
        lines = [str(self.summary), text]
        if self.before < self.sparsity:
            lines.append(f"{self.before:.2%} were before the last cut, which no step of training has followed")
        if self.value is not None and self.best is not None:
            lines.append(f"value {self.value:.6g}, {self.best - self.value:.2g} below the best of the run")
        if self.emptied:
            lines.append(f"lost all their weights: {', '.join(self.emptied)}")
        return "\n".join(lines)


class Sparsifier:
    r"""Makes a share of a model's weights zero in the course of its training, on the optimizer that trains it.

    The training loop stays as it is: hooks on ``optimizer.step`` do the work. From ``begin`` to ``end`` of the run those
    weights of all layers together are cut that are worth least, by the cubic law of gradual pruning; a layer never loses its
    last weight as long as there are enough for all. What was cut stays zero, the rest trains on. From ``end`` on the number of
    zeros is exactly ``round(sparsity * weights)``.

    A weight x is worth its magnitude times the root mean square of its gradient (:mod:`rewa.optim.worth`). Its step is
    lengthened where it is large, beside the root mean square s that the weights of its layer started with
    (:func:`rewa.reparam.lengthening`):

    .. math:: \varphi(x) = 1 + \min(a\,|x|/s,\, b)

    ``torch.optim.SGD`` itself sees the gradient :math:`\varphi(x)\,g` and 1 + a times its decay. Any other optimizer sees the
    gradient as it is, and its step :math:`\Delta`, without AdamW's decay, becomes :math:`\varphi(x)\,\Delta`. Large weights
    learn faster, small ones change their sign as freely as before. For Adam and AdamW a is 3, or less where what is added at
    the highest learning rate up to now would be more than a tenth of the weight; b is infinite. For others a is 1, and b
    keeps a lengthened step at most that of the highest rate: large weights go on learning while the rate of the small ones
    falls. With ``growth=0``, and for LBFGS and optimizers of ReWA, steps are the optimizer's own.

    Steps are counted when the optimizer makes them: those that a GradScaler skips, and the backward passes of an accumulated
    gradient, are none. The state is a part of the optimizer's: save and load model and optimizer as always, and make the
    sparsifier before or after loading.

    Args:
        model: The model.
        optimizer: Any torch optimizer of its weights.
        steps: The number of optimizer steps in the whole run.
        sparsity: Share of the weights that is zero in the end; or shares for parts of the model,
            ``{regular expression: share}``. The expression must match the whole name of a parameter, and the first that does
            counts. Weights under one expression are cut together; those under none stay dense.
        compression: Instead of ``sparsity``: weights over nonzero weights, 20 for 95 % zeros.
        max_drop: Instead of ``sparsity``: most that the value of the model may lie below the best one of the run, in units of
            the value. The run becomes as sparse as that allows.
        evaluate: With ``max_drop``: takes the model and returns its value on validation data, larger is better.
        begin: Where the first cut is made, as a share of the run.
        end: Where the last cut is made.
        schedule: How the share of zeros rises in between: ``"cubic"`` (fast at first) or ``"linear"``.
        rules: Exceptions from which tensors are weights, as for :func:`rewa.param_groups`: ``{regular expression: None}`` keeps
            a tensor dense, ``{regular expression: {"sparse": True}}`` makes it sparse.
        growth: What a weight of the usual size adds to its step, as a multiple: a, and at most that for Adam; 3 there and 1
            elsewhere unless given.
        worth: Which weights are cut last: ``"gradient"``, those of large magnitude times gradient, or ``"magnitude"``. The
            default is the first, and for optimizers of ReWA the second. Gradual magnitude pruning is ``growth=0,
            worth="magnitude"``.
        pattern: Which zeros there may be: ``"unstructured"``, anywhere.

    Raises:
        ValueError: For a value out of range, a model without weights that can become sparse, an optimizer that does not train
            them, or one that has a sparsifier already. Nothing is changed then.

    Example:
        >>> model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1))
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> sparsifier = Sparsifier(model, optimizer, sparsity=0.9, steps=40)
        >>> for _ in range(40):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(8, 20)).square().mean().backward()
        ...     optimizer.step()
        >>> report = sparsifier.finish()
        >>> report.summary.prunable
        Count(total=1050, nonzero=105)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        steps: int,
        sparsity: float | Mapping[str, float] | None = None,
        compression: float | None = None,
        max_drop: float | None = None,
        evaluate: Evaluate | None = None,
        begin: float = 0.25,
        end: float = 0.75,
        schedule: str = "cubic",
        rules: Rules | None = None,
        growth: float | None = None,
        worth: str | None = None,
        pattern: str = "unstructured",
    ) -> None:
        self._check_types(model, optimizer)
        shares = shares_of(sparsity, compression, max_drop, evaluate)
        self.course = Course(steps, begin, end, schedule, in_levels=max_drop is not None)
        _check_step(growth, worth, pattern)
        self.model, self.optimizer, self.pattern = model, core(optimizer), pattern
        self.max_drop, self.evaluate = max_drop, evaluate
        decided, ruled = decided_for(unwrapped(model), rules)
        owned = trained_weights(decided, self.optimizer)
        self.pools = pools_of(owned, shares, bounded=max_drop is None)
        self.weights = {name: owned[name] for pool in self.pools for name in pool.names}
        self.growth = self._checked_growth(growth)
        self.worth = worth or ("magnitude" if self._is_rewa else "gradient")
        # Nothing was changed up to here, and nothing can fail from here on.
        if rules is not None:
            remember(unwrapped(model), ruled)
        self._begun, self._ended = False, False
        self._report: Sparsified | None = None
        self._make_parts()
        self._state()
        self._hook()

    def _make_parts(self) -> None:
        """What lengthens steps, what cuts, and what decides by a value how far to go."""
        self._growth = Growth(self.optimizer)
        self._cuts = Cuts(self.model, self.weights, self.pools, self._square)
        self._allowed: Allowed | None = None
        if self.max_drop is not None and self.evaluate is not None:
            self._allowed = Allowed(self._cuts, self.course, self.evaluate, self.max_drop)

    # ---------------------------------------------------------------------------------------------- the checks

    def _check_types(self, model: Any, optimizer: Any) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"Sparsifier needs the model first and its optimizer second, not {type(model).__name__} first")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"Sparsifier needs the optimizer that trains the model, not {type(optimizer).__name__}")
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            raise ValueError(
                "ZeroRedundancyOptimizer trains a part of the weights on each process, and no one sees its steps: shard the "
                "model by FSDP2 instead, or use DDP with a plain optimizer"
            )
        other = _live.get(core(optimizer))
        if other is not None and other() is not None:
            raise ValueError(
                f"this {type(core(optimizer)).__name__} has a sparsifier already: call its finish() or remove() first"
            )

    @property
    def _is_rewa(self) -> bool:
        """Whether the optimizer's own steps are ReWA's."""
        return bool(getattr(self.optimizer, "reads_rewa_keys", False))

    def _square(self, param: Tensor) -> Tensor | None:
        """The mean square of a weight's gradient, where that counts and is known."""
        if self.worth != "gradient":
            return None
        return self._growth.squares.get(param, worths.mean_square(self.optimizer.state.get(param, {}), param))

    def _checked_growth(self, growth: float | None) -> float:
        if not self._is_rewa:
            return usual_growth(self.optimizer) if growth is None else float(growth)
        if growth:
            raise ValueError(
                f"growth={growth} has no effect on {type(self.optimizer).__name__}, whose steps are ReWA's: leave it out"
            )
        return 0.0

    # --------------------------------------------------------------------------------------------- the course

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.course.steps

    @property
    def done(self) -> int:
        """Steps that the optimizer has made under this sparsifier."""
        return int(self._state()["done"])

    @property
    def sparsity(self) -> float:
        """Share of the weights that is exactly zero now."""
        return count(self.weights.values()).sparsity

    @property
    def target(self) -> float:
        """Share of zeros that the plan has for this step; with ``max_drop``, that of the last cut."""
        state = self._state()
        return float(state["share"]) if self.max_drop is not None else self._planned(state["done"])

    def _planned(self, done: int) -> float:
        """Share of zeros after so many steps."""
        part = self.course.part(done)
        return sum(pool.zeros(part) for pool in self.pools) / sum(pool.total for pool in self.pools)

    def _state(self) -> dict[str, Any]:
        """How far it is. It lives in the optimizer's groups, and so in every checkpoint of the optimizer."""
        if self._ended:
            return self._last
        group = self.optimizer.param_groups[0]
        if KEY not in group:
            if self._begun:
                warnings.warn(
                    "the optimizer's state was loaded from a checkpoint without a sparsifier: it starts at step 0 now",
                    stacklevel=3,
                )
            group[KEY] = {}
        state: dict[str, Any] = group[KEY]
        if not self._begun or "done" not in state or "masters" in state:
            self._complete(state)
        self._begun = True
        return state

    def _complete(self, state: dict[str, Any]) -> None:
        """Add what a new state has, or what one from a checkpoint lacks."""
        resumed = "done" in state
        for key, value in {"done": 0, "share": 0.0, "sizes": {}, "peaks": {}}.items():
            state.setdefault(key, value)
        if self._allowed is not None:
            self._allowed.begin(state)
        for index in range(len(self.optimizer.param_groups)):  # a distributed checkpoint loads the keys that are there already
            state["peaks"].setdefault(str(index), 0.0)
        missing = [name for name in self.weights if self.growth and name not in state["sizes"]]
        state["sizes"] |= {name: start_size(self.weights[name]) for name in missing}
        if missing and resumed:
            warnings.warn(
                f"the checkpoint has no first size of {missing[0]!r}"
                + (f" and {len(missing) - 1} more weights" if len(missing) > 1 else "")
                + ": it was made with other settings. Their present size is used",
                stacklevel=4,
            )
        for name, saved in state.pop("masters", {}).items():
            if (param := self.weights.get(name)) is not None:
                self.optimizer.state[param] = {key: _moved(value, param) for key, value in saved.items()}

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Let a checkpoint hold a copy, with the float32 state of weights in low precision.

        In its usual place torch rounds that state when it is loaded.
        """
        state = copy.deepcopy(self._state())
        found = {name: optimizer.state.get(param, {}) for name, param in self.weights.items()}
        low = {name for name, param in self.weights.items() if param.dtype in LOW_PRECISION}
        if masters := {name: dict(one) for name, one in found.items() if name in low and {MASTER, worths.SQUARE} & one.keys()}:
            state["masters"] = masters
        state_dict["param_groups"][0][KEY] = state

    # ---------------------------------------------------------------------------------------------- the hooks

    def _hook(self) -> None:
        _live[self.optimizer] = weakref.ref(self)
        before, after = (torch.compiler.disable(hook) for hook in (self._before, self._after))  # type: ignore[no-untyped-call]
        self._handles = [
            self.optimizer.register_step_pre_hook(before),
            self.optimizer.register_step_post_hook(after),
            self.optimizer.register_state_dict_post_hook(self._save),
        ]
        # Whoever looks at the weights after a step must find them stepped.
        hooks: Any = self.optimizer._optimizer_step_post_hooks  # an OrderedDict
        hooks.move_to_end(self._handles[1].id, last=False)

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if _is_inner(optimizer):
            return None
        closure = any(map(callable, (*args[1:], *kwargs.values())))
        if not (closure and self._growth.is_known):
            self._note(closure=closure)
        if not closure:
            return None
        given = {key: self._noting(value) if callable(value) else value for key, value in kwargs.items()}
        return (args[0], *(self._noting(value) if callable(value) else value for value in args[1:])), given

    def _note(self, *, closure: bool) -> None:
        """Let the weights be noted as they are before the step."""
        state = self._state()
        alone = next(reversed(self.optimizer._optimizer_step_pre_hooks)) == self._handles[0].id
        done = state["done"]
        noted = worths.share_of_step(done) if self.worth == "gradient" and done < self.course.last else None
        self._growth.before(self._grown(state), cutting=state["share"] > 0, closure=closure, alone=alone, noted=noted)

    def _noting(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure whose gradients come to be in the step: only after it are they known."""

        @functools.wraps(closure, updated=())
        def noted() -> Any:
            result = closure()
            if self._growth.is_known:  # torch's own SGD and Adam call it once, before they look at any gradient
                self._note(closure=False)
            else:
                self._growth.mask()
            return result

        return noted

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_inner(optimizer):
            return
        found_inf = getattr(optimizer, "found_inf", None)  # of a GradScaler that leaves it to a fused optimizer to skip a step
        if found_inf is not None and bool(found_inf.item()):
            self._growth.cancel()
            return
        self._growth.after()
        state = self._state()
        state["done"] += 1
        if state["done"] == self.steps + 1:
            warnings.warn(
                f"step {state['done']:,} of a run that was planned with steps={self.steps:,}: the zeros stay as they are. Give "
                "the number of optimizer steps in all epochs, so that the last cut is made in time",
                stacklevel=4,
            )
        if self.course.is_time(state["done"]):
            if self._allowed is not None:
                self._allowed.cut(state)
            else:
                part = self.course.part(state["done"])
                self._cuts.make(state, [pool.zeros(part) for pool in self.pools], last=part == 1)

    def _grown(self, state: dict[str, Any]) -> list[Grown]:
        """The weights with what their next step may be lengthened by."""
        rates: dict[int, tuple[float, float]] = {}  # now, and the highest up to now
        for index, group in enumerate(self.optimizer.param_groups if self.growth else ()):
            rate = group.get("lr")
            lr = 1.0 if rate is None else float(rate)  # an optimizer may choose its own
            peak = state["peaks"][str(index)] = max(lr, state["peaks"].get(str(index), 0.0))
            rates |= dict.fromkeys(map(id, group["params"]), (lr, peak))
        grown = []
        for name, param in self.weights.items():
            size = state["sizes"].get(name, 0.0)
            growth, most = self._bounds(size, *rates[id(param)]) if id(param) in rates else (self.growth, 0.0)
            grown.append(Grown(param, size, growth, most))
        return grown

    def _bounds(self, size: float, lr: float, highest: float) -> tuple[float, float]:
        return bounds(self.optimizer, growth=self.growth, size=size, lr=lr, highest=highest)

    # ------------------------------------------------------------------------------------------------ the end

    def finish(self, *, cut: bool = True) -> Sparsified:
        """End it: exactly as many zeros as were asked for, counted, and the optimizer as it was.

        A run that stops before its last cut is cut now, with a warning, since no training follows. Zeros may train again in
        later steps of the optimizer, unless :func:`rewa.freeze_zeros` keeps them.

        Args:
            cut: Whether to make the cuts that are missing; ``False`` leaves the weights as they are.

        Returns:
            A report: ``print`` it, or keep it in the file by ``rewa.save_packed(model, path, report=report.to_dict())``.
        """
        if self._report is not None:
            return self._report
        if self._ended:
            raise ValueError("this sparsifier was removed from its optimizer: make a new one")
        state = self._state()
        done, before = state["done"], self.sparsity
        self._growth.cancel()
        last = self.course.last
        if done < last:
            rest = ", and the rest of the cut is made now, without training after it"
            warnings.warn(
                f"finish() after {done:,} of {self.steps:,} steps, before the last cut at step {last:,}: {before:.2%} of the "
                "weights are zero" + (rest if cut and self.max_drop is None else ""),
                stacklevel=2,
            )
        if cut and self.max_drop is None:
            self._cuts.make(state, [pool.zeros() for pool in self.pools], last=True)
        value, best = (None, None) if self._allowed is None else self._allowed.end(state)
        emptied = tuple(name for name, param in self.weights.items() if not bool(full(param.detach().any())))
        if emptied:
            warnings.warn(
                f"no weight is left in {', '.join(emptied)}: such a layer returns a constant. A lower sparsity, or one of "
                "their own, keeps some",
                stacklevel=2,
            )
        share = float(state["share"])
        self.remove()
        self._report = Sparsified(
            summary=summary(self.model),
            count=count(self.weights.values()),
            target=self._planned(self.steps) if self.max_drop is None else share,
            before=before,
            done=done,
            steps=self.steps,
            value=value,
            best=best,
            emptied=emptied,
        )
        return self._report

    def remove(self) -> None:
        """Take the hooks and the state off the optimizer; the weights stay as they are."""
        self._growth.cancel()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if not self._ended:
            self._last = self._state()
            self._ended = True
            _live.pop(self.optimizer, None)
            self.optimizer.param_groups[0].pop(KEY, None)
            for param in self.weights.values():
                self._growth.forget(param)

    # --------------------------------------------------------------------------------------- copies and checkpoints

    def state_dict(self) -> dict[str, Any]:
        """How far it is, and what gradients were like. The optimizer's own ``state_dict()`` holds that as well."""
        found = {name: self.optimizer.state.get(param, {}).get(worths.SQUARE) for name, param in self.weights.items()}
        squares = {name: square.clone() for name, square in found.items() if square is not None}
        return copy.deepcopy(self._state()) | {"squares": squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another sparsifier was, for a checkpoint without the optimizer's state.

        Args:
            state: From :meth:`state_dict`.
        """
        if missing := set(self._state()) - set(state):
            raise ValueError(f"the state has no {', '.join(sorted(missing))}: it was not saved by a Sparsifier")
        if self.growth and (missing := set(self.weights) - set(state["sizes"])):
            raise ValueError(f"the state has no size of {sorted(missing)[0]!r}: it is of another model")
        self.optimizer.param_groups[0][KEY] = copy.deepcopy({key: value for key, value in state.items() if key != "squares"})
        squares = {self.weights.get(name): square for name, square in state.get("squares", {}).items()}
        self._growth.squares = {param: _moved(square, param) for param, square in squares.items() if param is not None}

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Sparsifier holds a model and hooks and is not pickled: save optimizer.state_dict(), which has its state"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Sparsifier:
        """A copy with copies of the model and the optimizer, which it hooks into."""
        twin: Sparsifier = object.__new__(type(self))
        memo[id(self)] = twin
        for key, value in vars(self).items():
            if key not in ("_handles", "_growth", "_cuts", "_allowed"):
                setattr(twin, key, copy.deepcopy(value, memo))
        twin._handles = []
        twin._make_parts()
        if self._handles:
            twin._hook()
        return twin

    # ------------------------------------------------------------------------------------------------ what it shows

    @property
    def line(self) -> str:
        """Where the run is, in a line for a progress bar."""
        done = self.done
        aim = f"of {self._planned(self.steps):.1%}" if self.max_drop is None else f"within {self.max_drop:g}"
        return f"step {done:,}/{self.steps:,}, zeros {self.sparsity:.1%} {aim}"

    def __repr__(self) -> str:
        return f"<Sparsifier of {len(self.weights)} tensors on {type(self.optimizer).__name__}: {self.line}>"

    def __str__(self) -> str:
        """What will be cut, when, and how the steps change."""
        state = self._state()
        course = self.course
        rows = [("weight", "shape", "count", "usual size")]
        for pool in self.pools:
            for name in pool.names:
                param, size = self.weights[name], state["sizes"].get(name)
                shape = "x".join(map(str, param.shape)) or "scalar"
                rows.append((name, shape, f"{param.numel():,}", "-" if size is None else f"{size:.3g}"))
        lines = [aligned(rows, "<<>>", rule=True)]
        if self.max_drop is not None:
            lines.append(f"as many zeros as the value allows: within {self.max_drop:g} of the best of the run")
        else:
            for pool in self.pools:
                left = pool.total - pool.zeros()
                text = f"{pool.total:,} weights to {left:,} ({pool.share:.4g} zeros)"
                lines.append(f"{pool.pattern}: {text}" if pool.pattern else text)
        lines.append(
            f"cuts: from step {course.first:,} to {course.last:,} of {self.steps:,}, every {course.every:,} steps, {course.law}"
            f", least {WORDS[self.worth]} first"
        )
        kind = type(self.optimizer).__name__
        if self.growth:
            bound = "at most that of the highest rate"
            if isinstance(self.optimizer, NORMED):
                bound = "what is added is at most a tenth of the weight"
            lines.append(
                f"steps: a weight of usual size moves up to {1 + self.growth:g} times as far as under {kind} alone, one near "
                f"zero as far; {bound} (ReWA with p = 1)"
            )
        else:
            lines.append(f"steps: those of {kind}")
        lines.append(self.line)
        return "\n".join(lines)


# --------------------------------------------------------------------------------------------------- the checks


def _is_inner(optimizer: Optimizer) -> bool:
    """Whether a step is part of another step of the same optimizer, as of a class that calls its parent's.

    torch runs the hooks for both. Whoever counts calls would be wrong after a step that failed; the frames are not.
    """
    found, frame = 0, sys._getframe(1)
    while frame is not None and found < 2:
        if frame.f_code.co_name == "wrapper" and frame.f_code.co_filename == STEPS_OF_TORCH:
            found += frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return found > 1


def _moved(value: Any, param: Tensor) -> Any:
    """A value of the optimizer's state, copied to where its weight is; counts of steps stay where they are."""
    if not isinstance(value, Tensor):
        return value
    return value.clone() if value.dim() == 0 else value.to(param.device, copy=True)


def _check_step(growth: float | None, worth: str | None, pattern: str) -> None:
    if growth is not None and (isinstance(growth, bool) or not 0 <= growth < math.inf):
        raise ValueError(f"Invalid growth: {growth} (allowed: a finite number >= 0, or None for the default)")
    if worth is not None and worth not in worths.KINDS:
        raise ValueError(nearest("worth", str(worth), worths.KINDS))
    if pattern not in PATTERNS:
        raise ValueError(nearest("pattern", pattern, PATTERNS))
