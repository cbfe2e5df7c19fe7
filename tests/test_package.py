"""The package as a whole: what importing it needs, who may import whom, what the README shows."""

from __future__ import annotations

import ast
import graphlib
import importlib
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import rewa

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rewa"

# The page docs/architecture.md names the layers; the script that draws its picture reads them, and the imports in the source.
_specification = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "figures" / "architecture.py")
architecture = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(architecture)
imports, level, modules = architecture.imports, architecture.level, architecture.modules


def test_the_page_of_the_architecture_names_what_there_is():
    named = [name for names in architecture.layers().values() for name in names]
    assert list(architecture.layers())[::7] == ["core", "cli"]
    assert sorted(named) == sorted({module.split(".")[1] for module in modules() if module != "rewa"})
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`([\w/]+\.py)`", page)
    assert len(paths) > 20
    assert [path for path in paths if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []


def test_imports_point_one_way():
    for module in modules():
        for imported in imports(module) if module != "rewa" else ():
            assert level(imported) <= level(module), f"{module} imports {imported}, which lies above it"


def test_no_imports_in_a_circle():
    graph = {module: imports(module) for module in modules()}
    # A package's own page may import its modules, which do not import it back but by asking for a module inside it.
    graphlib.TopologicalSorter(graph).prepare()


HELP = """
import sys
from rewa import cli
try:
    cli.main(["--help"])
except SystemExit:
    print("modules:", *sys.modules)
"""

# One interpreter for all that needs a fresh one: starting it takes longer than any of the steps.
FRESH = """
import importlib, json, pkgutil, sys, types, warnings
told = {}
import rewa
told["import rewa"] = list(sys.modules)
import torch
told["import torch, rewa"] = list(sys.modules)
rewa.ReWASGD
told["rewa.ReWASGD"] = list(sys.modules)

sys.modules["sklearn"] = None
try:
    import rewa.estimators
except ImportError as error:
    told["no sklearn"] = str(error)
del sys.modules["sklearn"]

told["old names"] = {}
for old, new in json.loads(sys.argv[1]):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = importlib.import_module(old)
    same = found is importlib.import_module(new) and found.__spec__.name == new
    told["old names"][old] = [same, [str(one.message) for one in caught if one.category is DeprecationWarning]]

rewa.deploy.zeros.finalize, rewa.deploy.packed.VALUES, rewa.optim
told["shadowed"], told["walked"] = [], []
for _, name, _ in pkgutil.walk_packages(rewa.__path__, "rewa."):
    if name != "rewa.__main__":
        importlib.import_module(name)
        parent, _, last = name.rpartition(".")
        told["walked"].append(name)
        if not isinstance(getattr(importlib.import_module(parent), last), types.ModuleType):
            told["shadowed"].append(name)
print("told:", json.dumps(told))
"""

MOVED = [
    ("rewa.packed", "rewa.deploy.packed"),
    ("rewa.baselines.gmp", "rewa.methods.gmp"),
    ("rewa.baselines.on", "rewa.methods.wrapper"),
    ("rewa.train.loop", "rewa.train.run"),
]


@pytest.fixture(scope="module")
def fresh() -> dict:
    """What a fresh interpreter tells of the package: the modules it holds after each step of ``FRESH``, and more."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH, json.dumps(MOVED)], check=True, timeout=120, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.partition("told: ")[2])


@pytest.mark.slow
def test_import_needs_torch_and_numpy_only(fresh):
    extras = {"sklearn", "matplotlib", "rich", "scipy", "pandas", "PIL", "ray", "tensorboard"}
    assert set(fresh["import rewa"]) & (extras | {"torch._inductor"}) == set()


@pytest.mark.slow
def test_help_does_not_import_torch():
    done = subprocess.run([sys.executable, "-c", HELP], check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    found = set(done.stdout.partition("modules: ")[2].split())
    assert "rewa.cli" in found
    assert found & {"torch", "numpy", "rich", "rewa.explain", "rewa.deploy.packed"} == set()


@pytest.mark.slow
def test_importing_the_package_imports_none_of_its_parts(fresh):
    found = {name for name in fresh["import torch, rewa"] if name.startswith("rewa.")}
    assert found == {"rewa._moved"}  # the old names of modules


@pytest.mark.slow
def test_a_name_imports_what_it_needs_and_no_more(fresh):
    found = set(fresh["rewa.ReWASGD"])
    assert "rewa.optim.sgd" in found
    unused = {"deploy", "lockstep", "explain", "terminal", "train", "methods"}
    assert found & ({f"rewa.{name}" for name in unused} | {"scipy", "sklearn", "matplotlib", "transformers", "rich"}) == set()


@pytest.mark.slow
def test_estimators_say_what_they_need(fresh):
    assert "pip install 'rewa[sklearn]'" in fresh["no sklearn"]


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


@pytest.mark.slow
def test_every_module_is_an_attribute_and_never_shadowed(fresh):
    """``import rewa; rewa.deploy.zeros`` is the module, also after every other module was imported."""
    assert set(fresh["walked"]) == set(modules()) - {"rewa", "rewa.__main__"}
    assert fresh["shadowed"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), MOVED)
def test_modules_at_their_old_names(fresh, old, new):
    same, told = fresh["old names"][old]
    assert same
    assert any(f"{old} is now {new}" in one for one in told), told


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("rewa.deploy.zeros", "freeze_zeros", "rewa.deploy.freezing.freeze_zeros"),
        ("rewa.deploy.zeros", "thaw", "rewa.deploy.freezing.thaw"),
        ("rewa.sparsity", "Point", "rewa.sparsity.Cut"),
        ("rewa.weights", "Weight", "rewa.weights.Decision"),
        ("rewa.methods.wrapper", "On", "rewa.methods.wrapper.Wrapper"),
    ],
)
def test_names_at_their_old_places(module, old, new):
    home, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {new}"):
        found = getattr(importlib.import_module(module), old)
    assert found is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = importlib.import_module(module).no_such_name


@pytest.mark.slow
def test_the_calls_of_the_table_of_optimizers_run():
    """Each call of the table in docs/optimizers.md, with nothing imported but rewa."""
    calls = re.findall(r"\| `((?:rewa|torch)\.[^`]*)`", (ROOT / "docs" / "optimizers.md").read_text())
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


def run_examples(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the code blocks of a page one after the other as a reader would, in a folder of their own; give back the code."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    torch.set_default_dtype(torch.float32)
    code = "\n".join(blocks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)  # Lightning's use of torch,
        warnings.filterwarnings("ignore", ".*does not have many workers")  # and its advice
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    return code


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["README.md", *(f"docs/{name}.md" for name in ["deploy", "method", "optimizers", "sparsifier", "synthetic", "train"])],
)
def test_examples_run(page, tmp_path, monkeypatch):
    run_examples(page, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["AdamW(model.parameters(), lr=1e-3)", "SGD(model.parameters(), lr=0.05, momentum=0.9)"])
def test_the_readmes_example_fits_a_model_of_others(optimizer, tmp_path, monkeypatch):
    """The lines of the README with a layer of a transformer that torch wrote, and with the optimizer exchanged."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    code, models = re.subn(r"^model = .*$", "model = torch.nn.TransformerEncoderLayer(64, 4, 256)", code, flags=re.M)
    code, optimizers = re.subn(r"(?<=^optimizer = torch\.optim\.).*?\)  ", f"{optimizer}  ", code, flags=re.M)
    assert (models, optimizers) == (1, 1)
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code.replace("1000", "200"), "README.md", "exec"), found)
    left = rewa.sparsity.count(rewa.sparsity.prunable(found["model"]).values())
    assert left.total == 64 * 64 * 4 + 64 * 256 * 2
    assert left.total - left.nonzero == round(0.95 * left.total)
    fresh = torch.nn.TransformerEncoderLayer(64, 4, 256)
    rewa.load_packed("model.rewa", fresh)
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), found["model"].parameters(), strict=True))


