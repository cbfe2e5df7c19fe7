"""The package as a whole: what importing it needs, who may import whom, what the README shows."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rewa

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rewa"

# A module may import from its own row and from the rows above it.
LAYERS = [
    {"rewa.files", "rewa.heads", "rewa.native", "rewa.reparam", "rewa.schedules", "rewa.theory"},
    {"rewa.optim.fused", "rewa.optim.foreach", "rewa.optim.optimizer", "rewa.optim"},
    {"rewa.optim.sgd", "rewa.optim.adamw", "rewa.optim.attach", "rewa.optim.groups"},
    {"rewa.forms", "rewa.presets", "rewa.sparsity", "rewa.packed"},
    {"rewa.zeros"},
    {"rewa.inference", "rewa.export", "rewa.surgery"},
    {"rewa"},
    {"rewa.explain"},
    {"rewa.figures"},
    {"rewa.cli"},
    {"rewa.experiments", "rewa.experiments.record"},
    {"rewa.experiments.digits"},
]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # "from rewa import presets" names a module in a package; "from rewa import ReWASGD" imports the package.
            found |= names if names & set().union(*LAYERS) else {node.module}
    return found


def test_imports_point_one_way():
    level = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        assert module in level, f"{module} is in no layer"
        for imported in imports(path) & set(level):
            assert level[imported] <= level[module], f"{module} imports {imported}, which lies above it"


def test_import_needs_torch_and_numpy_only():
    code = (
        "import sys, rewa\n"
        "extras = {'sklearn', 'matplotlib', 'rich', 'scipy', 'pandas'} & set(sys.modules)\n"
        "assert not extras, extras\n"
        "assert 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_readme_table_calls_run():
    """Each call of the README's table, with nothing imported but rewa."""
    calls = re.findall(r"\| `(rewa\.[^`]*)`", (ROOT / "README.md").read_text())
    assert len(calls) >= 6
    setup = (
        "import torch, rewa\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer4 = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))\n"
        "        self.head = torch.nn.Linear(2, 2)\n"
    )
    script = setup + "".join(f"model = Net()\n{call}\n" for call in calls)
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)


def test_public_names_exist_and_are_documented():
    assert rewa.__all__ == sorted(rewa.__all__)
    for name in rewa.__all__:
        assert getattr(rewa, name).__doc__
    assert re.fullmatch(r"\d+\.\d+\.\d+", rewa.__version__)
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/deploy.md"])
def test_examples_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    script = "import torch\ntorch.manual_seed(0)\n" + "\n".join(blocks)
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=300, cwd=tmp_path)


def test_readme_table_is_the_record():
    record = json.loads((ROOT / "results" / "digits" / "digits.json").read_text())
    rows = {row.split("|")[1].strip(): row for row in (ROOT / "README.md").read_text().splitlines() if row.startswith("|")}
    labels = {"dense": "dense, cut by magnitude", "l1": "l1 (proximal)", "ReWA": "ReWA, K=9, M=2"}
    for method, label in labels.items():
        results = {r["compression"]: f"{r['test']:.1f}±{r['spread']:.1f}" for r in record["results"] if r["method"] == method}
        cells = [cell.strip() for cell in rows[label].split("|")[2:-1]]
        assert cells == [results[compression] for compression in record["config"]["table"]]


def test_pages_link_to_files_that_exist():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
