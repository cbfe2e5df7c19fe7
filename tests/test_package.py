"""The package as a whole: what importing it needs, who may import whom, what the README shows."""

from __future__ import annotations

import ast
import graphlib
import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rewa

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rewa"

# Lowest first. A module belongs to the layer that names it, or the package it is in, and may import from its own layer and from
# those below. Inside a layer nothing goes in a circle.
LAYERS = {
    "core": [
        "_moved",
        "cutting",
        "example",
        "figures",
        "files",
        "names",
        "native",
        "palette",
        "record",
        "reparam",
        "schedules",
        "theory",
    ],
    "weights": ["weights", "sparsity"],
    "optim and forms": ["optim", "forms", "presets", "lockstep"],
    "deploy": ["deploy", "integrations"],
    "methods": ["methods", "estimators"],
    "train": ["train"],
    "report and experiments": ["report", "experiments", "terminal"],
    "cli": ["cli", "explain", "__main__"],
}
LEVELS = {f"rewa.{name}": level for level, names in enumerate(LAYERS.values()) for name in names}


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
    """The number of a module's layer."""
    head = ".".join(module.split(".")[:2])
    assert head in LEVELS, f"{module} is in no layer"
    return LEVELS[head]


def test_imports_point_one_way():
    for module in modules():
        for imported in imports(module) if module != "rewa" else ():
            assert level(imported) <= level(module), f"{module} imports {imported}, which lies above it"


def test_no_imports_in_a_circle():
    graph = {module: imports(module) for module in modules()}
    # A package's own page may import its modules, which do not import it back but by asking for a module inside it.
    graphlib.TopologicalSorter(graph).prepare()


def test_import_needs_torch_and_numpy_only():
    code = (
        "import sys, rewa\n"
        "extras = {'sklearn', 'matplotlib', 'rich', 'scipy', 'pandas', 'PIL', 'ray', 'tensorboard'} & set(sys.modules)\n"
        "assert not extras, extras\n"
        "assert 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after some code."""
    script = f"{code}\nimport sys; print('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    return set(done.stdout.partition("modules: ")[2].split())


def test_help_does_not_import_torch():
    asked = "from rewa import cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass"
    assert loaded_by(asked) & {"torch", "numpy", "rich", "rewa.explain", "rewa.deploy.packed"} == set()


def test_importing_the_package_imports_none_of_its_parts():
    found = {name for name in loaded_by("import torch, rewa") if name.startswith("rewa.")}
    assert found == {"rewa._moved"}  # the old names of modules


def test_a_name_imports_what_it_needs_and_no_more():
    found = loaded_by("import rewa; rewa.ReWASGD")
    assert "rewa.optim.sgd" in found
    unused = {"deploy", "lockstep", "explain", "terminal", "train", "methods"}
    assert found & ({f"rewa.{name}" for name in unused} | {"scipy", "sklearn", "matplotlib", "transformers", "rich"}) == set()


def test_lazy_names_are_those_that_type_checkers_see():
    """What is imported for type checkers, what __all__ lists and what __getattr__ finds are the same names."""
    blocks = [node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If)]
    (block,) = [node for node in blocks if isinstance(node.test, ast.Name)]
    seen = {alias.asname or alias.name: node.module for node in block.body for alias in node.names}
    assert sorted(seen) == rewa.__all__
    assert set(rewa.__all__) <= set(dir(rewa))
    for name, home in seen.items():
        module = importlib.import_module(f"rewa.{name}" if home == "rewa" else home)
        assert getattr(rewa, name) is (module if home == "rewa" else getattr(module, name))
    with pytest.raises(AttributeError, match="module 'rewa' has no attribute 'no_such_name'"):
        _ = rewa.no_such_name