@pytest.mark.slow
def test_the_guide_prints_what_it_says(tmp_path, monkeypatch, capsys):
    """The examples of docs/estimators.md, each print beside a comment that begins with its line."""
    code = run_examples("docs/estimators.md", tmp_path, monkeypatch)
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.M)
    assert len(expected) == code.count("print(") == 9
    for line, comment in zip(capsys.readouterr().out.splitlines(), expected, strict=True):
        assert comment.startswith(line)


def cells(result: str) -> dict[tuple[str, float], str]:
    """The cells of a published table, as the record has them."""
    numbers = json.loads((ROOT / "results" / result / "numbers.json").read_text())
    (comparison,) = numbers["comparisons"]
    return {
        (cell["method"], cell["compression"]): f"{cell['mean']:.1f}" + (f"±{cell['sd']:.1f}" if cell["n"] > 1 else "")
        for cell in comparison["cells"]
    }


def table_of(page: str, start: str) -> list[list[str]]:
    """The cells of the one table of a page whose header begins with some words; the header first."""
    lines = (ROOT / page).read_text().splitlines()
    (header,) = [number for number, line in enumerate(lines) if line.startswith(f"| {start} |")]
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[header:])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    return [rows[0], *rows[2:]]


@pytest.mark.parametrize(
    ("page", "start", "results", "count"),
    [
        ("README.md", "test accuracy, %", ["fashion-mnist"] * 3 + ["cifar10-cpu"] * 3, 6),
        ("docs/comparison.md", "test accuracy on Fashion-MNIST, %", ["fashion-mnist"] * 5, 12),
        ("docs/comparison.md", "test accuracy on CIFAR-10, %", ["cifar10-cpu"] * 5, 11),
        ("docs/methods.md", "test accuracy, %", ["digits-methods"] * 6, 28),
    ],
)
def test_published_tables_are_the_records(page, start, results, count):
    found = {result: cells(result) for result in results}
    header, *rows = table_of(page, start)
    compressions = [float(cell.split()[-1].removesuffix("x")) for cell in header[1:]]
    rows = [row for row in rows if row[0].startswith("`")]  # the lead has a test of its own
    assert len(rows) == count
    for name, *shown in rows:
        method = name.split("`")[1]
        expected = [found[result].get((method, each), "-") for result, each in zip(results, compressions, strict=True)]
        assert shown == expected, method


