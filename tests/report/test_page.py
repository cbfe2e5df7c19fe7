from __future__ import annotations

import math
import re

import pytest

from rewa.report import write

PHONE, DESKTOP = {"width": 375, "height": 812}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def report(tmp_path_factory, plausible, half_way):
    """Three methods with three seeds, and one run that is still running."""
    folder = tmp_path_factory.mktemp("report")
    half_way(plausible(folder / "runs"))
    return write(folder / "runs", folder / "report.html", figures=False)[0]


def lines(page):
    return page.locator("figure[data-panel] path.line")


def test_shows_what_was_found(visit, report):
    page = visit(report)
    assert re.fullmatch(r"ReWA leads l1 by \d+\.\d points at \d+x", page.locator("h1").inner_text())
    subject = page.locator("figure[data-panel] .subject").inner_text()
    assert subject == "digits: test accuracy against compression, 3 methods"
    assert lines(page).count() == 3
    assert page.locator("figure[data-panel] path.band").count() == 3
    assert page.locator("#training path.line:not(.faint)").count() == 2
    assert page.locator("#layers rect.bar").count() == 4
    assert page.locator("#histogram rect.bar").count() > 20
    assert "threshold" in page.locator("#histogram .marktext").text_content()
    assert page.locator(".status.running").count() == 1
    assert "1 run is unfinished" in page.locator(".warnings").first.inner_text()


def test_legend_hides_and_shows_a_line(visit, report):
    page = visit(report)
    button = page.get_by_role("button", name="l1")
    before = [path.get_attribute("d") for path in lines(page).all()]
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert [path.get_attribute("d") for path in lines(page).all()] == [before[0], before[2]]
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert lines(page).count() == 3


def test_zoom(visit, report):
    page = visit(report)
    before = lines(page).last.get_attribute("d")
    page.get_by_role("button", name="all", exact=True).click()
    heights = [float(y) for y in re.findall(r",([\d.-]+)", lines(page).last.get_attribute("d"))]
    box = page.locator("figure[data-panel] .plot svg").first.get_attribute("viewBox")
    assert lines(page).last.get_attribute("d") != before
    assert max(heights) < float(box.split()[3])  # the collapsed points, too, are inside
    assert max(float(y) for y in re.findall(r",([\d.-]+)", before)) > float(box.split()[3])


def test_tooltip(visit, report):
    page = visit(report)
    tip = page.locator("#tip")
    assert not tip.is_visible()
    page.locator("figure[data-panel] .plot svg g").filter(has=page.locator("path.marker")).nth(0).locator("path.marker").nth(
        6
    ).hover()
    text = tip.inner_text()
    assert text.startswith("rewa")
    for part in ("± ", "at least 10x", "n = 3 seeds", "(seed 2)", "strength"):
        assert part in text
    page.locator("h1").hover()
    assert not tip.is_visible()


def test_arrow_keys_walk_along_the_points(visit, report):
    page = visit(report)
    page.locator("figure[data-panel] .plot svg").first.focus()
    page.keyboard.press("ArrowRight")
    assert "at least 1x" in page.locator("#tip").inner_text()
    page.keyboard.press("ArrowRight")
    assert "at least 1.5x" in page.locator("#tip").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip").inner_text().startswith("l1")
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_select_changes_the_run(visit, report):
    page = visit(report)

    def bars():
        return [bar.get_attribute("width") for bar in page.locator("#layers rect.bar").all()]

    before, curve = bars(), page.locator("#training path.line").last.get_attribute("d")
    page.locator("#run").select_option(label="digits-dense-0.3-s0")
    assert bars() != before
    assert "digits-dense-0.3-s0" in page.locator("#training figcaption").inner_text()
    assert page.locator("#training path.line").last.get_attribute("d") != curve
    page.locator("#training").get_by_role("button", name="compression").click()
    assert page.locator("#training path.line:not(.faint)").count() == 1
    page.locator("#run").select_option(label="digits-l1-2.5-s0 (running)")
    assert page.locator("#layers rect.bar").count() == 0
    assert "Only a finished run" in page.locator("#layers").inner_text()
    assert page.locator("#training path.line:not(.faint)").count() == 1


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_fits_the_screen(visit, report, viewport, overflow):
    page = visit(report, viewport)
    assert overflow(page) == 0
    page.locator("figure[data-panel] .plot svg path.marker").last.hover()
    assert page.locator("#tip").is_visible()
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    assert overflow(page) == 0


def test_charts_follow_the_width(visit, report, overflow):
    page = visit(report)
    chart = page.locator("figure[data-panel] .plot svg").first
    wide = chart.get_attribute("viewBox")
    page.set_viewport_size(PHONE)
    page.wait_for_function("before => document.querySelector('.plot svg').getAttribute('viewBox') !== before", arg=wide)
    assert float(chart.get_attribute("viewBox").split()[2]) < 375
    assert overflow(page) == 0