def test_every_module_is_an_attribute_and_never_shadowed():
    """``import rewa; rewa.deploy.zeros`` is the module, also after every other module was imported."""
    code = (
        "import importlib, pkgutil, types, rewa\n"
        "rewa.deploy.zeros.finalize, rewa.deploy.packed.VALUES, rewa.optim\n"
        "for _, name, package in pkgutil.walk_packages(rewa.__path__, 'rewa.'):\n"
        "    if name != 'rewa.__main__':\n"
        "        importlib.import_module(name)\n"
        "        parent, _, last = name.rpartition('.')\n"
        "        assert isinstance(getattr(importlib.import_module(parent), last), types.ModuleType), name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(("old", "new"), [("rewa.packed", "rewa.deploy.packed"), ("rewa.baselines.gmp", "rewa.methods.gmp")])
def test_modules_at_their_old_names(old, new):
    code = (
        "import importlib, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        f"    found = importlib.import_module('{old}')\n"
        f"assert found is importlib.import_module('{new}') and found.__spec__.name == '{new}'\n"
        "told = [one for one in caught if one.category is DeprecationWarning]\n"
        f"assert any('{old} is now {new}' in str(one.message) for one in told), told\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_readme_table_calls_run():
    """Each call of the README's table, with nothing imported but rewa."""
    calls = re.findall(r"\| `((?:rewa|torch)\.[^`]*)`", (ROOT / "README.md").read_text())
    assert len(calls) >= 6
    setup = (
        "import torch, rewa\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer4 = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))\n"
        "        self.head = torch.nn.Linear(2, 20)\n"
    )
    script = setup + "".join(f"model = Net()\n{call}\n" for call in calls)
    few = "ignore:finalize left a single weight"  # the layers of this network are tiny
    subprocess.run([sys.executable, "-W", "error", "-W", few, "-c", script], check=True, timeout=120)


def test_public_names_exist_and_are_documented():
    assert rewa.__all__ == sorted(rewa.__all__)
    for name in rewa.__all__:
        assert getattr(rewa, name).__doc__
    assert re.fullmatch(r"\d+\.\d+\.\d+", rewa.__version__)
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/deploy.md", "docs/method.md", "docs/synthetic.md", "docs/train.md"])
def test_examples_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    script = "import torch\ntorch.manual_seed(0)\n" + "\n".join(blocks)
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=300, cwd=tmp_path)


def test_the_guide_prints_what_it_says(tmp_path):
    """The examples of docs/estimators.md, each print beside a comment that begins with its line."""
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "estimators.md").read_text(), re.S))
    expected = re.findall(r"^print\(.*\)  # (.*)$", blocks, re.M)
    assert len(expected) == blocks.count("print(") == 9
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks],
        check=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        stdout=subprocess.PIPE,
        text=True,
    )
    for line, comment in zip(done.stdout.splitlines(), expected, strict=True):
        assert comment.startswith(line)


def test_estimators_say_what_they_need():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "try:\n    import rewa.estimators\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    assert "pip install 'rewa[sklearn]'" in done.stdout


def cells(result: str) -> dict[tuple[str, float], str]:
    """The cells of a published table, as the record has them."""
    numbers = json.loads((ROOT / "results" / result / "numbers.json").read_text())
    (comparison,) = numbers["comparisons"]
    return {
        (cell["method"], cell["compression"]): f"{cell['mean']:.1f}" + (f"±{cell['sd']:.1f}" if cell["n"] > 1 else "")
        for cell in comparison["cells"]
    }


@pytest.mark.parametrize(
    ("page", "result", "rows"), [("README.md", "fashion-mnist", 9), ("docs/methods.md", "digits-methods", 28)]
)
def test_published_tables_are_the_records(page, result, rows):
    found, lines = cells(result), (ROOT / page).read_text().splitlines()
    (header,) = [line for line in lines if line.startswith("| test accuracy, %")]
    compressions = [float(cell.strip().removesuffix("x")) for cell in header.split("|")[2:-1]]
    table = list(itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index(header) + 2 :]))
    assert len(table) == rows
    for row in table:
        name, *shown = [cell.strip() for cell in row.split("|")[1:-1]]
        method = name.replace("`", "").partition(", the ")[0].partition(", this ")[0]
        assert shown == [found.get((method, compression), "-") for compression in compressions], method


