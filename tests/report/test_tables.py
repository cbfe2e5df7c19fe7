from __future__ import annotations

import csv
import json
import math
import re
import statistics

import pytest

from rewa.palette import GREY, method_look
from rewa.record import scan
from rewa.report import compare, read, to_markdown, write
from rewa.report import comparison as built
from rewa.report.comparison import points_csv, table_csv, to_plain
from rewa.report.figure import draw
from rewa.report.findings import finding, message, prominent, top_range
from rewa.report.page import to_html
from rewa.report.tables import ladder


def page(comparisons, problems=()):
    """The page as text."""
    return to_html(built.page(comparisons, problems))


def payload(comparisons):
    """What the script of the page draws, with what is written once put in its place."""
    data = json.loads(page(comparisons).split('id="data">')[1].split("</script>")[0])
    options = [option for pick in data["picks"] for option in pick["options"]]
    for chart in [*data["panels"], *(panel for option in options for panel in option["panels"])]:
        for one in chart.get("series", ()):
            one |= data["shared"][one["look"]]
            if "xs" in one:
                one["xs"] = data["shared"][one["xs"]]
    return data


@pytest.fixture
def comparisons(tmp_path, saved):
    """The comparisons of hand-made records; a record that was saved before may be saved again under another name."""

    def compared(*records):
        for index, record in enumerate(records):
            saved(tmp_path, record | {"name": f"{index}-{record['name']}"})
        return compare(read(tmp_path))

    return compared


def entry(comparison, label):
    return {each.label: each for each in comparison.entries}[label]


def test_validation_chooses_and_test_is_read(comparisons, made):
    """The strength with the worse test score wins if it is better on validation data."""
    weak = made(strength=0.1, points=[(1000, 90.0, 99.0), (100, 80.0, 95.0)])
    strong = made(strength=0.2, points=[(1000, 91.0, 70.0), (100, 85.0, 60.0)])
    (comparison,) = comparisons(weak, strong)
    table = entry(comparison, "rewa").table
    assert {c: cell.mean for c, cell in table.items()} == {1: 70.0, 2: 60.0, 5: 60.0, 10: 60.0}
    assert table[10].chosen[0].run.strength == 0.2


def test_a_more_compressed_point_may_stand_for_a_less_compressed_one(comparisons, made):
    (comparison,) = comparisons(made(points=[(1000, 90.0, 89.0), (250, 92.0, 91.0), (100, 70.0, 69.0)]))
    table = entry(comparison, "rewa").table
    assert [table[c].mean for c in (1, 2, 5, 10)] == [91.0, 91.0, 69.0, 69.0]
    assert table[1].prunable == 4.0
    assert table[1].model == 1100 / 350


def test_of_equals_the_most_compressed(comparisons, made):
    (comparison,) = comparisons(made(points=[(500, 90.0, 1.0), (100, 90.0, 2.0), (200, 90.0, 3.0)]))
    cell = entry(comparison, "rewa").table[1]
    assert (cell.prunable, cell.mean) == (10.0, 2.0)


def test_low_loss_is_good(comparisons, made):
    low = made(strength=0.1, metric="loss", points=[(100, 0.3, 0.4)])
    high = made(strength=0.2, metric="loss", points=[(100, 0.9, 0.1)])
    (comparison,) = comparisons(low, high)
    assert entry(comparison, "rewa").table[10].mean == 0.4
    other = made("l1", metric="loss", points=[(100, 0.9, 0.1)])
    (comparison,) = comparisons(other)
    assert [each.label for each, _ in comparison.best(10)] == ["l1", "rewa"]


def test_mean_and_spread_over_seeds(comparisons, made):
    tests = [80.0, 83.0, 90.0]
    (comparison,) = comparisons(*(made(seed=seed, points=[(500, 50.0, test)]) for seed, test in enumerate(tests)))
    cell = entry(comparison, "rewa").table[2]
    mean = sum(tests) / 3
    assert cell.mean == pytest.approx(mean)
    assert cell.sd == pytest.approx(math.sqrt(sum((test - mean) ** 2 for test in tests) / 2))
    assert cell.n == 3


def test_one_seed_has_no_spread(comparisons, made):
    (comparison,) = comparisons(made())
    assert entry(comparison, "rewa").table[1].sd is None


