"""Trains several runs that differ in one thing, and compares them in a table and plots.

    python batch/study.py processes                  # on a laptop, one run after the other
    sbatch batch/study.sbatch processes              # under Slurm, one task of an array per run
    python batch/study.py learning-rate --data multi30k --epochs 25 --layers 3 --name my-study
    python batch/study.py delay --help               # what a study does, and its flags

Flags that a study does not know are passed on to the training script. The runs are kept in
logs/NAME/, with the table runs.csv and the plots. Ctrl-C or a time limit ends a study. The
same command then resumes it where it stopped, without repeating finished runs.
"""

import argparse
import inspect
import itertools
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.common.errors import ArgumentParser, UserError, run_main
from support.common.files import read_json, write_text
from support.common.paths import LOGS
from support.common.run_folder import check_name
from support.distributed.signals import Signals


@dataclass
class StudyRun:
    """One run of a study."""

    name: str
    mode: str  # of train_MODE.py
    processes: int
    flags: str  # of the training script
    prefix: str = ""  # put before the command that starts the run
    folder: Path = LOGS
    command: str = ""  # that starts or resumes the run, without its prefix

    def is_finished(self) -> bool:
        """Returns whether the run has ended and was scored."""
        return (self.folder / "summary.json").exists()


def study_processes(args: argparse.Namespace) -> Iterator[StudyRun]:
    """How fast each training script is with 1, 2 and 4 processes or GPUs: scaling.png.

    The size of a step is the same in all runs, so more processes mean fewer tokens for each or,
    with tensor parallelism, fewer heads. On CPUs each process gets one core.
    """
    modes = ["ddp", "fsdp", "tp"]
    if args.device == "cpu":
        modes.append("cpu")
    # --warmup 0 is a tenth of the run: a corpus's own warm-up may be longer than the whole run.
    flags = (
        f"--steps {args.steps} --warmup 0 --batch-tokens 4096 --log-every 5 "
        f"{shape(args, 2, 128, 512)}"
    )
    if not args.pretrained:
        flags += f" --heads {args.heads}"
    for mode, processes in itertools.product(modes, args.processes):
        if mode == "tp" and args.heads % processes:
            continue  # they cannot share the heads
        prefix = ""
        if sys.platform == "linux" and args.device == "cpu" and shutil.which("taskset"):
            cores = sorted(os.sched_getaffinity(0))[:processes]
            prefix = f"taskset -c {','.join(map(str, cores))}"
        yield StudyRun(f"{mode}-{processes}", mode, processes, flags, prefix)


