"""Checks the rules that keep this project readable: sizes of files and diffs, widths, who imports whom.

python tests/measure/house.py                                 # prints every figure; status 1 if one is over
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["train_cpu.py", "train_ddp.py", "train_fsdp.py"]
LINES = {
    **dict.fromkeys(PAGES, 110),
    "model.py": 400,
    "data.py": 350,
    "translate.py": 180,
    "classify.py": 180,
    "plot.py": 200,
    "support/pretrained/pretrained.py": 150,
}
SUPPORT, SBATCH, WIDTH, CHANGED = 250, 40, 100, 25
TOP = {
    "README.md",
    "LICENSE",
    "requirements.txt",
    "model.py",
    "data.py",
    *PAGES,
    "translate.py",
    "classify.py",
    "plot.py",
    "batch",
    "configs",
    "docs",
    "logs",
    "support",
    "tests",
}


def budgets() -> dict[str, int]:
    """The files that have a budget, and the most lines that each may have."""
    found = {name: most for name, most in LINES.items() if (ROOT / name).exists()}
    for path in sorted((ROOT / "support").glob("*.py")):
        if path.name != "phrasebook.py":  # a third of it is a lexicon
            found.setdefault(f"support/{path.name}", SUPPORT)
    for path in sorted((ROOT / "batch").glob("*.sbatch")):
        found[f"batch/{path.name}"] = SBATCH
    return found


def lines(name: str) -> list[str]:
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


def changed(one: str, other: str) -> tuple[int, int]:
    """How many lines `diff one other` shows of each."""
    said = subprocess.run(
        ["diff", ROOT / one, ROOT / other], capture_output=True, text=True
    ).stdout
    marks = [line[0] for line in said.splitlines()]
    return marks.count("<"), marks.count(">")


def wide() -> list[str]:
    """Lines of Python, tests apart, that are too wide."""
    names = [
        str(path.relative_to(ROOT))
        for folder in (".", "support", "batch")
        for path in sorted((ROOT / folder).glob("*.py"))
    ]
    return [
        f"{name}:{number}: {len(line)} columns, at most {WIDTH}"
        for name in names
        for number, line in enumerate(lines(name), 1)
        if len(line) > WIDTH
    ]


def imports(name: str) -> set[str]:
    """The modules of a file's import statements, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {
                f"{node.module}.{alias.name}" if node.module == "support" else node.module
                for alias in node.names
            }
    return found


def breaches() -> list[str]:
    """Every rule that is broken, a line each."""
    found = [
        f"{name}: {len(lines(name))} lines, at most {most}"
        for name, most in budgets().items()
        if len(lines(name)) > most
    ]
    for one, other in zip(PAGES, PAGES[1:]):
        if max(changed(one, other)) > CHANGED:
            found.append(
                f"diff {one} {other}: {changed(one, other)} lines, at most {CHANGED} a side"
            )
    found += wide()
    top = {
        path.name
        for path in ROOT.iterdir()
        if path.name[0] != "." and path.name not in ("venv", "__pycache__")
    }
    found += [f"{name}: no entry of the top level" for name in sorted(top - TOP)]
    own = {path.stem for path in ROOT.glob("*.py")} | {"support"}
    if strange := {
        module
        for module in imports("model.py")
        if module.split(".")[0] in own
        or module.split(".")[0] not in {"torch", *sys.stdlib_module_names}
    }:
        found.append(f"model.py imports {', '.join(sorted(strange))}: torch alone")
    if strange := {module for module in imports("data.py") if module.split(".")[0] in own} - {
        "support.common.errors"
    }:
        found.append(
            f"data.py imports {', '.join(sorted(strange))}: support.common.errors alone"
        )
    graph = {
        name: imports(name)
        for name in [
            *(path.name for path in ROOT.glob("*.py")),
            *(f"support/{path.name}" for path in (ROOT / "support").glob("*.py")),
        ]
    }
    graph = {
        name.removesuffix(".py").replace("/", "."): modules for name, modules in graph.items()
    }
    for name, modules in graph.items():
        found += [
            f"{name} imports {module}: nothing imports a page"
            for module in modules
            if module.startswith("train_")
        ]
        found += [
            f"{name} imports itself, by way of others"
            for _ in [0]
            if name in reached(graph, name)
        ]
    return found


def reached(graph: dict[str, set[str]], name: str) -> set[str]:
    """All modules of this project that a module imports, or those do."""
    found, left = set(), [name]
    while left:
        for module in graph.get(left.pop(), ()):
            if module in graph and module not in found:
                found.add(module)
                left.append(module)
    return found


def main() -> None:
    for name, most in budgets().items():
        print(f"{name}: {len(lines(name))} lines of {most}")
    for one, other in zip(PAGES, PAGES[1:]):
        print(
            "diff {} {}: {} and {} lines of {}".format(
                one, other, *changed(one, other), CHANGED
            )
        )
    problems = breaches()
    print(*(f"error: {problem}" for problem in problems), sep="\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