def test_a_cell_needs_every_seed(comparisons, made):
    """Seed 1 ends at 5x: the method has no cell at 10x, though seed 0 gets there; another method is not touched."""
    far, near = made(seed=0, points=[(100, 90.0, 89.0)]), made(seed=1, points=[(200, 90.0, 87.0)])
    (comparison,) = comparisons(far, near, made("l1", seed=0), made("l1", seed=1))
    assert list(entry(comparison, "rewa").table) == [1, 2, 5]
    assert list(entry(comparison, "l1").table) == [1, 2, 5, 10]
    assert comparison.compressions == (1, 2, 5, 10)


def test_a_model_without_weights_is_never_chosen(comparisons, made):
    """Its compression is infinite; it would win every tie and every column."""
    (comparison,) = comparisons(made(points=[(500, 80.0, 79.0), (0, 99.0, 99.0)]))
    rewa = entry(comparison, "rewa")
    assert list(rewa.table) == [1, 2]
    assert rewa.table[1].mean == 79.0
    assert rewa.deployed.chosen == ()
    payload([comparison])
    finite, empty = csv.DictReader(points_csv([comparison]).splitlines())
    assert (finite["prunable_compression"], empty["prunable_compression"]) == ("2.0", "inf")


def test_a_metric_that_is_not_finite_is_never_chosen(comparisons, made):
    (comparison,) = comparisons(made(points=[(500, math.nan, 99.0), (500, None, 98.0), (500, 40.0, 39.0)]))
    assert entry(comparison, "rewa").table[2].mean == 39.0


def test_a_test_metric_that_is_not_finite_is_said(comparisons, made):
    runs = [made(seed=seed, points=[(500, 80.0, test)]) for seed, test in enumerate((70.0, math.nan))]
    (comparison,) = comparisons(*runs)
    assert math.isnan(entry(comparison, "rewa").table[2].mean)
    assert comparison.best(2) == []
    assert "not finite" in page([comparison])


def test_other_settings_are_another_comparison(comparisons, made):
    short, long = comparisons(made(epochs=2), made("l1", epochs=2), made(epochs=4))
    assert (short.title, long.title) == ("toy, epochs 2", "toy, epochs 4")
    assert [each.label for each in short.entries] == ["l1", "rewa"]
    for comparison in (short, long):
        assert any("differ in epochs (2, 4)" in warning for warning in comparison.warnings)
    assert "recipe.epochs" in page([short, long])


def test_validation_data_choose_the_learning_rate_as_they_do_the_strength(comparisons, made):
    """Seed by seed the better rate of the two; the rate is a budget that others should have as well."""
    slow, fast = ({"lr": lr} for lr in (0.1, 0.2))
    runs = [made(recipe=slow, points=[(500, 80.0, 70.0)]), made(recipe=fast, points=[(500, 81.0, 71.0)])]
    runs += [made(seed=1, recipe=slow, points=[(500, 80.0, 75.0)]), made(seed=1, recipe=fast, points=[(500, 79.0, 78.0)])]
    (comparison,) = comparisons(*runs, made("l1", recipe=slow), made("l1", recipe=slow, seed=1))
    assert [(each.test, each.run.lr) for each in entry(comparison, "rewa").table[2].chosen] == [(71.0, 0.2), (75.0, 0.1)]
    (warning,) = comparison.warnings
    assert "number of strengths (l1 1, rewa 2)" in warning


def test_an_inner_strength_that_follows_the_rate_is_no_other_method(comparisons, made):
    """Twice the rate is half the decay for the same shrinkage."""

    def one(lr, decay, points=((500, 80.0, 70.0),)):
        return made("rewa+gmp", recipe={"lr": lr}, settings={"on": {"K": 2, "strength": decay}}, points=points)

    runs = one(0.1, 2e-3), one(0.2, 1e-3, [(500, 81.0, 71.0)])
    assert entry(comparisons(*runs)[0], "rewa+gmp").table[2].mean == 71.0


def test_two_inner_strengths_at_one_rate_are_two_methods(comparisons, made):
    runs = [made("rewa+gmp", settings={"on": {"K": 2, "strength": decay}}) for decay in (1e-3, 2e-3)]
    (comparison,) = comparisons(*runs, made("rewa+gmp", recipe={"lr": 0.2}, settings={"on": {"K": 2, "strength": 1e-3}}))
    assert [each.label for each in comparison.entries] == ["rewa+gmp (on.strength=0.001)", "rewa+gmp (on.strength=0.002)"]


