"""RigL: the densities, one exchange of connections by hand, and what it conserves."""

from __future__ import annotations

import math

import pytest
import torch

from methods.steps import advance, begin, fitting, line, network, plain, run, slanted
from rewa.methods.method import Plan
from rewa.methods.rewa import ReWA
from rewa.methods.rigl import BoundRigL, RigL, erdos_renyi_kernel


def plan(steps: int, lr: float = 0.05) -> Plan:
    return Plan(learning_rates=(lr,) * steps, steps_per_epoch=4, momentum=0.9)


def fixed(bound: BoundRigL, *mask: bool) -> None:
    """Start from this mask of a single layer, in the place of a random one."""
    bound.masks = {"weight": torch.tensor([mask])}


# -------------------------------------------------------------------------------------------------------------- densities


def test_densities_are_proportional_to_sum_over_product():
    shapes = [(64, 32, 3, 3), (128, 64, 3, 3), (10, 512)]
    counts = erdos_renyi_kernel(shapes, 0.05)
    total = round(0.05 * sum(math.prod(shape) for shape in shapes))
    assert sum(counts) == total
    scale = total / (102 + 198 + 522)
    assert counts == pytest.approx([scale * 102, scale * 198, scale * 522], abs=1)


def test_layers_that_would_exceed_density_one_stay_dense():
    # 2001 weights over 5 + 150 + 250: the first layer would get 24.7 of its 6, the others share what it leaves.
    assert erdos_renyi_kernel([(2, 3), (100, 50), (100, 150)], 0.1) == [6, round(1995 * 150 / 400), round(1995 * 250 / 400)]
    # 300 over 2 + 20 + 110: 4.5 of 1, then 46 of 100 and 253 of 1000 with the other 299.
    assert erdos_renyi_kernel([(1, 1), (10, 10), (10, 100)], 300 / 1101) == [1, 46, 253]
    # Only once the second layer is dense does the third one exceed its size.
    assert erdos_renyi_kernel([(100, 100), (2, 2), (10, 10)], 9000 / 10104) == [8896, 4, 100]


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_counts_fit_their_layers_and_sum_exactly(density, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = [tuple(torch.randint(1, 40, (2 + index % 3,), generator=generator).tolist()) for index in range(6)]
    counts = erdos_renyi_kernel(shapes, density)
    sizes = [math.prod(shape) for shape in shapes]
    assert sum(counts) == max(6, round(density * sum(sizes)))
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))


def test_no_layer_is_left_without_a_connection():
    # 20 of 70009 weights in proportion to 500, 6, 200: 14.2, 0.2 and 5.7. The largest gives one to the second.
    assert erdos_renyi_kernel([(200, 300), (3, 3), (100, 100)], 20 / 70009) == [13, 1, 6]
    assert erdos_renyi_kernel([(200, 300), (3, 3), (100, 100)], 1 / 70009) == [1, 1, 1]
    method, model = RigL(strength=0.999, every=1), network()
    bound = begin(method, model, plan(20))
    for step in range(20):
        advance(bound, fitting, [step])
        assert [int(mask.sum()) for mask in bound.masks.values()] == [1, 1, 1]


def test_first_masks_are_random_by_torchs_seed_and_leave_the_share():
    masks = []
    for seed in (4, 4, 5):
        method, model = RigL(strength=0.9), torch.nn.Sequential(torch.nn.Linear(60, 50), torch.nn.Linear(50, 40))
        torch.manual_seed(seed)
        bound = begin(method, model, plan(10))
        masks.append(torch.cat([mask.flatten() for mask in bound.masks.values()]))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert int(masks[0].sum()) == 500


# -------------------------------------------------------------------------------------------------------------- exchanges


def test_the_share_that_moves_falls_as_a_cosine():
    method = RigL(strength=0.5)
    shares = {step: share for step in range(1000) if (share := method.moving_share(step, 1000)) is not None}
    assert list(shares) == list(range(25, 750, 25))
    assert shares[25] == pytest.approx(0.15 * (1 + math.cos(math.pi * 25 / 750)))
    assert shares[375] == pytest.approx(0.15)


