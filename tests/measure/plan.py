"""Plans beside runs: seconds of a step and memory, as batch/plan.py predicts them and as measured.

    python tests/measure/plan.py                                   # both tables; some ten minutes on two cores
    python tests/measure/plan.py --only large                      # memory of 206 million parameters; needs 20 GiB
    python tests/measure/plan.py --only speed --modes ddp --processes 2 --delays 0,50

Every process has one thread. All sentences have 32 tokens, so that all steps are alike. The rates are those that
batch/plan.py --measure finds, just before. Memory is that of the largest process, of a larger model; there glibc is
told to give back what is freed, since what it would keep depends on the order of sizes.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from string import ascii_lowercase

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from parity import command

from model import ModelConfig
from support.planning.estimate import Plan
from support.planning.footprint import Job
from support.planning.measure import measure

LENGTH, WORDS = 32, [a + b for a in ascii_lowercase for b in ascii_lowercase]
VOCABULARY = 3 + 256 + 26 + len(WORDS)  # marks, bytes, " a", " ab": one token a word
SHAPES = {
    "speed": dict(layers=2, d_model=256, heads=4, d_ff=1024),
    "memory": dict(layers=4, d_model=512, heads=8, d_ff=2048),
    "large": dict(layers=7, d_model=1024, heads=16, d_ff=4096),
}
SENTENCES = {"speed": 32, "memory": 16, "large": 16}
GIVES_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "65536"
}  # has glibc give freed tensors back to the system at once
SMALL = Job(ModelConfig(300, layers=1, d_model=32, d_ff=64), 4, LENGTH, cpu=True)


def write_corpus(folder: Path) -> list[str]:
    """Pairs that all have LENGTH tokens a side, their end mark included; returns the flags that name them."""
    words = random.Random(0)
    for part, pairs in (("train", 1024), ("valid", 8)):
        for side in ("de", "en"):
            text = "".join(
                " ".join(words.choices(WORDS, k=LENGTH - 1)) + "\n" for _ in range(pairs)
            )
            (folder / f"{part}.{side}").write_text(text)
    return ["--data", str(folder)]


def job(what: str, delay: float = 0, recompute: bool = False) -> Job:
    """The job that is planned and run, to learn its speed or its memory; delay in ms."""
    config = ModelConfig(VOCABULARY, **SHAPES[what], max_length=LENGTH)
    return Job(config, SENTENCES[what], LENGTH, "fp32", recompute, delay / 1000, cpu=True)


def run(
    flags: list[str],
    what: str,
    mode: str,
    processes: int,
    steps: int,
    *more: str,
    **settings: str,
) -> tuple[float, float]:
    """Seconds of a step and MiB of the largest process, by train_MODE.py --benchmark; settings: of the environment."""
    shape = [
        text
        for name, value in SHAPES[what].items()
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    line = command(
        mode,
        processes,
        "--benchmark",
        "--steps",
        str(steps),
        "--log-every",
        "1",
        "--precision",
        "fp32",
        *flags,
        *shape,
        "--vocab-size",
        str(VOCABULARY),
        "--max-length",
        str(LENGTH),
        "--batch-size",
        str(SENTENCES[what]),
        *more,
    )
    if mode == "cpu" and processes == 1:
        line = ["taskset", "-c", "0", *line]  # it would have a thread for each core
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | settings,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}:\n{done.stderr[-2000:]}")
    speed, mib = re.search(
        r"([\d,]+) source\+target.* at most ([\d,]+) MiB", done.stdout
    ).groups()
    return job(what).tokens / float(speed.replace(",", "")), float(mib.replace(",", ""))


def compare_speed(
    flags: list[str], modes: list[str], counts: list[int], delays: list[float], steps: int
) -> None:
    """Prints a row for each mode, number of processes and delay."""
    print(
        "| script | processes | delay, ms | step predicted, s | measured, s | off by |\n|"
        + " --- |" * 6
    )
    for processes in counts:
        kind = measure(job("speed"), processes)
        for mode, delay in product(modes, delays):
            predicted = Plan(job("speed", delay), kind, mode, 1, processes, 1).seconds
            seconds, _ = run(flags, "speed", mode, processes, steps, "--delay-ms", str(delay))
            print(
                f"| train_{mode}.py | {processes} | {delay:g} | {predicted:.3f} | {seconds:.3f} | {predicted / seconds - 1:+.0%} |",
                flush=True,
            )


def compare_memory(flags: list[str], modes: list[str], counts: list[int]) -> None:
    """Prints a row for each mode and number of processes: with glibc as it is, too, which keeps what was freed."""
    print(
        "| script | processes | memory predicted, MiB | measured, MiB | off by | with glibc's own settings, MiB |\n|"
        + " --- |" * 6
    )
    kind = measure(SMALL, 1)  # what Python and PyTorch take
    for processes, mode in product(counts, modes):
        predicted = Plan(job("memory"), kind, mode, 1, processes, 1).most / 2**20
        mib, usual = (
            run(flags, "memory", mode, processes, 4, **settings)[1]
            for settings in (GIVES_BACK, {})
        )
        print(
            f"| train_{mode}.py | {processes} | {predicted:,.0f} | {mib:,.0f} | {predicted / mib - 1:+.0%} | {usual:,.0f} |",
            flush=True,
        )


def compare_large(flags: list[str], modes: list[str], counts: list[int]) -> None:
    """Prints a row for each mode and number of processes, with 16 bytes a parameter beside: four numbers in fp32."""
    kind, parameters = measure(SMALL, 1), job("large").parameters
    print(
        f"{parameters / 1e6:.0f} million parameters, {SENTENCES['large']} pairs of {LENGTH} tokens a side in a step.\n"
    )
    print(
        "| script | processes | parameters, gradients, Adam, MiB | with all else, predicted | measured | off by |\n|"
        + " --- |" * 6
    )
    for processes, mode in product(counts, modes):
        for recompute in (False, True) if mode == "fsdp" else (False,):
            share = 16 * parameters / (processes if mode == "fsdp" else 1) / 2**20
            predicted = (
                Plan(job("large", recompute=recompute), kind, mode, 1, processes, 1).most
                / 2**20
            )
            more = ["--recompute"] if recompute else []
            mib = run(flags, "large", mode, processes, 3, *more, **GIVES_BACK)[1]
            print(
                f"| {' '.join([f'train_{mode}.py', *more])} | {processes} | {share:,.0f} | {predicted:,.0f} | {mib:,.0f} | "
                f"{predicted / mib - 1:+.0%} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("speed", "memory", "large"))
    parser.add_argument("--modes", default="cpu,ddp,fsdp")
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--delays", default="0,10,50,100", help="milliseconds")
    parser.add_argument("--steps", type=int, default=24)
    given = parser.parse_args()
    modes, counts = given.modes.split(","), [int(n) for n in given.processes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        flags = write_corpus(Path(folder))
        if given.only == "large":
            compare_large(flags, modes, counts)
        if given.only in (None, "speed"):
            compare_speed(
                flags, modes, counts, [float(ms) for ms in given.delays.split(",")], given.steps
            )
            print()
        if given.only in (None, "memory"):
            compare_memory(flags, modes, counts)


if __name__ == "__main__":
    main()