def test_other_data_are_another_comparison(comparisons, made):
    few = made(seed=1)
    few["data"] = few["data"] | {"train": 50}
    assert [comparison.title for comparison in comparisons(made(), few)] == ["toy, data train 50", "toy, data train 100"]


def test_a_recipe_in_other_words_is_the_same_comparison(comparisons, made):
    (comparison,) = comparisons(made(recipe={"line": "some words"}), made("l1", recipe={"line": "other words"}))
    assert ([each.label for each in comparison.entries], comparison.warnings) == (["l1", "rewa"], ())


def test_settings_of_a_method_make_it_another_one(comparisons, made):
    """Choosing among K on validation data would be a larger budget than the other methods have."""
    nine, five = made(settings={"K": 9, "M": 2}), made(settings={"K": 5, "M": 2})
    (comparison,) = comparisons(nine, five)
    assert [each.label for each in comparison.entries] == ["rewa (K=5)", "rewa (K=9)"]


def test_equal_budgets_are_not_warned_of(comparisons, made):
    (comparison,) = comparisons(*(made(method, seed=seed) for method in ("l1", "rewa") for seed in (0, 1)))
    assert comparison.warnings == ()


def test_unequal_seeds(comparisons, made):
    (comparison,) = comparisons(made("l1"), made("rewa"), made("rewa", seed=1))
    assert comparison.warnings == ("Unequal budgets: the methods differ in the number of seeds (l1 1, rewa 2).",)
    assert 'class="warnings"' in page([comparison])
    assert "number of seeds (l1 1, rewa 2)" in page([comparison])


def test_unequal_strengths(comparisons, made):
    runs = [made("l1", seed=0), made("l1", seed=1), made("rewa", seed=0), made("rewa", 0.02, seed=0), made("rewa", seed=1)]
    (comparison,) = comparisons(*runs)
    (warning,) = comparison.warnings
    assert "number of strengths (l1 1, rewa 1-2)" in warning


def test_unequal_epochs(comparisons, made):
    short = made("l1")
    short["epochs"] = short["epochs"][:2]  # stopped early, with the same recipe
    (comparison,) = comparisons(short, made("rewa"))
    (warning,) = comparison.warnings
    assert "number of epochs (l1 2, rewa 3)" in warning


def test_unlike_seeds_and_precisions(comparisons, made):
    (comparison,) = comparisons(made("l1", seed=0, precision="bfloat16"), made("rewa", seed=1))
    assert "different seeds (l1: 0; rewa: 1)" in comparison.warnings[0]
    assert "different numeric precision (l1 bfloat16, rewa float32)" in comparison.warnings[1]


def test_a_repetition_is_left_out(comparisons, made):
    """Of two runs that differ in nothing but luck, the second must not be a second chance."""
    (comparison,) = comparisons(made(points=[(500, 80.0, 79.0)]), made(points=[(500, 90.0, 89.0)]))
    assert entry(comparison, "rewa").table[1].mean == 79.0
    (warning,) = comparison.warnings
    assert "repeats" in warning


@pytest.mark.parametrize("status", ["running", "failed"])
def test_unfinished_runs_are_in_no_table(comparisons, made, status):
    (comparison,) = comparisons(made(), made(seed=1, status=status), made("l1", status=status))
    assert [each.label for each in comparison.entries] == ["rewa"]
    assert entry(comparison, "rewa").seeds == (0,)
    (warning,) = comparison.warnings
    assert "2 runs are unfinished" in warning
    assert len(comparison.runs) == 3


def test_nothing_finished(tmp_path, saved, made):
    saved(tmp_path / "runs", made(status="running"))
    written = write(tmp_path / "runs", tmp_path / "report.html")
    assert [path.name for path in written] == ["report.html", "report.csv", "report-table.csv"]
    assert "no run is finished yet" in to_markdown(tmp_path / "runs")