@pytest.mark.parametrize(("name", "count"), [("synthetic", 5), ("estimators", 8), ("comparison", 10)])
def test_tables_of_a_page_are_the_records(name, count):
    """Below a comment that names a file of results, the page has tables of that file, word for word."""
    page = (ROOT / "docs" / f"{name}.md").read_text()
    parts = re.split(r"<!-- (results/\S+) -->\n", page)
    assert len(parts) == 2 * count + 1
    for path, text in zip(parts[1::2], parts[2::2], strict=True):
        table = re.match(r"\|.*\n\| ---.*\n(?:\|.*\n){3,}", text)
        assert table, path
        assert f"\n\n{table[0]}" in (ROOT / path).read_text(), path


def test_the_table_of_estimators_in_the_readme_is_the_record():
    found = json.loads((ROOT / "results" / "regression-seeds" / "regression.json").read_text())["designs"]["methods"]["B"]
    names = {
        "ReWARegressorCV": "rewa",
        "skglm L0.5": "l0.5",
        "skglm L2/3": "l2/3",
        "adaptive": "adaptive",
        "skglm MCP": "mcp",
        "abess": "abess",
    }
    for start, method in {**names, "scikit-learn `LassoCV`": "lasso"}.items():
        (row,) = [
            line for line in (ROOT / "README.md").read_text().splitlines() if re.match(rf"\| `?{re.escape(start)}.*\|", line)
        ]
        of = found[method]
        expected = [
            f"{of['nnz']:.1f}",
            f"{of['true_positives']:.1f}",
            f"{of['f1']:.2f}",
            f"{of['error']:.3f}",
            f"{of['seconds']:.2f}",
        ]
        assert [cell.strip() for cell in row.split("|")[2:-1]] == expected, method


def runs_of(study: str, **setting) -> list[dict]:
    """The runs of a setting in the record of a study."""
    record = json.loads((ROOT / "results" / study).with_suffix(".json").read_text())
    (found,) = [
        entry["runs"] for entry in record[setting.pop("part", "trained")] if {**entry["setting"], **setting} == entry["setting"]
    ]
    return found


def test_claims_of_the_synthetic_study_are_the_records():
    """The sentences of docs/synthetic.md that decide, against the runs."""
    centre = {"K": 9, "eps": 0.0, "lr": 2e-4, "weight_decay": 0.25, "scale": 1.0}
    shares = {
        (form, M): sum(run["recovered"] for run in runs_of("success/success", form=form, M=M, **centre))
        for form in ("tied", "pair")
        for M in (2, 4, 5)
    }
    assert shares["pair", 2] == shares["pair", 4] == 20
    page = (ROOT / "docs" / "synthetic.md").read_text()
    assert f"the paper's form from {shares['tied', 2]}\n  and {shares['tied', 4]}.**" in page
    assert shares["tied", 5] == 0
    assert not any(run["recovered"] for run in runs_of("synthetic/fig2a", form="tied", K=9, M=5))
    for run in runs_of("synthetic/fig2a", form="l1"):
        assert run["counts"][0] == 1
        assert round(run["test_loss"], 3) == 1.042
    from rewa.experiments import designs

    assert f"{designs.paper().realised:.3f}" == "1.027"
    constant = runs_of("sgd-l1/sgd-l1", part="constant", form="l1", weight_decay=0.25)
    assert all(run["counts"][4] > 9000 for run in constant)  # above 1e-5


def test_every_method_is_on_the_page_of_methods():
    from rewa.methods import names

    page = (ROOT / "docs" / "methods.md").read_text()
    assert [name for name in names() if f"`{name}`" not in page] == []


def test_methods_of_published_results_are_listed():
    from rewa.experiments import RESULTS
    from rewa.methods import names

    used = {one if isinstance(one, str) else one.method for each in RESULTS.values() for one in sweep_methods(each)}
    assert len(used) > 10
    assert used - set(names()) == set()


def sweep_methods(result):
    return result.sweep.methods if hasattr(result, "sweep") else ()


