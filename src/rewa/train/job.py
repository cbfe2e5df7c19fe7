"""A run to do, from the words of the command line to its data and its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rewa.methods import make
from rewa.methods.method import Method
from rewa.train.data import Data, mix
from rewa.train.datasets import load
from rewa.train.fast_net import FastNet
from rewa.train.models import build
from rewa.train.recipes import Recipe, override, recipe

__all__ = ["Job", "build_model", "job", "job_and_data", "load_data", "new_model"]

FITTED = 5000  # images that whitening filters are fitted to
WEIGHTS = 3  # what a seed is for, beside the data's own and the loop's


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do."""

    recipe: Recipe
    method: Method
    seed: int = 0
    variant: str = ""  # for the name of its folder: what sets it apart from others of the method
    name: str = ""  # of its folder; by default made from the rest

    def __post_init__(self) -> None:
        if self.name and (self.name != Path(self.name).name or self.name.startswith(".")):
            raise ValueError(f"Invalid name: {self.name!r} (allowed: the name of a folder inside --out, such as my-run)")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"Invalid seed: {self.seed} (allowed: a whole number from 0 to 2**32 - 1)")
        self.method.check()
        if not self.method.settled:
            raise ValueError(f"{self.method.label} wraps a method without a strength: give one, or take that of settle(plan)")

    @property
    def folder_name(self) -> str:
        """The name of the run's folder."""
        parts = [self.recipe.name, self.method.label, self.variant, f"{self.method.strength:.4g}", f"s{self.seed}"]
        return self.name or "-".join(part for part in parts if part)

    def settings(self) -> dict[str, Any]:
        """All that decides the outcome, as records hold it."""
        method = self.method
        return {
            "recipe": self.recipe.settings(),
            "method": {
                "name": method.label,
                "strength": method.strength,
                "strength_is": method.strength_is,
                "settings": method.settings,
            },
            "seed": self.seed,
        }


def job(recipe_name: str, method_name: str, **options: Any) -> Job:
    """A run from the words of the command line.

    Args:
        recipe_name: The name of the recipe.
        method_name: The name of the method.
        options: What :func:`job_and_data` takes beside them.
    """
    return job_and_data(recipe_name, method_name, **options)[0]


def job_and_data(
    recipe_name: str,
    method_name: str,
    *,
    strength: float | None = None,
    seed: int = 0,
    name: str = "",
    changes: Iterable[str] = (),
    root: Path | None = None,
    download: bool = False,
) -> tuple[Job, Data | None]:
    """A run from the words of the command line, and its data if the default strength took loading it.

    Args:
        recipe_name: The name of the recipe.
        method_name: The name of the method.
        strength: The strength of the method; by default the second of its grid for this run.
        seed: The seed.
        name: The name of the folder.
        changes: Settings to change, ``key=value``.
        root: Where the data is: its size decides how long a run is, and so the default strength.
        download: Whether missing data may be fetched.

    Returns:
        The run, and the data for :func:`rewa.train.run.train`, which need not load it again; None if it was not loaded.
    """
    chosen, method = override(recipe(recipe_name), make(method_name), changes)
    data = None
    if strength is not None:
        method = dataclasses.replace(method, strength=strength)
    if not method.settled:
        data = load_data(chosen, root, download)
        steps = data.steps_per_epoch(chosen.batch_size)
        plan = method.planned(chosen.plan(steps, finetune=chosen.finetuned(method)))
        method = method.settle(plan)
    return Job(recipe=chosen, method=method, seed=seed, name=name), data


def load_data(recipe: Recipe, root: Path | None = None, download: bool = False) -> Data:
    """The data of a recipe.

    Args:
        recipe: The recipe.
        root: Where the data is.
        download: Whether missing data may be fetched.
    """
    options = _given(recipe, "resize", "shift", "flips", "evaluation_size", "workers", "context")
    return load(recipe.data, root=root, validation=recipe.validation, download=download, augment=recipe.augment, **options)


def build_model(recipe: Recipe, data: Data) -> nn.Module:
    """The recipe's model for the data, with new weights, in float32.

    Args:
        recipe: The recipe.
        data: The data.
    """
    options = _given(recipe, "width", "stem", "blurpool", "hidden", "layers", "heads", "dropout")
    return build(recipe.model, classes=data.classes, inputs=data.example_shape, **options).float()


def new_model(recipe: Recipe, data: Data, seed: int) -> nn.Module:
    """The recipe's model as a run with this seed begins.

    Args:
        recipe: The recipe.
        data: The data.
        seed: The seed of the run.
    """
    torch.manual_seed(mix(seed, WEIGHTS))
    model = build_model(recipe, data)
    if isinstance(model, FastNet):
        images, _ = next(data.evaluation("train", batch_size=FITTED, limit=FITTED))
        model.whitening.fit(images)
    return model


def _given(recipe: Recipe, *keys: str) -> dict[str, Any]:
    return {key: getattr(recipe, key) for key in keys if getattr(recipe, key) is not None}
