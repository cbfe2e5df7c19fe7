from __future__ import annotations

import math

import pytest

from rewa.schedules import SCHEDULES, learning_rates, rate_sum


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 1), (7, 0), (100, 13), (101, 100)])
def test_the_sum_is_that_of_the_rates_after_every_step(schedule, steps, warmup):
    rates = learning_rates(0.3, steps, schedule=schedule, warmup=warmup)
    sums = [rate_sum(0.3, steps, schedule=schedule, warmup=warmup, done=done) for done in range(steps + 1)]
    assert sums == pytest.approx([math.fsum(rates[:done]) for done in range(steps + 1)], abs=1e-12)
    assert rate_sum(0.3, steps, schedule=schedule, warmup=warmup) == sums[-1]


@pytest.mark.parametrize("given", [{"steps": 0}, {"steps": 5, "warmup": 5}, {"steps": 5, "done": 6}, {"steps": 5, "done": -1}])
def test_a_run_that_cannot_be_is_refused(given):
    with pytest.raises(ValueError, match=r"at least one step|Invalid done"):
        rate_sum(0.1, **given)
