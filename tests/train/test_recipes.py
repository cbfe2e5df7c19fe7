from __future__ import annotations

import dataclasses
import math

import pytest

from rewa.methods import make, names
from rewa.methods.dense import Dense
from rewa.methods.ham import HAM
from rewa.methods.rewa import ReWA
from rewa.methods.rigl import RigL
from rewa.methods.spred import Spred
from rewa.presets import CIFAR10, IMAGENET
from rewa.train.recipes import RECIPES, override, recipe, setting_names

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
        ("compressions=1,inf", "compressions=1,inf: this setting is finite numbers"),
        ("compressions=,", "Invalid compressions"),
        ("compressions=0.5,2", "Invalid compressions: .* numbers >= 1"),
        ("hidden=20,0", "Invalid hidden"),
        ("recalibrate=0", "Invalid recalibrate: 0"),
        ("threads=0", "Invalid threads: 0"),
        ("workers=-1", "Invalid workers: -1 .*>= 0"),
        ("clip_norm=0", "Invalid clip_norm"),
        ("width=0", "Invalid width"),
        ("layers=-2", "Invalid layers"),
        ("heads=0", "Invalid heads"),
        ("validation=0", "Invalid validation"),
        ("max_drop=-1", "Invalid max_drop"),
        ("weight_decay=-1e-4", "Invalid weight_decay"),
        ("finetune_lr=-0.1", "Invalid finetune_lr"),
        ("label_smoothing=1", "Invalid label_smoothing: 1.0 .*from 0 to below 1"),
        ("momentum=1", "Invalid momentum"),
        ("betas=0.9,1", "Invalid betas"),
        ("dropout=1", "Invalid dropout"),
        ("image_size=0", "Invalid image_size"),
        ("resize_from=0.95", "Invalid resize_from and resize_to"),
    ],
)
def test_what_is_not_a_setting_is_refused_with_a_remedy(change, message):
    with pytest.raises(ValueError, match=message):
        override(DIGITS, ReWA(), [change])


def test_numbers_are_checked_without_the_command_line_too():
    for settings in ({"lr": math.inf}, {"lr": math.nan}, {"compressions": (1.0, math.nan)}, {"max_drop": math.inf}):
        (key,) = settings
        with pytest.raises(ValueError, match=f"Invalid {key}"):
            dataclasses.replace(DIGITS, **settings)
    least = {"recalibrate": 1, "workers": 0, "max_drop": 0.0, "momentum": 0.0, "weight_decay": 0.0, "compressions": (1,)}
    assert dataclasses.replace(DIGITS, **least).workers == 0


@pytest.mark.parametrize(("first", "last"), [(160, 200), (150, 192), (0, 32), (None, 192)])
def test_images_that_grow_are_multiples_of_32(first, last):
    with pytest.raises(ValueError, match=r"multiples of 32|Invalid image_size: 0"):
        dataclasses.replace(RECIPES["imagenet-resnet50"], image_size=first, last_image_size=last)
    assert dataclasses.replace(RECIPES["imagenet-resnet50"], image_size=100, last_image_size=None).image_size_at(5) == 100


def test_methods_settings_are_set_too():
    changed, method = override(DIGITS, ReWA(strength=0.1), ["K=3", "eps=1e-3", "epochs=2"])
    assert (method.K, method.eps, method.strength, changed.epochs) == (3.0, 1e-3, 0.1, 2)


def test_settings_of_the_method_below_are_set_too():
    _, method = override(DIGITS, make("rewa+rigl"), ["K=3", "alpha=0.2", "on_strength=0.01"])
    assert (method.on.K, method.alpha, method.on.strength) == (3.0, 0.2, 0.01)
    assert method.settings["on"] == {"name": "rewa", "strength": 0.01, "K": 3.0, "M": 2, "eps": 0.0}
    _, method = override(DIGITS, make("rewa+ham", strength=0.5), ["M=1", "beta=0.1"])
    assert (method.on.M, method.beta, method.on.strength) == (1.0, 0.1, 0.5)
    _, method = override(DIGITS, HAM(on=RigL()), ["alpha=0.25"])
    assert (method.alpha, method.on.alpha) == (0.25, RigL.alpha), "of two with one name it is the upper one's"
    _, method = override(DIGITS, HAM(on=RigL()), ["on.alpha=0.25"])
    assert (method.alpha, method.on.alpha) == (HAM.alpha, 0.25), "and this way the lower one's"
    with pytest.raises(ValueError, match=r"no setting 'on\.strength'"):
        override(DIGITS, make("rewa+rigl"), ["on.strength=0.1"])
    with pytest.raises(ValueError, match="no setting 'K'"):
        override(DIGITS, make("rigl"), ["K=3"])
    with pytest.raises(ValueError, match="no setting 'on'"):
        override(DIGITS, make("rewa+rigl"), ["on=dense"])


@pytest.mark.parametrize("name", names())
def test_no_setting_means_two_things(name):
    """One --set serves recipe and method, so no method may have a setting with a recipe's name."""
    known = setting_names(DIGITS, make(name))
    assert len(known) == len(set(known))
    own = {field.name for field in dataclasses.fields(make(name)) if field.init}
    assert not own & {field.name for field in dataclasses.fields(DIGITS)}
    assert own - {"on"} <= set(known)


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
