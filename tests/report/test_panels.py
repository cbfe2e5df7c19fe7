from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from rewa.report.figure import draw
from rewa.report.files import publish, study_page
from rewa.report.look import STOPS, color, extents, ink, looks
from rewa.report.markdown import to_csv, to_markdown
from rewa.report.page import to_html
from rewa.report.panel import Axis, Bar, Bars, Cell, Heat, Histogram, Lines, Mark, Series, Table

PHONE = {"width": 360, "height": 740}
KS, MS = (3, 5, 7, 9, 11, 13), (0, 2, 4, 6, 8, 10)
MADE = {"command": "rewa reproduce fig1", "commit": None, "versions": {"rewa": "0.1.0", "torch": "2.13.0"}}


def loss_map(**changes):
    """As Figure 1: test loss by K and M, blank above M = K - 1."""
    rng = np.random.default_rng(0)

    def cell(K, M):
        if M > K - 1:
            return Cell(value=None, text="", says=())
        mean, sd = 1.0 + 0.95 * abs(M - 0.35 * K) / 6 + 0.04 * rng.random(), 0.01 + 0.05 * rng.random()
        return Cell(
            value=mean,
            text=f"{mean:.2f} ± {sd:.2f}",
            says=(f"K = {K}, M = {M}", "20 runs"),
            mark="★" if (K, M) == (7, 2) else None,
        )

    given = {
        "title": "Test loss by K and M",
        "caption": "Mean ± standard deviation of 20 runs; white where M > K - 1. The star is the best setting.",
        "x": Axis(label="M", values=MS),
        "y": Axis(label="K", values=KS),
        "cells": [[cell(K, M) for M in MS] for K in KS],
        "label": "test loss",
        "low": 1.0,
        "high": 2.0,
    }
    return Heat(**given | changes)


def success_map():
    """Share of 20 runs that succeed, with the share that a theory predicts."""
    rng = np.random.default_rng(1)
    scales = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    predicted = [[1 / (1 + math.exp(-2 * (math.log10(s) + 0.25 * K - 0.6))) for s in scales] for K in KS]
    counts = [[int(rng.binomial(20, share)) for share in row] for row in predicted]
    return Heat(
        title="Runs that find the sparse solution",
        caption="Share of 20 runs. The theory is too hopeful where the strip is bluer than the cell.",
        x=Axis(label="initial scale", values=scales, log=True),
        y=Axis(label="K", values=KS),
        cells=[[Cell(value=count / 20, text=f"{count}/20") for count in row] for row in counts],
        label="share of successful runs",
        low=0.0,
        high=1.0,
        reverse=True,
        overlay=predicted,
        overlay_label="share that Theorem 3.9 predicts",
    )


def sparsity_lines():
    """As Figure 2: weights above a threshold, some of them none."""
    rng = np.random.default_rng(2)
    thresholds = [10.0**e for e in np.linspace(-7, -3, 9)]

    def series(label, level, reach):
        points = []
        for threshold in thresholds:
            y = level * max(0.0, 1 - (math.log10(threshold) + 7) / reach) ** 3
            sd = 0.3 * y + 2 * rng.random()
            y = round(y, 1)
            points.append(Mark(x=threshold, y=y, low=y - sd, high=y + sd, says=("5 seeds",)))
        return Series(label=label, marks=points)

    return Lines(
        title="Weights above a threshold",
        caption="Mean of 5 seeds; the band is one standard deviation.",
        x="sparsity threshold",
        y="number of weights above the threshold",
        series=[
            series("SGD", 9800, 30),
            series("l1", 4000, 6),
            series("spred", 2100, 5),
            series("ReWA, K=3", 900, 4),
            series("ReWA, K=9", 300, 2.6),
        ],
        x_log=True,
        y_log=True,
    )


def share_lines():
    """Measured shares with error bars beside dashed predictions on a finer grid."""
    rng = np.random.default_rng(3)
    series = []
    for K, middle in ((3, -1.2), (5, -2.0), (9, -3.1)):

        def share(x, middle=middle):
            return 1 / (1 + math.exp(-3 * (math.log10(x) - middle)))

        points = []
        for x in (10.0**e for e in np.arange(-5, 0.1, 0.5)):
            got = rng.binomial(20, share(x)) / 20
            error = math.sqrt(got * (1 - got) / 20)
            points.append(Mark(x=x, y=got, low=got - error, high=got + error, says=(f"{20 * got:.0f} of 20 runs",)))
        fine = [Mark(x=10.0**e, y=share(10.0**e)) for e in np.linspace(-5, 0, 41)]
        series.append(Series(label=f"K = {K}, measured", marks=points, bars=True))
        series.append(Series(label=f"K = {K}, predicted", marks=fine, dashed=True, markers=False, of=f"K = {K}, measured"))
    return Lines(
        title="Successes against the initial scale",
        caption="Error bars: one standard error of a share of 20 runs. Dashed: what the theory predicts.",
        x="initial scale",
        y="share of successful runs",
        series=series,
        x_log=True,
        y_range=(0.0, 1.0),
        reference=((0.5, "half of the runs"),),
    )