def test_dark_mode(visit, report):
    colors = []
    for scheme in ("light", "dark"):
        page = visit(report, color_scheme=scheme)
        style = "getComputedStyle(document.querySelector('{}')).{}"
        rules = [("body", "backgroundColor"), ("body", "color"), ("path.line", "stroke")]
        colors.append([page.evaluate(style.format(*rule)) for rule in rules])
    assert all(light != dark for light, dark in zip(*colors, strict=True))


def test_prints_everything_in_light_colours(visit, report):
    page = visit(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not any(each.is_visible() for each in page.locator(".zoom").all())
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.evaluate("getComputedStyle(document.querySelector('.tall .scroll')).maxHeight") == "none"


def test_many_methods_and_two_recipes(visit, tmp_path, plausible, overflow):
    """Of 23 methods three stand out and the rest is grey until it is pointed at; a loss stands beside an accuracy."""
    names = [f"method-{index}" for index in range(23)]
    plausible(tmp_path / "runs", names, seeds=1)
    plausible(tmp_path / "runs" / "more", ("dense", "rewa"), seeds=1, recipe="text", metric="loss")
    page = visit(write(tmp_path / "runs", tmp_path / "report.html", figures=False)[0], PHONE)
    first = page.locator("figure[data-panel='0']")
    strokes = [path.get_attribute("stroke") for path in first.locator(".line").all()]
    assert len(strokes) == 23
    assert strokes.count("var(--other)") == first.locator(".line.muted").count() == 20
    grey = first.locator(".legend button.muted").first
    grey.hover()
    strokes = [path.get_attribute("stroke") for path in first.locator(".line").all()]
    assert strokes.count("var(--other)") == 19
    assert first.locator(".line:not(.dim)").count() == 1
    page.locator("h1").hover()
    assert page.locator("figure[data-panel='1'] path.line").count() == 2
    assert "2 comparisons" in page.locator("h1").inner_text()
    first.get_by_role("button", name="hide all").click()
    assert first.locator("path.line").count() == 0
    first.get_by_role("button", name="show all").click()
    assert first.locator("path.line").count() == 23
    assert overflow(page) == 0


def test_nothing_finished_yet(visit, tmp_path, saved, made):
    saved(tmp_path / "runs", made(status="running"))
    page = visit(write(tmp_path / "runs", tmp_path / "report.html", figures=False)[0])
    assert page.locator("h1").inner_text() == "toy: no run is finished yet"
    assert page.locator("#training path.line:not(.faint)").count() == 2


def test_odd_records(visit, tmp_path, saved, made):
    """No weight left, no epoch yet, values that are not finite, names that are markup."""
    saved(tmp_path / "runs", made("<b>bold<b>", points=[(500, 80.0, math.nan), (0, 10.0, math.nan)]))
    empty = made("l1", status="running") | {"epochs": []}
    saved(tmp_path / "runs", empty)
    saved(tmp_path / "runs", made("one", points=[(1000, 90.0, 90.0)]))
    page = visit(write(tmp_path / "runs", tmp_path / "report.html", figures=False)[0])
    assert page.locator("b", has_text="bold").count() == 0
    for option in page.locator("#run option").all():
        page.locator("#run").select_option(value=option.get_attribute("value"))
    page.locator("#run").select_option(label="toy-l1-0.01-s0 (running)")
    assert "no accuracy of any epoch yet" in page.locator("#training").inner_text()


def test_the_legend_says_which_lines_are_out_of_range(visit, tmp_path, saved, made):
    """A method far below the range near the best has a legend entry that says so, until all is shown."""
    for name, test in {"gmp": 90.0, "l1": 89.0, "collapsed": 10.0}.items():
        saved(tmp_path / "runs", made(name, points=[(1000, test, test), (200, test, test)]))
    page = visit(write(tmp_path / "runs", tmp_path / "report.html", figures=False)[0])
    out = page.locator(".legend button.out")
    assert [button.inner_text() for button in out.all()] == ["collapsed (below the range)"]
    page.get_by_role("button", name="all", exact=True).click()
    assert out.count() == 0


def test_a_phone_is_told_that_a_table_goes_on(visit, report):
    page = visit(report, PHONE)
    hint = page.locator(".hint").first
    assert hint.is_visible()
    assert "sideways" in hint.inner_text()
    page.locator(".scroll").first.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    page.wait_for_function("() => document.querySelector('.hint').hidden")
    wide = visit(report, {"width": 2400, "height": 900})
    assert not wide.locator(".hint").first.is_visible()
