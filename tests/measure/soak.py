"""Disturbs training for an hour; shows that the result is exact and that all messages are true.

    python tests/measure/soak.py  # an hour of disturbances, then undisturbed runs
    python tests/measure/soak.py --minutes 3 --modes cpu,nodes --seed 7

The modes are train_cpu.py and train_fsdp.py on three processes; train_ddp.py on two (on three,
DDP adds up in another order in the first step after a restart than later, which changes the
last bit); train_tp.py on two, which share each layer; "nodes", train_ddp.py under two torchrun
without a common folder; and, if asked for, "fsdp-nodes", the same with train_fsdp.py.

Each mode trains one run without an end. At random moments one of KINDS happens, and what has
ended is started again with the same command. When the time is over, the run trains to its last
step, is killed twice while it writes its summary, and ends. Then an undisturbed run takes as
many steps: metrics.csv, weights, optimizer, summary and translations must be equal to the last
bit, and the same files must exist. Each printed line is checked too: a process that is called
dead was killed or stopped, a step that is called saved is in the file, and a loss is that of
the undisturbed run. Lines of PyTorch are not checked. Full disks need root, for a small tmpfs.
--write keeps the table as logs/reference/benchmark/soak.md.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

# The helpers of the tests; importing them adds the paths of the project.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from conftest import ROOT, SMALL, mathematics, read_metrics, workers_of
from parity import command, write_corpus
from printed import header
from test_torchrun import rank_of

from support.common.hardware import available_cores, device_name

PROCS = {"cpu": 3, "ddp": 2, "fsdp": 3, "tp": 2, "nodes": 2, "fsdp-nodes": 2}
TIMEOUT, PATIENCE, EVERY = 20, 180, 50  # seconds, seconds, steps
FLAGS = [
    *SMALL,
    *shlex.split("--data corpus --average-checkpoints 3 --save-every 5"),
    *shlex.split(f"--eval-every {EVERY} --timeout {TIMEOUT}"),
]
SIGNALS = {number.name: number for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
KILL_ONE = "kill -9 of one process"
KILL_ALL = "kill -9 of all"
KILL_PARENT = "kill -9 of the parent"
KILL_NODE = "kill -9 of a node"
STOP = "SIGSTOP for longer than --timeout"
FULL = "full disk"
END = "kill -9 at the end"
KINDS = [*SIGNALS, KILL_ONE, KILL_ALL, KILL_PARENT, STOP]


# --- Lines that the scripts print

RESULTS = {  # what a line says: the result in the table
    "stopped and saved": "saves and ends",
    "has died": "names the process",
    "was killed": "names the process",
    "cannot be written": "says so",
    "No space left": "says so",
    "Traceback (most recent": "ends in a traceback",
}
DIED = re.compile(
    r"error: process ([\d, ]+) of (\d+) "
    r"(has died or does not answer|has not started within)"
)
KILLED = re.compile(
    r"error: process (\d+) of (\d+) was killed \(SIGKILL\); "
    r"(there is no checkpoint to resume from|"
    r"resume with: python \S*train_cpu.py --resume logs/run)$"
)
NOT_WRITTEN = re.compile(
    r"error: logs/run\S*: (?:the checkpoint cannot be written .*?|No space left on device)"
    r"(; the previous one is intact)?$"
)
STOPPED = re.compile(
    r"stopped and saved at step (\d+); resume with: "
    r"(?:python|torchrun [-\w. ]+) \S*train_\w+\.py --resume logs/run"
    r"(?: --device cpu)?(?: --tensor 2)?$"
)
RESUMED = re.compile(
    r"resumed logs/run at step ([\d,]+)(?:, its last: nothing is left to train)?$"
)
STEP = re.compile(
    r"step (\d+)/(\d+), epoch (\d+): loss ([\d.]+)"
    r"(?:, valid loss ([\d.]+), valid bleu ([\d.e-]+))?, [\d,]+ tokens/s, "
)

# Lines that depend on how long a run is, how long it takes, and when it is killed.
OF_LENGTH = re.compile(
    r" in all; logs/run/ has| of training here$|^epochs: |^settings: |, so it begins at step 0$"
)


class Soak:
    """One mode's run, all that happens to it, and what it prints."""

    def __init__(self, mode: str, place: Path, seed: int, full: bool, kinds: str = ""):
        self.mode = mode
        self.place = place
        self.rng = random.Random(f"{seed} {mode}")
        self.marker = uuid.uuid4().hex  # in the environment of all its processes
        self.procs = PROCS[mode]
        self.two = mode.endswith("nodes")
        possible = list(KINDS)
        if self.two:
            possible.append(KILL_NODE)
        if full:
            possible.append(FULL)
        self.kinds = [kind for kind in possible if re.search(kinds, kind)]
        self.bag = []  # kinds that are still to happen, before all happen again
        self.commands = []
        self.starts = 0
        self.steps = 10**6
        self.read = {}  # bytes of each file of output that have been read
        self.claims = []  # the numbers of printed steps
        self.others = set()  # other lines of standard output
        self.lines = 0
        self.wrong = []
        self.counts = {}
        names = ("one", "two") if self.two else ("one",)
        self.folders = [place / name for name in names]
        self.run = self.folders[0] / "logs" / "run"
        for folder in self.folders:
            for name in ("corpus", "said", "tmp", "cache", "logs"):
                (folder / name).mkdir(parents=True)
            write_corpus(folder / "corpus")
        if full:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", self.run.parent], check=True
            )

    def start(self) -> None:
        """Starts the commands that do not run. If all are new they meet at another port."""
        flags = [*FLAGS, "--name", "run", "--steps", str(self.steps)]
        if not self.running():
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            self.restarts = self.rng.choice((0, 3))
            self.commands = [None] * len(self.folders)
        script = "ddp" if self.mode == "nodes" else self.mode.removesuffix("-nodes")
        for node, folder in enumerate(self.folders):
            if self.commands[node] and self.commands[node].poll() is None:
                continue
            how = f"--standalone --nproc-per-node {self.procs}"
            if self.two:
                how = (
                    f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
                    f"--rdzv-endpoint 127.0.0.1:{self.port} --rdzv-conf is_host={node == 0} "
                    f"--local-addr 127.0.0.{node + 1}"
                )
            torchrun = (
                f"-m torch.distributed.run --max-restarts {self.restarts} --redirects 3 "
                f"--log-dir said --signals-to-handle SIGINT,{','.join(SIGNALS)} {how}"
            )
            start = [sys.executable, *torchrun.split(), ROOT / f"train_{script}.py"]
            words = [*map(str, start), "--device", "cpu", *flags]
            if self.mode == "cpu":
                words = command("cpu", self.procs, *flags)
            environment = os.environ | {
                "XDG_CACHE_HOME": str(folder / "cache"),
                "TMPDIR": str(folder / "tmp"),
                "OMP_NUM_THREADS": "1",
                "SOAK": self.marker,
            }
            # What torchrun's agent prints is not this project's: it stays in a file of its own.
            ending = "log" if self.mode == "cpu" else "torchrun"
            with (
                open(folder / "said" / f"{self.starts}.stdout.{ending}", "w") as out,
                open(folder / "said" / f"{self.starts}.stderr.{ending}", "w") as err,
            ):
                self.commands[node] = subprocess.Popen(
                    words, cwd=folder, stdout=out, stderr=err, env=environment
                )
            self.starts += 1

    # --- What there is

    def running(self) -> list[subprocess.Popen]:
        return [one for one in self.commands if one and one.poll() is None]

    def alive(self) -> list[int]:
        """All processes that were started here or by those, whoever their parent is now."""
        # Not by the marker alone: one that is just ending may have no environment any more.
        found = [one.pid for one in self.running()]
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"SOAK={self.marker}".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # it has ended
                pass
        return found

    def saved(self) -> float:
        """When the last checkpoint was written."""
        try:
            return (self.run / "last.pt").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def new_lines(self) -> list[tuple[bool, str]]:
        """What was printed since the last call: (whether to standard output, line)."""
        found = []
        for path in sorted(self.place.glob("*/said/**/*.log")):
            content = path.read_bytes()
            before = self.read.get(path, 0)
            self.read[path] = end = content.rfind(b"\n") + 1
            found += [
                ("stdout" in path.name, line)
                for line in content[before:end].decode().splitlines()
            ]
        return found

    # --- What happens

    def wait(self, what: str, condition, seconds: float = PATIENCE) -> bool:
        """Waits for a condition, and returns what it gives."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
            time.sleep(0.1)
        return found

    def disturb(self) -> None:
        """Does one of the kinds at a random moment, and checks what comes of it."""
        self.wait_for_a_moment()
        if not self.bag:
            self.bag = self.rng.sample(self.kinds, len(self.kinds))
        kind = self.bag.pop()
        self.ranks = set()
        self.do(kind)
        goes_on = self.settle()
        self.count(kind, self.check(kind, goes_on))

    def wait_for_a_moment(self) -> None:
        """Waits for a random moment, mostly while the run trains, else while it starts."""
        before = self.saved()
        if self.rng.random() < 0.8:
            self.wait("a checkpoint", lambda: self.saved() > before or not self.running())
        time.sleep(self.rng.uniform(0, 2 if self.saved() > before else 6))
        if len(self.running()) < len(self.commands):
            raise AssertionError(
                f"ended though nothing had happened to it: {self.new_lines()[-5:]}"
            )

    def do(self, kind: str) -> None:
        """Disturbs the run. self.ranks: the ranks that may be called dead for it."""
        workers = [pid for one in self.running() for pid in workers_of(one.pid)]
        if kind in SIGNALS:
            self.send(SIGNALS[kind], [one.pid for one in self.running()])
        elif kind == KILL_ALL:
            self.ranks = set(range(self.procs))
            self.send(signal.SIGKILL, self.alive())
        elif kind == KILL_PARENT:
            self.send(signal.SIGKILL, [one.pid for one in self.running()])
        elif kind == KILL_NODE:
            node = self.rng.choice(self.running() or [None])
            ours = workers_of(node.pid) if node else []
            self.ranks = ranks_of(ours)
            self.send(signal.SIGKILL, [*ours, node.pid] if node else [])
        elif kind == FULL:
            self.ranks = {0}  # it cannot write, and leaves
            self.fill_the_disk()
        elif workers:
            victim = self.rng.choice(workers)
            self.ranks = ranks_of([victim])
            self.send(signal.SIGKILL if kind == KILL_ONE else signal.SIGSTOP, [victim])
            if kind == STOP:
                time.sleep(TIMEOUT + 5)
                self.send(signal.SIGCONT, [victim])

    def send(self, number: int, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def fill_the_disk(self) -> None:
        """Leaves no room for a checkpoint, but perhaps for rows, until the run has noticed."""
        filler = self.run.parent / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError:
                size = (self.run / "last.pt").stat().st_size if self.saved() else 0
                file.truncate(file.tell() - int(0.8 * size * self.rng.random()))

        def noticed():
            new = [
                path.read_bytes()[self.read.get(path, 0) :]
                for path in self.place.glob("*/said/**/*.log")
            ]
            said = b"".join(new)
            is_said = b"cannot be written" in said or b"No space left" in said
            return is_said or not self.running()

        try:
            self.wait("somebody to notice the full disk", noticed)
        finally:
            filler.unlink()

    def settle(self) -> bool:
        """Waits until all have ended or the run goes on, and returns whether it goes on.

        A node that has ended is started again after 15 s.
        """
        began = time.time()
        gone = 0.0

        def settled():
            nonlocal gone
            if not self.alive():
                return "ended"
            if self.saved() > began + 6:  # who only waits for others has left by then
                return "goes on"
            if self.running() and len(self.running()) < len(self.commands):
                gone = gone or time.time()
                if time.time() > gone + 15:
                    self.start()
            return ""

        return self.wait("the end, or a new checkpoint", settled) == "goes on"

    # --- What was said

    def check(self, kind: str, goes_on: bool) -> str:
        """Notes what is not true of the new lines; returns the result for the table."""
        lines = self.new_lines()
        came = "goes on" if goes_on else "ends"
        self.lines += len(lines)
        for out, line in lines:
            if not self.is_true(out, line, kind, goes_on):
                self.wrong.append(f"after {kind}, ranks {sorted(self.ranks)}: {line}")
            for text, result in RESULTS.items():
                if text in line:
                    came = result
        return came

    def is_true(self, out: bool, line: str, kind: str, goes_on: bool) -> bool:
        """Whether a line is true after something of `kind` has happened."""
        there = (self.run / "last.pt").exists()
        if found := DIED.match(line):
            ranks = {int(rank) for rank in found[1].split(", ")}
            return ranks <= self.ranks and int(found[2]) == self.procs
        if line.startswith("error: the processes have lost contact ("):
            # A process that was stopped says so, or the store has gone.
            return kind in (STOP, KILL_PARENT, KILL_NODE)
        if line == "error: torchrun has ended meanwhile":
            # It was killed before its processes had met.
            return kind in (KILL_PARENT, KILL_NODE)
        if found := KILLED.match(line):
            says_saved = found[3].startswith("resume with")
            of_this_run = int(found[1]) in self.ranks and int(found[2]) == self.procs
            return of_this_run and says_saved == there
        if found := NOT_WRITTEN.match(line):
            return kind == FULL and (not found[1] or there)
        if line == "error: a file cannot be written: No space left on device":
            return kind == FULL
        if line.startswith(("step ", "stopped ", "resumed ")):
            return self.is_true_of_steps(line, kind, goes_on)
        if out:
            self.others.add(line)
        # Warnings on standard output have to be those of an undisturbed run.
        return not line.startswith("error:" if out else ("error:", "warning:"))

    def is_true_of_steps(self, line: str, kind: str, goes_on: bool) -> bool:
        """Whether a line that names a step is true. The losses in it are compared later."""
        if found := STOPPED.match(line):
            step = self.saved_step()
            is_step = int(found[1]) == step or goes_on and int(found[1]) < step
            return kind in (*SIGNALS, KILL_PARENT) and is_step
        if found := STEP.match(line):
            self.claims.append(found.groups())
            return int(found[2]) == self.steps
        if found := RESUMED.match(line):
            return int(found[1].replace(",", "")) <= self.saved_step()
        self.others.add(line)
        return True

    def saved_step(self) -> int:
        """Returns the step of last.pt, or 0 if there is none."""
        path = self.run / "last.pt"
        return torch.load(path, weights_only=True)["step"] if path.exists() else 0

    def count(self, kind: str, came: str) -> None:
        self.counts.setdefault(kind, Counter())[came] += 1

    # --- The whole

    def soak(self, minutes: float) -> None:
        """Trains and disturbs for so long, then to an end.

        Raises AssertionError if something is not as it has to be.
        """
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            if not self.running():
                self.start()
            self.disturb()
        self.ranks = set()
        self.send(signal.SIGTERM, [one.pid for one in self.running()])
        self.wait("the end", lambda: not self.alive())
        self.check("SIGTERM", False)
        self.steps = (self.saved_step() // EVERY + 1) * EVERY
        for again in (True, True, False):
            before = self.saved()
            self.start()
            if again:  # the last checkpoint is there, or the run sums up
                self.wait(
                    "the last step",
                    lambda: (
                        torch.load(self.run / "last.pt", weights_only=True)["step"]
                        == self.steps
                        or not self.running()
                    ),
                )
                time.sleep(
                    self.rng.uniform(0, 2) if self.saved() > before else self.rng.uniform(4, 9)
                )
                self.ranks = set(range(self.procs))
                self.send(signal.SIGKILL, self.alive())
            self.wait("the end", lambda: not self.alive(), 2 * PATIENCE)
            self.count(END, self.check(END, False)) if again else self.check("", False)
        assert not any(one.returncode for one in self.commands), (
            f"ended with {[one.returncode for one in self.commands]}"
        )

    def compare(self) -> None:
        """An undisturbed run of as many steps, next to this one."""
        calm = Soak(self.mode, self.place / "calm", 0, False)
        calm.steps = self.steps
        calm.marker = self.marker  # the same one, so that `clean` finds all
        calm.ranks = set()
        calm.start()
        calm.wait("the undisturbed run", lambda: not calm.alive(), 60 + self.steps)
        calm.check("", False)
        for path in sorted(calm.run.glob("*.pt")):
            ours, theirs = (
                torch.load(run / path.name, weights_only=True) for run in (self.run, calm.run)
            )
            for part in {"model", "optimizer"} & theirs.keys():
                assert same(ours[part], theirs[part]), (
                    f"{path.name}: {part} is not that of the undisturbed run"
                )
        rows = read_metrics(calm.run)
        assert mathematics(read_metrics(self.run)) == mathematics(rows), (
            "metrics.csv is not that of the undisturbed run"
        )
        assert (self.run / "translations.txt").read_bytes() == (
            calm.run / "translations.txt"
        ).read_bytes()
        assert timeless(self.run) == timeless(calm.run), (
            "summary.json is not that of the undisturbed run"
        )
        files = [
            sorted(
                str(path.relative_to(soak.place))
                for folder in soak.folders
                for path in folder.rglob("*")
                if "said" not in path.parts and path.is_file()
            )
            for soak in (self, calm)
        ]
        assert files[0] == files[1], (
            f"left behind or missing: {sorted({*files[0]} ^ {*files[1]})}"
        )
        for step, _, epoch, *figures in self.claims:
            row = rows[int(step) - 1]
            true = [
                row["step"],
                int(row["epoch"]),
                *(row[name] or -1 for name in ("train_loss", "valid_loss", "valid_bleu")),
            ]
            said = [step, epoch, *(figure or -1 for figure in figures)]
            if not all(
                math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-4)
                for a, b in zip(said, true)
            ):
                self.wrong.append(f"said {said}, metrics.csv has {true}")
        strange = [
            line for line in sorted(self.others - calm.others) if not OF_LENGTH.search(line)
        ]
        self.wrong += [f"an undisturbed run does not say: {line}" for line in strange]
        assert not self.wrong, "\n".join(["not true:", *self.wrong])

    def clean(self) -> None:
        self.send(signal.SIGCONT, self.alive())
        self.send(signal.SIGKILL, self.alive())
        if os.path.ismount(self.run.parent):
            time.sleep(1)
            shutil.copytree(
                self.run.parent, self.folders[0] / "kept"
            )  # to look at, if something was wrong
            subprocess.run(["umount", self.run.parent], check=True)


def ranks_of(pids: list[int]) -> set[int]:
    """Of those that have not just ended."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(rank_of(pid))
    return found


