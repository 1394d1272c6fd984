"""Compares plans with runs: seconds of a step and memory, as predicted and as measured.

    python tests/measure/plan.py                  # both tables; some ten minutes on two cores
    python tests/measure/plan.py --only large     # memory of 207 M parameters; needs 20 GiB
    python tests/measure/plan.py --only speed --modes ddp --processes 2 --delays 0,50

Every process has one thread. All sentences have 32 tokens, so that all steps are alike. The
rates are those that batch/plan.py --measure finds, just before. Memory is that of the largest
process, of a larger model; there glibc is told to give back what is freed, since what it would
keep depends on the order of sizes.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from string import ascii_lowercase

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from parity import command
from printed import header, read_benchmark, row

from model import ModelConfig
from support.planning.estimate import Estimate
from support.planning.footprint import TrainingStep
from support.planning.machines import HARDWARE, Hardware
from support.planning.measure import TINY, measure, take_timings

LENGTH = 32  # tokens of a sentence
WORDS = [a + b for a in ascii_lowercase for b in ascii_lowercase]
VOCABULARY = 3 + 256 + 26 + len(WORDS)  # marks, bytes, " a", " ab": one token a word
SHAPES = {
    "speed": {"layers": 2, "d_model": 256, "heads": 4, "d_ff": 1024},
    "memory": {"layers": 4, "d_model": 512, "heads": 8, "d_ff": 2048},
    "large": {"layers": 7, "d_model": 1024, "heads": 16, "d_ff": 4096},
}
SENTENCES = {"speed": 32, "memory": 16, "large": 16}
MIB = 2**20
# Has glibc give freed tensors back to the system at once.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def write_corpus(folder: Path) -> list[str]:
    """Writes pairs of LENGTH tokens on each side, eos included; returns their flags."""
    generator = random.Random(0)
    for part, pairs in (("train", 1024), ("valid", 8)):
        for side in ("de", "en"):
            lines = [
                " ".join(generator.choices(WORDS, k=LENGTH - 1)) + "\n" for _ in range(pairs)
            ]
            (folder / f"{part}.{side}").write_text("".join(lines))
    return ["--data", str(folder)]


def make_step(name: str, delay_ms: float = 0, recompute: bool = False) -> TrainingStep:
    """Returns the step that is planned and run; name: a key of SHAPES."""
    config = ModelConfig(VOCABULARY, **SHAPES[name], max_length=LENGTH)
    return TrainingStep(
        config, SENTENCES[name], LENGTH, "fp32", recompute, delay_ms / 1000, cpu=True
    )


def shape_flags(shape: dict[str, int]) -> list[str]:
    """Returns a model's shape as flags: --d-model 256 of {"d_model": 256}."""
    flags = []
    for name, value in shape.items():
        flags += [f"--{name.replace('_', '-')}", str(value)]
    return flags


def run(
    name: str,
    mode: str,
    processes: int,
    steps: int,
    flags: list[str],
    environment: dict[str, str] | None = None,
) -> tuple[float, float]:
    """Runs train_MODE.py --benchmark; returns a step's seconds and the largest process's MiB.

    name: a key of SHAPES. flags: more flags of the script. environment: more variables.
    """
    sizes = f"--steps {steps} --vocab-size {VOCABULARY} --max-length {LENGTH}"
    sizes += f" --batch-size {SENTENCES[name]}"
    fixed = "--benchmark --log-every 1 --precision fp32"
    line = command(
        mode, processes, *fixed.split(), *sizes.split(), *shape_flags(SHAPES[name]), *flags
    )
    if mode == "cpu":  # with more cores each process would have more threads
        cores = min(processes, os.cpu_count() or 1)
        line = ["taskset", "-c", f"0-{cores - 1}", *line]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}:\n{done.stderr[-2000:]}")
    found = read_benchmark(done.stdout)
    return make_step(name).tokens / found.speed, found.mib


def off_by(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.0%}"


def base_hardware() -> Hardware:
    """Returns a CPU of which only the memory of Python and PyTorch is measured."""
    return replace(HARDWARE["cpu"], base_memory=take_timings(TINY, 1).base_memory)


