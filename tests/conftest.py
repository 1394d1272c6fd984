"""Fixtures and helpers of all tests: the --all option, a private cache, small corpora, scripts.

python -m pytest tests        # the quick tests, which touch every subject
python -m pytest tests --all  # all tests, including Slurm, kill -9 and network namespaces
"""

import atexit
import csv
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Encoded corpora are cached in a folder of this process alone, which its scripts inherit.
os.environ["XDG_CACHE_HOME"] = CACHE = tempfile.mkdtemp(prefix="tests-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
# Under nohup, SIGHUP is ignored, and in the background of a shell SIGINT. The scripts that
# tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Waiting OpenMP threads sleep. Spinning ones take many times as long on a busy machine.
os.environ["OMP_WAIT_POLICY"] = "passive"
# Servers on loopback are not behind a proxy.
os.environ["no_proxy"] = "127.0.0.1"
ROOT = Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "tests" / name) for name in ("", "unit", "launch", "measure")),
]

import psutil
import pytest
import torch
import torch.distributed as dist

# A model that trains in no time; the tests are about what is computed, not about how well.
SMALL = shlex.split(
    "--layers 1 --d-model 32 --heads 2 --d-ff 64 --vocab-size 300 "
    "--batch-tokens 512 --precision fp32 --warmup 20 "
    "--average-checkpoints 1 --log-every 1"
)

# What tests need that not every system has.
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="it needs Linux' /proc or /dev/full")


def skip_on_windows(reason: str) -> None:
    """Skips the module of tests that calls it."""
    if sys.platform == "win32":
        pytest.skip(reason, allow_module_level=True)


def make_link(path: Path, target: Path | str) -> None:
    """Makes a symbolic link, or skips the test: Windows allows them in Developer Mode only."""
    try:
        path.symlink_to(target)
    except OSError as problem:
        if sys.platform != "win32":
            raise
        pytest.skip(str(problem))


# Network namespaces need root, iproute2 and a kernel that has them.
PROBE = f"probe-{os.getpid()}"
NETWORK = (
    sys.platform == "linux"
    and os.geteuid() == 0
    and shutil.which("ip")
    and subprocess.run(["ip", "netns", "add", PROBE], capture_output=True).returncode == 0
)
if NETWORK:
    subprocess.run(["ip", "netns", "delete", PROBE], check=True)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the slow tests, too")
    parser.addoption("--gpu", action="store_true", help="run only the tests made for a GPU")


def pytest_configure(config):
    if not config.getoption("--gpu"):  # all others are made for the CPU, also where one is
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config, items):
    def is_left_out(item) -> bool:
        is_for_gpus = item.get_closest_marker("gpu") is not None
        is_slow = item.get_closest_marker("slow") is not None
        if is_for_gpus != config.getoption("--gpu"):
            return True
        return is_slow and not config.getoption("--all")

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]


@pytest.fixture(autouse=True)
def environment():
    """Restores the environment variables that a test, or code under test, has changed."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def alone():
    """A group of this one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def pairs():
    """Real sentence pairs: Multi30k's if MULTI30K names its folder, else the phrasebook's."""
    from support.corpora.pairs import find_corpus

    corpus = find_corpus(os.environ.get("MULTI30K") or "phrasebook")
    return {part: list(read()) for part, read in corpus.parts.items()}


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory, pairs):
    """PREFIX of 600 training pairs, with PREFIX-valid of 60 and PREFIX-test of 40.

    The latter are the shortest: a model that has learnt nothing translates until it reaches the
    limit, which grows with the length.
    """
    prefix = tmp_path_factory.mktemp("corpus") / "small"
    write_pairs(prefix, pairs["train"][:600])
    for part, size in (("valid", 60), ("test", 40)):
        shortest = sorted(pairs[part], key=lambda pair: len(pair[0]))[:size]
        write_pairs(f"{prefix}-{part}", shortest)
    return prefix


def write_pairs(prefix, pairs) -> None:
    """Writes PREFIX.de and PREFIX.en."""
    for i, side in enumerate(("de", "en")):
        Path(f"{prefix}.{side}").write_text(
            "".join(pair[i] + "\n" for pair in pairs), encoding="utf-8"
        )


