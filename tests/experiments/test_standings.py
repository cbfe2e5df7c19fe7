"""Tables of who leads, on comparisons that are small enough to count by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from rewa.experiments.standings import leads, standings
from rewa.report.tables import Cell


@dataclass
class Point:
    """What a choice needs of a point."""

    score: float

    def validation(self, metric):
        return self.score


@dataclass
class Entry:
    method: str
    table: dict
    label: str = ""
    seeds: tuple = field(default=(0, 1))

    def __post_init__(self):
        self.label = self.label or self.method


def cell(validation, test):
    runs = [SimpleNamespace(seed=seed, metric="accuracy") for seed in range(len(test))]
    choices = zip(runs, validation, test, strict=True)
    return Cell(10.0, tuple(SimpleNamespace(run=run, point=Point(score), test=value) for run, score, value in choices))


def comparison(sign=1, **methods):
    entries = tuple(Entry(name.replace("_", "+"), {10.0: cell(*scores)}) for name, scores in methods.items())
    return SimpleNamespace(entries=entries, sign=sign, metric="accuracy" if sign > 0 else "loss")


METHODS = {
    "l1": ((80.0, 81.0), (79.0, 80.0)),
    "gmp": ((84.0, 84.0), (83.0, 82.0)),
    "rewa_gmp": ((85.0, 87.0), (84.0, 85.0)),
    "rewa": ((85.0, 85.0), (89.0, 89.0)),  # lucky on test data, which must not choose it
}


def body(lines):
    return [[part.strip() for part in line.split("|")[1:-1]] for line in lines[2:]]


def test_standings_of_both_splits():
    made = comparison(**METHODS)
    rows = body(standings(made, (10.0, 50.0)))
    assert rows[1] == ["gmp", "2", "82.50 ± 0.71", ""]
    rows = body(standings(made, (10.0,), "validation"))
    assert rows[2] == ["rewa+gmp", "2", "86.00 ± 1.41"]


def test_validation_data_choose_who_is_compared():
    (row,) = body(leads(comparison(**METHODS), (10.0, 50.0)))
    # Seed by seed rewa+gmp is 1 and 3 points ahead of gmp.
    assert row == ["10x", "rewa+gmp", "84.50 ± 0.71", "gmp", "82.50 ± 0.71", "+2.00 ± 1.41", "2 of 2"]


def test_a_method_with_fewer_seeds_takes_no_part():
    lucky = comparison(**METHODS, scad=((99.0,), (99.0,)))
    lucky.entries[-1].seeds = (0,)
    assert leads(lucky, (10.0,)) == leads(comparison(**METHODS), (10.0,))


def test_a_low_loss_leads():
    (row,) = body(leads(comparison(-1, gmp=((2.0,), (2.5,)), l1=((3.0,), (1.0,)), rewa=((1.0,), (2.0,))), (10.0,)))
    assert row[1::2] == ["rewa", "gmp", "+0.500"]


def test_without_a_rival_there_is_no_lead():
    assert body(leads(comparison(rewa=((85.0,), (82.5,))), (10.0,))) == []


def test_a_loss_has_three_digits():
    made = comparison(-1, gmp=((2.39, 2.4), (2.381, 2.383)), sparsifier=((2.3, 2.31), (2.301, 2.305)))
    assert body(standings(made, (10.0,)))[1] == ["sparsifier", "2", "2.303 ± 0.003"]
    assert body(leads(made, (10.0,)))[0][5:] == ["+0.079 ± 0.001", "2 of 2"]