def settings_table():
    return Table(
        title="Settings", caption="The same for all.", header=["setting", "value"], rows=[["steps", "20000"], ["lr", "0.01"]]
    )


def lifelike():
    return [loss_map(), success_map(), sparsity_lines(), share_lines(), settings_table()]


def contrast(one, other):
    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        return sum(
            w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
            for w, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True)
        )

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_run_from_blue_to_red():
    heat = loss_map()
    assert [color(value, heat) for value in (1.0, 1.5, 2.0)] == [STOPS[0], STOPS[3], STOPS[-1]]
    assert [color(value, loss_map(reverse=True)) for value in (1.0, 2.0)] == [STOPS[-1], STOPS[0]]
    assert color(10.0, loss_map(log=True, low=1.0, high=100.0)) == STOPS[3]
    assert [color(value, heat) for value in (None, math.nan)] == [None, None]
    assert [color(value, heat) for value in (-math.inf, math.inf)] == [STOPS[0], STOPS[-1]]  # a run that diverged is red


def test_text_can_be_read_on_every_colour():
    shades = [color(value, loss_map()) for value in np.linspace(1, 2, 101)]
    assert min(contrast(shade, ink(shade)) for shade in shades) >= 4.5
    assert min(contrast(shade, "#FFFFFF") for shade in shades) > 1.15  # no cell is taken for a blank one


def one_line(*ys, **changes):
    points = [Mark(x=index + 1, y=y) for index, y in enumerate(ys)]
    return Lines(**{"title": "t", "caption": "", "x": "x", "y": "y", "series": [Series(label="a", marks=points)]} | changes)


def test_a_zero_has_a_place_on_a_logarithmic_axis():
    _, y = extents(one_line(5000, 30, 0, y_log=True))
    assert (y.low, y.zero) == (0, 10)
    assert extents(one_line(5000, 30, y_log=True))[1].zero is None
    assert extents(one_line(5000, 30, 0, y_log=True, y_range=(1, 1e4)))[1].zero == 1


def test_a_band_that_almost_reaches_zero_does_not_stretch_a_logarithmic_axis():
    points = [Mark(x=1, y=10, low=1e-9, high=20), Mark(x=2, y=100, low=-50, high=150)]
    _, y = extents(one_line(series=[Series(label="a", marks=points)], y_log=True))
    assert 0.5 < y.low < 1
    assert y.high > 150


def test_a_prediction_has_the_colour_of_what_it_predicts():
    found = looks(share_lines())
    assert [look.color for look in found] == [0, 0, 1, 1, 2, 2]
    assert [look.marker for look in found[::2]] == [look.marker for look in found[1::2]]
    assert [look.dash for look in found[::2]] == [(), (), ()]
    assert len({look.dash for look in found[1::2]} - {()}) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loss_map(cells=[[Cell(value=1.0)]]), "cells of 'Test loss by K and M' must be 6 rows of 6"),
        (lambda: loss_map(overlay=[[0.0] * 5] * 6), "overlay of"),
        (lambda: loss_map(low=2.0), "cannot go from 2.0 to 2.0"),
        (lambda: loss_map(low=0.0, log=True), "cannot go from 0.0 to 2.0"),
        (lambda: one_line(series=[Series(label="a", marks=[])] * 2), "the same label"),
        (lambda: one_line(series=[Series(label="a", marks=[], of="b")]), "is called 'b'"),
        (lambda: one_line(1.0, -1.0, y_log=True), "no place for a negative value"),
        (lambda: Table(title="t", caption="", header=["a", "b"], rows=[["1"]]), "must have 2 cells"),
        (lambda: draw([settings_table()]), "nothing to draw"),
    ],
)
def test_panels_that_cannot_be_drawn(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_figure_has_a_place_for_each_chart():
    figure = draw(lifelike())
    figure.draw_without_rendering()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title] == [panel.title for panel in lifelike()[:4]]
    assert len({axes.get_subplotspec().get_geometry()[:2] for axes in figure.axes if axes.get_subplotspec()}) == 1
    heat, lines = figure.axes[0], figure.axes[2]
    assert sum(cell.value is not None for row in loss_map().cells for cell in row) == len(heat.patches) == 26
    assert [label.get_text() for label in heat.get_yticklabels()] == [str(K) for K in KS]
    assert "0" in [label.get_text() for label in lines.get_yticklabels()]
    assert len(lines.lines) == 5


