"""What the tests share: two speeds, a cache of their own, small corpora, and a way to run the scripts.

python -m pytest tests                                 # the quick ones, which touch every subject
python -m pytest tests --all                           # all: Slurm, storms of kill -9, namespaces
"""

import atexit
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Encoded corpora go to a folder of this test run, also those of the scripts that it starts.
os.environ["XDG_CACHE_HOME"] = CACHE = tempfile.mkdtemp(prefix="tests-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, also for what tests start
# Threads that wait for one another sleep at once: beside other work, those that spin take many times as long.
os.environ["OMP_WAIT_POLICY"] = "passive"
ROOT = Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "tests" / name) for name in ("", "unit", "launch", "measure")),
]

import pytest
import torch

# A model that trains in no time; the tests are about what is computed, not about how well.
SMALL = [
    "--layers",
    "1",
    "--d-model",
    "32",
    "--heads",
    "2",
    "--d-ff",
    "64",
    "--vocab-size",
    "300",
    "--batch-tokens",
    "512",
    "--precision",
    "fp32",
    "--warmup",
    "20",
    "--average-checkpoints",
    "1",
    "--log-every",
    "1",
]

# Network namespaces need root, iproute2 and a kernel that has them.
PROBE = f"probe-{os.getpid()}"
NETWORK = (
    os.geteuid() == 0
    and shutil.which("ip")
    and subprocess.run(["ip", "netns", "add", PROBE], capture_output=True).returncode == 0
)
if NETWORK:
    subprocess.run(["ip", "netns", "delete", PROBE], check=True)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="the slow tests, too")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long; only --all runs it")
    config.addinivalue_line(
        "markers", "optional: needs a package that requirements.txt has not"
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--all"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(autouse=True)
def environment():
    """The processes that a test starts take nothing over from one before, such as Gloo's interface."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def pairs():
    """Real sentence pairs: Multi30k's where MULTI30K names its folder, else the phrasebook's."""
    from support.corpora.pairs import find_corpus

    corpus = find_corpus(os.environ.get("MULTI30K") or "phrasebook")
    return {part: list(read()) for part, read in corpus.parts.items()}


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory, pairs):
    """PREFIX of 600 training pairs, with PREFIX-valid of 60 and PREFIX-test of 40."""
    prefix = tmp_path_factory.mktemp("corpus") / "small"
    for name, part, size in (
        ("", "train", 600),
        ("-valid", "valid", 60),
        ("-test", "test", 40),
    ):
        write_pairs(f"{prefix}{name}", pairs[part][:size])
    return prefix


def write_pairs(prefix, pairs) -> None:
    for i, side in enumerate(("de", "en")):
        Path(f"{prefix}.{side}").write_text(
            "".join(pair[i] + "\n" for pair in pairs), encoding="utf-8"
        )


@pytest.fixture(scope="session")
def corpus_flags(small_corpus):
    return [
        "--data",
        str(small_corpus),
        "--valid",
        f"{small_corpus}-valid",
        "--test",
        f"{small_corpus}-test",
    ]


@pytest.fixture(scope="session")
def train(corpus_flags):
    """train(folder, *flags) runs train_cpu.py there, small, on the small corpus; returns the finished process."""

    def run(folder, *flags, script="train_cpu.py", **how):
        corpus = [*corpus_flags, *SMALL]
        if "--resume" in flags:
            corpus = []
        return run_script(script, *corpus, *flags, cwd=folder, **how)

    return run


def run_script(script, *flags, cwd, timeout=300, **how):
    command = [sys.executable, str(ROOT / script), *map(str, flags)]
    text = "input" not in how or isinstance(how["input"], str)
    return subprocess.run(
        command, cwd=cwd, timeout=timeout, capture_output=True, text=text, **how
    )


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """refusal(*flags) is what train_cpu.py says to them, in its one line, without being started."""
    from support.common.errors import UserError
    from support.training.flags import complete, parse_arguments
    from support.training.tasks import find_task

    def say(*flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train_cpu.py", *flags])
        with pytest.raises(UserError) as problem:
            find_task(
                complete(parse_arguments("", devices=("cpu",), procs=(int, 0, "processes")))
            ).model()
        assert "\n" not in str(problem.value)
        return str(problem.value)

    return say


def read_metrics(run) -> list[dict]:
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


TIMED = {"seconds", "tokens_per_second", "mfu"}  # columns that no two runs share


def mathematics(rows):
    """The rows without what was measured by a clock."""
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows]


def write_runs(folder, checkpoint: dict, kinds: dict) -> None:
    """logs/NAME/best.pt in `folder` for each name of `kinds`, of a task of that kind; the first is the newest."""
    for age, (name, kind) in enumerate(kinds.items()):
        path = folder / "logs" / name / "best.pt"
        path.parent.mkdir(parents=True)
        torch.save(checkpoint | {"task": checkpoint["task"] | {"kind": kind}}, path)
        os.utime(path, (1e9 - age, 1e9 - age))


def children_of(pid: int) -> set[int]:
    """Every process that descends from this one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout
    parents = {int(a): int(b) for a, b in (line.split() for line in listed.splitlines())}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def workers_of(pid: int) -> list[int]:
    """The processes under this one that train; Python has others, which nobody would miss."""

    def command(child):
        try:
            return Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:  # it has ended
            return b""

    return sorted(
        child
        for child in children_of(pid)
        if b"spawn_main" in command(child) or b"/train_" in command(child)
    )


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, train):
    """The folder in which a small run has been trained to its end, as logs/first."""
    folder = tmp_path_factory.mktemp("trained")
    done = train(
        folder,
        "--name",
        "first",
        "--steps",
        "30",
        "--eval-every",
        "10",
        "--average-checkpoints",
        "2",
    )
    assert done.returncode == 0, done.stderr
    return folder