def test_deployed_is_the_smallest_that_keeps_the_metric(comparisons, made):
    """The mark is 95, of l1: rewa's 94 is within 1 of it, by exactly 1; its smaller file with 93 is not."""
    runs = [
        made("l1", points=[(500, 95.0, 60.0)], file_bytes=900),
        made("rewa", 0.1, points=[(400, 95.0, 70.0)], file_bytes=800),
        made("rewa", 0.2, points=[(200, 94.0, 72.0)], file_bytes=400),
        made("rewa", 0.3, points=[(100, 93.0, 99.0)], file_bytes=200),
        made("str", points=[(100, 93.0, 99.0)], file_bytes=100),
    ]
    (comparison,) = comparisons(*runs)
    rewa = entry(comparison, "rewa").deployed
    assert (rewa.file_bytes, rewa.dense_bytes, rewa.cell.mean, rewa.cell.prunable) == (400, 4400, 72.0, 5.0)
    assert entry(comparison, "l1").deployed.file_bytes == 900
    assert entry(comparison, "str").deployed.chosen == ()


def test_finding_names_the_furthest_compression_that_keeps_the_metric(comparisons, made):
    """Within 1 point of the best mean, 90: at 5x there is 89.5, at 10x only 60."""
    rewa = made("rewa", points=[(1000, 90.0, 90.0), (200, 89.0, 89.5), (100, 60.0, 60.0)])
    (comparison,) = comparisons(rewa, made("l1", points=[(1000, 90.0, 89.0), (200, 50.0, 51.0), (100, 40.0, 70.0)]))
    assert "At 5x" in finding(comparison)
    assert "rewa has 89.50 % (1 seed); the next, l1, has 51.00 %." in finding(comparison)


def test_top_range_is_not_ruined_by_collapsed_points(comparisons, made):
    rewa = made("rewa", points=[(1000, 90.0, 90.0), (200, 89.0, 89.0), (100, 10.0, 10.0)])
    (comparison,) = comparisons(rewa, made("l1", points=[(1000, 90.0, 88.0), (200, 10.0, 10.0), (100, 10.0, 10.0)]))
    low, high = top_range(comparison)
    assert low == pytest.approx(84.0)  # six times max_drop below the best
    assert 90 < high < 91


def test_top_range_reaches_the_best_of_a_compression(comparisons, made):
    """At 10x the best has lost 9 points, not collapsed: the contest there is worth seeing, 1.15 times as far down."""
    rewa = made("rewa", points=[(1000, 90.0, 90.0), (200, 89.0, 89.0), (100, 81.0, 81.0)])
    (comparison,) = comparisons(rewa, made("l1", points=[(1000, 90.0, 88.0), (200, 80.0, 80.0), (100, 70.0, 70.0)]))
    assert top_range(comparison)[0] == pytest.approx(90 - 1.15 * 9)


def test_ladder():
    assert ladder((1, 2, 5), 1) == (1,)
    assert ladder((1, 2, 5), 250) == (1, 2, 5, 10, 20, 50, 100, 200)
    assert ladder((1, 2, 5), 1000)[-1] == 1000


def test_damaged_and_foreign_records_are_named(tmp_path, saved, made):
    saved(tmp_path, made())
    broken = {
        "half": '{"format": 1, "name"',
        "binary": b"\xff\xfe\x00",
        "list": "[1, 2]",
        "foreign": '{"results": []}',
        "newer": json.dumps(made() | {"format": 2}),
        "status": json.dumps(made() | {"status": "done"}),
        "type": json.dumps(made() | {"epochs": 3}),
        "edges": json.dumps(made() | {"histogram": {"counts": [1], "edges": [0], "zeros": 0}}),
        "curve": json.dumps({key: value for key, value in made().items() if key != "curve"}),
    }
    for name, content in broken.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    runs, problems = scan(tmp_path)
    assert [run.name for run in runs] == ["toy-rewa-0.01-s0"]
    assert len(problems) == len(broken)
    for name, problem in zip(sorted(broken), problems, strict=True):
        assert str(tmp_path / name / "record.json") in problem
    assert "has no 'curve'" in problems[sorted(broken).index("curve")]
    assert "its format is 2" in problems[sorted(broken).index("newer")]
    with pytest.warns(UserWarning, match="left out") as warned:
        assert len(read(tmp_path)) == 1
    assert len(warned) == len(broken)
    with pytest.warns(UserWarning, match="left out"):
        write(tmp_path, tmp_path / "report.html", figures=False)
    assert "its format is 2" in (tmp_path / "report.html").read_text()


