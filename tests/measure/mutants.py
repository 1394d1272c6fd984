"""Makes one small mistake at a time in a module, and counts how many of them the tests notice.

    python tests/measure/mutants.py --sample 40             # 40 of each module in MODULES
    python tests/measure/mutants.py --only beam --sample 0  # all of one module

A mistake is another comparison or operation, a number that is one off, True for False, a
negated condition, `and` for `or`, a statement left out, None returned, or a method that is not
called. Strings, type hints, defaults of the command line and messages of `raise` stay as they
are.

A process that has imported torch and pytest forks for each mistake, so that no mistake costs
the seconds of an import. The fork makes the mistake in the module's syntax tree while importing
it. Then it runs the tests that reach the line, the fastest first, until one fails. No file
changes. A test that takes far too long, or too much memory, counts as failed. Tests that start
processes would not see the mistake, so they are of no use here. Prints the mistakes that
survive, as FILE:LINE before -> after. (mutmut and cosmic-ray start Python and import torch for
each mistake, which would take a hundred times as long as most of these tests.)
"""

import argparse
import ast
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch  # noqa: F401 (so that the forks need not import it)
from printed import header, row

ROOT = Path(__file__).parents[2]
MODULES = {  # (what of it: all if none is named, tests)
    "model.py": ((), "test_model test_fast test_classifier"),
    "support/common/kernels.py": (
        (
            "speed_up",
            "replace_functions",
            "OneProductAttention",
            "in_low_precision",
            "put",
            "CastTogether",
            "cast_together",
            "ByteDropout",
        ),
        "test_fast test_model",
    ),
    "support/common/fused_loss.py": ((), "test_fast test_model"),
    "support/common/hardware.py": (("fast_precision",), "test_fast"),
    "data.py": (("Sentences", "Pairs", "group_by_length", "Batches"), "test_data"),
    "support/corpora/held_out.py": ((), "test_data test_labelled"),
    "support/common/checkpoint.py": ((), "test_checkpoint test_run"),
    "support/translation/beam.py": ((), "test_beam"),
    "support/distributed/weights.py": ((), "test_weights test_trust"),
    "support/distributed/clip.py": ((), "test_weights"),
    "support/distributed/shards.py": ((), "test_trust"),
    "support/classification/text_tokenizers.py": ((), "test_classification"),
    "support/classification/examples.py": ((), "test_classification"),
    "support/classification/encoding.py": ((), "test_classification test_labelled"),
    "support/training/progress.py": ((), "test_run"),
    "support/training/run.py": ((), "test_run test_cuda test_amount"),
    "support/training/resume.py": ((), "test_run test_checkpoint"),
    "support/training/summary.py": ((), "test_summary test_amount"),
    "support/corpora/tables.py": ((), "test_data test_corpora test_labelled"),
    "support/corpora/pairs.py": ((), "test_data test_corpora"),
    "support/corpora/class_folders.py": ((), "test_labelled test_corpora"),
    "support/translation/lines.py": ((), "test_beam test_translate"),
    "support/training/final.py": ((), "test_run"),
    "support/training/command_line.py": ((), "test_run test_config_file test_amount test_fast"),
    "support/training/config_file.py": ((), "test_config_file test_amount"),
    "support/classification/task.py": ((), "test_classification test_run"),
    "support/classification/metrics.py": ((), "test_metrics test_classify"),
    "support/translation/task.py": ((), "test_run test_checkpoint test_data"),
    "support/translation/encoding.py": ((), "test_data"),
    "support/pretrained/load.py": ((), "test_pretrained"),
    "support/pretrained/hf_files.py": ((), "test_pretrained"),
    "support/planning/footprint.py": ((), "test_plan"),
    "support/planning/estimate.py": ((), "test_plan"),
    "support/studies/runs_table.py": ((), "test_plot"),
}
SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


# --- Mistakes


def mistakes(node: ast.AST, modules: set[str]) -> Iterator[ast.AST]:
    """The nodes that one mistake could put in the place of a node. modules: imported names."""
    yield from mistakes_in_expressions(node, modules)
    yield from mistakes_in_statements(node)


def mistakes_in_expressions(node: ast.AST, modules: set[str]) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                yield ast.Compare(
                    node.left,
                    [*node.ops[:i], SWAPS[type(op)](), *node.ops[i + 1 :]],
                    node.comparators,
                )
        case ast.BinOp() if type(node.op) in SWAPS:
            yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
        case ast.Call(func=ast.Attribute(value=receiver)) if (
            getattr(receiver, "id", "") not in modules
        ):
            yield receiver


