from __future__ import annotations

import json
import math

import pytest

from rewa import cli, presets
from rewa.explain import Run, explain, to_text

CIFAR10 = {"K": 9, "M": 2, "weight_decay": 1e-4, "lr": 0.256, "momentum": 0.875, "epochs": 100, "steps_per_epoch": 196}


@pytest.mark.parametrize("preset", presets.PRESETS.values(), ids=lambda preset: preset.name)
def test_a_preset_is_its_own_nearest(preset):
    fields = ("K", "M", "eps", "lr", "weight_decay", "momentum", "decoupled")
    result = explain(Run(**{name: getattr(preset, name) for name in fields}))
    assert result["nearest_preset"] == preset.name


def test_budget_follows_the_run():
    base = explain(Run(**CIFAR10))["decay_budget"]
    assert base == pytest.approx(9 * 1e-4 * 0.256 * 19_600 / 2 / 0.125, rel=1e-3)  # a cosine's mean is one half
    assert explain(Run(**CIFAR10, schedule="constant"))["decay_budget"] == pytest.approx(2 * base, rel=1e-3)
    assert explain(Run(**CIFAR10, schedule="linear"))["decay_budget"] == pytest.approx(base, rel=1e-3)
    for variant in ({"decoupled": True}, {"optimizer": "adamw"}):
        assert explain(Run(**CIFAR10, **variant))["decay_budget"] == pytest.approx(base * 0.125, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Zero is absorbing"),
        ({"lr": 2e-4, "weight_decay": 0.25, "M": 4}, "Zero is hard to cross"),
        ({"weight_decay": 0.5, "M": 4}, "Growth: a weight that starts at 0.05"),
        ({}, "Low precision"),
        ({"optimizer": "adamw"}, "Adam cancels a constant scale"),
        ({"M": 0.5}, "Not an l_p penalty"),
        ({"weight_decay": 1e-6}, "Decay budget"),
        ({"weight_decay": 1e-2}, "supported weights may die"),
    ],
)
def test_each_trap_is_named(change, words):
    assert any(words in warning for warning in explain(Run(**{**CIFAR10, **change}))["warnings"])


def test_a_plain_setting_has_few_warnings():
    warnings = explain(Run(K=1, M=0, weight_decay=1e-2, lr=0.1, momentum=0.9))["warnings"]
    assert not any("absorbing" in warning or "Low precision" in warning for warning in warnings)


def test_text_and_json_have_the_same_content(capsys):
    arguments = [part for name, value in CIFAR10.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert cli.main(["explain", *arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert cli.main(["explain", *arguments]) == 0
    text = capsys.readouterr().out
    assert text == to_text(result) + "\n"
    assert result["configuration"] == "A"
    for warning in result["warnings"]:
        assert warning in text
    assert f"{result['ends_at']['end']:.2g}" in text
    assert math.isfinite(result["decay_budget"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--K", "0.5"], "Invalid K value: 0.5"),
        (["--momentum", "1"], "Invalid momentum value: 1.0"),
        (["--epochs", "0"], "at least one step"),
        (["--weight-decay", "-1"], "Invalid weight_decay value: -1.0"),
    ],
)
def test_bad_values_are_one_line_and_exit_code_2(arguments, message, capsys):
    assert cli.main(["explain", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", "--help"])
    assert stopped.value.code == 0
    assert "rewa explain --K 9" in capsys.readouterr().out