def test_no_valid_run_is_an_error(tmp_path):
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no run can be used: .*record\.json"):
        read(tmp_path)


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no record\.json"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent"):
        read([tmp_path / "absent"])


def test_damaged_times_leave_the_run(tmp_path, saved, made):
    folder = saved(tmp_path, made())
    (folder / "timing.json").write_text('{"epoch_seconds": ["soon"]}')
    with pytest.warns(UserWarning, match=r"timing\.json is left out"):
        (run,) = read(tmp_path)
    assert run.timing.epoch_seconds == ()


def test_read_takes_folders_files_and_each_run_once(tmp_path, saved, made):
    first, second = saved(tmp_path / "a", made()), saved(tmp_path / "b" / "deep", made(seed=1), timing=False)
    runs = read([tmp_path, first, second / "record.json"])
    assert [run.seed for run in runs] == [0, 1]
    assert [sum(run.timing.epoch_seconds) for run in runs] == [4.5, 0]


def test_csv_files(comparisons, made):
    compared = comparisons(made(seed=0), made(seed=1), made("l1", seed=0), made("l1", seed=1))
    points = list(csv.DictReader(points_csv(compared).splitlines()))
    assert len(points) == 4 * 2
    assert points[0]["test_accuracy"] == "89.0"
    assert float(points[1]["prunable_compression"]) == 10
    cells = list(csv.DictReader(table_csv(compared).splitlines()))
    assert len(cells) == 2 * 4
    assert (cells[0]["mean"], cells[0]["sd"], cells[0]["n"]) == ("89.0", "0.0", "2")
    assert "seed 1" in cells[0]["chosen"]


def test_markdown(tmp_path, saved, made):
    for seed, test in enumerate((80.0, 83.0)):
        saved(tmp_path, made("a|b", seed=seed, points=[(1000, 90.0, test)]))
    text = to_markdown(tmp_path)
    assert f"| a\\|b | 2 | 1 | 81.50 ± {statistics.stdev([80, 83]):.2f} (1x / 1x) |" in text
    assert to_markdown(read(tmp_path)) == text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {5, 7}


def test_write_leaves_all_files_and_the_same_bytes(tmp_path, saved, made):
    saved(tmp_path / "runs", made())
    written = write(tmp_path / "runs", tmp_path / "report.html")
    assert [path.name for path in written] == ["report.html", "report.csv", "report-table.csv", "report.png", "report.svg"]
    first = [path.read_bytes() for path in written]
    assert first[3].startswith(b"\x89PNG")
    assert b"<svg" in first[4]
    write([tmp_path / "runs"], tmp_path / "report.html")
    assert [path.read_bytes() for path in written] == first
    with pytest.raises(ValueError, match=r"must end in \.html"):
        write(tmp_path / "runs", tmp_path / "report.txt")


def test_text_from_records_cannot_leave_its_place(comparisons, made):
    """A name that closes the script element, or looks like a placeholder of the page, is only text."""
    nasty = "</script><script>alert(1)</script>{{data}}"
    compared = comparisons(made(nasty), made(recipe={"note": nasty}))
    text = page(compared, [nasty])
    assert "<script>alert" not in text
    assert text.count("<script") == 2
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert any(option["group"].endswith(nasty) for option in data["picks"][0]["options"])


def test_training_curves_are_thinned_and_it_is_said(comparisons, made):
    (comparison,) = comparisons(made(epochs=1001))
    text = page([comparison])
    (option,) = payload([comparison])["picks"][0]["options"]
    curve = option["panels"][0]["series"][0]
    epochs = curve["xs"]
    assert curve["label"] == "train loss"
    assert len(epochs) == len(curve["ys"]) == 200
    assert (epochs[0], epochs[-1]) == (1, 1001)
    assert "thinned to 200 epochs" in text
    assert "thinned" not in page(comparisons(made("l1", epochs=3))[:1])