def test_figure_in_one_row():
    panels = lifelike()
    wide, tall = draw(panels, columns=4).get_size_inches(), draw(panels, columns=1).get_size_inches()
    assert wide[0] > 15
    assert tall[1] > 13


def test_figure_shows_the_overlay_beside_each_cell():
    axes = draw([success_map()]).axes[0]
    assert len(axes.patches) == 2 * 30
    assert axes.get_xlabel() == "initial scale\n▬ lower strip: share that Theorem 3.9 predicts"


def test_bars_and_histograms_are_drawn_and_listed():
    bars = Bars(title="Layers", caption="", bars=[Bar(label="0.weight", value=0.25, text="1 of 4")])
    sizes = Histogram(
        title="Sizes", caption="", x="size", y="weights", edges=(-2.0, -1.0, 0.0), counts=(3, 5), cut=(0.05, "cut")
    )
    left, right = draw([bars, sizes]).axes
    assert [bar.get_width() for bar in left.patches] == [0.25]
    assert [text.get_text() for text in left.get_yticklabels()] == ["0.weight"]
    assert right.patches[0].get_data().values.tolist() == [3, 5]
    lines = to_markdown([bars, sizes]).splitlines()
    assert "| 0.weight | 1 of 4 |" in lines
    assert "| 0.01 to 0.1 | 3 |" in lines
    assert "cut." in lines
    with pytest.raises(ValueError, match="one more is needed"):
        replace(sizes, counts=(1,))


def test_dollars_are_not_formulas():
    draw([one_line(1.0, 2.0, title="from $1 to $2_")]).draw_without_rendering()


def test_markdown_of_a_heat_map():
    heat = loss_map(
        x=Axis(label="M", values=(0, 2)),
        y=Axis(label="scale", values=(0.001,), log=True),
        cells=[[Cell(value=1.5, text="1.50 ± 0.1", mark="★"), Cell(value=None)]],
        overlay=[[0.25, None]],
        overlay_label="predicted",
        caption="a | b",
    )
    assert to_markdown([heat]).splitlines() == [
        "### Test loss by K and M",
        "",
        "| scale ↓ M → | 0 | 2 |",
        "| --- | ---: | ---: |",
        "| 10⁻³ | 1.50 ± 0.1 ★ (0.25) |  |",
        "",
        "a \\| b",
        "",
        "Numbers: test loss.",
        "",
        "In brackets: predicted.",
    ]


def test_markdown_of_lines():
    series = [
        Series(label="a", marks=[Mark(x=1, y=2.0, low=1.5, high=2.5), Mark(x=1000, y=math.nan)]),
        Series(label="b", marks=[Mark(x=2, y=7.0), Mark(x=1000, y=12345.0)], dashed=True),
    ]
    lines = to_markdown([one_line(series=series, reference=((1.0, "Bayes loss"),))]).splitlines()
    assert lines[2:7] == [
        "| y ↓ x → | 1 | 1000 |",
        "| --- | ---: | ---: |",
        "| a | 2 [1.5, 2.5] | not finite |",
        "| b |  | 12,345 |",
        "| Bayes loss | 1 | 1 |",
    ]
    assert "the CSV file has all" in lines[-1]


def test_csv_has_every_number():
    rows = list(csv.DictReader(io.StringIO(to_csv(lifelike()))))
    found = {title: [row for row in rows if row["panel"] == title] for title in {row["panel"] for row in rows}}
    assert [len(found[panel.title]) for panel in lifelike()] == [36, 30, 45, 3 * 11 + 3 * 41 + 1, 2]
    for row, cell in zip(found["Test loss by K and M"], [cell for cells in loss_map().cells for cell in cells], strict=True):
        assert row["value"] == ("" if cell.value is None else repr(float(cell.value)))
    first, point = found["Weights above a threshold"][0], sparsity_lines().series[0].marks[0]
    assert [float(first[key]) for key in ("x", "value", "low", "high")] == [point.x, point.y, point.low, point.high]


