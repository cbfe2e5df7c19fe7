"""Every table and figure that a page shows can be made again: the page has the command, and the command exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rewa.experiments import RESULTS

ROOT = Path(__file__).parent.parent.parent
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))]


def words(page: str) -> str:
    """The text of a page without its line breaks, which may split a command."""
    return " ".join((ROOT / page).read_text().split())


def makers(folder: str) -> list[str]:
    """The commands that fill a folder of results, as regular expressions."""
    found = [rf"rewa reproduce {re.escape(folder)}(?![\w-])"] if folder in RESULTS else []
    scripts = [script for script in (folder, folder.removesuffix("_speed")) if (ROOT / "benchmarks" / f"{script}.py").exists()]
    found += [rf"python benchmarks/{script}\.py" for script in scripts]
    return [*found, rf"rewa sweep [^`]*? --out results/{re.escape(folder)}\b"]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_cites_has_its_command_there(page):
    text = words(page)
    for folder in sorted(set(re.findall(r"\bresults/([\w-]+)", text)) - {"NAME"}):
        assert (ROOT / "results" / folder).is_dir(), folder
        assert any(re.search(command, text) for command in makers(folder)), f"{page} cites results/{folder} without its command"


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_exist(page):
    text = words(page)
    assert {name for name in re.findall(r"rewa reproduce ([a-z][\w-]*)", text) if name not in RESULTS} == set()
    scripts = re.findall(r"\b((?:benchmarks|checks)/\w+\.py)", text)
    assert [script for script in scripts if not (ROOT / script).exists()] == []


def test_every_result_and_script_is_on_the_page_of_results():
    """``rewa list`` and docs/reproduce.md have the same results; the figures of the synthetic study are made together."""
    text = (ROOT / "docs" / "reproduce.md").read_text()
    together = {"fig1", "fig2a", "fig2b", "fig2c", "fig2d", "overhead"}
    assert set(re.findall(r"`rewa reproduce ([a-z][\w-]*)", text)) == set(RESULTS) - together
    scripts = {
        f"{path.parent.name}/{path.name}" for folder in ("benchmarks", "checks") for path in (ROOT / folder).glob("*.py")
    }
    assert {script for script in scripts if script not in text} == {"benchmarks/eager.py"}  # the others import it


def test_nothing_outside_the_tests_imports_them():
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("benchmarks/*.py"), *ROOT.glob("checks/*.py")]:
        assert "sys.path" not in path.read_text(), path
