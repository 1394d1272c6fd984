"""What a run says first, and at its end: which weights it keeps, how good, and what it took."""

import csv
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

from support.common import checkpoint
from support.common.files import write_json
from support.common.hardware import device_name, peak_memory
from support.distributed.collectives import all_gather_objects
from support.distributed.weights import load_full_state_dict
from support.training.config_file import MACHINE_FLAGS


def beginning(run) -> str:
    """The data, who computes, and whether the learning rate will reach its peak."""
    args = run.args
    lines = [
        str(run.task),
        f"processes: {run.world_size}, threads of each: "
        f"{torch.get_num_threads()}, {device_name(args.device)}, {args.precision}",
    ]
    if args.warmup > run.last and not (args.saved or args.benchmark):
        lines.append(
            f"warning: {run.last} steps are less than the warm-up's {args.warmup}, so the "
            f"learning rate stays low: --warmup 0 takes a tenth of the run"
        )
    return "\n".join(lines)


def finish(run, model: nn.Module) -> None:
    """Scores the best weights on the test part, and sums up in summary.json. A collective.

    The best are those of best.pt, or the mean of the last evaluations' if its loss on the
    validation part is lower. The highest of many accuracies is partly luck, which the loss has less
    of. `model` is left with them.
    """
    run.say("scoring the best weights")
    task, first = run.task, run.task.figures[0]

    def score(weights: dict | None) -> dict[str, float]:
        load_full_state_dict(model, weights)
        return task.evaluate(model, "valid", run.rank, run.world_size, final=True)

    best = checkpoint.load(run.folder / "best.pt") if run.writes else {"model": None}
    valid = score(best["model"])
    if run.args.average_checkpoints > 1:
        paths = (
            sorted(run.folder.glob("step-[0-9]*.pt"))[-run.args.average_checkpoints :]
            if run.writes
            else []
        )
        mean = checkpoint.average_weights(paths) if paths else best["model"]  # none was kept
        if (found := score(mean))["loss"] < valid["loss"]:
            valid, best = found, {"model": mean}
            if run.writes:
                best = run.content(run.last, mean) | {"averaged": len(paths)}
                checkpoint.save(run.folder / "best.pt", best)
        else:
            load_full_state_dict(model, best["model"])
    if run.writes:
        (run.folder / "best.pt").touch()  # the newest: what translate.py takes
    figures, text = task.report(model, run.rank, run.world_size, run.folder)
    memory = all_gather_objects(peak_memory())
    if not run.writes:
        return
    with open(run.folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    seconds, epochs = time.perf_counter() - run.began, run.progress["epochs"]
    if run.progress["epoch"]["seconds"]:  # the last epoch is not finished
        epochs = [*epochs, of_epoch(run, run.last)]
    median = {
        name: statistics.median([float(row[name]) for row in rows] or [0.0])
        for name in ("tokens_per_second", "mfu")
    }
    path = run.folder / "profile.json"
    profile = {"profile": json.loads(path.read_text())} if path.is_file() else {}
    write_json(
        run.folder / "summary.json",
        {
            "steps": run.last,
            "tokens": run.progress["tokens"],
            "wall_seconds": round(seconds, 1),
            "median_tokens_per_second": median["tokens_per_second"],
            "median_mfu": median["mfu"],
            "best_step": best["step"],
            "averaged_checkpoints": best["averaged"],
            f"valid_{first}": round(valid[first], 4),
            **figures,
            "training_examples": len(task.plan.examples),
            "peak_memory_mib": {
                "largest_process": round(max(memory)),
                "all_processes": round(sum(memory)),
            },
            "epochs": epochs,
        }
        | profile,
    )
    run.say(
        f"\n{text}\n{minutes(seconds)} in all; {run.folder}/ has the log, and in best.pt the "
        f"weights."
    )


def stopped(run, step: int) -> None:
    """Says how a stopped run goes on, with those of its flags that it does not remember."""
    command, flags = "python", ""
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    usual = ("replicas", 1), ("device", "cuda" if torchrun else "cpu")
    for name in sorted(MACHINE_FLAGS - {"profile"}):
        value = getattr(run.args, name, None)
        if value and (name, value) not in usual:
            flags += f" --{name.replace('_', '-')}" + f" {value}" * (value is not True)
    if torchrun:
        command = f"torchrun --standalone --nproc-per-node {run.world_size}"
        if os.environ["GROUP_WORLD_SIZE"] != "1":  # each node has a command of its own
            command = "torchrun ..."
    run.say(
        f"stopped and saved at step {step}; go on with: "
        f"{command} {Path(sys.argv[0]).name} --resume {run.folder}{flags}"
    )


def of_epoch(run, step: int) -> dict:
    """What summary.json says of the epoch that step is in."""
    epoch, latest = run.progress["epoch"], run.progress["evaluated"]
    return {
        "epoch": -(-step // run.task.epoch_steps),
        "step": step,
        "train_loss": epoch["nll"] / epoch["targets"],
        **latest,
        "examples": epoch["examples"],
        "tokens": epoch["tokens"],
        "seconds": round(epoch["seconds"], 2),
        "samples_per_second": round(epoch["examples"] / epoch["seconds"], 1),
        "tokens_per_second": round(epoch["tokens"] / epoch["seconds"]),
        "memory_mib": round(peak_memory()),
    }


def benchmark(run) -> None:
    """Prints how fast the steps were, and how much memory the largest process had. A collective."""
    memory = all_gather_objects(peak_memory())
    if not run.timed:
        return run.say("stopped before there was anything to measure")
    warm = run.timed[len(run.timed) // 4 :]
    speed, mfu = (statistics.median(column) for column in zip(*warm))
    run.say(
        f"{speed:,.0f} {run.task.unit}/s, MFU {mfu:.1%} of {run.peak / 1e9:,.0f} GFLOP/s; "
        f"processes x threads: {run.world_size} x {torch.get_num_threads()}, "
        f"{run.args.precision}; at most {max(memory):,.0f} MiB each"
    )


def minutes(seconds: float) -> str:
    """90 seconds as 1:30."""
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
