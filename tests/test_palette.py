"""The palette: a method looks alike everywhere, and methods that meet in front differ."""

from __future__ import annotations

import itertools

import pytest

from rewa.methods import names
from rewa.palette import COLORS, DARK, MARKERS, is_rewa, method_look


def test_a_look_belongs_to_the_name():
    assert method_look("gmp") == method_look("GMP")
    assert method_look("rewa (K=5)").color == method_look("rewa").color
    assert method_look("some method") == method_look("some method")
    assert method_look("some method") != method_look("another method")


def test_every_method_of_the_package_has_a_colour_and_marker_of_its_own():
    looks = {name: method_look(name) for name in names()}
    for one, other in itertools.combinations(looks, 2):
        assert looks[one] != looks[other], f"{one} and {other} look alike"


def test_blue_and_full_is_rewa_and_nothing_else():
    """But for the Sparsifier, which is often beside another form of ReWA."""
    for name in [*names(), "some method", "rewa-new", "lasso"]:
        look = method_look(name)
        assert (look.color == 0) == look.full == (is_rewa(name) and name != "sparsifier"), name


def test_the_methods_that_lead_differ_in_colour():
    front = ("rewa-annealed+gmp", "sparsifier", "gmp+ham", "gmp", "l1", "acdc+ham", "dense")
    assert len({method_look(name).color for name in front}) == len(front)


@pytest.mark.parametrize("deficiency", ["protan", "deutan", "tritan"])
def test_colours_are_told_apart_by_the_colour_blind(deficiency):
    """Simulated as by Machado, Oliveira and Fernandes (2009), no two colours are nearer than 0.08 in linear light."""
    matrices = {
        "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
        "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    }

    def seen(color):
        srgb = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in srgb]
        return [sum(weight * value for weight, value in zip(row, linear, strict=True)) for row in matrices[deficiency]]

    for one, other in itertools.combinations(COLORS, 2):
        assert max(abs(a - b) for a, b in zip(seen(one), seen(other), strict=True)) > 0.08, (one, other)


def test_a_dark_page_has_as_many_colours_and_every_marker_is_a_path():
    assert len(DARK) == len(COLORS)
    assert {look.marker for look in map(method_look, names())} <= set(MARKERS)
    assert all(path.startswith("M") and path.endswith("z") for path in MARKERS.values())