def test_of_many_methods_the_nearest_to_the_front_are_drawn_in_colour(comparisons, made):
    """Ten methods, each a tenth of a point behind the one before; one reaches no further than 1x and is far behind there."""
    records = [made(method=f"m{number}", points=[(1000, 90.0, 90.0 - 0.1 * number), (100, 85.0, 87.0)]) for number in range(9)]
    (comparison,) = comparisons(*records, made(method="a", points=[(1000, 60.0, 60.0)]))
    assert prominent(comparison) == ["m0", "m1", "m2"]
    lines = {line.get_label(): line for line in draw([built.lines(comparison)]).axes[0].get_lines()}
    grey = {label for label, line in lines.items() if line.get_color() == GREY}
    assert grey == {"a", *(f"m{number}" for number in range(3, 9))}
    assert {lines[label].get_linewidth() for label in grey} == {0.9}
    assert {lines[label].get_linewidth() for label in lines.keys() - grey} == {2.0}


def test_the_sparsifier_stands_out_wherever_it_is(comparisons, made):
    scores = {"gmp": 92.0, "rewa-annealed": 86.0, "rewa": 85.5, "sparsifier": 85.0, "l1": 80.0, "dense": 70.0}
    (comparison,) = comparisons(*(made(name, points=[(1000, 95.0, test)]) for name, test in scores.items()))
    assert prominent(comparison) == ["gmp", "rewa-annealed", "sparsifier", "l1"]


def test_the_best_rewa_and_the_two_strongest_others_stand_out(comparisons, made):
    """Wherever ReWA is, its best is in colour; other forms of it are not, and the methods beside it are two."""
    scores = {"gmp": 92.0, "gmp+ham": 91.0, "l1": 90.0, "rewa": 85.0, "rewa-annealed": 86.0, "dense": 80.0}
    runs = [made(name, points=[(1000, 95.0, test)]) for name, test in scores.items()]
    (comparison,) = comparisons(*runs)
    assert prominent(comparison) == ["gmp", "gmp+ham", "rewa-annealed"]
    shown = {one.label: one for one in built.lines(comparison).series}
    assert {label for label, one in shown.items() if not one.muted} == {"gmp", "gmp+ham", "rewa-annealed"}
    axes = draw([built.lines(comparison)]).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()][:3] == ["gmp", "gmp+ham", "rewa-annealed"]
    assert len(axes.collections) == 0, "one seed has no band"


def test_a_method_looks_alike_whatever_is_beside_it(comparisons, made):
    """The marker and the colour of l1 are the same alone, among two and among ten, in front and at the end."""
    found = []
    for others in ([], ["rewa"], [f"m{number}" for number in range(9)]):
        records = [made(name, points=[(1000, 95.0, 80.0 + place)]) for place, name in enumerate([*others, "l1"])]
        (comparison,) = comparisons(*(record | {"recipe": record["recipe"] | {"note": len(others)}} for record in records))[-1:]
        (chart,) = payload([comparison])["panels"]
        (line,) = [one for one in chart["series"] if one["label"] == "l1"]
        found.append((line["color"], line["marker"], line["full"]))
        assert not line["muted"]
    assert set(found) == {(method_look("l1").color, method_look("l1").marker, method_look("l1").full)}


def test_who_leads_at_most_compressions_is_drawn_in_colour_wherever_it_ends(comparisons, made):
    """A mask leads from 1x to 5x and falls apart at 10x, where all others go on."""
    others = [made(method=f"m{number}", points=[(100, 87.0, 87.0)]) for number in range(9)]
    (comparison,) = comparisons(*others, made(method="mask", points=[(200, 91.0, 91.0), (100, 50.0, 50.0)]))
    assert prominent(comparison)[0] == "mask"


