"""Cuts by an exact number; how methods use them is in tests/methods/test_masks.py."""

from __future__ import annotations

import pytest
import torch

from rewa.cutting import cut, largest, largest_of_all


def test_a_threshold_cuts_what_is_at_it():
    weight = torch.tensor([0.1, -0.2, 0.3, -0.0])
    cut([weight], 0.2)
    assert weight.tolist() == [0.0, 0.0, pytest.approx(0.3), 0.0]


@pytest.mark.parametrize(("last", "expected"), [(False, [1, 1, 0, 1]), (True, [0, 1, 1, 1])])
def test_of_equal_values_the_first_or_the_last_are_taken(last, expected):
    values = torch.tensor([1.0, 2.0, 1.0, 3.0])
    assert largest(values, 3, last=last).int().tolist() == expected


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("spare", [(), ("a", "c"), ("a", "b", "c")])
@pytest.mark.parametrize("count", range(13))
def test_the_count_is_exact_and_spared_layers_keep_their_largest(count, spare, last):
    """Against the obvious way: sort by whether a weight is spared, by magnitude, by position."""
    torch.manual_seed(count)
    sizes = {name: torch.randint(0, 3, (2, 2)).double() for name in "abc"}
    masks = largest_of_all(sizes, count, spare=spare, last=last)
    order = -1 if last else 1

    def best(places):
        return min(places, key=lambda place: (-place[2], order * place[1]))

    places = [(name, index, float(size)) for name in sizes for index, size in enumerate(sizes[name].flatten())]
    tops = {best([place for place in places if place[0] == name])[:2] for name in spare}
    ranked = [(place[:2] not in tops, -place[2], order * position, place[:2]) for position, place in enumerate(places)]
    expected = {place for *_, place in sorted(ranked)[:count]}
    assert {(name, index) for name in sizes for index, kept in enumerate(masks[name].flatten()) if kept} == expected
