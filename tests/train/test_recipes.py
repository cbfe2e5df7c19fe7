from __future__ import annotations

import dataclasses

import pytest

from rewa.baselines import METHODS, make, names
from rewa.baselines.dense import Dense
from rewa.baselines.rewa import ReWA
from rewa.baselines.spred import Spred
from rewa.presets import CIFAR10, IMAGENET
from rewa.train.recipes import RECIPES, override, recipe

DIGITS = RECIPES["digits"]


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("epochs=5", "epochs", 5),
        ("lr=1e-2", "lr", 0.01),
        ("clip_norm=none", "clip_norm", None),
        ("clip_norm=2", "clip_norm", 2.0),
        ("augment=true", "augment", True),
        ("channels_last=no", "channels_last", False),
        ("hidden=300,100", "hidden", (300, 100)),
        ("betas=(0.8, 0.9)", "betas", (0.8, 0.9)),
        ("stem = small", "stem", "small"),
    ],
)
def test_settings_are_typed(change, key, value):
    changed, _ = override(DIGITS, Dense(), [change])
    assert getattr(changed, key) == value
    assert type(getattr(changed, key)) is type(value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epoch=5", "did you mean 'epochs'"),
        ("k=3", "did you mean 'K'"),
        ("epochs=many", "epochs=many: this setting is a whole number"),
        ("epochs=2.5", "whole number"),
        ("lr=fast", "lr=fast: this setting is a number"),
        ("lr=nan", "finite"),
        ("augment=perhaps", "true or false"),
        ("betas=0.9", "a list such as"),
        ("epochs", "is not key=value"),
        ("name=other", "there is no setting 'name'"),
        ("epochs=0", "Invalid epochs: 0"),
        ("optimizer=lion", "allowed: sgd, adamw"),
        ("schedule=step", "allowed: constant, cosine, linear"),
        ("precision=float8", "Invalid precision"),
        ("accumulate=3", "cannot be run in accumulate=3 equal parts"),
        ("finetune_epochs=20", "Invalid finetune_epochs: 20"),
        ("warmup=1", "Invalid warmup"),
    ],
)
def test_what_is_not_a_setting_is_refused_with_a_remedy(change, message):
    with pytest.raises(ValueError, match=message):
        override(DIGITS, ReWA(), [change])


def test_methods_settings_are_set_too():
    changed, method = override(DIGITS, ReWA(strength=0.1), ["K=3", "eps=1e-3", "epochs=2"])
    assert (method.K, method.eps, method.strength, changed.epochs) == (3.0, 1e-3, 0.1, 2)


@pytest.mark.parametrize("name", METHODS)
def test_no_setting_means_two_things(name):
    """One --set serves recipe and method, so no method may have a setting with a recipe's name."""
    own = {field.name for field in dataclasses.fields(METHODS[name]) if field.init}
    assert not own & {field.name for field in dataclasses.fields(DIGITS)}


def test_plan_has_every_step_and_its_warm_up():
    plan = DIGITS.plan(16)
    assert plan.steps == 320
    assert plan.learning_rates[31] == pytest.approx(0.1)
    assert max(plan.learning_rates) == plan.learning_rates[31]
    assert plan.learning_rates[0] == pytest.approx(0.1 / 32)
    assert plan.coupled == pytest.approx(10)


def test_the_fine_tune_is_counted_in_the_epochs():
    assert DIGITS.finetuned(Dense()) == 0
    assert DIGITS.finetuned(Spred()) == 4
    assert dataclasses.replace(DIGITS, finetune_epochs=0).finetuned(Spred()) == 0
    tuned = dataclasses.replace(DIGITS, finetune_epochs=5)
    assert tuned.plan(16, finetune=5).steps + tuned.finetune_plan(16, 5).steps == DIGITS.plan(16).steps
    assert tuned.finetune_plan(16, 5).learning_rates[0] == pytest.approx(0.01)


def test_recipes_are_the_papers():
    cifar, imagenet = RECIPES["cifar10-resnet18"], RECIPES["imagenet-resnet50"]
    for one, preset in ((cifar, CIFAR10), (imagenet, IMAGENET)):
        for key in ("lr", "momentum", "epochs", "batch_size", "schedule"):
            assert getattr(one, key) == getattr(preset, key), key
        assert one.warmup * one.epochs == pytest.approx(preset.warmup_epochs)
    assert cifar.label_smoothing == imagenet.label_smoothing == 0.1


def test_images_grow_in_steps_of_32_whatever_the_number_of_epochs():
    short = dataclasses.replace(RECIPES["imagenet-resnet50"], epochs=8, image_size=32, last_image_size=96)
    assert [short.image_size_at(epoch) for epoch in range(8)] == [32, 32, 32, 32, 32, 32, 32, 96]
    assert DIGITS.image_size_at(3) is None


def test_unknown_names_get_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'digits'"):
        recipe("digit")
    with pytest.raises(ValueError, match=r"did you mean 'rewa\+rigl'"):
        make("rewa+rig")


def test_every_method_has_what_a_list_needs():
    for name in names():
        method = make(name)
        assert method.label == name
        assert method.line
        assert method.paper
        assert method.strength_is
        plan = DIGITS.plan(16)
        grid = method.grid(method.planned(plan))
        assert len(grid) == 4
        assert sorted(grid) == list(grid)


@pytest.mark.parametrize("name", names())
def test_a_run_twice_as_long_is_swept_equally_hard(name):
    """What a strength does over a run, not its number, is what a grid is about."""
    method, plan = make(name), DIGITS.plan(16)
    longer = dataclasses.replace(plan, learning_rates=tuple(rate for rate in plan.learning_rates for _ in range(2)))
    short, long = method.grid(method.planned(plan)), method.grid(method.planned(longer))
    if method.strength_is == "share of zeros":
        assert short == long
    elif name != "hard-concrete":  # a cost of the loss: it is the same in every step
        assert [2 * strength for strength in long] == pytest.approx(list(short))