def mistakes_in_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Mistakes in statements and in conditional expressions."""
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Return(value=ast.AST()) if not isinstance(node.value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.AugAssign():
            yield ast.Pass()
            if type(node.op) in SWAPS:
                yield ast.AugAssign(node.target, SWAPS[type(node.op)](), node.value)
        case ast.Raise() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()):
            yield ast.Pass()


def sites(tree: ast.Module, names: tuple[str, ...]) -> list[tuple[ast.AST, ast.AST, range]]:
    """All (node, replacement, lines) of a module, or of its classes and functions in `names`.

    lines: those of the statement that a test has to reach; empty if importing the module does.
    """
    modules = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {"F", "super"}
    found = []

    def visit(node: ast.AST, lines: range, inside: bool) -> None:
        body = getattr(node, "body", None)
        if inside and isinstance(node, (ast.stmt, ast.ExceptHandler)):
            lines = range(
                node.lineno, body[0].lineno if isinstance(body, list) else node.end_lineno + 1
            )
        found.extend((node, other, lines) for other in mistakes(node, modules))
        for name, value in (
            ast.iter_fields(node) if not isinstance(node, (ast.Raise, ast.JoinedStr)) else ()
        ):
            within = (
                inside or name == "body" and isinstance(node, (ast.FunctionDef, ast.Lambda))
            )
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in (
                    "annotation",
                    "returns",
                    "decorator_list",
                ):
                    visit(child, lines, within)

    for node in tree.body:
        if not names or getattr(node, "name", "") in names:
            visit(node, range(0), False)
    return found


class Swap(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node):
        return (
            ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)
        )


def text(node: ast.AST) -> str:
    """A node on one line, in at most 60 columns."""
    line = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    return line if len(line) <= 60 else f"{line[:57]}..."


# --- Tests, in forks


class Importer:
    """Has a module's name import a syntax tree."""

    def __init__(self, path: Path, tree: ast.Module):
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        self.path = path
        self.code = compile(ast.fix_missing_locations(tree), path, "exec")

    def find_spec(self, name, *_):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = str(self.path)
        exec(self.code, module.__dict__)


class Watch:
    """A pytest plugin: each test's seconds, the lines of a file that it reaches, its forks.

    The lines that forks reach are not seen.
    """

    def __init__(self, path: Path):
        self.path = str(path)
        self.found = {}
        self.forks = 0
        os.register_at_fork(before=self.count_fork)

    def count_fork(self):
        self.forks += 1

    def pytest_runtest_protocol(self, item):
        self.lines = set()
        self.began = time.perf_counter()
        self.forks = 0
        sys.settrace(self.trace)

    def pytest_runtest_logfinish(self, nodeid):
        sys.settrace(None)
        seconds = time.perf_counter() - self.began
        self.found[nodeid] = (seconds, sorted(self.lines), self.forks)

    def trace(self, frame, event, _):
        if frame.f_code.co_filename != self.path:
            return None
        self.lines.add(frame.f_lineno)
        return self.trace


def fork(
    path: Path, tree: ast.Module, tests: list[str], seconds: float, watch: Watch | None = None
) -> int:
    """Runs tests with a module as in `tree`, in a fork. Returns 0 if they pass in this time."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30,) * 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        status = 99  # the module cannot even be imported
        try:
            sys.meta_path.insert(0, Importer(path, tree))
            options = ["-q", "-n", "0", "-p", "no:cacheprovider"]
            plugins = []
            if watch:
                plugins.append(watch)
            else:
                options.append("-x")
            status = pytest.main([*options, *tests], plugins=plugins)
            if watch:
                Path(os.environ["TMPDIR"], "reached").write_text(json.dumps(watch.found))
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    try:
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.005)
    finally:  # also on Ctrl-C
        if not ended[0]:
            os.killpg(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
    return ended[1]


def reached(
    path: Path, tree: ast.Module, tests: list[str]
) -> dict[str, tuple[float, list[int], int]]:
    """Seconds, lines and forks of each test, without a mistake, the fastest first."""
    if status := fork(path, tree, tests, 600, Watch(path)):
        sys.exit(
            f"error: {path}: its tests fail, or take too long, without any mistake "
            f"(status {status})"
        )
    found = json.loads(Path(os.environ["TMPDIR"], "reached").read_text())
    return dict(sorted(found.items(), key=lambda test: test[1][0]))


def survivors(module: str, sample: int, seed: int) -> Iterator[str]:
    """Yields a line for each mistake that no test notices, and then a row of the table."""
    path = ROOT / module
    names, files = MODULES[module]
    source = path.read_text(encoding="utf-8")
    lived = 0
    paths = [f"tests/unit/{name}.py" for name in files.split()]
    tests = reached(path, ast.parse(source), paths)
    everything = len(sites(ast.parse(source), names))
    rng = random.Random(f"{seed} {module}")
    chosen = sorted(rng.sample(range(everything), min(sample or everything, everything)))
    for number in chosen:
        tree = ast.parse(source)
        old, new, lines = sites(tree, names)[number]
        line, before, after = old.lineno, text(old), text(new)
        these = [
            test
            for test, (_, its, forks) in tests.items()
            if forks or not lines or set(its) & set(lines)
        ]
        limit = 20 + 5 * sum(tests[test][0] for test in these)
        if not these or fork(path, Swap(old, new).visit(tree), these, limit) == 0:
            lived += 1
            unreached = "" if these else " (no test reaches it)"
            yield f"{module}:{line} {before} -> {after}{unreached}"
    killed = len(chosen) - lived
    share = killed / len(chosen)
    yield row(module, everything, len(chosen), killed, lived, f"{share:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sample", type=int, default=40, help="mistakes in each module; 0: all [40]"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the choice [1]")
    parser.add_argument("--only", default="", help="the modules whose name has this in it")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="mutants-")
    table = [header("module", "mistakes", "tried", "noticed", "survive", "share noticed")]
    try:
        for module in MODULES:
            if args.only in module:
                for line in survivors(module, args.sample, args.seed):
                    print(line, flush=True)
                table.append(line)  # the last one counts
    finally:
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    print("", *table, sep="\n")


if __name__ == "__main__":
    main()