def test_write_gives_the_same_files_again(tmp_path):
    given = {"title": "A page", "lead": "What was found.", "panels": lifelike(), "provenance": MADE}
    paths = publish(tmp_path / "new", "fig1", **given)
    assert [path.name for path in paths] == ["fig1.html", "fig1.md", "fig1.csv", "fig1.png", "fig1.svg"]
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in publish(tmp_path / "new", "fig1", **given)] == before
    assert paths[1].read_text().startswith("# A page\n\nWhat was found.\n\n### Test loss")
    only = publish(tmp_path / "table", "t", **given | {"panels": [settings_table()]})
    assert [path.suffix for path in only] == [".html", ".md", ".csv"]


def odd():
    """Values that are not finite, nothing at all, and names that are markup."""
    nasty = '</script><b>bold</b> {{data}} & "quoted" $x'
    nan, inf = math.nan, math.inf
    cells = [[Cell(value=nan, text=nasty, says=(nasty,)), Cell(value=inf, text="inf", mark="<"), Cell(value=None, text="none")]]
    axes = {"x": Axis(label=nasty, values=(1, nasty, inf)), "y": Axis(label=nasty, values=(nan,))}
    points = [
        Mark(x=1, y=1),
        Mark(x=2, y=nan),
        Mark(x=3, y=0, low=nan, high=inf),
        Mark(x=4, y=inf),
        Mark(x=5, y=2, low=-1),
    ]
    series = [
        Series(label=nasty, marks=[*points, Mark(x=nan, y=1), Mark(x=inf, y=2)]),
        Series(label="empty", marks=[]),
        Series(label="not one", marks=[Mark(x=1, y=nan)], bars=True),
    ]
    lines = {"caption": nasty, "x": nasty, "y": nasty, "reference": ((1.0, nasty), (1.01, "near"))}
    return [
        loss_map(title=nasty, caption=nasty, cells=cells, label=nasty, overlay=[[0.5, nan, inf]], overlay_label=nasty, **axes),
        *(Lines(title=f"{log} {nasty}", series=series, y_log=log, x_log=log, **lines) for log in (False, True)),
        Lines(title="nothing", caption="", x="x", y="y", series=[], y_log=True),
        Table(title=nasty, caption=nasty, header=[nasty, "b"], rows=[[nasty, nasty]]),
    ]


def test_page_holds_no_markup_that_was_handed_over():
    page = to_html(study_page("<i>title</i>", "<i>lead</i>", odd(), provenance={"command": "<i>", "value": math.nan}))
    assert "<i>" not in page
    assert "<b>" not in page
    assert page.count("</script>") == 2
    assert "{{data}}" in page  # the text, not what a template would put there
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert json.loads(data)["panels"][1]["series"][0]["points"][1]["y"] is None
    assert "NaN" not in data
    assert "Infinity" not in data


def test_odd_values_can_be_drawn():
    draw(odd()).draw_without_rendering()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("panels") / "page.html"
    path.write_text(to_html(study_page("A title", "What was found.", lifelike(), provenance=MADE)))
    return path


def chart(page, index):
    return page.locator(f"figure[data-panel='{index}']")


def test_page_shows_what_the_figure_shows(visit, page):
    page = visit(page)
    assert page.locator("h1").inner_text() == "A title"
    fills = [cell.get_attribute("fill") for cell in chart(page, 0).locator("rect.cell").all()]
    assert fills == [color(cell.value, loss_map()) for row in loss_map().cells for cell in row if cell.value is not None]
    assert chart(page, 1).locator("rect.over").count() == 30
    assert "share that Theorem 3.9 predicts" in chart(page, 1).locator(".legend").inner_text()
    assert chart(page, 2).locator("path.line").count() == chart(page, 2).locator("path.band").count() == 5
    assert chart(page, 3).locator("path.line").count() == 6
    assert chart(page, 3).locator("path.band").count() == 0
    assert chart(page, 3).locator("path.whisker").count() > 10
    assert chart(page, 3).locator(".referencetext").text_content() == "half of the runs"
    assert page.locator("dd", has_text="rewa reproduce fig1").count() == 1