def compare_speed(
    flags: list[str], modes: list[str], counts: list[int], delays: list[float], steps: int
) -> None:
    """Prints a row for each mode, number of processes and delay."""
    titles = ["script", "processes", "delay, ms", "step predicted, s", "measured, s", "off by"]
    print(header(*titles), flush=True)
    for processes in counts:
        hardware = measure(make_step("speed"), processes)
        for mode, delay in product(modes, delays):
            step = make_step("speed", delay)
            predicted = Estimate(step, hardware, mode, 1, processes, 1).seconds
            delayed = [*flags, "--delay-ms", str(delay)]
            seconds, _ = run("speed", mode, processes, steps, delayed)
            setup = [f"train_{mode}.py", processes, f"{delay:g}"]
            times = [f"{predicted:.3f}", f"{seconds:.3f}", off_by(predicted, seconds)]
            print(row(*setup, *times), flush=True)


def compare_memory(
    flags: list[str], modes: list[str], counts: list[int], with_glibc: bool
) -> None:
    """Prints a row for each mode and number of processes.

    with_glibc: add a column with glibc's own settings, by which it keeps what was freed.
    """
    titles = ["script", "processes", "memory predicted, MiB", "measured, MiB", "off by"]
    if with_glibc:
        titles.append("with glibc's own settings, MiB")
    print(header(*titles), flush=True)
    hardware = base_hardware()
    for processes, mode in product(counts, modes):
        estimate = Estimate(make_step("memory"), hardware, mode, 1, processes, 1)
        predicted = estimate.peak_memory / MIB
        _, mib = run("memory", mode, processes, 4, flags, GIVE_BACK)
        cells = [
            f"train_{mode}.py",
            processes,
            f"{predicted:,.0f}",
            f"{mib:,.0f}",
            off_by(predicted, mib),
        ]
        if with_glibc:
            _, usual = run("memory", mode, processes, 4, flags)
            cells.append(f"{usual:,.0f}")
        print(row(*cells), flush=True)


def compare_large(flags: list[str], modes: list[str], counts: list[int]) -> None:
    """Prints a row for each mode and number of processes, and with FSDP for --recompute."""
    hardware = base_hardware()
    parameters = make_step("large").parameters
    print(
        f"{parameters / 1e6:.0f} million parameters, {SENTENCES['large']} pairs of {LENGTH} "
        f"tokens on each side in a step.\n"
    )
    titles = ["script", "processes", "parameters, gradients, Adam, MiB"]
    titles += ["with all else, predicted", "measured", "off by"]
    print(header(*titles), flush=True)
    for processes, mode in product(counts, modes):
        for recompute in (False, True) if mode == "fsdp" else (False,):
            estimate = Estimate(
                make_step("large", recompute=recompute), hardware, mode, 1, processes, 1
            )
            predicted = estimate.peak_memory / MIB
            own = sum(estimate.step.units)  # with TP a process has a part of each layer
            state = 16 * own / max(1, estimate.shards) / MIB  # four numbers in fp32
            recompute_flag = ["--recompute"] if recompute else []
            _, mib = run("large", mode, processes, 3, [*flags, *recompute_flag], GIVE_BACK)
            script = " ".join([f"train_{mode}.py", *recompute_flag])
            sizes = [f"{size:,.0f}" for size in (state, predicted, mib)]
            print(row(script, processes, *sizes, off_by(predicted, mib)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("speed", "memory", "large"))
    parser.add_argument("--modes", default="cpu,ddp,fsdp,tp")
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--delays", default="0,10,50,100", help="milliseconds")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--skip-glibc", action="store_true", help="leave out memory with glibc's own settings"
    )
    args = parser.parse_args()
    modes = args.modes.split(",")
    counts = [int(number) for number in args.processes.split(",")]
    delays = [float(number) for number in args.delays.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        flags = write_corpus(Path(folder))
        if args.only == "large":
            compare_large(flags, modes, counts)
        if args.only in (None, "speed"):
            compare_speed(flags, modes, counts, delays, args.steps)
            print()
        if args.only in (None, "memory"):
            compare_memory(flags, modes, counts, not args.skip_glibc)


if __name__ == "__main__":
    main()