@pytest.fixture(scope="session")
def corpus_flags(small_corpus):
    valid, test = f"{small_corpus}-valid", f"{small_corpus}-test"
    return ["--data", str(small_corpus), "--valid", valid, "--test", test]


@pytest.fixture(scope="session")
def train(corpus_flags):
    """train(folder, *flags) runs train_cpu.py there: a small model on the small corpus.

    It returns the finished process.
    """

    def run(folder, *flags, script="train_cpu.py", **kwargs):
        if "--resume" not in flags:
            flags = (*corpus_flags, *SMALL, *flags)
        return run_script(script, *flags, cwd=folder, **kwargs)

    return run


def run_script(script, *flags, cwd, timeout=300, **kwargs):
    """Runs a script of the project. Its output is bytes if its input is, else text."""
    command = [sys.executable, str(ROOT / script), *map(str, flags)]
    encoding = None if isinstance(kwargs.get("input"), bytes) else "utf-8"
    return subprocess.run(
        command, cwd=cwd, timeout=timeout, capture_output=True, encoding=encoding, **kwargs
    )


@pytest.fixture
def go(tmp_path):
    """go(mode, processes, *flags) trains there; returns what the script prints on stderr.

    mode: as in tests/measure/parity.py. status: the exit status that the script must have.
    """
    import parity

    def run(mode, procs, *flags, status=0):
        command = parity.command(mode, procs, *map(str, flags))
        done = subprocess.run(
            command, cwd=tmp_path, timeout=300, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        return done.stderr

    return run


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """refusal(*flags) returns the error message of train_cpu.py, without starting it.

    Paths in it have a / on Windows, too.
    """
    from support.common.errors import UserError
    from support.training.command_line import parse_arguments
    from support.training.settings import CpuSettings
    from support.training.tasks import prepare_task

    def say(*flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train_cpu.py", *flags])
        with pytest.raises(UserError) as problem:
            prepare_task(parse_arguments("", CpuSettings).complete()).build_model()
        assert "\n" not in str(problem.value)
        return str(problem.value).replace(os.sep, "/")

    return say


def read_metrics(run) -> list[dict]:
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


# Columns that differ between equal runs.
TIMES = {"seconds", "tokens_per_second", "mfu", "step_ms", "data_ms"}
MEMORY = {"memory_mib", "reserved_mib"}


def mathematics(rows):
    """The rows without the columns of measured times and memory."""
    return [
        {name: value for name, value in row.items() if name not in TIMES | MEMORY}
        for row in rows
    ]


def write_runs(folder, checkpoint: dict, kinds: dict) -> None:
    """Writes logs/NAME/best.pt for each name of `kinds`, a task of that kind; newest first."""
    for age, (name, kind) in enumerate(kinds.items()):
        path = folder / "logs" / name / "best.pt"
        path.parent.mkdir(parents=True)
        torch.save(checkpoint | {"task": checkpoint["task"] | {"type": kind}}, path)
        os.utime(path, (1e9 - age, 1e9 - age))


def children_of(pid: int) -> set[int]:
    """All descendants of a process."""
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def is_alive(pid: int) -> bool:
    """Whether there is such a process; not if it has ended and nobody has asked how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers_of(pid: int) -> list[int]:
    """The descendants of a process that train, without Python's helper processes."""

    def command(child):
        try:
            return " ".join(psutil.Process(child).cmdline())
        except psutil.Error:  # the process has ended
            return ""

    return sorted(
        child
        for child in children_of(pid)
        if "spawn_main" in command(child) or "/train_" in command(child)
    )


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still waiting after {seconds} seconds"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, train):
    """A folder with a small finished run, logs/first.

    It has learnt next to nothing, so that its translations differ from source to source: after
    a few steps at a higher learning rate all of them would be a single letter, repeated.
    """
    folder = tmp_path_factory.mktemp("trained")
    flags = "--name first --steps 30 --eval-every 10 --average-checkpoints 2 --warmup 3000"
    done = train(folder, *shlex.split(flags))
    assert done.returncode == 0, done.stderr
    text = (folder / "logs/first/translations.txt").read_text(encoding="utf-8")
    assert len(set(text.splitlines())) > 10
    return folder