def repeated_runs(made, **tests):
    """Each method with its test metrics, one for each seed."""
    return [
        made(name.replace("_", "+"), seed=seed, points=[(200, 90.0, value)])
        for name, values in tests.items()
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ({"gmp": (90.0, 90.2), "l1": (88.0, 88.2), "dense": (70, 70)}, "GMP leads l1 by 2.0 points at 5x"),
        (
            {"gmp_ham": (90.0, 90.2), "rewa": (90.1, 89.8)},
            "GMP with HAM's step is 0.2 points ahead of ReWA at 5x, within the spread",
        ),
        # The lead is as wide as the seeds differ: nobody leads.
        (
            {"gmp": (91.0, 89.0), "rewa": (89.5, 87.5), "l1": (90.9, 88.9)},
            "GMP, ReWA and 1 more are level at 5x, within the spread",
        ),
        (
            {"gmp": (90.0, 90.2), "l1": (88.0, 88.2), "rewa": (85.1, 85.1)},
            "GMP leads l1 by 2.0 points at 5x; the best ReWA is 5.0 points behind",
        ),
        ({"rewa-annealed_gmp": (90.0, 90.2), "l1": (88.0, 88.2)}, "Annealed ReWA with GMP leads l1 by 2.0 points at 5x"),
        ({"gmp": (90.0,), "rewa": (89.0,)}, "GMP leads ReWA by 1.0 points at 5x (one seed)"),
        ({"gmp": (90.0, 90.2)}, "GMP has 90.10 % at 5x"),
        # A single seed that is ahead may be luck.
        ({"gmp": (90.0, 90.2), "l1": (99.0,), "rewa": (88.0, 88.2)}, "GMP leads ReWA by 2.0 points at 5x"),
    ],
)
def test_the_title_says_who_leads_or_that_nobody_does(comparisons, made, tests, said):
    (comparison,) = comparisons(*repeated_runs(made, **tests))
    assert message(comparison) == said
    assert built.lines(comparison).message == said
    assert draw([built.lines(comparison)]).axes[0].get_title(loc="left").replace("\n", " ") == said
    assert f"<h1>{said}</h1>".replace("'", "&#x27;") in page([comparison])


def test_the_title_of_a_loss_has_no_points(comparisons, made):
    runs = [made(name, metric="loss", points=[(200, 1.0, value)]) for name, value in {"gmp": 0.5, "rewa": 0.75}.items()]
    (comparison,) = comparisons(*runs)
    assert message(comparison) == "GMP leads ReWA by 0.25 at 5x (one seed)"


def cells_of(comparison):
    """The first table of the page: a row of cells for each method."""
    table = page([comparison]).split("<tbody>")[1].split("</tbody>")[0]
    return {re.search(r">([^<]+)</span><small", row)[1]: row.split("<td>")[2:] for row in table.split("</tr>") if "<td>" in row}


def test_bold_is_the_best_mean_of_repeated_runs_and_all_that_print_alike(comparisons, made):
    """A single seed is luck; 89.001 and 89.004 both print as 89.00."""
    repeated = {"gmp": 89.004, "l1": 89.001, "rewa": 88.9}
    records = [made(name, seed=seed, points=[(1000, 90.0, test)]) for name, test in repeated.items() for seed in (0, 1)]
    (comparison,) = comparisons(*records, made("spred", points=[(1000, 99.0, 99.0)]))
    bold = {name: "<strong>" in cells[0] for name, cells in cells_of(comparison).items()}
    assert bold == {"gmp": True, "l1": True, "rewa": False, "spred": False}


def test_a_tie_within_the_noise_is_bold_on_both_sides(comparisons, made):
    """90 and 89 with a spread of 2 over two seeds: the standard error of the difference is 2; 87 is beyond it."""
    spreads = {"gmp": (91.41, 88.59), "l1": (90.41, 87.59), "rewa": (88.41, 85.59)}
    records = [
        made(name, seed=seed, points=[(1000, 90.0, test)]) for name, tests in spreads.items() for seed, test in enumerate(tests)
    ]
    (comparison,) = comparisons(*records)
    assert {name: "<strong>" in cells[0] for name, cells in cells_of(comparison).items()} == {
        "gmp": True,
        "l1": True,
        "rewa": False,
    }


def test_one_seed_for_all_makes_nothing_bold(comparisons, made):
    (comparison,) = comparisons(made("l1"), made("rewa"))
    assert not any("<strong>" in cell for cells in cells_of(comparison).values() for cell in cells)


def test_rows_and_lines_of_the_page_are_sorted_best_first(comparisons, made):
    scores = {"a": 70.0, "b": 90.0, "c": 80.0, "dense": 60.0}
    (comparison,) = comparisons(*(made(name, points=[(1000, 95.0, test)]) for name, test in scores.items()))
    assert list(cells_of(comparison)) == ["b", "c", "a", "dense"]
    assert [one["label"] for one in payload([comparison])["panels"][0]["series"]] == ["b", "c", "a", "dense"]