def study_batch_size(args: argparse.Namespace) -> Iterator[StudyRun]:
    """What the batch size does to loss, metrics and speed: batch_size.png.

    --batch-tokens is the size of the whole step: the number of sentences times the length of
    the longest. The longer side of a pair of the phrasebook has about 10 tokens, so 32, 96
    and 384 are about 2, 5 and 20 pairs for each of two processes. All runs see the same number
    of tokens (--tokens on each side, padding included) or, with a classifier, of examples
    (--examples). A larger batch has less noise, so the learning rate grows with the square root
    of its size. A quarter of each run is warm-up.
    """
    from support.corpora.task_type import task_type

    if args.pretrained or task_type(args.data, args.label) == "classification":
        unit = "size"
        total = args.examples or 16_000
        unused = "tokens"
        sizes = [2, 8, 16, 32, 128]
        reference_lr = 0.001  # the peak learning rate for a step of the reference size
        reference_size = 64
    else:
        unit = "tokens"
        total = args.tokens or 160_000
        unused = "examples"
        sizes = [32, 96, 384, 1024, 4096]
        reference_lr = 0.004
        reference_size = 4096
    if getattr(args, unused):
        raise UserError(f"--{unused} is for a study of another task; see --help")
    if args.pretrained:
        reference_lr = 0.00005
        reference_size = 32
    for size in args.batches or sizes:
        lr = reference_lr * math.sqrt(size / reference_size)
        steps = max(1, total // size)
        quarter = max(1, total // 4 // size)
        flags = (
            f"--batch-{unit} {size} --lr {lr:.2g} --steps {steps} --warmup {quarter} "
            f"--eval-every {quarter} --log-every {total // 40 // size + 1} "
            f"{shape(args, 1, 128, 256)}"
        )
        yield StudyRun(f"{unit}-{size}", args.mode, args.processes, flags)


def study_learning_rate(args: argparse.Namespace) -> Iterator[StudyRun]:
    """What the peak learning rate does to loss and metrics: learning_rate.png, curves.png.

    curves.png shows the loss and the metrics (BLEU, or accuracy and F1) after each epoch.
    """
    rates = ["0.0003", "0.002", "0.01", "0.05"]
    if args.pretrained:
        rates = ["0.00002", "0.00005", "0.0001", "0.0003"]
    flags = f"--epochs {args.epochs} --warmup 0 --batch-tokens 2048 {shape(args, 1, 128, 256)}"
    for rate in args.rates or rates:
        yield StudyRun(f"lr-{rate}", args.mode, args.processes, f"--lr {rate} {flags}")


def study_delay(args: argparse.Namespace) -> Iterator[StudyRun]:
    """What a slow network costs, with and without accumulation: delay.png.

    As root, where the kernel has netem, two processes are two nodes on a slow network
    (netem.sh). Elsewhere, or with --no-netem, --delay-ms makes each process wait before each
    collective. A study can only be resumed with the method that it was started with. With
    --accumulate 4 a step has four micro-batches of the same size and one all-reduce of the
    gradients: a quarter of the waiting for the same sentences.
    """
    is_possible = sys.platform == "linux" and args.device == "cpu" and args.processes == 2
    uses_netem = args.netem and is_possible
    if uses_netem:
        probe = ["sh", "batch/netem.sh", "0", "works"]
        uses_netem = subprocess.run(probe, capture_output=True).returncode == 0
    for accumulate, delay in itertools.product((1, 4), args.delays):
        steps = math.ceil(args.steps / accumulate)
        flags = (
            f"--delay-ms {delay} --accumulate {accumulate} --steps {steps} --warmup 0 "
            f"--batch-tokens {args.batch_tokens * accumulate} --log-every {8 // accumulate} "
            f"{shape(args, 2, 128, 512)}"
        )
        prefix = ""
        if uses_netem:
            flags += " --netem"
            prefix = f"sh batch/netem.sh {delay}"
        name = f"delay-{delay}-accumulate-{accumulate}"
        yield StudyRun(name, "ddp", args.processes, flags, prefix)


STUDIES = {
    "processes": study_processes,
    "batch-size": study_batch_size,
    "learning-rate": study_learning_rate,
    "delay": study_delay,
}
# Flags of the training script with which a study would be another one. It refuses them.
OWN = {
    "processes": (),
    "batch-size": ("--batch-tokens", "--batch-size", "--steps"),
    "learning-rate": ("--lr",),
    "delay": ("--delay-ms", "--accumulate", "--batch-size"),
}
OWN_OF_ALL = ("--config", "--minutes", "--procs", "--resume")


def shape(args: argparse.Namespace, layers: int, d_model: int, d_ff: int) -> str:
    """Returns the flags of a small model; none with --pretrained, which has its own shape."""
    if args.pretrained:
        return ""
    return f"--layers {layers} --d-model {d_model} --d-ff {d_ff}"


def read_flags() -> argparse.Namespace:
    """Returns the study's flags.

    passed_on: the flags for the training script; mode: for studies that do not compare modes.
    """
    parser_settings: dict[str, Any] = {
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,  # else a study would take some flags of the training script
    }
    parser = ArgumentParser(description=__doc__, **parser_settings)
    subparsers = parser.add_subparsers(dest="study", metavar="STUDY", required=True)
    for name, study in STUDIES.items():
        doc = inspect.getdoc(study) or ""
        title, _, _ = doc.partition("\n")
        subparser = subparsers.add_parser(name, help=title, description=doc, **parser_settings)
        add_flags(subparser, name)
    args, passed_on = parser.parse_known_args()
    refuse_own(args.study, passed_on)
    args.passed_on = passed_on
    args.name = check_name(args.name)
    args.mode = "ddp" if args.device == "cuda" else "cpu"
    return args


def refuse_own(study: str, passed_on: list[str]) -> None:
    """Raises UserError for flags that would make the runs of a study others than it says."""
    flags = {argument.partition("=")[0] for argument in passed_on}
    for flag in (*OWN[study], *OWN_OF_ALL):
        if flag in flags:
            raise UserError(f"{flag}: not for the study {study}; --help lists its flags")


def add_flags(parser: argparse.ArgumentParser, study: str) -> None:
    """Adds the flags that all studies have, and then those of `study`."""
    add = parser.add_argument
    add("--data", default="phrasebook", help="corpus [phrasebook]")
    add("--pretrained", default="", help="folder of weights to begin with")
    add("--label", default="", help="to classify: column of a table with the class")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="[cpu]")
    add("--name", default=f"study-{study}", help=f"folder in logs/ [study-{study}]")
    numbers: dict[str, Any] = {"type": positive, "nargs": "+", "metavar": "N"}
    if study == "processes":
        add("--processes", **numbers, default=[1, 2, 4], help="[1 2 4]")
        add("--steps", type=positive, default=60, help="of each run [60]")
        add("--heads", type=positive, default=4, help="attention heads, --pretrained too [4]")
        return
    add("--processes", type=positive, default=2, help="of each run [2]")
    if study == "batch-size":
        sizes = "[32 96 384 1024 4096 tokens, or 2 8 16 32 128 examples]"
        add("--batches", **numbers, help=f"sizes of a step {sizes}")
        add("--tokens", type=positive, help="of each run of a translator [160000]")
        add("--examples", type=positive, help="of each run of a classifier [16000]")
    elif study == "learning-rate":
        rates = "[0.0003 0.002 0.01 0.05; with --pretrained 0.00002 to 0.0003]"
        add("--rates", type=decimal, nargs="+", metavar="LR", help=f"peak rates {rates}")
        add("--epochs", type=positive, default=5, help="of each run [5]")
    else:
        delays = ["0", "1", "10", "50", "100"]
        milliseconds: dict[str, Any] = {"type": decimal, "nargs": "+", "metavar": "MS"}
        add("--delays", **milliseconds, default=delays, help="[0 1 10 50 100]")
        add("--steps", type=positive, default=80, help="micro-batches of each run [80]")
        add("--batch-tokens", type=positive, default=2048, help="of a micro-batch [2048]")
        add("--no-netem", dest="netem", action="store_false", help="use --delay-ms")


def positive(text: str) -> int:
    """Returns an integer of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: it must be at least 1")
    return number


def decimal(text: str) -> str:
    """Returns the text of a number of at least 0, for argparse. Runs are named after it."""
    if not 0 <= float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: it must be at least 0, and finite")
    return text


def find_command(args: argparse.Namespace, run: StudyRun) -> str:
    """Returns the command that starts or resumes a run, without its prefix."""
    if run.mode == "cpu":
        start = f"python train_cpu.py --procs {run.processes}"
    else:
        start = f"torchrun --standalone --nproc-per-node {run.processes} "
        start += f"train_{run.mode}.py --device {args.device}"
    command = [*start.split(), "--name", f"{args.name}/{run.name}", "--data", args.data]
    for flag in ("pretrained", "label"):
        value = getattr(args, flag)
        if value:
            command += [f"--{flag}", value]
    command += [*run.flags.split(), "--average-checkpoints", "1", *args.passed_on]
    return shlex.join(command)


def stop(number: int, _frame) -> None:
    """Handles a signal: ends the study once the current run has saved."""
    Signals.handle(signal.SIG_IGN)
    sys.exit(128 + number)


def call(command: list[str]) -> int:
    """Runs a command and returns its exit status. Stopping the study stops the command, too."""
    program = shutil.which(command[0]) or command[0]  # Windows does not look in PATH first
    # In a process group of its own, so that Ctrl-C in the terminal does not reach it as well.
    # On Windows it does, and `terminate` would not let the child save.
    child = subprocess.Popen([program, *command[1:]], process_group=0)
    try:
        return child.wait()
    except SystemExit:
        if sys.platform != "win32":
            child.terminate()
        child.wait()
        raise


def train(args: argparse.Namespace, run: StudyRun) -> int:
    """Trains or resumes a run, and returns its exit status."""
    run.folder.mkdir(parents=True, exist_ok=True)
    write_text(run.folder / "command", f"{run.command}\n")
    command = f"{run.prefix} {run.command}".strip()
    print(f"\n{args.name}: {command}", flush=True)
    return call(shlex.split(command))


def check_same_flags(run: StudyRun) -> None:
    """Raises UserError if the run was started with other flags."""
    if not (run.folder / "config.json").exists():  # it did not begin to train
        return
    before = (run.folder / "command").read_text(encoding="utf-8").strip()
    if before != run.command:
        raise UserError(f"{run.folder} was started as: {before}; pass --name for another study")


def train_and_plot(args: argparse.Namespace, runs: list[StudyRun], task: int | None) -> None:
    """Trains unfinished runs. Once all are finished, writes the table and the plots.

    task: the number of the only run to train, from 1; None: all runs. If one of these fails,
    the others are trained and plotted without it. Raises UserError for runs that failed.
    """
    for run in runs:
        check_same_flags(run)
    failures = []
    for run in [runs[task - 1]] if task else runs:
        status = 0 if run.is_finished() else train(args, run)
        if status:
            failures.append(f"{run.folder} ended with status {status}")
    # Other tasks of the array may have finished some, too.
    unfinished = [number for number, run in enumerate(runs, 1) if not run.is_finished()]
    if unfinished and not failures:
        finished = len(runs) - len(unfinished)
        print(f"{args.name}: {finished} of {len(runs)} runs are finished; the last one plots")
        last_task = int(os.environ.get("SLURM_ARRAY_TASK_MAX", len(runs)))
        if unfinished[-1] > last_task:
            print(f"no task of this array trains the others: sbatch --array=1-{len(runs)}")
        return
    finished_runs = [run for run in runs if run.is_finished()]
    warn_of_other_data(finished_runs)
    folders = [str(run.folder) for run in finished_runs]
    plots = not failures or (len(folders) > 1 and not task)
    if plots and call(["python", "plot.py", "--out", str(LOGS / args.name), *folders]):
        failures.append("plot.py failed")
    if failures:
        raise UserError(
            f"{'; '.join(failures)}; to resume {args.name}, start it again with the same flags"
        )


def warn_of_other_data(runs: list[StudyRun]) -> None:
    """Prints a warning if finished runs had different numbers of training examples."""
    counts = {read_json(run.folder / "summary.json").get("training_examples") for run in runs}
    if len(counts) > 1:
        numbers = ", ".join(f"{count:,}" for count in sorted(counts))
        print(
            f"warning: the runs had {numbers} training examples: the corpus has changed since "
            f"the study began"
        )


def requeue(task: int | None) -> None:
    """Asks Slurm to start this job again, if it is one of Slurm's. task: of a job array."""
    job = os.environ.get("SLURM_JOB_ID")
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:  # whose last task has the same SLURM_JOB_ID
        job = f"{array}_{task}"
    if job:
        subprocess.run(["scontrol", "requeue", job])


def main() -> None:
    args = read_flags()
    # "python" and "torchrun" are those of the Python that runs this script.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    Signals.handle(stop)
    runs = list(STUDIES[args.study](args))
    for run in runs:
        run.folder = LOGS / args.name / run.name
        run.command = find_command(args, run)
    task = None
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        task = int(os.environ["SLURM_ARRAY_TASK_ID"])
        if task < 1:
            raise UserError(f"tasks count from 1: sbatch --array=1-{len(runs)}")
        if task > len(runs):
            print(f"{args.name}: there are only {len(runs)} runs, none for task {task}")
            return
    try:
        train_and_plot(args, runs, task)
    except SystemExit as end:
        print(f"{args.name} is stopped; to resume it, start it again", file=sys.stderr)
        if sys.platform != "win32" and end.code == 128 + signal.SIGUSR1:  # near a time limit
            requeue(task)
        raise


if __name__ == "__main__":
    run_main(main)
