"""From a recipe to its data and its model, for every recipe there is."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

from rewa import cli
from rewa.experiments.sparsifier import Varied
from rewa.methods import make
from rewa.methods.dense import Dense
from rewa.methods.rewa import ReWA
from rewa.train import job as jobs
from rewa.train.job import Job, build_model, job, load_data
from rewa.train.recipes import RECIPES
from tiny_data import write_cifar10, write_fashion

DIGITS = RECIPES["digits"]


@pytest.fixture(autouse=True)
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def tiny(tmp_path, monkeypatch, folder):
    """A recipe with what its data's tiny copy needs, and where that is."""
    write_fashion(tmp_path / "fashion-mnist")
    write_cifar10(tmp_path / "cifar-10-batches-bin", monkeypatch)
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not to be. " * 150)

    def of(name):
        recipe = RECIPES[name]
        if recipe.data in ("digits", "shakespeare"):
            return recipe, tmp_path
        if recipe.data == "imagenet":
            return replace(recipe, validation=6, evaluation_size=64, workers=0), folder
        return replace(recipe, validation=5), tmp_path

    return of


@pytest.mark.parametrize("strength", [[], ["--strength", "0.01"]])
def test_a_command_loads_its_data_once(tmp_path, monkeypatch, strength):
    """Its size decides the default strength, and the run needs it, too."""
    loads, original = [], jobs.load

    def counted(*arguments, **options):
        loads.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(jobs, "load", counted)
    changes = [word for change in ("model=mlp", "hidden=8", "epochs=1", "compressions=1") for word in ("--set", change)]
    assert cli.main(["train", "digits", "--method", "l1", *strength, *changes, "--quiet", "--out", str(tmp_path)]) == 0
    assert loads == [("digits",)]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_model_for_its_data(tiny, name):
    recipe, root = tiny(name)
    data = load_data(recipe, root)
    inputs, targets = next(data.evaluation("validation", batch_size=1))
    model = build_model(recipe, data).eval()
    with torch.no_grad():
        logits = model(inputs)
    assert logits.shape == (*targets.shape, data.classes)
    assert logits.isfinite().all()
    assert logits.dtype == torch.float32
    if recipe.context is not None:
        assert inputs.shape[1] == recipe.context == model.context


def test_the_context_can_be_set(tiny):
    recipe, root = tiny("shakespeare-gpt")
    data = load_data(replace(recipe, context=16), root)
    assert data.example_shape == (16,)
    assert build_model(recipe, data).context == 16


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("name", ["cifar10-cpu", "fashion-mnist", "imagenet-resnet50"])
def test_augmentation_is_as_the_recipe_says(tiny, name, augment):
    recipe, root = tiny(name)
    assert load_data(replace(recipe, augment=augment), root).augment is augment


def test_what_cannot_be_augmented_says_so():
    with pytest.raises(ValueError, match="digits is not augmented"):
        load_data(replace(DIGITS, augment=True))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_has_32_bits(seed):
    with pytest.raises(ValueError, match=rf"Invalid seed: {seed} \(allowed: a whole number from 0 to 2\*\*32 - 1\)"):
        Job(recipe=DIGITS, method=Dense(strength=0.0), seed=seed)
    assert Job(recipe=DIGITS, method=Dense(strength=0.0), seed=2**32 - 1).seed == 2**32 - 1


@pytest.mark.parametrize(
    "name", ["dense", "l1", "rewa", "spred", "str", "hard-concrete", "ham", "rewa+ham", "gmp", "rewa+rigl"]
)
@pytest.mark.parametrize("strength", [math.nan, math.inf, -0.1])
def test_no_run_without_a_strength_that_makes_sense(name, strength):
    with pytest.raises(ValueError, match=f"Invalid strength: {strength}"):
        Job(recipe=DIGITS, method=make(name, strength=strength))


def test_a_share_of_zeros_is_below_one():
    with pytest.raises(ValueError, match="a share of zeros"):
        Job(recipe=DIGITS, method=make("gmp", strength=1.0))


def test_strengths_are_chosen_for_the_run_and_on_record():
    plan = DIGITS.plan(16)
    assert job("digits", "rewa").method.strength == float(f"{ReWA().grid(plan)[1]:.4g}")
    for given in (None, 0.5):
        chosen = job("digits", "rewa+gmp", strength=given, changes=["K=3"])
        assert chosen.method.strength == (given or 0.95)
        assert chosen.settings()["method"]["settings"]["on"]["strength"] == ReWA(K=3).grid(plan)[1]
    set_by_hand = job("digits", "rewa+gmp", changes=["on_strength=0.01", "eps=0.1"]).settings()["method"]["settings"]
    assert set_by_hand["on"] == {"name": "rewa", "strength": 0.01, "K": 9, "M": 2, "eps": 0.1}


def recorded() -> list[dict]:
    """The methods of all published records, each once."""
    files = sorted((Path(__file__).parents[2] / "results").glob("*/runs/*/record.json"))
    found = {json.dumps(json.loads(file.read_text())["method"], sort_keys=True) for file in files}
    return [json.loads(one) for one in sorted(found)]


def flat(settings: dict, path: str = "") -> dict:
    """Recorded settings by the names that options have."""
    found = {}
    for key, value in settings.items():
        if key == "on":
            found |= flat({one: value[one] for one in value if one != "name"}, f"{path}on.")
        elif key == "strength":
            found[f"{path.removesuffix('.')}_strength"] = value
        else:
            found[path + key] = value
    return found


def test_published_records_are_of_the_settings_that_the_same_method_has_today():
    """So that a sweep that is resumed knows its runs again."""
    methods = recorded()
    assert len({method["name"] for method in methods}) > 10
    for method in methods:
        built = Varied if method["name"] == Varied.name else partial(make, method["name"])  # of the ablation alone
        made = built(strength=method["strength"], **flat(method["settings"]))
        here = Job(recipe=DIGITS, method=made).settings()["method"]
        assert json.loads(json.dumps(here)) == method


def test_a_run_needs_every_strength():
    with pytest.raises(ValueError, match=r"rewa\+gmp wraps a method without a strength"):
        Job(recipe=DIGITS, method=make("rewa+gmp", strength=0.5))
    nest = job("digits", "rewa+ham+gmp", strength=0.5).settings()["method"]
    decay = ReWA().grid(DIGITS.plan(16))[1]
    assert (nest["name"], nest["strength"], nest["settings"]["on"]["strength"]) == ("rewa+ham+gmp", 0.5, decay)
    assert nest["settings"]["on"]["on"]["strength"] == decay
