"""Training speed beside what others would use: same shape, same corpus, in turn, on all cores.

    python tests/measure/benchmark.py --data multi30k --vocab-size 8000 --d-ff 1024 --steps 80
    python tests/measure/benchmark.py --joeynmt PYTHON --marian PYTHON --rounds 3 --write ...

All other flags are those of train_cpu.py, except --precision. PYTHON is the interpreter of an
environment with JoeyNMT 2.3 (pip install joeynmt) or MarianMT (pip install transformers).
torch.nn.Transformer is timed with this project's batches, loop and processes, and with the
tutorials' recipe: one process, padded batches of 128 sentences as they come. Peers with one
process run with and without our settings of glibc's allocator. Each program runs in fp32; where
the CPU is fast in bf16, this project, torch.nn.Transformer in its loop and MarianMT run in
bf16, too. A speed is the median over the steps without the first quarter. Prints a table of the
medians of the rounds, each beside this project's in the same precision; --write keeps every run
in logs/reference/benchmark/training.csv.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import numpy as np
import torch
from printed import header, read_benchmark, row
from reference import TorchTransformer

import train_cpu
from support.common.hardware import fast_precision
from support.distributed.launch import spawn
from support.training.command_line import CommandLine, parse_arguments
from support.training.settings import CpuSettings
from support.training.tasks import prepare_task
from support.translation.task import Translation

# With these, glibc keeps freed memory. Training does not set them, as it gains nothing by them:
# see logs/reference/benchmark/tricks.md.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 60),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
OURS = "this project"


def train_peer(rank: int, world_size: int, args) -> None:
    """`train_cpu.train` with the model of PyTorch's layers, which initializes itself."""
    torch.manual_seed(args.seed)
    # `patch.object` raises AttributeError if nothing has this name.
    with (
        patch.object(Translation, "build_model", lambda task: TorchTransformer(task.config)),
        patch.object(train_cpu, "initialize", lambda model, seed: None),
    ):
        train_cpu.train(rank, world_size, args)


def parse_flags(flags: list[str]) -> CommandLine:
    """What train_cpu.py --benchmark would make of them."""
    sys.argv = ["train_cpu.py", "--benchmark", *flags]
    return parse_arguments(__doc__, CpuSettings)


def measure(command: list[str], env: dict) -> tuple[str, float]:
    """What a command prints, and the memory of its largest process in MiB."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        said = output.read()
    if status:
        sys.exit(f"{' '.join(command)}:\n{said[-2000:]}")
    return said, usage.ru_maxrss / 1024


def target_speed(said: str, share: float) -> float:
    """Target tokens a second, by what a program printed; `share` of all tokens are targets."""
    ours = read_benchmark(said)
    if ours:
        return share * ours.speed
    if speeds := [float(number) for number in re.findall(r"Tokens per Sec:\s+(\d+)", said)]:
        return statistics.median(speeds[len(speeds) // 4 :])  # JoeyNMT's log
    return float(re.search(r"([\d.]+) target tokens/s", said)[1])


def write_table(found: dict) -> None:
    """Every run so far, as logs/reference/benchmark/training.csv."""
    path = Path("logs/reference/benchmark/training.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        columns = ["what", "precision", "allocator", "round"]
        rows.writerow([*columns, "target_tokens_per_second", "peak_mib"])
        rows.writerows(
            [*key, n, round(speed), round(memory)]
            for key, values in found.items()
            for n, (speed, memory) in enumerate(values, 1)
        )


def print_table(found: dict) -> None:
    speed_titles = ["target tokens/s", "range", "MiB of the largest process"]
    print(header("", "precision", "allocator", *speed_titles, "ours is faster by"))
    medians = {
        key: [statistics.median(column) for column in zip(*values)]
        for key, values in found.items()
    }
    for (name, precision, allocator), (speed, memory) in medians.items():
        speeds = [speed for speed, _ in found[name, precision, allocator]]
        span = f"{min(speeds):,.0f} - {max(speeds):,.0f}"
        faster = medians[OURS, precision, "set"][0] / speed
        cells = [f"{speed:,.0f}", span, f"{memory:,.0f}", f"{faster:.1f}"]
        print(row(name, precision, allocator, *cells))


def main() -> None:
    own = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("--joeynmt", metavar="PYTHON")
    own.add_argument("--marian", metavar="PYTHON")
    own.add_argument("--rounds", metavar="N", type=int, default=3)
    own.add_argument("--write", action="store_true")
    own.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    given, flags = own.parse_known_args()
    if given.peer:
        spawn(train_peer, parse_flags(flags))
        return
    args = parse_flags(flags).complete()
    task = prepare_task(args)
    pairs = task.batches.examples
    sources, targets = (int(side.sum()) for side in pairs.lengths(np.arange(len(pairs))))
    shape = {
        "model": asdict(task.config),
        "steps": args.steps,
        "batch_tokens": args.batch_tokens,
    }

    peers = str(Path(__file__).with_name("peers.py"))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for side, sentences in zip(("src", "tgt"), pairs.sides):
            ends = zip(sentences.offsets, sentences.offsets[1:])
            with open(f"{folder}/train.{side}", "w") as file:
                file.writelines(
                    " ".join(map(str, sentences.ids[a : b - 1])) + "\n" for a, b in ends
                )

        # A row for each step, so that the median is one of steps, as of the others.
        each_step = ["--log-every", "1", *flags]
        mine = [sys.executable, train_cpu.__file__, "--benchmark", *each_step]
        peer = [sys.executable, __file__, "--peer", *each_step]
        precisions = {"fp32", fast_precision("cpu")}
        commands = []  # (what, precision, allocator, command)
        for precision in sorted(precisions):
            for name, command in (
                (OURS, mine),
                ("torch.nn.Transformer, our batches and loop", peer),
            ):
                with_precision = [*command, "--precision", precision]
                commands += [(name, precision, "set", with_precision)]
        for name, python, program, precision in (
            ("torch.nn.Transformer, the tutorials' recipe", sys.executable, "tutorial", "fp32"),
            ("MarianMT", given.marian, "marian", "fp32"),
            ("MarianMT", given.marian, "marian", "bf16"),
            ("JoeyNMT", given.joeynmt, "joeynmt", "fp32"),
        ):
            commands += [
                (name, precision, allocator, [python, peers, program, folder])
                for allocator in ("plain", "set")
                if python and precision in precisions
            ]

        plain = {key: value for key, value in os.environ.items() if key not in ALLOCATOR}
        for _ in range(given.rounds):
            for name, precision, allocator, command in commands:
                Path(folder, "shape.json").write_text(
                    json.dumps(shape | {"precision": precision})
                )
                env = plain if allocator == "plain" else plain | ALLOCATOR
                said, memory = measure(command, env)
                speed = target_speed(said, targets / (sources + targets))
                found.setdefault((name, precision, allocator), []).append((speed, memory))
                print(
                    f"{name}, {precision}, allocator {allocator}: {speed:,.0f} target "
                    f"tokens/s, {memory:,.0f} MiB",
                    file=sys.stderr,
                    flush=True,
                )
                if given.write:
                    write_table(found)
    print_table(found)


if __name__ == "__main__":
    main()