def test_page_labels_the_zero_of_a_logarithmic_axis(visit, page):
    plot = chart(visit(page), 2).locator(".plot svg")
    assert {"0", "1", "10", "10²", "10⁴", "10⁻⁷"} <= set(plot.locator("text").all_text_contents())
    bottom = float(plot.locator("line.grid").first.get_attribute("y1"))
    last = plot.locator("path.line").last.get_attribute("d").split(",")[-1]
    assert float(last) == pytest.approx(bottom, abs=0.1)


def test_page_says_the_numbers_of_a_cell(visit, page):
    page = visit(page)
    chart(page, 1).locator("rect.cell").nth(4).hover()
    tip = page.locator("#tip").inner_text()
    assert tip.split("\n")[0] == "K = 3, initial scale = 1"
    assert "share of successful runs: 13/20" in tip
    assert "share that Theorem 3.9 predicts: 0.57" in tip
    page.locator("h1").hover()
    assert not page.locator("#tip").is_visible()


def test_arrow_keys_walk_from_cell_to_cell(visit, page):
    page = visit(page)
    tip = page.locator("#tip")
    chart(page, 0).locator(".plot svg").focus()
    for key, title in (
        ("Right", "K = 3, M = 0"),
        ("Right", "K = 3, M = 2"),
        ("Right", "K = 3, M = 2"),
        ("Down", "K = 5, M = 2"),
    ):
        page.keyboard.press(f"Arrow{key}")
        assert tip.inner_text().split("\n")[0] == title  # blank cells are not stepped on
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_arrow_keys_walk_along_a_line(visit, page):
    page = visit(page)
    chart(page, 3).locator(".plot svg").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip").inner_text().split("\n") == ["K = 5, measured", "0 of 20 runs"]
    page.keyboard.press("ArrowDown")
    said = ["K = 5, predicted", "initial scale: 1e-5", "share of successful runs: 0.0001234"]
    assert page.locator("#tip").inner_text().split("\n") == said


def test_legend_hides_a_line(visit, page):
    page = visit(page)
    button = chart(page, 2).get_by_role("button", name="spred")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert chart(page, 2).locator("path.line").count() == 4
    button.click()
    assert chart(page, 2).locator("path.line").count() == 5


def test_numbers_are_below_each_chart(visit, page):
    page = visit(page)
    chart(page, 0).locator("summary").click()
    assert chart(page, 0).locator("tbody tr").first.inner_text().split("\t")[:2] == ["3", loss_map().cells[0][0].text]


def test_fits_a_phone(visit, page, overflow):
    page = visit(page, PHONE)
    assert overflow(page) == 0
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    assert overflow(page) == 0
    sizes = (
        chart(page, 0)
        .locator("text.inside")
        .evaluate_all("all => all.map((each) => parseFloat(getComputedStyle(each).fontSize))")
    )
    assert len(sizes) == 2 * 26 + 1
    assert min(sizes) >= 9
    for index in range(4):
        # Every text is inside its chart: none is cut off at the edge.
        cut = (
            chart(page, index)
            .locator(".plot svg")
            .evaluate(
                """(root) => { const box = root.getBoundingClientRect();
            return [...root.querySelectorAll("text")].filter((each) => { const own = each.getBoundingClientRect();
              return own.left < box.left - 1 || own.right > box.right + 1; }).map((each) => each.textContent); }"""
            )
        )
        assert cut == []


def test_dark_mode(visit, page):
    looks = []
    for scheme in ("light", "dark"):
        opened = visit(page, color_scheme=scheme)
        style = "getComputedStyle(document.querySelector('{}')).{}"
        rules = [
            ("body", "backgroundColor"),
            ("path.line", "stroke"),
            (".shades text", "fill"),
            (".plot .title", "fill"),
            ("rect.cell", "fill"),
        ]
        looks.append([opened.evaluate(style.format(*rule)) for rule in rules])
    same = [light == dark for light, dark in zip(*looks, strict=True)]
    assert same == [False, False, False, False, True]  # a colour that stands for a number stays


def test_odd_values_do_not_break_the_page(visit, tmp_path, overflow):
    path = tmp_path / "odd.html"
    path.write_text(to_html(study_page("odd", "", odd(), provenance={})))
    page = visit(path, PHONE)
    assert page.locator("b", has_text="bold").count() == 0
    assert overflow(page) == 0
    assert chart(page, 0).locator("rect.cell").count() == 1
    line = chart(page, 1).locator("path.line")
    assert line.count() == 1
    assert line.get_attribute("d").count("M") == 3  # broken at what is not finite
    for index in range(3):
        chart(page, index).locator(".plot svg").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#tip").is_visible()