def test_no_two_coloured_lines_share_a_colour(comparisons, made):
    """Of 16 methods those in front have the colours, one each, and the rest is grey."""
    names = ["rewa-annealed+gmp", "gmp+ham", "gmp", "l1", "dense", *(f"m{number:02}" for number in range(11))]
    (comparison,) = comparisons(*(made(name, points=[(1000, 95.0, 90.0 - place)]) for place, name in enumerate(names)))
    (chart,) = payload([comparison])["panels"]
    coloured = [one for one in chart["series"] if not one["muted"]]
    assert [one["label"] for one in coloured] == names[:3]
    assert len({one["color"] for one in coloured}) == 3
    (chart,) = payload(compare([run for run in comparison.runs if run.method in names[:3]]))["panels"]
    assert not any(one["muted"] for one in chart["series"])


def test_the_page_opens_on_the_run_that_its_first_sentence_is_about(comparisons, made):
    """Not on the most compressed one, where everything has collapsed."""
    points = [(1000, 90.0, 90.0), (100, 89.5, 89.5), (10, 20.0, 20.0)]
    (comparison,) = comparisons(
        made("l1", points=points), made("rewa", points=[(100, 80.0, 80.0), (10, 40.0, 40.0)]), made("gmp", points=points[:1])
    )
    assert finding(comparison).startswith("At 10x")
    (pick,) = payload([comparison])["picks"]
    assert pick["options"][pick["start"]]["group"] == "l1"


def test_a_method_without_a_point_has_no_line_and_no_legend(comparisons, made):
    (comparison,) = comparisons(made("l1"), made("rewa", points=[(500, 80.0, math.nan)]))
    (chart,) = payload([comparison])["panels"]
    assert [one["label"] for one in chart["series"]] == ["l1"]


def test_a_sweep_ends_with_a_table(comparisons, made):
    weak = [made("l1", 0.1, seed, points=[(1000, 90.0, 88.0 + seed), (100, 80.0, 70.0)], file_bytes=600) for seed in (0, 1)]
    strong = [made("l1", 0.2, seed, points=[(200, 85.0, 84.0)], file_bytes=400) for seed in (0, 1)]
    (comparison,) = comparisons(*weak, *strong, made("dense", points=[(1000, 91.0, 90.0)], file_bytes=4400))
    header, l1, chosen, dense = to_plain(comparison).splitlines()[-4:]
    assert re.split(r"  +", header) == ["method", "seeds", "5x", "smallest file"]
    assert re.split(r"  +", l1) == ["l1", "2", "84.00 ± 0.00", "none"]
    assert chosen.split() == ["0.2"]
    assert re.split(r"  +", dense) == ["dense", "1", "-", "4,400 bytes, 90.00"]
    assert max(map(len, to_plain(comparison).splitlines())) <= 100


def test_a_table_says_which_strengths_were_chosen(comparisons, made):
    better = {(0.1, 0), (0.2, 1)}
    pairs = [(strength, seed) for strength in (0.1, 0.2) for seed in (0, 1)]
    (comparison,) = comparisons(*(made("l1", *pair, points=[(200, 80.0 + (pair in better), 70.0)]) for pair in pairs))
    assert to_plain(comparison).splitlines()[-1].strip() == "0.1 to 0.2"


def test_the_page_tells_why_a_run_failed_and_who_else_trained_it(tmp_path, saved, made):
    shared = made(seed=1) | {"began_with": {"run": "toy-<b>-s1", "steps": 1200}}
    resumed = made(seed=2) | {"continued_by": [{"commit": "fedcba9876543210", "versions": {"rewa": "0.2.0"}}]}
    failed = made(seed=3, status="failed") | {"reason": "the loss is nan in epoch 2, step 7"}
    for record in (made(), shared, resumed, failed):
        saved(tmp_path, record)
    text = page(compare(read(tmp_path)))
    assert "its first 1,200 steps were trained by toy-&lt;b&gt;-s1" in text
    assert "begun by commit abc123, resumed by commit fedcba9876, rewa 0.2.0" in text
    assert "the loss is nan in epoch 2, step 7" in text
    (folder,) = tmp_path.glob("*-s2")
    (folder / "timing.json").write_text('{"epoch_seconds": [1.5, 1.5, 1.5], "steps": 48, "resumed": 2}')
    assert text.count("(resumed") == 0
    assert "4.5 s (resumed 2 times)" in page(compare(read(tmp_path)))