def same(one, other) -> bool:
    """Whether two trees of tensors are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def timeless(run: Path) -> dict:
    """summary.json without what was measured by a clock, or is the machine's."""

    def keep(entries: dict) -> dict:
        return {
            name: value
            for name, value in entries.items()
            if not re.search("second|mfu|memory|epochs", name)
        }

    summary = json.loads((run / "summary.json").read_text())
    return keep(summary) | {"epochs": [keep(epoch) for epoch in summary["epochs"]]}


def can_mount(folder: Path) -> bool:
    """Whether a small disk can be made to be filled."""
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True
        ).returncode
        == 0
    )
    return mounted and subprocess.run(["umount", folder]).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=60, help="of disturbance, shared among the modes [60]"
    )
    parser.add_argument(
        "--modes",
        default="cpu,ddp,fsdp,tp,nodes",
        help="separated by commas [cpu,ddp,fsdp,tp,nodes]",
    )
    parser.add_argument(
        "--kinds", default="", help="a pattern: only what it matches happens [all]"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what happens, and when [1]")
    parser.add_argument(
        "--write", action="store_true", help="write logs/reference/benchmark/soak.md"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without cleaning up
    modes = args.modes.split(",")
    began = time.time()
    table = []
    after = []
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    if not (full := can_mount(place)):
        after.append(
            "Full disks were left out: they need root, and a kernel that lets it mount a tmpfs."
        )
    try:
        for mode in modes:
            shared = set(os.listdir("/dev/shm"))
            soak = Soak(mode, place / mode, args.seed, full, args.kinds)
            try:
                soak.soak(args.minutes / len(modes))
                soak.compare()
            finally:
                for kind, came in soak.counts.items():
                    what = ", ".join(f"{text} {times}" for text, times in came.most_common())
                    table.append(f"| {mode} | {kind} | {came.total()} | {what} |")
                    print(table[-1], flush=True)
                soak.clean()
            if left := set(os.listdir("/dev/shm")) - shared:
                sys.exit(f"error: left in /dev/shm: {left}")
            after.append(
                f"{mode}: {soak.starts} starts, {soak.steps:,} steps, {soak.lines:,} lines; "
                "its files equal those of an undisturbed run, bit for bit."
            )
            print(after[-1], flush=True)
    except (AssertionError, OSError) as problem:
        sys.exit(f"error: {mode}: {problem}\n{place} has what was said")
    shutil.rmtree(place)
    if args.write:
        command_line = " ".join(["python", "tests/measure/soak.py", *sys.argv[1:]])
        minutes = (time.time() - began) / 60
        head = [
            f"`{command_line}` (seed {args.seed}), {available_cores()} cores of "
            f"{device_name('cpu')}, PyTorch {torch.__version__}, {minutes:.0f} minutes with "
            "the undisturbed runs:",
            "",
            header("mode", "what happened", "times", "result"),
        ]
        (ROOT / "logs/reference/benchmark/soak.md").write_text(
            "\n".join([*head, *table, "", *(f"- {line}" for line in after)]) + "\n"
        )


if __name__ == "__main__":
    main()