@pytest.mark.parametrize(("name", "result"), [("Fashion-MNIST", "fashion-mnist"), ("CIFAR-10", "cifar10-cpu")])
def test_published_leads_are_the_records(name, result):
    header, *rows = table_of("docs/comparison.md", f"test accuracy on {name}, %")
    leads = [line.split(" | ") for line in (ROOT / "results" / result / "table.md").read_text().splitlines() if " of " in line]
    recorded = {cells[0].removeprefix("| "): cells for cells in leads if cells[1:2] == ["rewa-annealed+gmp"]}
    assert {cells[3] for cells in recorded.values()} == {"gmp+ham"}
    shown = {row[0]: row[1:] for row in rows if not row[0].startswith("`")}
    assert shown == {
        "lead of the recipe over `gmp+ham`, seed by seed": [recorded[column][5] for column in header[1:]],
        "seeds ahead": [recorded[column][6].removesuffix(" |") for column in header[1:]],
    }


@pytest.mark.parametrize(
    ("name", "count"), [("synthetic", 5), ("estimators", 8), ("comparison-protocol", 11), ("sparsifier", 2)]
)
def test_tables_of_a_page_are_the_records(name, count):
    """Below a comment that names a file of results, the page has tables of that file, word for word."""
    page = (ROOT / "docs" / f"{name}.md").read_text()
    parts = re.split(r"<!-- (results/\S+) -->\n", page)
    assert len(parts) == 2 * count + 1
    for path, text in zip(parts[1::2], parts[2::2], strict=True):
        table = re.match(r"\|.*\n\| ---.*\n(?:\|.*\n){3,}", text)
        assert table, path
        assert f"\n\n{table[0]}" in (ROOT / path).read_text(), path


