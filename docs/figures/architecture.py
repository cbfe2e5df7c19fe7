"""Draws docs/figures/architecture.png: the layers of docs/architecture.md and the imports between them, read from the source.

The page's table is the one place that names the layers; tests/test_package.py checks the imports against it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rewa"


def layers() -> dict[str, list[str]]:
    """The layers of the page's table, lowest first: each name with its modules and packages."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| \d \| \*\*(.+?)\*\* \|.*\| (.+?) \|$", page, re.M)
    return {name: re.findall(r"`(\w+)(?:\.py|/)?`", named) for name, named in reversed(rows)}


@functools.cache
def modules() -> dict[str, Path]:
    """The modules of the package and their files."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str) -> set[str]:
    """The modules of the package that a module imports, wherever in its text, but not for type checkers alone."""
    known = modules()
    tree = ast.parse(known[module].read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    skipped = {id(node) for block in blocks for one in block.body for node in ast.walk(one)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # "from rewa import presets" names a module in a package; "from rewa import ReWASGD" imports the package.
            found |= {name if (name := f"{node.module}.{alias.name}") in known else node.module for alias in node.names}
    return found & set(known) - {module, "rewa"}


def level(module: str) -> int:
    """The number of a module's layer, 0 for the lowest."""
    head = module.split(".")[1]
    (found,) = [number for number, names in enumerate(layers().values()) if head in names] or [None]
    assert found is not None, f"{module} is in no layer of docs/architecture.md"
    return found


def edges() -> Counter[tuple[int, int]]:
    """How many imports lead from one layer to another."""
    return Counter((level(module), level(one)) for module in modules() if module != "rewa" for one in imports(module))


def draw(path: Path) -> None:
    """Draw layers as rows, modules as boxes, and the imports of each layer as a lane with the numbers of who imports it."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    found, counts = layers(), edges()
    sizes = Counter(module.split(".")[1] for module in modules() if module != "rewa")
    figure, axes = pyplot.subplots(figsize=(14, 5.6))
    ends = []
    for number, (name, members) in enumerate(found.items()):
        axes.text(-1.5, number, name, ha="right", va="center", fontsize=10, weight="bold")
        place = 0.0
        for member in members:
            label = f"{member}/  {sizes[member]}" if (PACKAGE / member).is_dir() else member
            width = 3 + 0.95 * len(label)
            axes.add_patch(Rectangle((place, number - 0.26), width, 0.52, fc="white", ec="#5b6b7f", lw=0.9))
            axes.text(place + width / 2, number - 0.01, label, ha="center", va="center", fontsize=8)
            place += width + 0.9
        ends.append(place)
    first, blue = max(ends) + 5, "#0072b2"
    for number in range(len(found)):
        axes.axhspan(number - 0.42, number + 0.42, color="#eef2f7" if number % 2 else "#f7f9fc", lw=0, zorder=0)
        importers = [above for above in range(number + 1, len(found)) if counts[above, number]]
        at = first + 5 * (len(found) - 2 - number)
        if importers:
            axes.plot([at, at], [number, max(importers)], color=blue, lw=1.1, zorder=2)
            axes.annotate("", (ends[number], number), (at, number), arrowprops={"arrowstyle": "->", "color": blue, "lw": 1.1})
        for above in importers:
            count = counts[above, number]
            axes.plot(at, above, "o", ms=16, mfc="#cfe4f3" if count < 10 else "#7fb8dd", mec=blue, mew=0.8, zorder=3)
            axes.text(at, above - 0.01, str(count), ha="center", va="center", fontsize=8.5, zorder=4)
    right = first + 5 * (len(found) - 1.4)
    words = "number of imports; the arrow points to the imported layer"
    axes.text(right, len(found) - 0.45, words, ha="right", fontsize=9, color=blue)
    axes.set(xlim=(-30, right), ylim=(-0.5, len(found) - 0.1))
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
