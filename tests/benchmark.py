"""Training speed beside what other people would use: same shape, same corpus, in turn, on all cores.

    python tests/benchmark.py --data multi30k --vocab-size 8000 --d-ff 1024 --steps 80
    python tests/benchmark.py --joeynmt PYTHON --marian PYTHON ...

All other flags are those of train_cpu.py. PYTHON is that of an environment with JoeyNMT 2.3 (pip install joeynmt) or
MarianMT (pip install transformers). torch.nn.Transformer is timed with this project's batches, loop and processes, and
by the tutorials' recipe: one process, padded batches of 128 sentences as they come. One-process peers run with and
without this project's settings of glibc's allocator. Prints a table of the means, writes every run to
logs/benchmark/training.csv.
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

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import numpy as np

import train_cpu
from data import BPE, Pairs
from reference import TorchTransformer
from training import model_config, parse_arguments, prepare_corpus

# What `keep_memory` in data.py asks of glibc, for programs that do not ask themselves.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 60), "MALLOC_TOP_PAD_": str(1 << 28)}


def peer_worker(*args) -> None:
    """What each process of train_cpu.py runs with the other model."""
    train_cpu.Transformer = TorchTransformer
    train_cpu.worker(*args)


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


def write_table(found: dict) -> None:
    """Every run so far, as logs/benchmark/training.csv."""
    logs = Path("logs/benchmark")
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / "training.csv", "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["what", "allocator", "round", "target_tokens_per_second", "peak_mib"])
        rows.writerows([name, allocator, n, round(speed), round(memory)]
                       for (name, allocator), values in found.items() for n, (speed, memory) in enumerate(values, 1))


def print_table(found: dict) -> None:
    means = {key: [statistics.mean(column) for column in zip(*values)] for key, values in found.items()}
    best = means["this project", "set"][0]
    print("| | allocator | target tokens/s | MiB of the largest process | this project is faster by |\n|" + " --- |" * 5)
    for (name, allocator), (speed, memory) in means.items():
        print(f"| {name} | {'as it is' if allocator == 'plain' else 'set'} | {speed:,.0f} | {memory:,.0f} | {best / speed:.1f} |")


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    own.add_argument("--joeynmt", metavar="PYTHON")
    own.add_argument("--marian", metavar="PYTHON")
    own.add_argument("--rounds", metavar="N", type=int, default=2)
    own.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    given, flags = own.parse_known_args()
    sys.argv = ["train_cpu.py", "--benchmark", *flags]
    if given.peer:
        train_cpu.worker = peer_worker
        train_cpu.main()
        return
    args = parse_arguments(__doc__, devices=("cpu",), procs=(int, 0, ""))
    corpus = prepare_corpus(args)
    pairs = Pairs(corpus, "train")
    sources, targets = (int(side.sum()) for side in pairs.lengths(np.arange(len(pairs))))
    share = targets / (sources + targets)
    shape = {"model": asdict(model_config(args, BPE((corpus / "bpe.json").read_text(encoding="utf-8")).vocab_size)),
             "steps": args.steps, "batch_tokens": args.batch_tokens}

    here, peers, found = str(Path(__file__)), str(Path(__file__).with_name("peers.py")), {}
    with tempfile.TemporaryDirectory() as folder:
        for side, (ids, offsets) in zip(("src", "tgt"), pairs.sides):
            with open(f"{folder}/train.{side}", "w") as file:
                file.writelines(" ".join(map(str, ids[a:b])) + "\n" for a, b in zip(offsets, offsets[1:]))

        ours = [(name, "set", None, [sys.executable, *command, *flags]) for name, command in (
            ("this project", [str(Path(train_cpu.__file__)), "--benchmark"]),
            ("torch.nn.Transformer, our batches and loop, bf16", [here, "--peer", "--precision", "bf16"]),
            ("torch.nn.Transformer, our batches and loop, fp32", [here, "--peer", "--precision", "fp32"]))]
        others = [(name, allocator, precision, [python, peers, program, folder]) for name, python, program, precision in (
            ("torch.nn.Transformer, the tutorials' recipe, fp32", sys.executable, "tutorial", "fp32"),
            ("MarianMT, fp32", given.marian, "marian", "fp32"),
            ("MarianMT, bf16", given.marian, "marian", "bf16"),
            ("JoeyNMT, fp32", given.joeynmt, "joeynmt", "fp32")) if python for allocator in ("plain", "set")]
        for _ in range(given.rounds):
            for name, allocator, precision, command in [*ours, *others]:
                Path(folder, "shape.json").write_text(json.dumps(shape | {"precision": precision}))
                plain = {key: value for key, value in os.environ.items() if key not in ALLOCATOR}
                said, memory = measure(command, plain if allocator == "plain" else plain | ALLOCATOR)
                if precision is None:
                    speed = share * float(re.search(r"([\d,]+) source\+target tokens/s", said)[1].replace(",", ""))
                elif "joeynmt" in command:
                    speeds = [float(number) for number in re.findall(r"Tokens per Sec:\s+(\d+)", said)]
                    speed = statistics.mean(speeds[len(speeds) // 4 :])
                else:
                    speed = float(re.search(r"([\d.]+) target tokens/s", said)[1])
                found.setdefault((name, allocator), []).append((speed, memory))
                print(f"{name}, allocator {allocator}: {speed:,.0f} target tokens/s, {memory:,.0f} MiB", file=sys.stderr, flush=True)
                write_table(found)
    print_table(found)


if __name__ == "__main__":
    main()
