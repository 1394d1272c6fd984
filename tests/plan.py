"""Plans beside runs: seconds of a step and memory, as batch/plan.py predicts them and as measured.

    python tests/plan.py                                   # both tables; some ten minutes on two cores
    python tests/plan.py --modes ddp --processes 2 --delays 0,50 --steps 12

Every process has one thread. All sentences have 32 tokens, so that all steps are alike. The rates are those that
batch/plan.py --measure finds, just before. Memory is that of the largest process, of a larger model.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from string import ascii_lowercase

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from model import ModelConfig
from parity import command
from support.footprint import Job
from support.planning import Plan
from support.rates import measure

LENGTH, WORDS = 32, [a + b for a in ascii_lowercase for b in ascii_lowercase]
VOCABULARY = 3 + 256 + 26 + len(WORDS)                     # marks, bytes, " a", " ab": one token a word
SHAPES = {"speed": dict(layers=2, d_model=256, heads=4, d_ff=1024), "memory": dict(layers=4, d_model=512, heads=8, d_ff=2048)}
SENTENCES = {"speed": 32, "memory": 16}


def write_corpus(folder: Path) -> list[str]:
    """Pairs that all have LENGTH tokens a side, their end mark included; returns the flags that name them."""
    words = random.Random(0)
    for part, pairs in (("train", 1024), ("valid", 8)):
        for side in ("de", "en"):
            text = "".join(" ".join(words.choices(WORDS, k=LENGTH - 1)) + "\n" for _ in range(pairs))
            (folder / f"{part}.{side}").write_text(text)
    return ["--data", str(folder)]


def job(what: str, delay: float = 0) -> Job:
    """The job that is planned and run, to learn its speed or its memory; delay in ms."""
    config = ModelConfig(VOCABULARY, **SHAPES[what], max_length=LENGTH)
    return Job(config, SENTENCES[what], LENGTH, "fp32", delay=delay / 1000, cpu=True)


def run(flags: list[str], what: str, mode: str, processes: int, steps: int, *more: str) -> tuple[float, float]:
    """Seconds of a step and MiB of the largest process, by train_MODE.py --benchmark."""
    shape = [text for name, value in SHAPES[what].items() for text in (f"--{name.replace('_', '-')}", str(value))]
    line = command(mode, processes, "--benchmark", "--steps", str(steps), "--log-every", "1", "--precision", "fp32", *flags, *shape,
                   "--vocab-size", str(VOCABULARY), "--max-length", str(LENGTH), "--batch-size", str(SENTENCES[what]), *more)
    if mode == "cpu" and processes == 1:
        line = ["taskset", "-c", "0", *line]               # it would have a thread for each core
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}:\n{done.stderr[-2000:]}")
    speed, mib = re.search(r"([\d,]+) source\+target.* at most ([\d,]+) MiB", done.stdout).groups()
    return job(what).tokens / float(speed.replace(",", "")), float(mib.replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="cpu,ddp,fsdp")
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--delays", default="0,10,50,100", help="milliseconds")
    parser.add_argument("--steps", type=int, default=24)
    given = parser.parse_args()
    modes, counts = given.modes.split(","), [int(n) for n in given.processes.split(",")]
    delays = [float(ms) for ms in given.delays.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        flags = write_corpus(Path(folder))
        print("| script | processes | delay, ms | step predicted, s | measured, s | off by |\n|" + " --- |" * 6)
        for processes in counts:
            kind = measure(job("speed"), processes)
            for mode in modes:
                for delay in delays:
                    plan = Plan(job("speed", delay), kind, mode, 1, processes, 1)
                    seconds, _ = run(flags, "speed", mode, processes, given.steps, "--delay-ms", str(delay))
                    print(f"| train_{mode}.py | {processes} | {delay:g} | {plan.seconds:.3f} | {seconds:.3f} "
                          f"| {plan.seconds / seconds - 1:+.0%} |", flush=True)
        print("\n| script | processes | memory predicted, MiB | measured, MiB | off by |\n|" + " --- |" * 5)
        for processes in counts:
            kind = measure(job("memory"), processes)
            for mode in modes:
                plan = Plan(job("memory"), kind, mode, 1, processes, 1)
                _, mib = run(flags, "memory", mode, processes, 4)
                print(f"| train_{mode}.py | {processes} | {plan.most / 2**20:,.0f} | {mib:,.0f} "
                      f"| {plan.most / 2**20 / mib - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