def test_one_exchange_by_hand():
    method = RigL(strength=0.5, alpha=1.0, stop=1.0, every=2)
    model = line(0.4, -0.1, 0.3, 0.2, 9.0, 9.0, 9.0, 9.0)
    bound = begin(method, model, plan(4, lr=0.01))
    fixed(bound, True, True, True, True, False, False, False, False)
    loss = slanted(0.0, 0.3, 0.0, -0.1, 0.2, -0.5, 0.05, 0.1)
    advance(bound, loss, [0, 1])
    assert model.weight[0, 4:].tolist() == [0.0] * 4
    kept = model.weight.detach().clone()
    advance(bound, loss, [2])
    # Half of the four move: -0.1 and 0.2 are dropped; the largest gradients are then -0.5 and that of -0.1 itself.
    assert bound.masks["weight"].int().tolist() == [[1, 1, 1, 0, 0, 1, 0, 0]]
    assert model.weight[0, [0, 2]].tolist() == kept[0, [0, 2]].tolist()
    # Dropped and gained at once, it goes on with its value and its momentum; the new one waits at zero.
    momentum = 0.3 * (1 + 0.9 + 0.81)
    assert model.weight[0, 1].item() == pytest.approx(kept[0, 1].item() - 0.01 * momentum)
    assert model.weight[0, 3:].tolist() == [0.0] * 5
    advance(bound, loss, [3])
    assert model.weight[0, 5].item() == pytest.approx(0.01 * 0.5)


@pytest.mark.parametrize("on", [None, ReWA()], ids=["dense", "rewa"])
def test_every_layer_keeps_its_number_of_connections(on):
    method = RigL(strength=0.7, every=2) if on is None else RigL(strength=0.7, every=2, on=on)
    model = network()
    bound = begin(method, model, plan(60))
    counts = {name: int(mask.sum()) for name, mask in bound.masks.items()}
    assert sum(counts.values()) == 98 - round(0.7 * 98)
    first, changed = bound.masks, 0
    for step in range(60):
        before = bound.masks
        advance(bound, fitting, [step])
        assert {name: int(mask.sum()) for name, mask in bound.masks.items()} == counts
        moved = any(not torch.equal(mask, before[name]) for name, mask in bound.masks.items())
        assert not moved or (step % 2 == 0 and 0 < step < 45)
        changed += moved
    assert changed > 5
    assert any(not torch.equal(mask, first[name]) for name, mask in bound.masks.items())


def test_an_overflowed_gradient_costs_no_connection():
    method = RigL(strength=0.5, alpha=1.0, stop=1.0, every=1)
    model = line(0.4, 0.3, 0.5, 0.5)
    bound = begin(method, model, plan(10))
    fixed(bound, True, True, False, False)
    model.weight.grad = torch.tensor([[math.nan, math.inf, math.nan, math.nan]])
    bound.before_step(1)
    assert int(bound.masks["weight"].sum()) == 2


def test_connections_gained_under_rewa_start_against_their_gradient_and_grow():
    method = RigL(strength=0.5, alpha=1.0, stop=1.0, every=2, on=ReWA(strength=0.001))
    model = line(0.4, 0.3, 0.5, 0.5)
    bound = begin(method, model, plan(30, lr=0.01))
    fixed(bound, True, True, False, False)
    loss = slanted(0.0, 0.0, 3.0, -2.0)
    advance(bound, loss, range(3))
    size = 0.1 * math.sqrt((0.16 + 0.09 + 0.25 + 0.25) / 4)
    # By the cosine nearly both of the two connections move.
    assert bound.masks["weight"].tolist() == [[False, False, True, True]]
    assert model.weight[0].tolist() == [0.0, 0.0, pytest.approx(-size, rel=1e-3), pytest.approx(size, rel=1e-3)]
    advance(bound, loss, range(3, 12))
    assert model.weight[0, 2] < -2 * size
    assert model.weight[0, 3] > 2 * size


def test_trains_by_exchanging():
    torch.manual_seed(0)
    moving, _ = run(RigL(strength=0.6, every=3), plan(90, lr=0.1))
    assert fitting(moving) < 0.3 * fitting(network())
    assert sum(int((value != 0).sum()) for name, value in plain(moving).items() if "weight" in name) <= 39


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"Invalid alpha: 1\.5"):
        RigL(alpha=1.5)
    with pytest.raises(ValueError, match="Invalid every: 0"):
        RigL(every=0)