def test_the_short_table_of_estimators_is_the_record():
    found = json.loads((ROOT / "results" / "regression-seeds" / "regression.json").read_text())["designs"]["methods"]["B"]
    names = {
        "ReWARegressorCV": "rewa",
        "skglm L0.5": "l0.5",
        "skglm L2/3": "l2/3",
        "adaptive": "adaptive",
        "skglm MCP": "mcp",
        "abess": "abess",
    }
    rows = {row[0]: row[1:] for row in table_of("docs/estimators.md", "method, thirty data sets of design B")[1:]}
    assert len(rows) == len(names) + 1
    for start, method in {**names, "scikit-learn `LassoCV`": "lasso"}.items():
        (shown,) = [cells for name, cells in rows.items() if name.removeprefix("`").startswith(start)]
        of = found[method]
        expected = [
            f"{of['nnz']:.1f}",
            f"{of['true_positives']:.1f}",
            f"{of['f1']:.2f}",
            f"{of['error']:.3f}",
            f"{of['seconds']:.2f}",
        ]
        assert shown == expected, method


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


def test_the_files_of_the_demo_are_the_record():
    """Bytes and accuracies of the sentence on the demo's files, as `rewa reproduce digits` recorded them."""
    (comparison,) = json.loads((ROOT / "results" / "digits" / "numbers.json").read_text())["comparisons"]
    files = {row["method"]: row for row in comparison["deployed"]}
    page = (ROOT / "docs" / "deploy.md").read_text()
    (words,) = re.findall(r"A run of the demo ends with such a file:(.*?seeds get there)", page, re.S)
    dense, l1, ours = (files[name] for name in ("dense", "l1", "sparsifier"))
    sizes = [dense["dense_bytes"], *(row["file_bytes"] for row in (dense, l1, ours))]
    assert re.findall(r"\d+,\d+", words) == [f"{count:,.0f}" for count in sizes]
    (scores,) = re.findall(r"have ([\d., and]+) % test accuracy", " ".join(words.split()))
    assert re.split(r", | and ", scores) == [f"{row['test']:.1f}" for row in (dense, l1, ours)]
    (seeds,) = re.findall(r"; ([\d, and]+) of 3 seeds", " ".join(words.split()))
    assert re.split(r", | and ", seeds) == [str(row["seeds"]) for row in (dense, l1, ours)]


def test_the_demo_is_the_sweep_that_was_recorded():
    """The command of the Makefile trains what `rewa reproduce digits` does, and its record says so."""
    from rewa.cli import _parser
    from rewa.experiments import RESULTS

    (command,) = re.findall(r"rewa (sweep digits .*)", (ROOT / "Makefile").read_text())
    options = _parser().parse_args(command.split())
    sweep = RESULTS["digits"].sweep
    assert (options.recipe, tuple(options.methods.split(",")), options.seeds) == (sweep.recipe.name, sweep.methods, sweep.seeds)
    assert (options.strengths, options.rates, tuple(options.set)) == (sweep.strengths, sweep.rates, sweep.changes)
    recorded = json.loads((ROOT / "results" / "digits" / "numbers.json").read_text())
    found = tuple(recorded["methods"]), tuple(recorded["rates"]), recorded["seeds"]
    assert found == (sweep.methods, sweep.rates, sweep.seeds)
    assert {key: recorded["recipe"][key] for key in ("epochs", "lr", "batch_size")} == {
        key: getattr(sweep.recipe, key) for key in ("epochs", "lr", "batch_size")
    }


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_link_to_what_exists():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def sentences(page: Path) -> list[str]:
    """The sentences of a page's prose: no code, no tables, no headings."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", page.read_text(), flags=re.S)
    text = re.sub(r"^(?:\||#|    |!\[).*$", "", text, flags=re.M)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.M)  # each item of a list begins a sentence
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    return [one for each in paragraphs for one in re.split(r"(?<=[.!?])[*)\"']*\s+(?=[\"'(*`\[]*[A-Z\d`])", each)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page):
    assert [one for one in sentences(page) if len(one.split()) > 40] == []


def test_the_readme_is_short():
    assert 600 <= len((ROOT / "README.md").read_text().split()) <= 700


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
