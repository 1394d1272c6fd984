"""The rules that keep the project readable: see CONTRIBUTING.md."""

import ast
import graphlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, run_script

TRAINING_SCRIPTS = ["train_cpu.py", "train_ddp.py", "train_fsdp.py", "train_tp.py"]
OTHER_SCRIPTS = ["translate.py", "classify.py", "plot.py"]
FILES = {"README.md", "CONTRIBUTING.md", "LICENSE", "requirements.txt", "pyproject.toml"}
FOLDERS = {"batch", "configs", "docs", "logs", "support", "tests"}
TOP_LEVEL = {*FILES, *FOLDERS, "model.py", "data.py", *TRAINING_SCRIPTS, *OTHER_SCRIPTS}

# A module imports from its own group and from those above it.
ORDER = [
    {"model", "data"},
    {"common"},
    {"corpora"},
    {"distributed"},
    {"translation"},
    {"classification"},
    {"pretrained"},
    {"profiling"},
    {"planning", "studies", "ctranslate"},
    {"training"},
]
# The third ring: what training and translating do without.
OPTIONAL = {
    "classification", "pretrained", "profiling", "planning", "studies", "ctranslate",
}  # fmt: skip
MAX_MODULES = 24  # of support/, which a training script may load when it is imported
MAX_SCRIPT_LINES = 110
MAX_DIFF_LINES = 25  # of each side
MAX_COLUMNS = 96


def path_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = sorted(
    module_of(path) for path in [*ROOT.glob("*.py"), *ROOT.glob("support/**/*.py")]
)


def group_of(module: str) -> str:
    """The folder of support/ that a module is in; a script is a group of its own."""
    parts = module.split(".")
    return parts[1] if parts[0] == "support" else parts[0]


def rank_of(module: str) -> int:
    """The place of a module's group in ORDER; scripts come last."""
    for rank, groups in enumerate(ORDER):
        if group_of(module) in groups:
            return rank
    return len(ORDER)


def executed_at_import(node: ast.AST):
    """A module's nodes, without the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from executed_at_import(child)


def imports_of(module: str, nodes=ast.walk) -> set[str]:
    """The modules that a module imports: names of MODULES in full, of others the first part."""
    names = set()
    for node in nodes(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.add(submodule if submodule in MODULES else node.module)
    return {name if name in MODULES else name.split(".")[0] for name in names}


def imports_of_the_project(module: str, nodes=ast.walk) -> set[str]:
    return imports_of(module, nodes) & set(MODULES)


def changed_lines(before: str, after: str) -> list[str]:
    """The lines in which two files differ, as diff prints them but with - for < and + for >."""
    command = ["diff", ROOT / before, ROOT / after]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode < 2, done.stderr
    marks = {"<": "-", ">": "+"}
    return [marks[line[0]] + line[2:] for line in done.stdout.splitlines() if line[0] in marks]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_top_level_has_no_other_entries():
    command = ["git", "ls-files"]  # a user's own files are no entries
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    entries = {Path(name).parts[0] for name in listed.stdout.splitlines()}
    assert {name for name in entries if not name.startswith(".")} == TOP_LEVEL


def test_training_scripts_fit_on_two_screens():
    for script in TRAINING_SCRIPTS:
        assert len((ROOT / script).read_text().splitlines()) <= MAX_SCRIPT_LINES, script


def test_training_scripts_differ_in_few_lines():
    for before, after in zip(TRAINING_SCRIPTS, TRAINING_SCRIPTS[1:]):
        marks = [line[0] for line in changed_lines(before, after)]
        assert marks.count("-") <= MAX_DIFF_LINES, (before, after)
        assert marks.count("+") <= MAX_DIFF_LINES, (before, after)


def test_no_line_of_python_is_too_wide():
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("", "batch/", "support/**/", "tests/**/")
        for path in sorted(ROOT.glob(f"{folder}*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]
    assert wide == []


@pytest.mark.skipif(not shutil.which("ruff"), reason="pip install ruff")
@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff_has_nothing_to_say(command):
    ruff = subprocess.run(
        ["ruff", *command.split(), "--quiet"], cwd=ROOT, capture_output=True, text=True
    )
    assert ruff.returncode == 0, ruff.stdout


def test_imports_go_one_way():
    wrong = [
        f"{module} imports {imported}"
        for module in MODULES
        for imported in sorted(imports_of_the_project(module))
        if rank_of(imported) > rank_of(module)
        or rank_of(imported) == rank_of(module)
        and group_of(imported) != group_of(module)
    ]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: imports_of_the_project(module) for module in MODULES}
    graphlib.TopologicalSorter(graph).prepare()


def test_the_third_ring_is_imported_by_functions_alone():
    """Training and translating work without it, so no module of theirs loads it at import."""
    wrong = [
        f"{module} imports {imported}"
        for module in MODULES
        if group_of(module) not in OPTIONAL | {"classify", "plot"}
        for imported in sorted(imports_of_the_project(module, executed_at_import))
        if group_of(imported) in OPTIONAL
    ]
    assert wrong == []


def test_the_model_and_the_batches_stand_alone():
    assert imports_of("model") - sys.stdlib_module_names == {"torch"}
    assert imports_of("data") - sys.stdlib_module_names == {"torch", "numpy", "tokenizers"}


def test_nothing_imports_a_training_script():
    scripts = {Path(script).stem for script in TRAINING_SCRIPTS}
    for module in MODULES:
        assert not imports_of(module) & scripts, module


@pytest.mark.parametrize("script", TRAINING_SCRIPTS)
def test_a_training_script_loads_few_modules(script):
    count = f"""
import sys, {Path(script).stem}
files = [name for name, module in sys.modules.items() if getattr(module, "__file__", None)]
print(*(name for name in files if name.startswith("support.")))
"""
    command = [sys.executable, "-c", count]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) <= MAX_MODULES, done.stdout


@pytest.mark.parametrize("script", ["plot.py", "batch/study.py"])
def test_a_script_that_only_reads_runs_does_not_load_torch(script):
    """It takes seconds to load."""
    load = f"import runpy, sys; runpy.run_path({script!r}); print('torch' in sys.modules)"
    command = [sys.executable, "-c", load]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_training_and_translating_do_without_the_third_ring(tmp_path, corpus_flags):
    for path in ROOT.glob("*.py"):
        shutil.copy(path, tmp_path)
    for folder in ("configs", "support"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for folder in OPTIONAL:
        shutil.rmtree(tmp_path / "support" / folder)

    def run(script, *flags):
        done = run_script(tmp_path / script, *flags, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    corpus = ["--data", "phrasebook", *corpus_flags[2:]]  # to score few sentences
    run("train_cpu.py", *corpus, *SMALL, *shlex.split("--name r --steps 4"))
    run("train_cpu.py", *shlex.split("--resume logs/r --steps 6"))
    assert "\n" in run("translate.py", "Ein Hund läuft.")