def test_a_method_has_one_source():
    """The column of docs/methods.md, the class and `rewa list` credit the same."""
    from rewa.methods import make, names

    rows = [line.split("|") for line in re.sub(r"\\\|", "", (ROOT / "docs" / "methods.md").read_text()).splitlines()]
    sources = {name: row[4].strip() for row in rows if len(row) == 6 for name in re.findall(r"`([^`]+)`", row[1])}
    for name in names():
        assert sources[name] == make(name).source, name


def test_the_time_of_the_papers_protocol_is_said_once():
    from rewa.train.recipes import RECIPES

    page = (ROOT / "docs" / "reproduce.md").read_text()
    (estimated,) = re.findall(r"\| in the tables above \| (\d+ minutes) a run \|", page)
    assert f"{estimated} a run" in RECIPES["cifar10-resnet18"].line


def test_the_demo_in_the_readme_is_the_record():
    """Bytes and accuracies of the sentence on the demo's files, as `rewa reproduce digits` recorded them."""
    (comparison,) = json.loads((ROOT / "results" / "digits" / "numbers.json").read_text())["comparisons"]
    files = {row["method"]: row for row in comparison["deployed"]}
    (words,) = re.findall(r"A run of the demo ends with such a file:(.*?seeds\))", (ROOT / "README.md").read_text(), re.S)
    dense, l1, ours = (files[name] for name in ("dense", "l1", "rewa"))
    sizes = [dense["dense_bytes"], *(row["file_bytes"] for row in (dense, l1, ours))]
    assert re.findall(r"\d+,\d+", words) == [f"{count:,.0f}" for count in sizes]
    (scores,) = re.findall(r"at ([\d., and]+) % test accuracy", words)
    assert re.split(r", | and ", scores) == [f"{row['test']:.1f}" for row in (dense, l1, ours)]
    assert {row["seeds"] for row in (dense, l1, ours)} == {int(words.split("(")[-1].split()[0])}


def test_the_demo_is_the_sweep_that_was_recorded():
    """The command of the Makefile trains what `rewa reproduce digits` does, and its record says so."""
    from rewa.cli import _parser
    from rewa.experiments import RESULTS

    (command,) = re.findall(r"rewa (sweep digits .*)", (ROOT / "Makefile").read_text())
    options = _parser().parse_args(command.split())
    sweep = RESULTS["digits"].sweep
    assert (options.recipe, tuple(options.methods.split(",")), options.seeds) == (sweep.recipe.name, sweep.methods, sweep.seeds)
    assert (options.strengths, tuple(options.set)) == (sweep.strengths, sweep.changes)
    recorded = json.loads((ROOT / "results" / "digits" / "numbers.json").read_text())
    assert (tuple(recorded["methods"]), recorded["seeds"]) == (sweep.methods, sweep.seeds)
    assert {key: recorded["recipe"][key] for key in ("epochs", "lr", "batch_size")} == {
        key: getattr(sweep.recipe, key) for key in ("epochs", "lr", "batch_size")
    }


def test_pages_link_to_files_that_exist():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_commands_for_gpus_are_accepted():
    """Each command of docs/reproduce.md that trains, parsed and its settings applied; nothing is trained."""
    from rewa.cli import _parser
    from rewa.methods import make
    from rewa.train.recipes import override, recipe

    page = (ROOT / "docs" / "reproduce.md").read_text()
    commands = re.findall(r"`(?:torchrun [^`]*?-m )?(rewa (?:train|sweep) [^`]+)`", page)
    assert len(commands) >= 17
    for command in commands:
        options = _parser().parse_args(command.replace("$SEED", "0").split()[1:])
        methods = [options.method] if options.command == "train" else options.methods.split(",")
        for name in methods:
            changed, method = override(recipe(options.recipe), make(name), options.set)
            for key, _, value in (change.partition("=") for change in options.set):
                found = getattr(changed, key, None) if hasattr(changed, key) else getattr(method, key)
                assert found == (tuple(map(float, value.split(","))) if "," in value else float(value)), command
