"""Shows that every mode computes the same thing: one table of the largest differences.

    python tests/measure/parity.py                       # 64 short runs
    python tests/measure/parity.py --modes tp2,tp4       # train_tp.py with --tensor 2 and 4
    python tests/measure/parity.py --lr 1e-3             # flags are passed on to all runs
    python tests/measure/parity.py --data kinds          # a text classifier
    python tests/measure/parity.py --data fashion-mnist  # an image classifier

Each training script takes 50 steps on a part of the phrasebook, in fp32 without dropout, on 1
to 8 processes with 1 to 4 micro-batches, from the same seed. Each run is compared with
train_cpu.py on one process: train_loss at each step, relative to its value, and every weight
after the last step. The BLEU and chrF of a translator must be equal, as must be the confusion
matrix of a classifier.
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from printed import header, row

ROOT = Path(__file__).parents[2]
RUNS = [  # mode and processes
    *product(("cpu", "ddp", "fsdp"), (1, 2, 3, 4)),
    *(("tp1", procs) for procs in (1, 2, 4, 8)),
    *(("tp2", procs) for procs in (2, 4, 8)),
    *(("tp4", procs) for procs in (4, 8)),
]
STEPS = 50
SCORES = ("valid_bleu", "valid_chrf", "test_bleu", "test_chrf", "confusion")
FLAGS = shlex.split(
    "--layers 2 --d-model 64 --d-ff 128 --vocab-size 1000 "
    "--batch-tokens 1024 --dropout 0 --lr 2e-3 --warmup 1000 "
    "--precision fp32 --log-every 1 --average-checkpoints 1"
)


def write_corpus(folder: Path) -> list[str]:
    """Writes a part of the phrasebook, with few validation sentences; returns its flags."""
    sys.path.insert(0, str(ROOT))
    from support.corpora import phrasebook

    sizes = {"train": 4000, "valid": 40, "test": 40}
    pairs = {part: list(phrasebook.pairs(part))[:size] for part, size in sizes.items()}
    for part in pairs:
        for side, ending in enumerate(("de", "en")):
            lines = "".join(pair[side] + "\n" for pair in pairs[part])
            (folder / f"{part}.{ending}").write_text(lines, encoding="utf-8")
    return ["--data", str(folder)]


def command(mode: str, procs: int, *flags: str, device: str = "cpu") -> list[str]:
    """The command that starts `mode` with so many processes.

    mode: cpu, ddp, fsdp, or tpN: train_tp.py with --tensor N. device: "cpu" or "cuda".
    """
    if mode == "cpu":
        return [sys.executable, str(ROOT / "train_cpu.py"), "--procs", str(procs), *flags]
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node {procs}".split()
    script, *tensor = title(mode).split()
    start = [sys.executable, *torchrun, str(ROOT / script), *tensor]
    return [*start, "--device", device, *flags]


def title(mode: str) -> str:
    """The script of a mode: train_ddp.py of ddp, and train_tp.py --tensor 2 of tp2."""
    script = mode.rstrip("0123456789")
    tensor = mode.removeprefix(script)
    return f"train_{script}.py" + (f" --tensor {tensor}" if tensor else "")


class Result(NamedTuple):
    """What a run has ended with."""

    losses: list[float]  # train_loss of each step
    weights: dict[str, torch.Tensor]  # after the last step
    scores: dict[str, float]  # SCORES of summary.json


def run(folder: Path, mode: str, procs: int, accumulate: int, *flags: str) -> Result:
    """Trains in `folder`."""
    name = f"{mode}-{procs}-{accumulate}"
    how = f"--name {name} --steps {STEPS} --accumulate {accumulate}".split()
    done = subprocess.run(
        command(mode, procs, *how, *FLAGS, *flags),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: exit status {done.returncode}\n{done.stderr}")
    with open(folder / "logs" / name / "metrics.csv", newline="") as file:
        losses = [float(row["train_loss"]) for row in csv.DictReader(file)]
    summary = json.loads((folder / "logs" / name / "summary.json").read_text())
    weights = torch.load(folder / "logs" / name / "last.pt", weights_only=True)["model"]
    scores = {score: summary[score] for score in SCORES if score in summary}
    return Result(losses, weights, scores)


def differences(one: Result, other: Result) -> tuple[float, float]:
    """The largest relative difference of train_loss, and the largest difference of a weight."""
    assert len(one.losses) == len(other.losses) == STEPS
    assert one.weights.keys() == other.weights.keys()
    assert one.scores == other.scores, "the scores differ"
    of_loss = max(abs(a - b) / a for a, b in zip(one.losses, other.losses))
    of_weight = max(
        float((weight - other.weights[name]).abs().max())
        for name, weight in one.weights.items()
    )
    return of_loss, of_weight


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes = ",".join(dict(RUNS))
    parser.add_argument("--modes", default=modes, help=f"separated by commas [{modes}]")
    args, given = parser.parse_known_args()
    runs = [(mode, procs) for mode, procs in RUNS if mode in args.modes.split(",")]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        flags = [*write_corpus(Path(folder)), *given]
        reference = run(Path(tempfile.mkdtemp(dir=folder)), "cpu", 1, 1, *flags)
        losses = reference.losses
        print(f"train_loss falls from {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
        if not reference.scores:
            sys.exit("error: summary.json has no score that SCORES names")
        print(f"scores that must be equal: {', '.join(reference.scores)}", flush=True)
        for (mode, procs), accumulate in product(runs, (1, 2, 4)):
            these = differences(reference, run(Path(folder), mode, procs, accumulate, *flags))
            print(
                f"{title(mode)}, processes {procs}, --accumulate {accumulate}: "
                f"train_loss {these[0]:.1e}, weights {these[1]:.1e}",
                flush=True,
            )
            largest = found.get((mode, procs), these)
            found[mode, procs] = tuple(map(max, these, largest))
    print("\ntrain_loss, relative / weights: the largest of --accumulate 1, 2 and 4\n")
    print(header("script", "1 process", *(f"{n} processes" for n in (2, 3, 4, 8))))
    for mode in dict(runs):
        cells = [
            "{:.0e} / {:.0e}".format(*found[mode, procs]) if (mode, procs) in found else ""
            for procs in (1, 2, 3, 4, 8)
        ]
        print(row(f"`{title(mode)}`", *cells))
    if max(map(max, found.values())) > 1e-4:
        sys.exit("error: more than 1e-4 apart")


if __name__ == "__main__":
    main()
